//! Capture files as ports: frames come from a pcap or pcapng file, and leave into another.

mod read;
#[cfg(test)]
mod tests;
mod write;

use std::path::{Path, PathBuf};

use tollway_dataplane::burst::{BURST, Burst};
use tollway_dataplane::counters::Traffic;
use tollway_dataplane::frame::{Descriptor, Umem};
use tollway_dataplane::port::Port;

use super::{Device, push_copy, send_each, why};
pub use read::CaptureReader;
pub use write::CaptureWriter;

/// The link type of Ethernet frames (LINKTYPE_ETHERNET).
const ETHERNET: u32 = 1;

/// An error of a capture file.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// It cannot be opened.
    #[error("the capture {} cannot be opened: {}", .0.display(), why(.1))]
    Open(PathBuf, std::io::Error),
    /// It cannot be created or written.
    #[error("the capture {} cannot be written: {}", .0.display(), why(.1))]
    Write(PathBuf, std::io::Error),
    /// It has no supported format.
    #[error("{} is neither a pcap nor a pcapng capture", .0.display())]
    Format(PathBuf),
    /// Its frames are not Ethernet.
    #[error("{} has frames of link type {found}, not Ethernet", .file.display())]
    LinkType {
        /// The file.
        file: PathBuf,
        /// The name or number of the link type found.
        found: String,
    },
    /// It is truncated or inconsistent; the packets before that were used.
    #[error("{} is damaged at packet {packet}: {reason}", .file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// The number of the unreadable packet, counted from 1.
        packet: u64,
        /// The error at that packet.
        reason: String,
    },
}

impl CaptureError {
    /// The remedy for the user.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            Self::Open(..) => "Name a capture file that this user can read".to_owned(),
            Self::Write(..) => {
                "Name a directory that this user can write to, with space left".to_owned()
            }
            Self::Format(file) => {
                let file = file.display();
                format!(
                    "Convert it with `editcap {file} OUT.pcapng` (unpack it first if compressed)"
                )
            }
            Self::LinkType { file, .. } => {
                let file = file.display();
                format!(
                    "Capture on an Ethernet interface, or if the frames are Ethernet and only \
                     labelled wrong, relabel them with `editcap -T ether {file} OUT.pcap`"
                )
            }
            Self::Damaged { packet, .. } => match packet - 1 {
                0 => "No packet of it was used; capture it again".to_owned(),
                1 => "The packet before it was used; capture it again for the rest".to_owned(),
                used => {
                    format!("The {used} packets before it were used; capture it again for the rest")
                }
            },
        }
    }
}

/// A frame from a capture file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Captured {
    /// The time of its capture, ns since 1970.
    pub time_ns: u64,
    /// The bytes that were captured.
    pub bytes: Vec<u8>,
}

/// A port of capture files. Frames arrive one by one as they are staged (see [`crate::replay`]), or
/// directly from the file as fast as they are read.
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
