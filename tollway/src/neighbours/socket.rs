//! A routing netlink socket for notifications and for lists.

use std::io;
use std::os::fd::BorrowedFd;

use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_MULTIPART, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;

use tollway_linux::netlink::{self, Message, Socket};

/// The notification groups (`RTNLGRP_LINK`, `RTNLGRP_NEIGH`).
const GROUPS: [u32; 2] = [1, 3];

/// The bytes of a message's header with the port that it answers (`nlmsg_pid`).
const PORT: std::ops::Range<usize> = 12..16;

/// A received message.
pub(super) enum Received {
    /// A notification of a change.
    Change(RouteNetlinkMessage),
    /// An object of the list that was requested with this number.
    Listed(u32, RouteNetlinkMessage),
    /// The list requested with this number is complete; the flag says whether it shows one moment.
    Done(u32, bool),
    /// The request with this number is refused.
    Refused(u32, io::Error),
    /// Messages were lost: the receive buffer was full.
    Lost,
}

/// The socket.
pub(super) struct Netlink {
    socket: Socket,
    /// Whether the kernel's state changed during the present list.
    interrupted: bool,
}

impl Netlink {
    /// Starts to follow the groups, with room for this many bytes of unread messages.
    pub(super) fn open(receive_buffer: usize) -> io::Result<Self> {
        Ok(Self { socket: Socket::open(&GROUPS, receive_buffer)?, interrupted: false })
    }

    /// The descriptor to wait for.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.fd()
    }

    /// Requests a list; returns the request's number.
    pub(super) fn list(&mut self, what: RouteNetlinkMessage) -> io::Result<u32> {
        self.interrupted = false;
        self.send(what, NLM_F_DUMP)
    }

    /// Sends a request; returns its number.
    pub(super) fn send(&mut self, what: RouteNetlinkMessage, flags: u16) -> io::Result<u32> {
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.socket.next_sequence();
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(what));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes)?;
        Ok(header.sequence_number)
    }

    /// Reads the messages of one datagram, if there is one; returns whether there was. Never waits.
    pub(super) fn receive(&mut self, mut take: impl FnMut(Received)) -> io::Result<bool> {
        let own = self.socket.port();
        let interrupted = &mut self.interrupted;
        let received = self.socket.receive(|message| {
            if let Some(received) = read(message, own, interrupted) {
                take(received);
            }
        })?;
        if matches!(received, netlink::Received::Lost | netlink::Received::Broken) {
            take(Received::Lost);
        }
        Ok(received != netlink::Received::Nothing)
    }
}

fn read(message: Message<'_>, own: u32, interrupted: &mut bool) -> Option<Received> {
    let message = match NetlinkMessage::<RouteNetlinkMessage>::deserialize(message.whole) {
        Ok(message) => message,
        Err(error) => {
            tracing::debug!("a netlink message is not understood: {error}");
            // An unreadable change counts as a loss, after which everything is listed; in a list it is skipped.
            let is_listed = message.whole.get(PORT).is_some_and(|port| port == own.to_ne_bytes());
            return (!is_listed).then_some(Received::Lost);
        }
    };
    let NetlinkHeader { flags, sequence_number, port_number, .. } = message.header;
    // A notification also has the port of the process that caused the change, so the port alone does
    // not show that a message is an answer.
    let listed = port_number == own && flags & NLM_F_MULTIPART != 0;
    *interrupted |= listed && flags & NLM_F_DUMP_INTR != 0;
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
