//! Starts a program in namespaces of its own, with a netlink socket there for the process that starts it.
//!
//! A socket belongs to the network namespace in which it was made, whoever has it, and keeps that namespace
//! alive. A process of several threads cannot enter another user namespace. So the new process makes the
//! socket before it becomes the program, and sends it (`SCM_RIGHTS`, unix(7)). The kernel answers on it, since the
//! creator of a user namespace has all capabilities there (user_namespaces(7)).

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::mem::{size_of, size_of_val};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;

use libc::{c_int, c_void};
use netlink_sys::Socket as Raw;

use super::Socket;
use crate::sys::{self, check};

/// The namespaces that a program gets for itself (unshare(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unshare {
    /// A network namespace; needs root.
    Net,
    /// A network namespace within a user namespace of its own, whose root is this user.
    User,
}

/// Delivers the socket once the program has been started.
pub struct SocketHandover(UnixStream);

/// A control message with one file descriptor.
#[repr(C)]
struct Control {
    header: libc::cmsghdr,
    fd: RawFd,
    // The kernel rounds up to the next header.
    _end: [c_int; 1],
}

/// `CMSG_LEN` of one file descriptor.
const CONTROL_BYTES: usize = size_of::<libc::cmsghdr>() + size_of::<RawFd>();

impl Unshare {
    /// Has a command run in these namespaces, and makes a socket of a netlink protocol there.
    ///
    /// # Errors
    /// The system gives no pair of sockets. Starting the command fails if such namespaces are not available.
    pub fn apply(self, command: &mut Command, protocol: c_int) -> io::Result<SocketHandover> {
        let (here, there) = UnixStream::pair()?;
        let maps = [sys::effective_user(), sys::effective_group()].map(|own| format!("0 {own} 1"));
        let enter = move || {
            self.enter(&maps)?;
            // SAFETY: takes numbers only.
            let socket = check(unsafe {
                libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, protocol)
            })?;
            send(&there, socket)
        };
        // SAFETY: the process that runs this has one thread; it makes system calls and allocates nothing.
        unsafe { command.pre_exec(enter) };
        Ok(SocketHandover(here))
    }

    /// Enters the namespaces.
    fn enter(self, [user, group]: &[String; 2]) -> io::Result<()> {
        let namespaces = match self {
            Self::Net => libc::CLONE_NEWNET,
            Self::User => libc::CLONE_NEWUSER | libc::CLONE_NEWNET,
        };
        // SAFETY: takes a number only.
        check(unsafe { libc::unshare(namespaces) })?;
        if self == Self::User {
            // A process that cannot set groups may map them.
            write(c"/proc/self/setgroups", "deny")?;
            write(c"/proc/self/uid_map", user)?;
            write(c"/proc/self/gid_map", group)?;
        }
        Ok(())
    }
}

impl SocketHandover {
    /// Receives the socket, once the program has been started.
    ///
    /// # Errors
    /// None has arrived.
    pub fn socket(&self, receive_buffer: usize) -> io::Result<Socket> {
        let fd = receive(&self.0)?;
        // SAFETY: the socket has no other owner.
        let raw = unsafe { Raw::from_raw_fd(fd.into_raw_fd()) };
        Socket::listening(raw, &[], receive_buffer)
    }
}

fn write(path: &CStr, text: &str) -> io::Result<()> {
    // SAFETY: the path ends with a 0 and outlives the call.
    let fd = check(unsafe { libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC) })?;
    // SAFETY: it is open and has no other owner.
    let file = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: reads exactly the bytes of the text.
    let written = unsafe { libc::write(file.as_raw_fd(), text.as_ptr().cast(), text.len()) };
    if written < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A message of one byte, with room for a file descriptor.
fn message(part: &mut libc::iovec, control: &mut Control) -> libc::msghdr {
    // SAFETY: all zeros are a valid, empty message, whatever other fields the system has.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = part;
    message.msg_iovlen = 1;
    message.msg_control = std::ptr::from_mut(control).cast();
    message.msg_controllen = size_of_val(control) as _;
    message
}

const fn control(fd: RawFd) -> Control {
    let header = libc::cmsghdr {
        cmsg_len: CONTROL_BYTES as _,
        cmsg_level: libc::SOL_SOCKET,
        cmsg_type: libc::SCM_RIGHTS,
    };
    Control { header, fd, _end: [0] }
}

fn send(to: &UnixStream, fd: RawFd) -> io::Result<()> {
    let mut byte = 0_u8;
    let mut part =
        libc::iovec { iov_base: std::ptr::from_mut(&mut byte).cast::<c_void>(), iov_len: 1 };
    let mut control = control(fd);
    let message = message(&mut part, &mut control);
    // SAFETY: the message's targets outlive the call.
    let sent = unsafe { libc::sendmsg(to.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn receive(from: &UnixStream) -> io::Result<OwnedFd> {
    let mut byte = 0_u8;
    let mut part =
        libc::iovec { iov_base: std::ptr::from_mut(&mut byte).cast::<c_void>(), iov_len: 1 };
    let mut control = control(-1);
    let wanted = control.header;
    control.header.cmsg_len = 0;
    let mut message = message(&mut part, &mut control);
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the message's targets are writable and outlive the call.
    let received = unsafe { libc::recvmsg(from.as_raw_fd(), &raw mut message, flags) };
    if received < 0 {
        return Err(io::Error::last_os_error());
    }
    let is_one = control.header.cmsg_len == wanted.cmsg_len
        && (control.header.cmsg_level, control.header.cmsg_type)
            == (wanted.cmsg_level, wanted.cmsg_type);
    if !is_one {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    // SAFETY: the kernel has just made it, for this process alone.
    Ok(unsafe { OwnedFd::from_raw_fd(control.fd) })
}
