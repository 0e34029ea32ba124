//! Capture files (pcap, pcapng).

mod read;
#[cfg(test)]
mod tests;
mod write;

use std::path::PathBuf;

pub use read::CaptureReader;
use tollway_linux::sys::why;
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
