//! Routes that every VRF has.

use crate::next_hops::Action;
use crate::prefix::{Prefix, RoutePrefix};
use crate::verdict::DropReason;

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
