//! A routing netlink socket for notifications and for lists.

use std::io;
use std::os::fd::BorrowedFd;

use netlink_packet_core::{
    NLM_F_CREATE, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_MULTIPART, NLMSG_DONE, NLMSG_ERROR,
    NLMSG_OVERRUN,
};

use super::event::{self, Event, Key};
use tollway_linux::netlink::{self, Message, NeighFamily, Socket, request};

/// The notification groups (`RTNLGRP_LINK`, `RTNLGRP_NEIGH`).
const GROUPS: [u32; 2] = [1, 3];

/// A received message.
pub(super) enum Received {
    /// A notification of a change.
    Change(Event),
    /// An object of the list that was requested with this number.
    Listed(u32, Event),
    /// The list requested with this number is complete; the flag says whether it is consistent (no
    /// `NLM_F_DUMP_INTR`).
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
        let socket = Socket::open(&GROUPS, receive_buffer)?;
        socket.keep_neighs(NeighFamily::Ip)?;
        Ok(Self { socket, interrupted: false })
    }

    /// The descriptor to wait for.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.fd()
    }

    /// Requests the list of devices; returns the request's number.
    pub(super) fn list_links(&mut self) -> io::Result<u32> {
        self.list(event::is::GET_LINK, &[0; event::LINK])
    }

    /// Requests the list of neighbours; returns the request's number.
    pub(super) fn list_neighs(&mut self) -> io::Result<u32> {
        self.list(event::is::GET_NEIGH, &[0; event::NEIGH])
    }

    fn list(&mut self, kind: u16, body: &[u8]) -> io::Result<u32> {
        self.interrupted = false;
        self.send(kind, NLM_F_DUMP, body)
    }

    /// Makes the kernel confirm a neighbour, as if it had just sent it a packet.
    pub(super) fn use_neigh(&mut self, key: Key) -> io::Result<()> {
        self.send(event::is::NEW_NEIGH, 0, &event::use_neigh(key)).map(drop)
    }

    /// Makes the kernel resolve a neighbour that it may not know yet, as if it had a packet for it.
    pub(super) fn resolve_neigh(&mut self, key: Key) -> io::Result<()> {
        self.send(event::is::NEW_NEIGH, NLM_F_CREATE, &event::use_neigh(key)).map(drop)
    }

    fn send(&mut self, kind: u16, flags: u16, body: &[u8]) -> io::Result<u32> {
        let sequence = self.socket.next_sequence();
        self.socket.send(&request(kind, flags, sequence, body))?;
        Ok(sequence)
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
    let Message { kind, flags, sequence, port, .. } = message;
    // A notification also has the port of the process that caused the change, so the port alone does
    // not show that a message is an answer.
    let listed = port == own && flags & NLM_F_MULTIPART != 0;
    *interrupted |= listed && flags & NLM_F_DUMP_INTR != 0;
    match kind {
        NLMSG_DONE => Some(Received::Done(sequence, !*interrupted)),
        NLMSG_ERROR => message.error().map(|error| Received::Refused(sequence, error)),
        NLMSG_OVERRUN => Some(Received::Lost),
        _ => match event::read(&message) {
            Ok(event) if listed => Some(Received::Listed(sequence, event?)),
            Ok(event) => Some(Received::Change(event?)),
            // An unreadable change counts as a loss, after which everything is listed; in a list it is skipped.
            Err(event::CutShort) => (port != own).then_some(Received::Lost),
        },
    }
}
