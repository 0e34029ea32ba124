//! Selects in the kernel which notifications of neighbours a socket receives.
//!
//! `RTNLGRP_NEIGH` has the entries of all families: neighbours of IP, and those of the forwarding databases of bridges and
//! VXLAN devices, of which there may be a hundred thousand in a second. A socket that wants the former would only lose
//! messages among the latter.

use std::io;
use std::os::fd::BorrowedFd;

use crate::sys;

/// Entries that a socket receives, of those in `RTNLGRP_NEIGH` and in lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeighFamily {
    /// Neighbours of IP, IPv4 and IPv6.
    Ip,
    /// Entries of forwarding databases.
    Bridge,
}

/// Where the type of a message is, and the family of an entry behind the message's header (`struct ndmsg`).
const TYPE: u32 = 4;
const FAMILY: u32 = 16;
/// `RTM_NEWNEIGH` and `RTM_DELNEIGH`.
const NEW_NEIGH: u16 = 28;
const DEL_NEIGH: u16 = 29;
/// `BPF_LD | BPF_ABS` of two bytes and of one, `BPF_JMP | BPF_JEQ`, and `BPF_RET` (linux/filter.h).
const LOAD_SHORT: u16 = 0x28;
const LOAD_BYTE: u16 = 0x30;
const JUMP_IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;
/// What to keep of a datagram.
const ALL: u32 = u32::MAX;
const NOTHING: u32 = 0;

/// Lets a socket receive no entries but those of a family; other messages do not matter.
///
/// # Errors
/// The system refused.
pub(super) fn attach(socket: BorrowedFd<'_>, family: NeighFamily) -> io::Result<()> {
    let [ip, bridge] = match family {
        NeighFamily::Ip => [ALL, NOTHING],
        NeighFamily::Bridge => [NOTHING, ALL],
    };
    // A filter reads numbers in network byte order.
    let kind = |kind: u16| u32::from(u16::from_be_bytes(kind.to_ne_bytes()));
    let step = |code, k, [jt, jf]: [u8; 2]| libc::sock_filter { code, jt, jf, k };
    let program = [
        step(LOAD_SHORT, TYPE, [0, 0]),
        step(JUMP_IF_EQUAL, kind(NEW_NEIGH), [2, 0]),
        step(JUMP_IF_EQUAL, kind(DEL_NEIGH), [1, 0]),
        step(RETURN, ALL, [0, 0]),
        step(LOAD_BYTE, FAMILY, [0, 0]),
        step(JUMP_IF_EQUAL, libc::AF_BRIDGE as u32, [0, 1]),
        step(RETURN, bridge, [0, 0]),
        step(RETURN, ip, [0, 0]),
    ];
    sys::attach_filter(socket, &program)
}
