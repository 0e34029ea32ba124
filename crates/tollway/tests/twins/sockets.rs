//! Sockets of hosts, with the calls that the standard library has not.

#![allow(
    unsafe_code,
    reason = "a client that chooses its port, and an RST, need calls of their own"
)]

use std::io;
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use tollway_linux::sys;

/// An address as the kernel takes it.
enum Raw {
    V4(libc::sockaddr_in),
    V6(libc::sockaddr_in6),
}

impl Raw {
    fn new(address: SocketAddr) -> Self {
        match address {
            SocketAddr::V4(address) => Self::V4(raw4(address)),
            SocketAddr::V6(address) => Self::V6(raw6(address)),
        }
    }

    /// Where it is, and its length.
    fn parts(&self) -> (*const libc::sockaddr, u32) {
        match self {
            Self::V4(raw) => ((&raw const *raw).cast(), size_of::<libc::sockaddr_in>() as u32),
            Self::V6(raw) => ((&raw const *raw).cast(), size_of::<libc::sockaddr_in6>() as u32),
        }
    }
}

/// `struct sockaddr_in6`.
fn raw6(address: SocketAddrV6) -> libc::sockaddr_in6 {
    // SAFETY: a structure of numbers, for which all zeros is a value.
    let mut raw: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
    raw.sin6_family = libc::AF_INET6 as libc::sa_family_t;
    raw.sin6_port = address.port().to_be();
    raw.sin6_addr.s6_addr = address.ip().octets();
    raw
}

/// `struct sockaddr_in`.
fn raw4(address: SocketAddrV4) -> libc::sockaddr_in {
    // SAFETY: a structure of numbers, for which all zeros is a value.
    let mut raw: libc::sockaddr_in = unsafe { std::mem::zeroed() };
    raw.sin_family = libc::AF_INET as libc::sa_family_t;
    raw.sin_port = address.port().to_be();
    raw.sin_addr.s_addr = u32::from_ne_bytes(address.ip().octets());
    raw
}

/// A socket that is bound to an address, which earlier ones may have had.
fn bound(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: the call takes numbers only.
    let number = sys::check(unsafe { libc::socket(family, kind, 0) })?;
    // SAFETY: the socket is new, and nobody else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(number) };
    option(&socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
    let raw = Raw::new(address);
    let (at, len) = raw.parts();
    // SAFETY: the address lives as long as the call, and has this length.
    sys::check(unsafe { libc::bind(number, at, len) })?;
    Ok(socket)
}

fn option(socket: &OwnedFd, level: libc::c_int, name: libc::c_int, value: i32) -> io::Result<()> {
    let (value, len) = (&raw const value, size_of::<i32>() as u32);
    // SAFETY: the value lives as long as the call, and has this length.
    let set = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, value.cast(), len) };
    sys::check(set).map(drop)
}

/// Listens at an address.
pub fn listen(address: impl Into<SocketAddr>) -> io::Result<TcpListener> {
    let socket = bound(address.into())?;
    // SAFETY: the call takes numbers only.
    sys::check(unsafe { libc::listen(socket.as_raw_fd(), 1024) })?;
    Ok(TcpListener::from(socket))
}

/// Begins to connect from one address to another; [`is_connected`] says what becomes of it.
pub fn connect(from: impl Into<SocketAddr>, to: impl Into<SocketAddr>) -> io::Result<TcpStream> {
    let socket = bound(from.into())?;
    let raw = Raw::new(to.into());
    let (at, len) = raw.parts();
    // SAFETY: the address lives as long as the call, and has this length.
    let called = unsafe { libc::connect(socket.as_raw_fd(), at, len) };
    match sys::check(called) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(TcpStream::from(socket)),
    }
}

/// Waits until there is an event; says whether there is one.
pub fn waited(socket: &impl AsRawFd, events: i16, patience: Duration) -> bool {
    let mut fds = [sys::readable(socket.as_raw_fd())];
    fds[0].events = events;
    sys::wait(&mut fds, patience.as_millis() as i32).unwrap();
    fds[0].revents != 0
}

/// Waits until a connection is open, or an error says that it will not be. None: neither has happened.
pub fn is_connected(stream: &TcpStream, patience: Duration) -> Option<io::Result<()>> {
    if !waited(stream, libc::POLLOUT, patience) {
        return None;
    }
    Some(match stream.take_error().unwrap() {
        Some(error) => Err(error),
        None => Ok(()),
    })
}

/// Ends a connection with an RST.
pub fn reset(stream: TcpStream) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let len = size_of::<libc::linger>() as u32;
    let (fd, value) = (stream.as_raw_fd(), &raw const linger);
    // SAFETY: the option's value is of this type, and only read.
    let set = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, value.cast(), len) };
    sys::check(set).unwrap();
    drop(stream);
}

/// Lets this process open as many sockets as it may.
pub fn allow_many() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure lives as long as the call, which fills it.
    sys::check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) }).unwrap();
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: the structure lives as long as the call, which reads it.
    sys::check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }).unwrap();
}
