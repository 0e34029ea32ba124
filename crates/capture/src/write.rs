//! Writes captures of nanosecond resolution: pcapng if the file name ends so, else pcap.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use pcap_file::pcap::{PcapHeader, PcapWriter, RawPcapPacket};
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::{DataLink, Endianness, PcapError, TsResolution};

use super::CaptureError;

/// The longest frame that a file may declare (tcpdump's MAXIMUM_SNAPLEN).
const SNAPLEN: u32 = 262_144;
/// `if_tsresol` of nanoseconds.
const NANOSECONDS: u8 = 9;

/// A capture file, written frame by frame.
pub struct CaptureWriter {
    file: PathBuf,
    format: Format,
}

enum Format {
    Pcap(PcapWriter<BufWriter<File>>),
    PcapNg(Box<PcapNgWriter<BufWriter<File>>>),
}

impl CaptureWriter {
    /// Creates the file, replacing one of that name.
    ///
    /// # Errors
    /// It cannot be created.
    pub fn create(path: &Path) -> Result<Self, CaptureError> {
        let file = path.to_owned();
        match Format::create(path) {
            Ok(format) => Ok(Self { file, format }),
            Err(error) => Err(CaptureError::Write(file, cause(error))),
        }
    }

    /// Writes a frame.
    ///
    /// # Errors
    /// The disk is full, or the file is gone.
    pub fn write(&mut self, time_ns: u64, frame: &[u8]) -> Result<(), CaptureError> {
        self.write_head(time_ns, frame, frame.len() as u32)
    }

    /// Writes the beginning of a frame of `len` bytes.
    ///
    /// # Errors
    /// As [`CaptureWriter::write`].
    pub fn write_head(&mut self, time_ns: u64, head: &[u8], len: u32) -> Result<(), CaptureError> {
        let written = self.format.write(time_ns, head, len);
        written.map_err(|error| CaptureError::Write(self.file.clone(), cause(error)))
    }

    /// Writes what is still buffered.
    ///
    /// # Errors
    /// As [`CaptureWriter::write`].
    pub fn finish(self) -> Result<(), CaptureError> {
        let mut writer = match self.format {
            Format::Pcap(writer) => writer.into_writer(),
            Format::PcapNg(writer) => writer.into_inner(),
        };
        writer.flush().map_err(|error| CaptureError::Write(self.file, error))
    }
}

impl Format {
    fn create(path: &Path) -> Result<Self, PcapError> {
        let file =
            BufWriter::with_capacity(1 << 16, File::create(path).map_err(PcapError::IoError)?);
        if !path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("pcapng")) {
            let header = PcapHeader {
                snaplen: SNAPLEN,
                datalink: DataLink::ETHERNET,
                ts_resolution: TsResolution::NanoSecond,
                endianness: Endianness::native(),
                ..PcapHeader::default()
            };
            return Ok(Self::Pcap(PcapWriter::with_header(file, header)?));
        }
        let mut writer = PcapNgWriter::new(file)?;
        writer.write_pcapng_block(InterfaceDescriptionBlock {
            linktype: DataLink::ETHERNET,
            snaplen: SNAPLEN,
            options: vec![InterfaceDescriptionOption::IfTsResol(NANOSECONDS)],
        })?;
        Ok(Self::PcapNg(Box::new(writer)))
    }

    fn write(&mut self, time_ns: u64, head: &[u8], len: u32) -> Result<(), PcapError> {
        match self {
            Self::Pcap(writer) => {
                let time = Duration::from_nanos(time_ns);
                writer.write_raw_packet(&RawPcapPacket {
                    // The format ends in 2106.
                    ts_sec: u32::try_from(time.as_secs()).unwrap_or(u32::MAX),
                    ts_frac: time.subsec_nanos(),
                    incl_len: head.len() as u32,
                    orig_len: len,
                    data: Cow::Borrowed(head),
                })?;
            }
            Self::PcapNg(writer) => {
                writer.write_pcapng_block(EnhancedPacketBlock {
                    interface_id: 0,
                    timestamp: Duration::from_nanos(time_ns),
                    original_len: len,
                    data: Cow::Borrowed(head),
                    options: Vec::new(),
                })?;
            }
        }
        Ok(())
    }
}

fn cause(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(error) => error,
        other => io::Error::other(other.to_string()),
    }
}
