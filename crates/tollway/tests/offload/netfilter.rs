//! A BPF program at a netfilter hook, by system calls alone: no library here has such programs.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::namespaces::Host;
use crate::scene::{expect, router, see};

/// `BPF_PROG_LOAD` and `BPF_LINK_CREATE`; `BPF_PROG_TYPE_NETFILTER` and `BPF_NETFILTER`.
const LOAD: i64 = 5;
const LINK: i64 = 28;
const KIND: u32 = 32;
const ATTACH: u32 = 45;

/// The arguments of `BPF_PROG_LOAD`, as far as this test needs them.
#[derive(Default)]
#[repr(C)]
struct Load {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log: [u32; 6],
    name: [u8; 16],
    ifindex: u32,
    attach: u32,
}

/// The arguments of `BPF_LINK_CREATE`.
#[repr(C)]
struct Create {
    program: u32,
    target: u32,
    attach: u32,
    flags: u32,
    family: u32,
    hook: u32,
    priority: i32,
    more: u32,
}

fn bpf<T>(command: i64, arguments: &mut T) -> io::Result<OwnedFd> {
    let pointer: *mut T = arguments;
    // SAFETY: the arguments are those of the command, and live as long as the call.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, command, pointer, size_of::<T>()) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Attaches a program that accepts everything to a hook of this network namespace, until the
/// descriptor is closed.
fn attached(family: u32, hook: u32) -> OwnedFd {
    // r0 = 1 (NF_ACCEPT); exit.
    let instructions = [0x0000_0001_0000_00b7_u64, 0x95];
    let license = c"GPL";
    let mut load = Load {
        kind: KIND,
        count: 2,
        instructions: instructions.as_ptr() as u64,
        license: license.as_ptr() as u64,
        attach: ATTACH,
        ..Load::default()
    };
    let program = bpf(LOAD, &mut load).unwrap();
    let mut create = Create {
        program: program.as_raw_fd() as u32,
        target: 0,
        attach: ATTACH,
        flags: 0,
        family,
        hook,
        priority: 7,
        more: 0,
    };
    bpf(LINK, &mut create).unwrap()
}

pub fn programs() {
    router();
    expect(&[]);
    for (family, hook, wanted) in [
        (2, 0, &["all 4: hook"][..]),
        (10, 2, &["all 6: hook"]),
        (2, 4, &["all 4: hook"]),
        // Forwarded packets never reach this hook.
        (2, 1, &[]),
    ] {
        let link = attached(family, hook);
        expect(wanted);
        let reasons = see()
            .general
            .v4
            .iter()
            .chain(&see().general.v6)
            .map(ToString::to_string)
            .collect::<String>();
        assert_eq!(reasons.is_empty(), wanted.is_empty(), "{reasons}");
        drop(link);
        expect(&[]);
    }
    // Packets of this namespace never reach a program of another one.
    let host = Host::new();
    let namespace = File::open(format!("/proc/{}/ns/net", host.0.0.id())).unwrap();
    let link = std::thread::spawn(move || {
        // SAFETY: the descriptor lives as long as the call, which takes numbers only.
        let entered = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) };
        assert_eq!(entered, 0);
        attached(2, 2)
    });
    let link = link.join().unwrap();
    expect(&[]);
    drop(link);
}
