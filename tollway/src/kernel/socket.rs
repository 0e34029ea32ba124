//! A routing netlink socket that listens to what changes and asks for what there is.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_MULTIPART, NLM_F_REQUEST, NetlinkBuffer, NetlinkHeader, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

use crate::ports::sys;

/// The kernel's changes to tell (`RTNLGRP_LINK`, `RTNLGRP_NEIGH`).
const GROUPS: [u32; 2] = [1, 3];
/// The kernel fills no larger datagram.
const DATAGRAM: usize = 1 << 16;

/// What was received.
pub(super) enum Received {
    /// Something that changed just now.
    Change(RouteNetlinkMessage),
    /// Something there is, told because it was asked for by this number.
    Listed(u32, RouteNetlinkMessage),
    /// All was told that was asked for by this number; whether as of one moment.
    Done(u32, bool),
    /// What was asked by this number is refused.
    Refused(u32, io::Error),
    /// Messages were lost: the receive buffer was full.
    Lost,
}

/// The socket.
pub(super) struct Netlink {
    socket: Socket,
    own: u32,
    sequence: u32,
    buffer: Vec<u8>,
    /// The list that is being told changed meanwhile.
    interrupted: bool,
}

impl Netlink {
    /// Listens from now on, with room for so many bytes of unread messages.
    pub(super) fn open(receive_buffer: usize) -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        let own = socket.bind_auto()?.port_number();
        let bytes = libc::c_int::try_from(receive_buffer).unwrap_or(libc::c_int::MAX);
        let forced =
            sys::set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &bytes);
        if forced.is_err() {
            // Without CAP_NET_ADMIN there is a limit to it (net.core.rmem_max).
            socket.set_rx_buf_sz(bytes)?;
        }
        for group in GROUPS {
            socket.add_membership(group)?;
        }
        let buffer = vec![0; DATAGRAM];
        Ok(Self { socket, own, sequence: 0, buffer, interrupted: false })
    }

    /// What to wait for messages on.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Asks for all there is of a kind; the number of the question.
    pub(super) fn list(&mut self, what: RouteNetlinkMessage) -> io::Result<u32> {
        self.interrupted = false;
        self.send(what, NLM_F_DUMP)
    }

    /// Asks for something; the number of the question.
    pub(super) fn send(&mut self, what: RouteNetlinkMessage, flags: u16) -> io::Result<u32> {
        self.sequence = self.sequence.wrapping_add(1).max(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(what));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send_to(&bytes, &SocketAddr::new(0, 0), 0)?;
        Ok(self.sequence)
    }

    /// Takes the messages of one datagram, if there is one; says if there was. Never waits.
    pub(super) fn receive(&mut self, mut take: impl FnMut(Received)) -> io::Result<bool> {
        let mut room: &mut [u8] = &mut self.buffer;
        let (len, from) = match self.socket.recv_from(&mut room, libc::MSG_DONTWAIT) {
            Ok(datagram) => datagram,
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                take(Received::Lost);
                return Ok(true);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(true),
            Err(error) => return Err(error),
        };
        // Any process may write to this socket; only the kernel is believed.
        if from.port_number() == 0 {
            let mut rest = &self.buffer[..len.min(DATAGRAM)];
            while let Some((message, behind)) = cut(rest) {
                rest = behind;
                if let Some(received) = read(message, self.own, &mut self.interrupted) {
                    take(received);
                }
            }
        }
        Ok(true)
    }
}

/// The first message of a datagram, and what follows it.
fn cut(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let header = NetlinkBuffer::new_checked(&bytes).ok()?;
    let len = usize::try_from(header.length()).ok()?;
    let message = bytes.get(..len)?;
    Some((message, bytes.get(len.next_multiple_of(4)..).unwrap_or_default()))
}

fn read(bytes: &[u8], own: u32, interrupted: &mut bool) -> Option<Received> {
    /// `NLM_F_DUMP_INTR`.
    const INTERRUPTED: u16 = netlink_packet_core::NLM_F_DUMP_INTR;
    let message = match NetlinkMessage::<RouteNetlinkMessage>::deserialize(bytes) {
        Ok(message) => message,
        Err(error) => {
            tracing::debug!("a netlink message is not understood and left out: {error}");
            return None;
        }
    };
    let NetlinkHeader { flags, sequence_number, port_number, .. } = message.header;
    // Whoever causes a change is named in its message, too: that alone does not make it an answer.
    let listed = port_number == own && flags & NLM_F_MULTIPART != 0;
    *interrupted |= listed && flags & INTERRUPTED != 0;
    match message.payload {
        NetlinkPayload::InnerMessage(inner) if listed => {
            Some(Received::Listed(sequence_number, inner))
        }
        NetlinkPayload::InnerMessage(inner) => Some(Received::Change(inner)),
        NetlinkPayload::Done(_) => Some(Received::Done(sequence_number, !*interrupted)),
        NetlinkPayload::Error(error) if error.code.is_some() => {
            Some(Received::Refused(sequence_number, error.to_io()))
        }
        NetlinkPayload::Overrun(_) => Some(Received::Lost),
        _ => None,
    }
}
