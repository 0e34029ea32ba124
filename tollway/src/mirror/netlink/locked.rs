//! IPv4 exceptions whose MTU is locked: the kernel's list (`fib_dump_info_fnhe` in `net/ipv4/route.c`), and
//! what it says of one destination (`inet_rtm_getroute`).

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use netlink_sys::protocols::NETLINK_ROUTE;

use super::message::{self, is};
use super::route;
use crate::mirror::kernel::Ifindex;
use crate::netlink::Asker;

/// Destinations, and how long the exception holds.
pub(in crate::mirror) type Locked = Vec<(Ipv4Addr, Duration)>;

/// Has the kernel list its exceptions; those whose MTU is locked. Waits for it: 100 ms with a million routes.
///
/// # Errors
/// The kernel can not be asked.
pub(in crate::mirror) fn list_locked() -> io::Result<Locked> {
    let mut asker = Asker::open(NETLINK_ROUTE)?;
    // Else it would list the routes as well.
    asker.ask_strictly();
    asker.list(is::GET_ROUTE, &message::exceptions_body(), |_, body| match route::locked(body) {
        Some((IpAddr::V4(to), left)) => Some((to, left)),
        _ => None,
    })
}

/// A packet of the host's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::mirror) struct Flow {
    pub(in crate::mirror) src: Option<Ipv4Addr>,
    pub(in crate::mirror) dst: Ipv4Addr,
    /// Its type of service.
    pub(in crate::mirror) tos: u8,
}

/// How long an exception with a locked MTU holds for a packet of the host's own, which leaves by a VRF device
/// or by none; none where there is no such, or no route.
///
/// # Errors
/// The kernel could not be asked.
pub(in crate::mirror) fn ask_locked(
    asker: &mut Asker,
    flow: Flow,
    vrf: Option<Ifindex>,
) -> io::Result<Option<Duration>> {
    let answer = asker.answer(is::GET_ROUTE, &message::route_body(flow, vrf))?;
    // An error is the kernel's way to say that there is no route.
    let left = answer.ok().and_then(|body| route::locked(&body));
    Ok(left.map(|(_, left)| left))
}
