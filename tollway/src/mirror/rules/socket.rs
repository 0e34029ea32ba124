//! Netfilter's netlink sockets: one that listens to what changes, one that asks.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use netlink_sys::protocols::NETLINK_NETFILTER;

use super::message::{self, Elements, Key, List, Message, Table, Told};
use crate::netlink::{self, Received, Socket};
use crate::ports::sys;

/// `NFNLGRP_NFTABLES`.
const GROUP: u32 = 7;
/// Bytes of messages that may wait to be read.
const RECEIVE_BUFFER: usize = 8 << 20;
/// The same of answers: the kernel waits with the rest of a list until there is room for it.
pub(crate) const ROOM: usize = 1 << 20;
/// The kernel answers at once, or waits for a change that is being made.
const PATIENCE: Duration = Duration::from_secs(5);

/// Listens to what changes.
pub(super) struct Listener(Socket);

/// What was heard.
pub(super) enum Heard {
    /// Messages of the kernel's.
    Told(Vec<Told>),
    /// Some were lost: the receive buffer was full, or the kernel had no memory for them.
    Lost,
    /// Nothing more.
    Nothing,
}

impl Listener {
    pub(super) fn open() -> io::Result<Self> {
        Ok(Self(Socket::of(NETLINK_NETFILTER, &[GROUP], RECEIVE_BUFFER)?))
    }

    /// What to wait for messages on.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }

    /// Takes a datagram, if there is one. Never waits.
    pub(super) fn hear(&mut self) -> io::Result<Heard> {
        let mut told = Vec::new();
        Ok(match self.0.receive(|message| told.extend(message::read(&message)))? {
            Received::Datagram => Heard::Told(told),
            Received::Lost | Received::Broken => Heard::Lost,
            Received::Nothing => Heard::Nothing,
        })
    }
}

/// Asks the kernel.
pub(super) struct Asker(Socket);

impl Asker {
    pub(super) fn open() -> io::Result<Self> {
        Ok(Self::of(Socket::of(NETLINK_NETFILTER, &[], ROOM)?))
    }

    /// Asks where a socket is.
    pub(super) const fn of(socket: Socket) -> Self {
        Self(socket)
    }

    /// The number of the generation that is in force; none in a kernel without nf_tables.
    pub(super) fn generation(&mut self) -> io::Result<Option<u32>> {
        let mut generation = None;
        let answer = self.ask(message::get_generation, |message| match message {
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
        let answer = self.ask(message::list_tables, |message| {
            if let Message::Table(table) = message {
                tables.push(table);
            }
            false
        });
        or_no_nf_tables(answer)?;
        tables.sort();
        Ok(tables)
    }

    /// What a set has; none where that is more than keys.
    pub(super) fn elements(
        &mut self,
        family: u8,
        table: &str,
        set: &str,
    ) -> io::Result<Option<Vec<Key>>> {
        let mut all = Some(Vec::new());
        let question = |sequence| message::list_elements(sequence, family, table, set);
        self.ask(question, |message| {
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

    /// What a set has, as the kernel has it: lists of elements.
    pub(super) fn element_lists(
        &mut self,
        family: u8,
        table: &str,
        set: &str,
    ) -> io::Result<Vec<Vec<u8>>> {
        let mut lists = Vec::new();
        let question = |sequence| message::list_elements(sequence, family, table, set);
        self.answers(&question, &mut |message| {
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

    /// Asks, and takes answers until the last one, or until one is the only one.
    fn ask(
        &mut self,
        question: impl Fn(u32) -> Vec<u8>,
        mut take: impl FnMut(Message) -> bool,
    ) -> io::Result<()> {
        self.answers(&question, &mut |message| {
            message::read(message).is_some_and(|told| take(told.message))
        })
    }

    fn answers(
        &mut self,
        question: &dyn Fn(u32) -> Vec<u8>,
        take: &mut dyn FnMut(&netlink::Message<'_>) -> bool,
    ) -> io::Result<()> {
        let sequence = self.0.next_sequence();
        self.0.send(&question(sequence))?;
        let until = Instant::now() + PATIENCE;
        let mut end = None;
        while end.is_none() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let fd = self.0.fd().as_raw_fd();
            let mut fds = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
            sys::wait(&mut fds, left.as_millis() as i32 + 1)?;
            let received = self.0.receive(|message| {
                if end.is_some() || message.sequence != sequence {
                    return;
                }
                end = match message::read(&message).map(|told| told.message) {
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

/// `nfnetlink_rcv_msg` refuses so what is for a part of the kernel that is not there.
fn or_no_nf_tables(answer: io::Result<()>) -> io::Result<()> {
    match answer {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) => {
            Ok(())
        }
        answer => answer,
    }
}
