//! An entry for one direction of a connection, and the word that says whether it counts.

use tollway_dataplane::id::LinkId;

use super::query::NO_LINK;
use super::tracks::Track;
use super::translation::Translation;

/// What becomes of the packets of a connection's direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// They are the kernel's. After so many units of 1.05 ms, the program asks again.
    Kernel {
        /// The pause.
        retry: u32,
        /// Why, as a number of whoever writes the table.
        why: u8,
    },
    /// Their addresses are known, but not yet what the rules say: the program has to find the link that they leave by.
    /// Nobody asks about that before so many units of 1.05 ms.
    Unruled {
        /// The pause.
        retry: u32,
    },
    /// They are forwarded if they leave by this link.
    Forwarded(LinkId),
    /// They are dropped by rules if they would leave by this link.
    Dropped(LinkId),
    /// They are forwarded if they leave by this link, and so are packets of TCP that are out of window: rules accept
    /// them. The kernel does not translate these.
    ForwardedInvalid(LinkId),
    /// Rules keep them out of connection tracking: they are forwarded if they leave by this link, whatever the kernel tracks.
    Untracked(LinkId),
}

/// An entry for one direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The generation of [`State`](crate::State) that it was made in, by which it is active.
    pub generation: u32,
    /// What becomes of its packets.
    pub treatment: Treatment,
    /// How they leave.
    pub translation: Translation,
    /// The connection's mark; another one makes the entry end.
    pub mark: u32,
    /// Of TCP that is not the kernel's: the track, and whether the direction is that of replies.
    pub track: Option<(Track, bool)>,
}

/// The part of `kind` in a slot's head.
pub(super) const KERNEL: u8 = 1;
const UNRULED: u8 = 2;
const FORWARDED: u8 = 3;
const DROPPED: u8 = 4;
const FORWARDED_INVALID: u8 = 5;
const UNTRACKED: u8 = 6;

/// A slot's first word behind the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) generation: u32,
    output: u16,
    pub(super) kind: u8,
    pub(super) version: u8,
}

impl Head {
    pub(super) fn of(word: u64) -> Self {
        let [a, b, c, d, e, f, kind, version] = word.to_ne_bytes();
        Self {
            generation: u32::from_ne_bytes([a, b, c, d]),
            output: u16::from_ne_bytes([e, f]),
            kind,
            version,
        }
    }

    pub(super) fn word(self) -> u64 {
        let ([a, b, c, d], [e, f]) = (self.generation.to_ne_bytes(), self.output.to_ne_bytes());
        u64::from_ne_bytes([a, b, c, d, e, f, self.kind, self.version])
    }

    /// The head of an entry that has ended.
    pub(super) const fn ended(self) -> Self {
        Self { generation: 0, ..self }
    }

    /// The head while the slot changes: inactive, with the next version, and never that of an unused slot.
    pub(super) fn closed(self) -> Self {
        let version = self.version.checked_add(1).unwrap_or(1);
        Self { generation: 0, output: 0, kind: 0, version }
    }
}

impl Treatment {
    /// Whether the packets are of no connection: rules keep them out of connection tracking.
    #[must_use]
    pub const fn is_untracked(self) -> bool {
        matches!(self, Self::Untracked(_))
    }

    /// Whether the programs follow the windows of connections of TCP.
    pub(super) const fn has_track(self) -> bool {
        !matches!(self, Self::Kernel { .. } | Self::Untracked(_))
    }

    /// Whether the programs forward the packets.
    #[must_use]
    pub const fn forwards(self) -> bool {
        matches!(self, Self::Forwarded(_) | Self::ForwardedInvalid(_) | Self::Untracked(_))
    }

    /// The link that packets leave by, or would leave by.
    #[must_use]
    pub const fn output(self) -> Option<LinkId> {
        match self {
            Self::Kernel { .. } | Self::Unruled { .. } => None,
            Self::Forwarded(output)
            | Self::Dropped(output)
            | Self::ForwardedInvalid(output)
            | Self::Untracked(output) => Some(output),
        }
    }

    pub(super) fn head(self, generation: u32, version: u8) -> Head {
        let (kind, output) = match self {
            // No program reads the link of such an entry.
            Self::Kernel { why, .. } => (KERNEL, why.into()),
            Self::Unruled { .. } => (UNRULED, NO_LINK),
            Self::Forwarded(output) => (FORWARDED, output.0),
            Self::Dropped(output) => (DROPPED, output.0),
            Self::ForwardedInvalid(output) => (FORWARDED_INVALID, output.0),
            Self::Untracked(output) => (UNTRACKED, output.0),
        };
        Head { generation, output, kind, version }
    }

    pub(super) fn of(head: Head) -> Option<Self> {
        let output = LinkId(head.output);
        Some(match head.kind {
            KERNEL => Self::Kernel { retry: 0, why: head.output as u8 },
            UNRULED => Self::Unruled { retry: 0 },
            FORWARDED => Self::Forwarded(output),
            DROPPED => Self::Dropped(output),
            FORWARDED_INVALID => Self::ForwardedInvalid(output),
            UNTRACKED => Self::Untracked(output),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_what_the_programs_read() {
        for treatment in [
            Treatment::Kernel { retry: 0, why: 7 },
            Treatment::Unruled { retry: 0 },
            Treatment::Forwarded(LinkId(7)),
            Treatment::Dropped(LinkId(65_535)),
            Treatment::ForwardedInvalid(LinkId(1)),
            Treatment::Untracked(LinkId(2)),
        ] {
            let head = treatment.head(0x0102_0304, 9);
            assert_eq!(Head::of(head.word()), head);
            assert_eq!(Treatment::of(head), Some(treatment));
            assert_eq!((head.closed().generation, head.closed().version), (0, 10));
        }
        let last = Head { generation: 1, output: 2, kind: 3, version: 255 };
        assert_eq!(last.closed().version, 1, "a slot that was used never looks unused");
    }
}
