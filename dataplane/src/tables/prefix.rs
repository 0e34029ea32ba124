//! Prefixes of both families, and the routes that every VRF has.

use std::net::IpAddr;

use super::Action;
use crate::stages::route::Prefix;
use crate::verdict::DropReason;

/// A prefix with its family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RoutePrefix {
    /// IPv4.
    V4(Prefix),
    /// IPv6.
    V6(Prefix),
}

impl RoutePrefix {
    /// The prefix of `len` bits around an address; host bits are cleared.
    #[must_use]
    pub const fn new(address: IpAddr, len: u8) -> Self {
        match address {
            IpAddr::V4(v4) => Self::V4(Prefix::v4(v4.to_bits(), len)),
            IpAddr::V6(v6) => Self::V6(Prefix::v6(v6.to_bits(), len)),
        }
    }

    /// The prefix that covers every address of a family.
    #[must_use]
    pub const fn all(is_ipv4: bool) -> Self {
        if is_ipv4 { Self::V4(Prefix::v4(0, 0)) } else { Self::V6(Prefix::v6(0, 0)) }
    }

    /// The prefix that covers one address and no other.
    #[must_use]
    pub const fn host(address: IpAddr) -> Self {
        Self::new(address, 128)
    }
}

/// Routes that every VRF has: `ip_route_input_slow` (`net/ipv4/route.c`) for IPv4, RFC 4291 2.5 and 2.7
/// for IPv6. Link-local and multicast destinations go to the slow path, which knows the link; the path
/// never forwards them.
pub(super) fn standing_routes() -> [(RoutePrefix, Action); 8] {
    let invalid = Action::Drop(DropReason::IpInvalidDest);
    let v4 = |address: u32, len| RoutePrefix::V4(Prefix::v4(address, len));
    let v6 = |address: u128, len| RoutePrefix::V6(Prefix::v6(address, len));
    [
        (v4(0, 32), invalid),
        (v4(0x7f00_0000, 8), invalid),
        (v4(0xe000_0000, 4), Action::Local),
        (v4(0xffff_ffff, 32), Action::Local),
        (v6(0, 128), invalid),
        (v6(1, 128), invalid),
        (v6(0xfe80 << 112, 10), Action::Local),
        (v6(0xff00 << 112, 8), Action::Local),
    ]
}
