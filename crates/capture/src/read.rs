//! Reads pcap (micro- or nanoseconds, either byte order) and pcapng.
//!
//! The crate reads pcap records. This module handles what it leaves to the caller: units, lengths
//! beyond the snapshot length, frame check sequences. It reads pcapng without the crate, because
//! version 2.0 takes every timestamp for nanoseconds. It also refuses files whose options have no
//! end mark, which the format allows.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pcap_file::pcap::{PcapReader, RawPcapPacket};
use pcap_file::{DataLink, PcapError, TsResolution};

use super::{CaptureError, Captured, ETHERNET};

const NS_PER_S: u64 = 1_000_000_000;
/// Later times, after the year 2262, are clamped to this one, so that a clock that starts there can
/// advance.
const LATEST_NS: u64 = i64::MAX as u64;

/// A capture file, read frame by frame.
pub struct CaptureReader {
    file: PathBuf,
    format: Format,
    packets: u64,
    /// The result of the first read at opening, until it is taken.
    first: Option<Result<Option<Captured>, CaptureError>>,
    bytes_read: Arc<AtomicU64>,
    size: u64,
}

enum Format {
    Empty,
    Pcap { reader: Box<PcapReader<Source>>, fcs: usize },
    PcapNg { blocks: Blocks, interfaces: Vec<Interface> },
}

type Source = BufReader<Counting>;

/// Counts the bytes read, for the progress bar.
struct Counting {
    file: File,
    bytes_read: Arc<AtomicU64>,
}

impl Read for Counting {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.bytes_read.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

/// Why a record could not be read.
enum Fault {
    LinkType(u32),
    Reason(String),
}

impl From<PcapError> for Fault {
    fn from(error: PcapError) -> Self {
        Self::Reason(match error {
            PcapError::IncompleteBuffer => "the file ends within it".to_owned(),
            PcapError::IoError(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                "the file ends within it".to_owned()
            }
            PcapError::IoError(error) => format!("it cannot be read: {error}"),
            other => other.to_string().to_lowercase(),
        })
    }
}

impl From<&str> for Fault {
    fn from(reason: &str) -> Self {
        Self::Reason(reason.to_owned())
    }
}

impl CaptureReader {
    /// Opens a capture file.
    ///
    /// # Errors
    /// It cannot be opened, is no capture, or has frames of another link type than Ethernet.
    pub fn open(path: &Path) -> Result<Self, CaptureError> {
        let failed = |error| CaptureError::Open(path.to_owned(), error);
        let file = File::open(path).map_err(failed)?;
        let size = file.metadata().map_err(failed)?.len();
        let bytes_read = Arc::new(AtomicU64::new(0));
        let counting = Counting { file, bytes_read: Arc::clone(&bytes_read) };
        let mut source = BufReader::with_capacity(1 << 16, counting);
        let magic = source.fill_buf().map_err(failed)?.first_chunk::<4>().copied();
        let is_empty = source.buffer().is_empty();
        let (file, format) = (path.to_owned(), Format::Empty);
        let mut this = Self { file, format, packets: 0, first: None, bytes_read, size };
        let format = match magic {
            None if is_empty => Ok(Format::Empty),
            Some([0x0a, 0x0d, 0x0d, 0x0a]) => Ok(open_pcapng(source)),
            Some(
                [0xa1, 0xb2, 0xc3, 0xd4]
                | [0xa1, 0xb2, 0x3c, 0x4d]
                | [0xd4, 0xc3, 0xb2, 0xa1]
                | [0x4d, 0x3c, 0xb2, 0xa1],
            ) => open_pcap(source),
            _ => return Err(CaptureError::Format(this.file)),
        };
        this.format = format.map_err(|fault| this.explain(fault))?;
        // In pcapng, only the frames show the link type.
        match this.next_frame() {
            Err(error @ CaptureError::LinkType { .. }) => return Err(error),
            first => this.first = Some(first),
        }
        Ok(this)
    }

    /// The next frame; `None` at the end, and after an error.
    ///
    /// # Errors
    /// The file is damaged, or continues with frames of another link type.
    pub fn next_frame(&mut self) -> Result<Option<Captured>, CaptureError> {
        if let Some(first) = self.first.take() {
            return first;
        }
        let next = match &mut self.format {
            Format::Empty => Ok(None),
            Format::Pcap { reader, fcs } => next_pcap(reader, *fcs),
            Format::PcapNg { blocks, interfaces } => next_pcapng(blocks, interfaces),
        };
        match next {
            Ok(frame) => {
                self.packets += u64::from(frame.is_some());
                Ok(frame)
            }
            Err(fault) => {
                self.format = Format::Empty;
                Err(self.explain(fault))
            }
        }
    }

    /// The size of the file in bytes, and a counter of the bytes read so far.
    #[must_use]
    pub fn progress(&self) -> (u64, Arc<AtomicU64>) {
        (self.size, Arc::clone(&self.bytes_read))
    }

