//! A netlink socket for notifications and lists.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket as Raw, SocketAddr};

use super::bytes::Message;
use super::filter::{self, NeighFamily};
use crate::sys;

/// The kernel fills no larger datagram.
const DATAGRAM: usize = 1 << 16;

/// The result of an attempt to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// A datagram, all of whose messages were read.
    Datagram,
    /// There is no datagram.
    Nothing,
    /// Messages were lost: the receive buffer was full.
    Lost,
    /// A datagram that ends before its last message does; the messages before were read.
    Broken,
}

/// The socket.
pub struct Socket {
    socket: Raw,
    port: u32,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Socket {
    /// A routing socket that follows some groups (`RTNLGRP_*`): see [`Socket::of`].
    pub fn open(groups: &[u32], receive_buffer: usize) -> io::Result<Self> {
        Self::of(NETLINK_ROUTE, groups, receive_buffer)
    }

    /// Opens a socket that follows some groups of a protocol, with room for this many bytes of unread
    /// messages.
    ///
    /// # Errors
    /// The system gives no socket, or does not know the protocol or a group.
    pub fn of(protocol: isize, groups: &[u32], receive_buffer: usize) -> io::Result<Self> {
        Self::listening(Raw::new(protocol)?, groups, receive_buffer)
    }

    /// The same for a socket that has no address yet.
    pub(super) fn listening(
        mut socket: Raw,
        groups: &[u32],
        receive_buffer: usize,
    ) -> io::Result<Self> {
        let port = socket.bind_auto()?.port_number();
        let bytes = libc::c_int::try_from(receive_buffer).unwrap_or(libc::c_int::MAX);
        let forced =
            sys::set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &bytes);
        if forced.is_err() {
            // Without CAP_NET_ADMIN the size is limited (net.core.rmem_max).
            socket.set_rx_buf_sz(bytes)?;
        }
        for group in groups {
            socket.add_membership(*group)?;
        }
        Ok(Self { socket, port, sequence: 0, buffer: vec![0; DATAGRAM] })
    }

    /// Limits lists to exactly what was requested (`NETLINK_GET_STRICT_CHK`), on kernels that can (4.20).
    pub fn set_strict_check(&self) {
        let _ = self.socket.set_netlink_get_strict_chk(true);
    }

    /// Receives no entries of neighbours but those of a family, and all other messages.
    ///
    /// # Errors
    /// The system refused.
    pub fn keep_neighs(&self, family: NeighFamily) -> io::Result<()> {
        filter::attach(self.fd(), family)
    }

    /// The descriptor to wait for.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The port that identifies messages to this socket.
    pub const fn port(&self) -> u32 {
        self.port
    }

    /// The sequence number for the next message.
    pub const fn next_sequence(&mut self) -> u32 {
        self.sequence = if self.sequence == u32::MAX { 1 } else { self.sequence + 1 };
        self.sequence
    }

    /// Sends a message to the kernel.
    pub fn send(&self, message: &[u8]) -> io::Result<()> {
        self.socket.send_to(message, &SocketAddr::new(0, 0), 0).map(drop)
    }

    /// Reads the messages of one datagram, if there is one. Never waits.
    pub fn receive(&mut self, mut take: impl FnMut(Message<'_>)) -> io::Result<Received> {
        let mut room: &mut [u8] = &mut self.buffer;
        let (len, from) = match self.socket.recv_from(&mut room, libc::MSG_DONTWAIT) {
            Ok(datagram) => datagram,
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => return Ok(Received::Lost),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Ok(Received::Nothing);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                return Ok(Received::Datagram);
            }
            Err(error) => return Err(error),
        };
        // Any process may write to this socket; only messages from the kernel count.
        if from.port_number() != 0 {
            return Ok(Received::Datagram);
        }
        let mut rest = self.buffer.get(..len).unwrap_or_default();
        while let Some((message, behind)) = Message::cut(rest) {
            rest = behind;
            take(message);
        }
        Ok(if rest.is_empty() { Received::Datagram } else { Received::Broken })
    }
}
