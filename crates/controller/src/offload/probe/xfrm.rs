//! IPsec policies (ip-xfrm(8)), which the kernel evaluates for every forwarded packet.
//!
//! Policies of an xfrm interface (`if_id`) are only for traffic through that interface, and those of a
//! socket for its own packets; neither counts here.

use std::io;

use netlink_sys::protocols::NETLINK_XFRM;

use crate::offload::PerFamily;
use tollway_linux::netlink::QuerySocket;
use tollway_linux::netlink::find;

const XFRM_MSG_NEWPOLICY: u16 = 0x13;
const XFRM_MSG_GETPOLICY: u16 = 0x15;
const XFRM_MSG_GETDEFAULT: u16 = 0x28;
const XFRMA_IF_ID: u16 = 31;
/// Bytes of `struct xfrm_userpolicy_id` and `struct xfrm_userpolicy_info`.
const POLICY_ID: usize = 64;
const POLICY: usize = 168;
/// Where the selector's family and the policy's direction are.
const FAMILY: usize = 40;
const DIRECTION: usize = 160;
/// `XFRM_POLICY_FWD`, the last direction that is not a socket's.
const FORWARD: u8 = 2;
/// `XFRM_USERPOLICY_BLOCK`.
const BLOCK: u8 = 1;

/// The IPsec policies of the namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Xfrm {
    /// Policies that may apply to forwarded packets.
    pub policies: PerFamily<u64>,
    /// Packets without a matching policy are dropped (`ip xfrm policy setdefault`).
    pub blocks: bool,
}

/// Reads the policies.
///
/// # Errors
/// The kernel refused; without IPsec it has none.
pub(super) fn xfrm() -> io::Result<Xfrm> {
    let mut socket = match QuerySocket::open(NETLINK_XFRM) {
        Err(error) if error.raw_os_error() == Some(libc::EPROTONOSUPPORT) => {
            return Ok(Xfrm::default());
        }
        opened => opened?,
    };
    let policies = socket.list(XFRM_MSG_GETPOLICY, &[0; POLICY_ID], |kind, body| {
        (kind == XFRM_MSG_NEWPOLICY).then(|| policy(body)).flatten()
    })?;
    let mut xfrm = Xfrm::default();
    for PerFamily { v4, v6 } in policies {
        xfrm.policies.v4 += u64::from(v4);
        xfrm.policies.v6 += u64::from(v6);
    }
    // Linux 5.14 has no such message, and then no such default.
    let default = socket.query(XFRM_MSG_GETDEFAULT, &[0; 4]).unwrap_or_default();
    // In, forward, out: the last two apply to forwarded packets.
    xfrm.blocks = default.get(1..3).is_some_and(|egress_links| egress_links.contains(&BLOCK));
    Ok(xfrm)
}

/// The families that a policy is for; none if it does not apply to forwarded packets.
fn policy(body: &[u8]) -> Option<PerFamily<bool>> {
    let family = u16::from_ne_bytes(body.get(FAMILY..FAMILY + 2)?.try_into().ok()?);
    let id = find(body, POLICY, XFRMA_IF_ID).and_then(|id| id.u32());
    let applies = *body.get(DIRECTION)? <= FORWARD && id.unwrap_or(0) == 0;
    let is_for = |own| applies && (family == 0 || i32::from(family) == own);
    Some(PerFamily { v4: is_for(libc::AF_INET), v6: is_for(libc::AF_INET6) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollway_linux::netlink::push;

    fn of(family: i32, direction: u8, id: Option<u32>) -> Vec<u8> {
        let mut body = vec![0; POLICY];
        body[FAMILY..FAMILY + 2].copy_from_slice(&(family as u16).to_ne_bytes());
        body[DIRECTION] = direction;
        if let Some(id) = id {
            push(&mut body, XFRMA_IF_ID, &id.to_ne_bytes());
        }
        body
    }

    #[test]
    fn policies_that_apply_to_forwarded_packets() {
        let (v4, v6) = (libc::AF_INET, libc::AF_INET6);
        let applies = |v4, v6| Some(PerFamily { v4, v6 });
        assert_eq!(policy(&of(v4, 2, None)), applies(true, false));
        assert_eq!(policy(&of(v6, 1, Some(0))), applies(false, true));
        assert_eq!(policy(&of(0, 0, None)), applies(true, true), "of any family");
        assert_eq!(policy(&of(v4, 3, None)), applies(false, false), "a socket's");
        assert_eq!(policy(&of(v4, 2, Some(9))), applies(false, false), "an interface's");
        let whole = of(v4, 2, None);
        (0..=DIRECTION).for_each(|end| assert_eq!(policy(&whole[..end]), None, "{end}"));
    }
}
