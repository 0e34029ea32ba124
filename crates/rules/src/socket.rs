//! Netfilter's netlink sockets: one that listens for changes, one for requests.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use netlink_sys::protocols::NETLINK_NETFILTER;

use super::message::{self, Elements, Key, List, Message, RulesMessage, Table};
use tollway_linux::netlink::{self, Received, Socket};
use tollway_linux::sys;

/// `NFNLGRP_NFTABLES`.
const GROUP: u32 = 7;
/// Size of the receive buffer for notifications, in bytes.
const RECEIVE_BUFFER: usize = 8 << 20;
/// Size of the receive buffer for answers, in bytes. The kernel delays the rest of a list until there is
/// room.
pub(crate) const ROOM: usize = 1 << 20;
/// The kernel answers at once, or after a change in progress.
const PATIENCE: Duration = Duration::from_secs(5);

/// Listens for changes.
pub(super) struct Listener(Socket);

/// What was received.
pub(super) enum RulesReceived {
    /// The kernel's messages.
    RulesMessage(Vec<RulesMessage>),
    /// Some were lost: the receive buffer was full, or the kernel had no memory for them.
    Lost,
    /// Nothing more.
    Nothing,
}

impl Listener {
    pub(super) fn open() -> io::Result<Self> {
        Ok(Self(Socket::of(NETLINK_NETFILTER, &[GROUP], RECEIVE_BUFFER)?))
    }

    /// The descriptor to poll for messages.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }

    /// Receives a datagram, if there is one. Never blocks.
    pub(super) fn receive(&mut self) -> io::Result<RulesReceived> {
        let mut messages = Vec::new();
        Ok(match self.0.receive(|message| messages.extend(message::read(&message)))? {
            Received::Datagram => RulesReceived::RulesMessage(messages),
            Received::Lost | Received::Broken => RulesReceived::Lost,
            Received::Nothing => RulesReceived::Nothing,
        })
    }
}

/// Sends requests to the kernel.
pub(super) struct NetfilterSocket(Socket);

impl NetfilterSocket {
    pub(super) fn open() -> io::Result<Self> {
        Ok(Self::of(Socket::of(NETLINK_NETFILTER, &[], ROOM)?))
    }

    /// Queries the kernel of the namespace to which a socket belongs.
    pub(super) const fn of(socket: Socket) -> Self {
        Self(socket)
    }

    /// Waits until a change that is being made is complete. Its generation counts before that, while the kernel still takes
    /// elements out of its tables: a list would lack others then (`nf_tables_commit`). Changes exclude each other, so a
    /// transaction without any waits for the one before.
    pub(super) fn wait_for_change(&mut self) -> io::Result<()> {
        let sequence = self.0.next_sequence();
        self.0.send(&message::empty_transaction(sequence))
    }

    /// The number of the active generation; `None` in a kernel without nf_tables.
    pub(super) fn generation(&mut self) -> io::Result<Option<u32>> {
        let mut generation = None;
        let answer = self.query(message::get_generation, |message| match message {
            Message::Generation(number) => {
                generation = Some(number);
                true
            }
            _ => false,
        });
        or_no_nf_tables(answer)?;
        Ok(generation)
    }

    /// All tables of all families.
    pub(super) fn tables(&mut self) -> io::Result<Vec<Table>> {
        let mut tables = Vec::new();
        let answer = self.query(message::list_tables, |message| {
            if let Message::Table(table) = message {
                tables.push(table);
            }
            false
        });
        or_no_nf_tables(answer)?;
        tables.sort();
        Ok(tables)
    }

    /// The elements of a set; `None` if they are more than keys.
    pub(super) fn elements(
        &mut self,
        family: u8,
        table: &str,
        set: &str,
    ) -> io::Result<Option<Vec<Key>>> {
        let mut all = Some(Vec::new());
        let request = |sequence| message::list_elements(sequence, family, table, set);
        self.query(request, |message| {
            if let Message::Elements(Elements { keys, .. }) = message {
                all = all.take().zip(keys).map(|(mut all, keys)| {
                    all.extend(keys);
                    all
                });
            }
            false
        })?;
        Ok(all)
    }

    /// The elements of a set in the kernel's format: lists of elements.
    pub(super) fn element_lists(
        &mut self,
        family: u8,
        table: &str,
        set: &str,
    ) -> io::Result<Vec<Vec<u8>>> {
        let mut lists = Vec::new();
        let request = |sequence| message::list_elements(sequence, family, table, set);
        self.answers(&request, &mut |message| {
            let list = message::listed(message).and_then(|(_, body)| message::attribute(body, 3));
            lists.extend(list.map(<[u8]>::to_vec));
            false
        })?;
        Ok(lists)
    }

    /// All chains, rules or sets: each with its family and its attributes.
    pub(super) fn list(&mut self, what: List) -> io::Result<Vec<(&'static str, Vec<u8>)>> {
        let mut all = Vec::new();
        self.answers(&|sequence| message::list_all(sequence, what), &mut |message| {
            all.extend(message::listed(message).map(|(family, body)| (family, body.to_vec())));
            false
        })?;
        Ok(all)
    }

    /// Sends a request and handles answers until the last one, or until `take` returns true.
    fn query(
        &mut self,
        request: impl Fn(u32) -> Vec<u8>,
        mut take: impl FnMut(Message) -> bool,
    ) -> io::Result<()> {
        self.answers(&request, &mut |message| {
            message::read(message).is_some_and(|read| take(read.message))
        })
    }

    /// As [`Self::query`], for messages that are not of nf_tables.
    pub(super) fn answers(
        &mut self,
        request: &dyn Fn(u32) -> Vec<u8>,
        take: &mut dyn FnMut(&netlink::Message<'_>) -> bool,
    ) -> io::Result<()> {
        let sequence = self.0.next_sequence();
        self.0.send(&request(sequence))?;
        let until = Instant::now() + PATIENCE;
        let mut end = None;
        while end.is_none() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let fd = self.0.fd().as_raw_fd();
            let mut fds = [sys::readable(fd)];
            sys::wait(&mut fds, sys::timeout_ms(left))?;
            let received = self.0.receive(|message| {
                if end.is_some() || message.sequence != sequence {
                    return;
                }
                end = match message::read(&message).map(|read| read.message) {
                    Some(Message::Done | Message::Refused(0)) => Some(Ok(())),
                    Some(Message::Refused(error)) => {
                        Some(Err(io::Error::from_raw_os_error(-error)))
                    }
                    _ => take(&message).then_some(Ok(())),
                };
            })?;
            if matches!(received, Received::Lost | Received::Broken) {
                return Err(io::Error::from_raw_os_error(libc::ENOBUFS));
            }
        }
        end.unwrap_or(Ok(()))
    }
}

/// Accepts the error of `nfnetlink_rcv_msg` for a subsystem that the kernel does not have.
fn or_no_nf_tables(answer: io::Result<()>) -> io::Result<()> {
    match answer {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) => {
            Ok(())
        }
        answer => answer,
    }
}