    fn explain(&self, fault: Fault) -> CaptureError {
        let file = self.file.clone();
        match fault {
            Fault::LinkType(found) => CaptureError::LinkType { file, found: link_type_name(found) },
            Fault::Reason(reason) => {
                CaptureError::Damaged { file, packet: self.packets + 1, reason }
            }
        }
    }
}

/// tcpdump's name for a link type, or its number.
fn link_type_name(number: u32) -> String {
    match DataLink::from(number) {
        DataLink::Unknown(number) => format!("{number}"),
        known => format!("{known:?} ({number})"),
    }
}

fn open_pcap(source: Source) -> Result<Format, Fault> {
    let reader = PcapReader::new(source)?;
    // The upper bits are flags: whether frames end with a check sequence, and its length in 16-bit
    // words.
    let field = u32::from(reader.header().datalink);
    let (link_type, has_fcs, words) = (field & 0x03ff_ffff, field & 0x0400_0000, field >> 28);
    if link_type != ETHERNET {
        return Err(Fault::LinkType(link_type));
    }
    let fcs = if has_fcs == 0 { 0 } else { words as usize * 2 };
    Ok(Format::Pcap { reader: Box::new(reader), fcs })
}

fn next_pcap(reader: &mut PcapReader<Source>, fcs: usize) -> Result<Option<Captured>, Fault> {
    let unit_ns = match reader.header().ts_resolution {
        TsResolution::MicroSecond => 1000,
        TsResolution::NanoSecond => 1,
    };
    let Some(packet) = reader.next_raw_packet() else { return Ok(None) };
    let RawPcapPacket { ts_sec, ts_frac, incl_len, orig_len, data } = packet?;
    let whole = strip_fcs(&data, incl_len, orig_len, fcs);
    // Some programs write fractions of a second or more; the time is the sum.
    let time_ns = u64::from(ts_sec) * NS_PER_S + u64::from(ts_frac) * unit_ns;
    Ok(Some(Captured { time_ns, bytes: whole.to_vec() }))
}

/// The frame without its check sequence, as far as it was captured.
fn strip_fcs(data: &[u8], captured: u32, original: u32, fcs: usize) -> &[u8] {
    let missing = original.saturating_sub(captured) as usize;
    &data[..data.len().saturating_sub(fcs.saturating_sub(missing))]
}

/// The properties of an interface in a pcapng section.
struct Interface {
    link_type: u32,
    snaplen: u32,
    /// Timestamp units per second.
    units: u64,
    offset_s: i64,
    fcs: usize,
}

/// Block types (draft-ietf-opsawg-pcapng, 10.1).
mod block {
    pub const SECTION: u32 = 0x0a0d_0d0a;
    pub const INTERFACE: u32 = 1;
    pub const PACKET: u32 = 2;
    pub const SIMPLE: u32 = 3;
    pub const ENHANCED: u32 = 6;
}

fn open_pcapng(source: Source) -> Format {
    let blocks = Blocks { source, little: true, body: Vec::new() };
    Format::PcapNg { blocks, interfaces: Vec::new() }
}

/// A pcapng file, read block by block.
struct Blocks {
    source: Source,
    /// The section's byte order.
    little: bool,
    body: Vec<u8>,
}

/// The length of the shortest block, and a length that no sound block exceeds, in bytes.
const BLOCK_LENGTHS: std::ops::RangeInclusive<u32> = 12..=1 << 24;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;

impl Blocks {
    /// The type of the next block, whose body is then in [`Blocks::body`]; `None` at the end.
    fn next(&mut self) -> Result<Option<u32>, Fault> {
        if self.source.fill_buf().map_err(PcapError::IoError)?.is_empty() {
            return Ok(None);
        }
        let mut head = [0; 12];
        self.source.read_exact(&mut head).map_err(PcapError::IoError)?;
        let mut fields = Fields { body: &head, little: self.little };
        let kind = fields.u32(0)?;
        if kind == block::SECTION {
            // The byte order may change here; the block type reads the same in both.
            fields.little = true;
            fields.little = fields.u32(8)? == BYTE_ORDER_MAGIC;
            if fields.u32(8)? != BYTE_ORDER_MAGIC {
                return Err("its section has no byte order".into());
            }
            self.little = fields.little;
        }
        let len = fields.u32(4)?;
        if !BLOCK_LENGTHS.contains(&len) || !len.is_multiple_of(4) {
            return Err(Fault::Reason(format!("its block cannot have {len} bytes")));
        }
        self.body.clear();
        self.body.extend_from_slice(&head[8..]);
        self.body.resize(len as usize - 8, 0);
        self.source.read_exact(&mut self.body[4..]).map_err(PcapError::IoError)?;
        let end = len as usize - 12;
        if (Fields { body: &self.body, little: self.little }).u32(end)? != len {
            return Err("its block has two different lengths".into());
        }
        self.body.truncate(end);
        Ok(Some(kind))
    }
}

fn next_pcapng(
    blocks: &mut Blocks,
    interfaces: &mut Vec<Interface>,
) -> Result<Option<Captured>, Fault> {
    while let Some(kind) = blocks.next()? {
        let fields = Fields { body: &blocks.body, little: blocks.little };
        match kind {
            block::SECTION => interfaces.clear(),
            block::INTERFACE => interfaces.push(interface(fields)?),
            block::ENHANCED | block::PACKET => {
                // The older block type has a drop count in the upper half.
                let id =
                    if kind == block::PACKET { fields.u16(0)?.into() } else { fields.u32(0)? };
                let units = u64::from(fields.u32(4)?) << 32 | u64::from(fields.u32(8)?);
                return frame(interfaces, id as usize, units, fields).map(Some);
            }
            block::SIMPLE => return simple(interfaces, fields).map(Some),
            // Names, statistics and future block types.
            _ => {}
        }
    }
    Ok(None)
}

/// The fields of a block, in the section's byte order.
#[derive(Clone, Copy)]
struct Fields<'a> {
    body: &'a [u8],
    little: bool,
}

