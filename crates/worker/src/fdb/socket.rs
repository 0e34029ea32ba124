//! Two routing netlink sockets: one for notifications, one for lists.
//!
//! The kernel drops all notifications for a socket that it has overrun until the socket's queue is empty, and a list in
//! the same queue would keep it from being so. And how long a notification has waited would depend on the list.

use std::io;
use std::os::fd::BorrowedFd;

use netlink_packet_core::{NLM_F_DUMP, NLMSG_DONE, NLMSG_ERROR, NLMSG_OVERRUN};

use super::event::{self, CutShort, Event};
use tollway_linux::netlink::{self, Message, NeighFamily, Socket, request};

/// `RTNLGRP_NEIGH`.
const GROUP: u32 = 3;
/// Bytes of a list that may wait to be read; the kernel continues it when they have been.
const LIST_BUFFER: usize = 256 << 10;

/// A message of the socket for notifications.
#[derive(Debug)]
pub(super) enum Notification {
    /// An entry has changed.
    Change(Event),
    /// Messages were lost: the receive buffer was full.
    Lost,
}

/// A message of the present list.
#[derive(Debug)]
pub(super) enum Listed {
    /// An entry.
    Entry(Event),
    /// The list is complete.
    End,
    /// The kernel ends the list before.
    Refused(io::Error),
}

/// What is left to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Backlog {
    /// There was a datagram, and another may follow.
    Some,
    /// There was none.
    None,
}

/// The sockets.
pub(super) struct Netlink {
    notifications: Socket,
    lists: Socket,
    /// The sequence number of the present list.
    list: u32,
}

impl Netlink {
    /// Starts to follow entries of bridges, with room for this many bytes of unread notifications.
    pub(super) fn open(receive_buffer: usize) -> io::Result<Self> {
        let notifications = Socket::open(&[GROUP], receive_buffer)?;
        notifications.keep_neighs(NeighFamily::Bridge)?;
        Ok(Self { notifications, lists: Socket::open(&[], LIST_BUFFER)?, list: 0 })
    }

    /// The descriptors to wait for.
    pub(super) fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.notifications.fd(), self.lists.fd()]
    }

    /// Requests the list of all entries, and may wait as [`Netlink::receive_list`].
    pub(super) fn list(&mut self) -> io::Result<()> {
        self.list = self.lists.next_sequence();
        self.lists.send(&request(event::GET_NEIGH, NLM_F_DUMP, self.list, &event::ALL))
    }

    /// Reads the notifications of one datagram, if there is one. Never waits.
    pub(super) fn receive(&mut self, mut take: impl FnMut(Notification)) -> io::Result<Backlog> {
        let received = self.notifications.receive(|message| {
            if let Some(notification) = notification(&message) {
                take(notification);
            }
        })?;
        if is_lost(received) {
            take(Notification::Lost);
        }
        Ok(backlog(received))
    }

    /// Reads the entries of one datagram of the present list, if there is one. It may wait for the lock of the kernel's
    /// configuration.
    pub(super) fn receive_list(&mut self, mut take: impl FnMut(Listed)) -> io::Result<Backlog> {
        let list = self.list;
        let received = self.lists.receive(|message| {
            if let Some(listed) = listed(&message).filter(|_| message.sequence == list) {
                take(listed);
            }
        })?;
        if is_lost(received) {
            take(Listed::Refused(io::ErrorKind::InvalidData.into()));
        }
        Ok(backlog(received))
    }
}

const fn is_lost(received: netlink::Received) -> bool {
    matches!(received, netlink::Received::Lost | netlink::Received::Broken)
}

fn backlog(received: netlink::Received) -> Backlog {
    if received == netlink::Received::Nothing { Backlog::None } else { Backlog::Some }
}

fn notification(message: &Message<'_>) -> Option<Notification> {
    match event::read(message) {
        Ok(event) => event.map(Notification::Change),
        Err(CutShort) => Some(Notification::Lost),
    }
    .or_else(|| (message.kind == NLMSG_OVERRUN).then_some(Notification::Lost))
}

fn listed(message: &Message<'_>) -> Option<Listed> {
    match message.kind {
        NLMSG_DONE => Some(message.error().map_or(Listed::End, Listed::Refused)),
        NLMSG_ERROR => message.error().map(Listed::Refused),
        // An unreadable entry is skipped.
        _ => event::read(message).ok().flatten().map(Listed::Entry),
    }
}
