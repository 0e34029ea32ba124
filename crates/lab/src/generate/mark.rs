//! The mark in the generator's frames, by which a sink recognizes them.
//!
//! A mark has 18 bytes after the UDP header, big-endian, so that it fits into the shortest Ethernet
//! frame:
//!
//! - 2 of magic;
//! - 1 with the run;
//! - 1 with the stream;
//! - 6 with the sequence number within the stream;
//! - 8 with the send time in ns of the monotonic clock.
//!
//! `bpf/mark.h` has the same format.

/// A first word that other traffic is unlikely to have.
pub const MAGIC: u16 = 0x7011;
/// Bytes of a mark.
pub const LEN: usize = 18;
/// The most streams (threads) of a run.
pub const STREAMS: usize = 16;
/// The largest sequence number.
pub const MAX_SEQ: u64 = (1 << 48) - 1;

/// A decoded mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The run, so that frames of an earlier run do not count for this one.
    pub run: u8,
    /// The stream. Each has its own sequence numbers, from 0.
    pub stream: u8,
    /// The sequence number, 48 bits.
    pub seq: u64,
    /// When the frame, or its burst, was sent: ns.
    pub sent_ns: u64,
}

/// The eight bytes after the magic, without a sequence number.
#[must_use]
pub fn origin(run: u8, stream: u8) -> u64 {
    u64::from(run) << 56 | u64::from(stream) << 48
}

impl Mark {
    /// Parses the bytes after a UDP header; `None` if they are no mark.
    #[must_use]
    pub fn read(payload: &[u8]) -> Option<Self> {
        let bytes: &[u8; LEN] = payload.first_chunk()?;
        let word = |at: usize| {
            bytes[at..].first_chunk::<8>().map_or(0, |bytes| u64::from_be_bytes(*bytes))
        };
        let (id, sent_ns) = (word(2), word(10));
        let known = bytes[..2] == MAGIC.to_be_bytes();
        known.then_some(Self {
            run: (id >> 56) as u8,
            stream: (id >> 48) as u8,
            seq: id & MAX_SEQ,
            sent_ns,
        })
    }

    /// The mark as bytes.
    #[must_use]
    pub fn bytes(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[..2].copy_from_slice(&MAGIC.to_be_bytes());
        let id = origin(self.run, self.stream) | self.seq & MAX_SEQ;
        bytes[2..10].copy_from_slice(&id.to_be_bytes());
        bytes[10..].copy_from_slice(&self.sent_ns.to_be_bytes());
        bytes
    }
}

/// The mark of an Ethernet frame with up to two tags, IPv4 without fragments or IPv6 without
/// extensions, and UDP.
#[must_use]
pub fn of_frame(frame: &[u8]) -> Option<Mark> {
    let two = |at: usize| frame.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes));
    let mut at = 12;
    for _ in 0..2 {
        if matches!(two(at)?, 0x8100 | 0x88a8) {
            at += 4;
        }
    }
    let udp = match two(at)? {
        0x0800 => {
            let (first, protocol) = (*frame.get(at + 2)?, *frame.get(at + 11)?);
            let whole = two(at + 8)? & 0x3fff == 0;
            (protocol == 17 && whole).then_some(at + 2 + usize::from(first & 15) * 4)?
        }
        0x86dd => (*frame.get(at + 8)? == 17).then_some(at + 42)?,
        _ => return None,
    };
    Mark::read(frame.get(udp + 8..)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn what_is_written_is_read(run: u8, stream: u8, seq in 0..=MAX_SEQ, sent_ns: u64) {
            let mark = Mark { run, stream, seq, sent_ns };
            proptest::prop_assert_eq!(Mark::read(&mark.bytes()), Some(mark));
            proptest::prop_assert_eq!(Mark::read(&mark.bytes()[..LEN - 1]), None);
        }

        #[test]
        fn any_bytes_are_parsed(frame: Vec<u8>) {
            let _ = of_frame(&frame);
        }
    }

    #[test]
    fn another_magic_is_no_mark() {
        let mut bytes = Mark { run: 1, stream: 2, seq: 3, sent_ns: 4 }.bytes();
        bytes[1] ^= 1;
        assert_eq!(Mark::read(&bytes), None);
    }
}
