//! What the kernel notes of a connection.

use std::fmt;

/// The bits that describe a connection (`enum ip_conntrack_status`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Status(pub u32);

/// Each bit with the kernel's name.
const NAMES: [&str; 16] = [
    "EXPECTED",
    "SEEN_REPLY",
    "ASSURED",
    "CONFIRMED",
    "SRC_NAT",
    "DST_NAT",
    "SEQ_ADJUST",
    "SRC_NAT_DONE",
    "DST_NAT_DONE",
    "DYING",
    "FIXED_TIMEOUT",
    "TEMPLATE",
    "NAT_CLASH",
    "HELPER",
    "OFFLOAD",
    "HW_OFFLOAD",
];

impl Status {
    const fn has(self, bit: u32) -> bool {
        self.0 & (1 << bit) != 0
    }

    /// Whether another connection announced this one (`ct state related`).
    #[must_use]
    pub const fn is_expected(self) -> bool {
        self.has(0)
    }

    /// Whether packets were seen both ways.
    #[must_use]
    pub const fn has_seen_reply(self) -> bool {
        self.has(1)
    }

    /// Whether a full table does not evict the connection early.
    #[must_use]
    pub const fn is_assured(self) -> bool {
        self.has(2)
    }

    /// Whether the connection is in the table: its first packet has passed all hooks.
    #[must_use]
    pub const fn is_confirmed(self) -> bool {
        self.has(3)
    }

    /// Whether NAT changes the source of the original direction.
    #[must_use]
    pub const fn has_source_nat(self) -> bool {
        self.has(4)
    }

    /// Whether NAT changes the destination of the original direction.
    #[must_use]
    pub const fn has_destination_nat(self) -> bool {
        self.has(5)
    }

    /// Whether the kernel shifts TCP sequence numbers.
    #[must_use]
    pub const fn has_seq_adjust(self) -> bool {
        self.has(6)
    }

    /// Whether the kernel has decided about the NAT of the source, if only that there is none.
    #[must_use]
    pub const fn is_source_nat_done(self) -> bool {
        self.has(7)
    }

    /// Whether the kernel has decided about the NAT of the destination, if only that there is none.
    #[must_use]
    pub const fn is_destination_nat_done(self) -> bool {
        self.has(8)
    }

    /// Whether the connection is being removed from the table.
    #[must_use]
    pub const fn is_dying(self) -> bool {
        self.has(9)
    }

    /// Whether packets do not prolong the connection.
    #[must_use]
    pub const fn has_fixed_timeout(self) -> bool {
        self.has(10)
    }

    /// Whether this is a rule's pattern for connections to come.
    #[must_use]
    pub const fn is_template(self) -> bool {
        self.has(11)
    }

    /// Whether the entry holds the reply of a packet that lost a race to another entry of the same original
    /// tuple. Headers call the bit `IPS_UNTRACKED`, its meaning before Linux 4.12.
    #[must_use]
    pub const fn is_nat_clash(self) -> bool {
        self.has(12)
    }

    /// Whether a rule or a user has attached a helper.
    #[must_use]
    pub const fn has_helper(self) -> bool {
        self.has(13)
    }

    /// Whether a flowtable of the kernel has the connection.
    #[must_use]
    pub const fn is_offloaded(self) -> bool {
        self.has(14)
    }

    /// Whether a device has the connection, by a flowtable.
    #[must_use]
    pub const fn is_hardware_offloaded(self) -> bool {
        self.has(15)
    }

    /// The names of the bits, in the kernel's order.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        NAMES.into_iter().zip(0..).filter(move |(_, bit)| self.has(*bit)).map(|(name, _)| name)
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Status({:#x}", self.0)?;
        self.names().try_for_each(|name| write!(f, " {name}"))?;
        f.write_str(")")
    }
}
