//! Netfilter's netlink sockets: one that listens to what changes, one that asks.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use netlink_sys::protocols::NETLINK_NETFILTER;
use netlink_sys::{Socket, SocketAddr};

use super::message::{self, Elements, Key, Message, Table, Told};
use crate::ports::sys;

/// `NFNLGRP_NFTABLES`.
const GROUP: u32 = 7;
/// The kernel fills no larger datagram.
const DATAGRAM: usize = 1 << 17;
/// Bytes of messages that may wait to be read.
const RECEIVE_BUFFER: libc::c_int = 8 << 20;
/// The kernel answers at once, or waits for a change that is being made.
const PATIENCE: Duration = Duration::from_secs(5);

/// Listens to what changes.
pub(super) struct Listener {
    socket: Socket,
    buffer: Vec<u8>,
}

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
        let mut socket = Socket::new(NETLINK_NETFILTER)?;
        socket.bind_auto()?;
        let forced = sys::set_option(
            socket.as_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVBUFFORCE,
            &RECEIVE_BUFFER,
        );
        if forced.is_err() {
            // Without CAP_NET_ADMIN there is a limit to it (net.core.rmem_max).
            socket.set_rx_buf_sz(RECEIVE_BUFFER)?;
        }
        socket.add_membership(GROUP)?;
        Ok(Self { socket, buffer: vec![0; DATAGRAM] })
    }

    /// What to wait for messages on.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Takes a datagram, if there is one. Never waits.
    pub(super) fn hear(&mut self) -> io::Result<Heard> {
        match receive(&self.socket, &mut self.buffer) {
            Ok(told) => Ok(Heard::Told(told)),
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => Ok(Heard::Lost),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Heard::Nothing),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Heard::Told(Vec::new())),
            Err(error) => Err(error),
        }
    }
}

/// Asks the kernel.
pub(super) struct Asker {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Asker {
    pub(super) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_NETFILTER)?;
        socket.bind_auto()?;
        Ok(Self { socket, sequence: 0, buffer: vec![0; DATAGRAM] })
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

    /// Asks, and takes answers until the last one, or until one is the only one.
    fn ask(
        &mut self,
        question: impl Fn(u32) -> Vec<u8>,
        mut take: impl FnMut(Message) -> bool,
    ) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1).max(1);
        self.socket.send_to(&question(self.sequence), &SocketAddr::new(0, 0), 0)?;
        let until = Instant::now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let fd = self.socket.as_fd().as_raw_fd();
            let mut fds = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
            sys::wait(&mut fds, left.as_millis() as i32 + 1)?;
            let told = match receive(&self.socket, &mut self.buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                told => told?,
            };
            for told in told.into_iter().filter(|told| told.sequence == self.sequence) {
                match told.message {
                    Message::Done | Message::Refused(0) => return Ok(()),
                    Message::Refused(error) => return Err(io::Error::from_raw_os_error(-error)),
                    message => {
                        if take(message) {
                            return Ok(());
                        }
                    }
                }
            }
        }
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

/// The messages of one datagram of the kernel's.
fn receive(socket: &Socket, buffer: &mut [u8]) -> io::Result<Vec<Told>> {
    let mut room = &mut *buffer;
    let (len, from) = socket.recv_from(&mut room, libc::MSG_DONTWAIT)?;
    if len >= buffer.len() {
        // What is cut off is lost.
        return Err(io::Error::from_raw_os_error(libc::ENOBUFS));
    }
    // Any process may write to this socket; only the kernel is believed.
    Ok(if from.port_number() == 0 { message::messages(&buffer[..len]) } else { Vec::new() })
}
