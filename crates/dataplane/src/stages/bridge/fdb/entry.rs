//! What the entries of the database are: by which key, and where to.

use crate::id::{Domain, PortId};
use crate::wire::eth::MacWord;

/// Bits of a MAC address.
const MAC_BITS: u32 = 48;

/// The key of an entry: a MAC address in a domain. It is never 0, as no domain is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FdbKey(u64);

impl FdbKey {
    /// The key of an address in a domain.
    #[inline(always)]
    #[must_use]
    pub const fn new(domain: Domain, mac: MacWord) -> Self {
        Self(mac.0 >> (u64::BITS - MAC_BITS) | (domain.get() as u64) << MAC_BITS)
    }

    /// The word in a slot.
    #[inline(always)]
    pub(super) const fn word(self) -> u64 {
        self.0
    }

    /// The address.
    #[must_use]
    pub const fn mac(self) -> [u8; 6] {
        let [a, b, c, d, e, f, ..] = self.0.to_le_bytes();
        [a, b, c, d, e, f]
    }

    /// The number of the domain.
    #[must_use]
    pub const fn domain(self) -> u16 {
        (self.0 >> MAC_BITS) as u16
    }
}

impl std::fmt::Debug for FdbKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [a, b, c, d, e, f] = self.mac();
        write!(formatter, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x} in {}", self.domain())
    }
}

/// What an address is to the bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FdbKind {
    /// That of a host behind the port.
    Host = 0,
    /// The bridge's own: frames for it go up at the bridge's device (`BR_FDB_LOCAL`).
    Local = 1,
    /// That of a host that may not send yet, so it is no valid source (`BR_FDB_LOCKED`, MAC authentication bypass).
    Locked = 2,
    /// That of a host behind the port, as configured: it is not learned, and neither moves nor ages. Only a bridge that
    /// learns by itself has such entries ([`LearningBridges`](crate::stages::bridge::LearningBridges)).
    Static = 3,
}

/// An entry of the database, without its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FdbEntry {
    /// The port to the address.
    pub port: PortId,
    /// What the address is.
    pub kind: FdbKind,
}
