//! The tc program as a filter of the queueing discipline `clsact`, for kernels without tcx (before 6.6).
//!
//! The filter has the last preference, so that those of others come first and keep their place.
//!
//! Limit: the discipline stays on the device when the filter goes: others may have filters there by then.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use tollway_linux::netlink::{QuerySocket, find, push};

const RTM_NEWQDISC: u16 = 36;
const RTM_NEWTFILTER: u16 = 44;
const RTM_DELTFILTER: u16 = 45;
const RTM_GETTFILTER: u16 = 46;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_BPF_FD: u16 = 6;
const TCA_BPF_NAME: u16 = 7;
const TCA_BPF_FLAGS: u16 = 8;
const TCA_BPF_ID: u16 = 11;
/// `TCA_BPF_FLAG_ACT_DIRECT`: the program's result is the verdict.
const ACT_DIRECT: u32 = 1;
/// `TC_H_CLSACT`, the handle of such a discipline, and its hook for what arrives.
const CLSACT: u32 = 0xffff_fff1;
const CLSACT_HANDLE: u32 = 0xffff_0000;
const INGRESS: u32 = 0xffff_fff2;
/// Bytes of `struct tcmsg`.
const TCMSG: usize = 20;
/// The last preference.
const PREFERENCE: u16 = u16::MAX;
/// The filter's number under this preference.
const HANDLE: u32 = 1;
/// `ETH_P_ALL`.
const ALL: u16 = 3;
/// The filter's name, by which it is known as Tollway's.
const NAME: &[u8] = b"tollway\0";

/// `struct tcmsg`.
fn message(ifindex: u32, handle: u32, parent: u32, info: u32) -> Vec<u8> {
    let mut body = vec![0; TCMSG - 16];
    [ifindex, handle, parent, info].iter().for_each(|word| body.extend(word.to_ne_bytes()));
    body
}

/// The message of the filter.
fn filter(ifindex: u32) -> Vec<u8> {
    let info = u32::from(PREFERENCE) << 16 | u32::from(ALL.to_be());
    message(ifindex, HANDLE, INGRESS, info)
}

fn socket() -> io::Result<QuerySocket> {
    QuerySocket::open(libc::NETLINK_ROUTE as isize)
}

/// Attaches a program to what arrives by a device, or replaces Tollway's program there between two packets.
///
/// # Errors
/// The system refused. `ResourceBusy`: a filter of somebody else has the place.
pub(super) fn attach(ifindex: u32, program: BorrowedFd<'_>) -> io::Result<()> {
    let mut socket = socket()?;
    let mut body = message(ifindex, CLSACT_HANDLE, CLSACT, 0);
    push(&mut body, TCA_KIND, b"clsact\0");
    match socket.change(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL, &body) {
        Err(error) if error.raw_os_error() != Some(libc::EEXIST) => return Err(error),
        _ => {}
    }
    if let Some(FilterAtPlace { is_own: false, .. }) = filter_at_place(&mut socket, ifindex)? {
        return Err(io::Error::from_raw_os_error(libc::EBUSY));
    }
    let mut options = Vec::new();
    push(&mut options, TCA_BPF_FD, &program.as_raw_fd().to_ne_bytes());
    push(&mut options, TCA_BPF_NAME, NAME);
    push(&mut options, TCA_BPF_FLAGS, &ACT_DIRECT.to_ne_bytes());
    let mut body = filter(ifindex);
    push(&mut body, TCA_KIND, b"bpf\0");
    push(&mut body, TCA_OPTIONS, &options);
    socket.change(RTM_NEWTFILTER, NLM_F_CREATE, &body)
}

/// Removes Tollway's filter from a device.
pub(super) fn detach(ifindex: u32) -> io::Result<()> {
    let mut socket = socket()?;
    match filter_at_place(&mut socket, ifindex)? {
        Some(FilterAtPlace { is_own: true, .. }) => {
            socket.change(RTM_DELTFILTER, 0, &filter(ifindex))
        }
        _ => Ok(()),
    }
}

/// The id of Tollway's program on a device.
pub(super) fn program(ifindex: u32) -> io::Result<Option<u32>> {
    let found = filter_at_place(&mut socket()?, ifindex)?;
    Ok(found.filter(|found| found.is_own).map(|found| found.program))
}

/// Whether a message of the kernel (`RTM_NEWTFILTER`) describes Tollway's filter.
#[must_use]
pub fn is_own_filter(body: &[u8]) -> bool {
    let info =
        body.get(..TCMSG).and_then(|head| head.last_chunk()).copied().map_or(0, u32::from_ne_bytes);
    let options = find(body, TCMSG, TCA_OPTIONS);
    let name = options.and_then(|options| find(options.value, 0, TCA_BPF_NAME));
    info >> 16 == u32::from(PREFERENCE) && name.is_some_and(|name| name.value == NAME)
}

/// A filter at the place of Tollway's.
struct FilterAtPlace {
    program: u32,
    is_own: bool,
}

fn filter_at_place(socket: &mut QuerySocket, ifindex: u32) -> io::Result<Option<FilterAtPlace>> {
    let answer = match socket.answer(RTM_GETTFILTER, &filter(ifindex))? {
        Ok(answer) => answer,
        // There is no device, discipline, preference or filter.
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => return Err(error),
        Err(_) => return Ok(None),
    };
    let options = find(&answer, TCMSG, TCA_OPTIONS).map_or(&[][..], |options| options.value);
    let is_own = is_own_filter(&answer);
    let program = find(options, 0, TCA_BPF_ID).and_then(|id| id.u32()).unwrap_or(0);
    Ok(Some(FilterAtPlace { program, is_own }))
}
