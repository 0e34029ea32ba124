//! A program at a device's ingress that drops everything, attached by a link (`BPF_LINK_CREATE`).

#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::namespaces::ifindex;

const PROG_LOAD: i64 = 5;
const OBJ_GET: i64 = 7;
const LINK_CREATE: i64 = 28;
const LINK_DETACH: i64 = 34;
const SCHED_CLS: u32 = 3;
const TCX_INGRESS: u32 = 46;

/// The link. The program stays attached until this is dropped.
pub struct Link {
    _program: OwnedFd,
    _link: OwnedFd,
}

/// Attaches the program to a device.
pub fn drop_all(device: &str) -> Link {
    // `r0 = TC_ACT_SHOT; exit`.
    let code: [u64; 2] = [0x2_0000_00b7, 0x95];
    let license = c"GPL";
    // The first fields of `union bpf_attr` for a program.
    let mut load = [0_u64; 16];
    load[0] = u64::from(SCHED_CLS) | 2 << 32;
    load[1] = (&raw const code).addr() as u64;
    load[2] = license.as_ptr().addr() as u64;
    let program = bpf(PROG_LOAD, &load).unwrap();
    let mut link = [0_u64; 16];
    link[0] = program.as_raw_fd() as u64 | u64::from(ifindex(device)) << 32;
    link[1] = u64::from(TCX_INGRESS);
    let link = bpf(LINK_CREATE, &link).unwrap();
    Link { _program: program, _link: link }
}

/// Detaches the program of a pinned link, as somebody else might.
#[allow(dead_code, reason = "only tests of tc programs do that")]
pub fn detach(pin: &Path) {
    let path = CString::new(pin.as_os_str().as_bytes()).unwrap();
    let mut get = [0_u64; 16];
    get[0] = path.as_ptr().addr() as u64;
    let link = bpf(OBJ_GET, &get).unwrap();
    let mut detach = [0_u64; 16];
    detach[0] = link.as_raw_fd() as u64;
    assert_eq!(call(LINK_DETACH, &detach).unwrap(), 0);
}

/// A call that returns a descriptor.
fn bpf(command: i64, attributes: &[u64; 16]) -> io::Result<OwnedFd> {
    let fd = call(command, attributes)?;
    // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

fn call(command: i64, attributes: &[u64; 16]) -> io::Result<i64> {
    let size = size_of_val(attributes);
    // SAFETY: the attributes, and what they point to, live as long as the call.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_ptr(), size) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
