//! A netlink socket that listens.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket as Raw, SocketAddr};

use super::bytes::Message;
use crate::ports::sys;

/// The kernel fills no larger datagram.
const DATAGRAM: usize = 1 << 16;

/// What came of an attempt to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// A datagram, all of whose messages were taken.
    Datagram,
    /// Nothing: there is none.
    Nothing,
    /// Messages were lost: the receive buffer was full.
    Lost,
    /// A datagram that ends before its last message does; what was before that was taken.
    Broken,
}

/// The socket.
pub(crate) struct Socket {
    socket: Raw,
    port: u32,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Socket {
    /// A routing socket that listens to some groups (`RTNLGRP_*`): see [`Socket::of`].
    pub(crate) fn open(groups: &[u32], receive_buffer: usize) -> io::Result<Self> {
        Self::of(NETLINK_ROUTE, groups, receive_buffer)
    }

    /// Listens to some groups of a protocol from now on, with room for so many bytes of unread messages.
    ///
    /// # Errors
    /// The system gives none, or does not know the protocol or a group.
    pub(crate) fn of(protocol: isize, groups: &[u32], receive_buffer: usize) -> io::Result<Self> {
        Self::listening(Raw::new(protocol)?, groups, receive_buffer)
    }

    /// The same of a socket that has no address yet.
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
            // Without CAP_NET_ADMIN there is a limit to it (net.core.rmem_max).
            socket.set_rx_buf_sz(bytes)?;
        }
        for group in groups {
            socket.add_membership(*group)?;
        }
        Ok(Self { socket, port, sequence: 0, buffer: vec![0; DATAGRAM] })
    }

    /// Lists are of what was asked for and of nothing else (`NETLINK_GET_STRICT_CHK`), on a kernel that
    /// can (4.20).
    pub(crate) fn ask_strictly(&self) {
        let _ = self.socket.set_netlink_get_strict_chk(true);
    }

    /// What to wait for messages on.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// By which messages to this socket are known.
    pub(crate) const fn port(&self) -> u32 {
        self.port
    }

    /// The number that the next message is to have.
    pub(crate) const fn next_sequence(&mut self) -> u32 {
        self.sequence = if self.sequence == u32::MAX { 1 } else { self.sequence + 1 };
        self.sequence
    }

    /// Sends a message to the kernel.
    pub(crate) fn send(&self, message: &[u8]) -> io::Result<()> {
        self.socket.send_to(message, &SocketAddr::new(0, 0), 0).map(drop)
    }

    /// Takes the messages of one datagram, if there is one. Never waits.
    pub(crate) fn receive(&mut self, mut take: impl FnMut(Message<'_>)) -> io::Result<Received> {
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
        // Any process may write to this socket; only the kernel is believed.
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
