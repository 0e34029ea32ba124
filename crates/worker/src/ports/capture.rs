//! Capture files as ports: frames come from a pcap or pcapng file, and leave into another.

use std::path::Path;

use tollway_dataplane::burst::{BURST, Burst};
use tollway_dataplane::counters::Traffic;
use tollway_dataplane::frame::{Descriptor, Umem};
use tollway_dataplane::port::Port;

use super::{Device, push_copy, send_each};
use tollway_capture::{CaptureError, CaptureReader, CaptureWriter, Captured};

/// A port of capture files. Frames arrive one by one as the caller stages them (`tollway replay`),
/// or directly from the file as fast as the port reads them.
#[derive(Default)]
pub struct CapturePort {
    input: Option<CaptureReader>,
    staged: Option<Captured>,
    output: Option<CaptureWriter>,
    /// The time for written frames, ns since 1970; `None` for the wall clock.
    now_ns: Option<u64>,
    oversized: Traffic,
    error: Option<CaptureError>,
}

impl CapturePort {
    /// Opens a port that reads one file and writes another; either may be absent.
    ///
    /// # Errors
    /// A file cannot be opened or is not an Ethernet capture.
    pub fn open(input: Option<&Path>, output: Option<&Path>) -> Result<Self, CaptureError> {
        let input = input.map(CaptureReader::open).transpose()?;
        let output = output.map(CaptureWriter::create).transpose()?;
        Ok(Self { input, output, ..Self::default() })
    }

    /// Offers one frame to receive; replaces one that was not taken.
    pub fn stage(&mut self, frame: Captured) {
        self.staged = Some(frame);
    }

    /// Whether the staged frame still waits to be received.
    #[must_use]
    pub fn is_staged(&self) -> bool {
        self.staged.is_some()
    }

    /// Sets the time of frames written from now on, ns since 1970.
    pub fn set_now(&mut self, now_ns: u64) {
        self.now_ns = Some(now_ns);
    }

    fn next_frame(&mut self) -> Option<Captured> {
        if let Some(staged) = self.staged.take() {
            return Some(staged);
        }
        match self.input.as_mut()?.next_frame() {
            Ok(Some(frame)) => return Some(frame),
            Ok(None) => {}
            Err(error) => {
                tracing::error!("{error}. {}.", error.remedy());
                self.error = Some(error);
            }
        }
        self.input = None;
        None
    }
}

impl Port for CapturePort {
    fn receive(&mut self, umem: &mut Umem, burst: &mut Burst) {
        while burst.count < BURST {
            let Some(frame) = self.next_frame() else { return };
            let len = frame.bytes.len();
            if len > umem.limit().min(usize::from(u16::MAX)) {
                self.oversized.add(1, len as u64);
            } else if !push_copy(umem, burst, &frame.bytes) {
                self.staged = Some(frame);
                return;
            }
        }
    }

    fn transmit(&mut self, umem: &mut Umem, frames: &[Descriptor]) -> usize {
        let now_ns = self.now_ns.unwrap_or_else(wall_clock);
        let Some(output) = &mut self.output else {
            // Without an output file, frames are lost as on a cable without an end.
            return send_each(umem, frames, |_| true);
        };
        let error = &mut self.error;
        send_each(umem, frames, |frame| match output.write(now_ns, frame) {
            Ok(()) => true,
            Err(found) => {
                error.get_or_insert(found);
                false
            }
        })
    }

    fn oversized(&mut self) -> Traffic {
        std::mem::take(&mut self.oversized)
    }
}

impl Device for CapturePort {
    fn how(&self) -> String {
        "capture files".to_owned()
    }

    fn finish(&mut self) -> Result<(), CaptureError> {
        let flushed = self.output.take().map_or(Ok(()), CaptureWriter::finish);
        self.error.take().map_or(flushed, Err)
    }
}

fn wall_clock() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}