impl Fields<'_> {
    fn u16(self, at: usize) -> Result<u16, Fault> {
        let bytes = self.body.get(at..).and_then(<[u8]>::first_chunk);
        let bytes = *bytes.ok_or("its block is too short")?;
        Ok(if self.little { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) })
    }

    fn u32(self, at: usize) -> Result<u32, Fault> {
        let bytes = self.body.get(at..).and_then(<[u8]>::first_chunk);
        let bytes = *bytes.ok_or("its block is too short")?;
        Ok(if self.little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) })
    }
}

fn interface(fields: Fields<'_>) -> Result<Interface, Fault> {
    let link_type = u32::from(fields.u16(0)?);
    let snaplen = fields.u32(4)?;
    let mut known = Interface { link_type, snaplen, units: 1_000_000, offset_s: 0, fcs: 0 };
    let mut at = 8;
    // Options: code, length, value padded to 4 bytes. A malformed option ends the list, not the
    // file.
    while let (Ok(code), Ok(len)) = (fields.u16(at), fields.u16(at + 2)) {
        let value = fields.body.get(at + 4..at + 4 + usize::from(len)).unwrap_or_default();
        match (code, value) {
            (0, _) => break,
            (9, [exponent]) => known.units = units(*exponent),
            (13, [bytes]) => known.fcs = usize::from(*bytes),
            (14, value) => {
                let bytes = value.first_chunk::<8>().copied().unwrap_or_default();
                let little = fields.little;
                known.offset_s =
                    if little { i64::from_le_bytes(bytes) } else { i64::from_be_bytes(bytes) };
            }
            _ => {}
        }
        at += 4 + usize::from(len).next_multiple_of(4);
    }
    Ok(known)
}

/// Units per second of an `if_tsresol`: a power of ten, or of two if the top bit is set.
/// Resolutions beyond 64 bits per second are clamped to the finest.
fn units(resolution: u8) -> u64 {
    let exponent = u32::from(resolution & 0x7f);
    let base: u64 = if resolution & 0x80 == 0 { 10 } else { 2 };
    base.checked_pow(exponent).unwrap_or(u64::MAX)
}

fn simple(interfaces: &[Interface], fields: Fields<'_>) -> Result<Captured, Fault> {
    let interface = interfaces.first().ok_or("it names an interface that is not described")?;
    let original = fields.u32(0)?;
    let limit = if interface.snaplen == 0 { u32::MAX } else { interface.snaplen };
    let captured = original.min(limit);
    whole(interface, 0, fields.body.get(4..).unwrap_or_default(), captured, original)
}

/// The frame of a packet block.
fn frame(
    interfaces: &[Interface],
    id: usize,
    units: u64,
    fields: Fields<'_>,
) -> Result<Captured, Fault> {
    let interface = interfaces.get(id).ok_or("it names an interface that is not described")?;
    let (captured, original) = (fields.u32(12)?, fields.u32(16)?);
    whole(interface, units, fields.body.get(20..).unwrap_or_default(), captured, original)
}

fn whole(
    interface: &Interface,
    units: u64,
    data: &[u8],
    captured: u32,
    original: u32,
) -> Result<Captured, Fault> {
    if interface.link_type != ETHERNET {
        return Err(Fault::LinkType(interface.link_type));
    }
    let data = data.get(..captured as usize).ok_or("it is longer than its block")?;
    let data = strip_fcs(data, captured, original, interface.fcs);
    let ns = u128::from(units) * u128::from(NS_PER_S) / u128::from(interface.units);
    let ns = i128::try_from(ns).unwrap_or(i128::MAX);
    let ns = ns.saturating_add(i128::from(interface.offset_s) * i128::from(NS_PER_S));
    let time_ns = u64::try_from(ns.max(0)).unwrap_or(LATEST_NS).min(LATEST_NS);
    Ok(Captured { time_ns, bytes: data.to_vec() })
}
