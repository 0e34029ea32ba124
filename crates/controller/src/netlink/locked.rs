//! IPv4 exceptions whose MTU is locked: the kernel's list (`fib_dump_info_fnhe` in `net/ipv4/route.c`), and
//! its answer about one destination (`inet_rtm_getroute`).

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use netlink_sys::protocols::NETLINK_ROUTE;

use super::message::{family_first, rtm};
use super::route;
use crate::kernel::{Family, Ifindex};
use tollway_linux::netlink::{QuerySocket, push};

/// Destinations, and the time until their exceptions expire.
pub(crate) type Locked = Vec<(Ipv4Addr, Duration)>;

/// Lists the kernel's exceptions whose MTU is locked. Waits for the kernel: 100 ms with a million routes.
///
/// # Errors
/// The query failed.
pub(crate) fn list_locked() -> io::Result<Locked> {
    let mut socket = QuerySocket::open(NETLINK_ROUTE)?;
    // Without this the kernel would list the routes as well.
    socket.set_strict_check();
    socket.list(rtm::GET_ROUTE, &exceptions_body(), |_, body| match route::locked(body) {
        Some((IpAddr::V4(to), left)) => Some((to, left)),
        _ => None,
    })
}

/// A packet that the host itself sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flow {
    pub(crate) src: Option<Ipv4Addr>,
    pub(crate) dst: Ipv4Addr,
    /// Its type of service.
    pub(crate) tos: u8,
}

/// Queries the time until an exception with a locked MTU expires. The query is for a packet that the host
/// itself sends, by a VRF device or by none. `None` if there is no such exception, or no route.
///
/// # Errors
/// The query could not be made.
pub(crate) fn query_locked(
    socket: &mut QuerySocket,
    flow: Flow,
    vrf: Option<Ifindex>,
) -> io::Result<Option<Duration>> {
    let answer = socket.answer(rtm::GET_ROUTE, &route_body(flow, vrf))?;
    // The kernel answers with an error if there is no route.
    let left = answer.ok().and_then(|body| route::locked(&body));
    Ok(left.map(|(_, left)| left))
}

/// The body of the request for the exceptions of IPv4's routes.
fn exceptions_body() -> [u8; 12] {
    let mut body = family_first(Family::V4);
    body[8..].copy_from_slice(&route::CLONED.to_ne_bytes());
    body
}

/// The body of the request for the route of packets that the host itself sends.
fn route_body(flow: Flow, vrf: Option<Ifindex>) -> Vec<u8> {
    use route::rta::{DST, OIF, SRC};
    const WHOLE: u8 = 32;
    let mut body = family_first(Family::V4).to_vec();
    (body[1], body[3]) = (WHOLE, flow.tos);
    push(&mut body, DST, &flow.dst.octets());
    if let Some(src) = flow.src {
        body[2] = WHOLE;
        push(&mut body, SRC, &src.octets());
    }
    if let Some(vrf) = vrf {
        push(&mut body, OIF, &vrf.to_ne_bytes());
    }
    body
}
