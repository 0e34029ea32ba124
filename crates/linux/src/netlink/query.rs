//! Netlink queries for lists and single answers. The kernel has answered when it has accepted a request, or
//! produces a list step by step as it is read: no query waits.

use std::io;
use std::ops::ControlFlow;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLMSG_DONE, NLMSG_ERROR, NLMSG_NOOP,
};
use netlink_sys::{Socket, SocketAddr};

use super::bytes::{Message, request};

/// The kernel fills no larger datagram.
const DATAGRAM: usize = 1 << 16;
/// How often a list is requested at most if it changes while it is read.
const TRIES: usize = 4;

/// A socket for queries.
pub struct QuerySocket {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
    /// The kernel still has the rest of a list. It would refuse the next list.
    has_rest: bool,
}

/// How a list ended.
enum End {
    Whole,
    /// The listed objects changed meanwhile.
    Torn,
    /// The reader stopped before the end.
    Stopped,
}

impl QuerySocket {
    /// Opens a socket of a protocol (`NETLINK_ROUTE`, ...).
    ///
    /// # Errors
    /// The kernel does not have the protocol, or no descriptor is left.
    pub fn open(protocol: isize) -> io::Result<Self> {
        let mut socket = Socket::new(protocol)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self { socket, sequence: 0, buffer: Vec::with_capacity(DATAGRAM), has_rest: false })
    }

    /// Limits lists to exactly what was requested (`NETLINK_GET_STRICT_CHK`), on kernels that can (4.20).
    pub fn set_strict_check(&self) {
        let _ = self.socket.set_netlink_get_strict_chk(true);
    }

    /// Reads a whole list. `read` receives the messages' kinds and bodies. If the list keeps changing, the
    /// result is the last attempt.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn list<T>(
        &mut self,
        kind: u16,
        body: &[u8],
        mut read: impl FnMut(u16, &[u8]) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        let mut all = Vec::new();
        for _ in 0..TRIES {
            all.clear();
            self.send(kind, NLM_F_DUMP, body)?;
            let end = self.receive(&mut |kind, body| {
                all.extend(read(kind, body));
                ControlFlow::Continue(())
            });
            match end? {
                End::Whole | End::Stopped => break,
                End::Torn => {}
            }
        }
        Ok(all)
    }

    /// Reads a list message by message, as the kernel produces it, until `take` breaks. Nothing is kept, and a
    /// list that changes meanwhile is not requested again: objects may be missing, or come twice.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn each(
        &mut self,
        kind: u16,
        body: &[u8],
        mut take: impl FnMut(u16, &[u8]) -> ControlFlow<()>,
    ) -> io::Result<()> {
        self.send(kind, NLM_F_DUMP, body)?;
        self.receive(&mut take).map(drop)
    }

    /// The body of the single message that answers a request.
    ///
    /// # Errors
    /// The kernel refused, or the query could not be made.
    pub fn query(&mut self, kind: u16, body: &[u8]) -> io::Result<Vec<u8>> {
        self.answer(kind, body)?
    }

    /// The same, or the error with which the kernel answers.
    ///
    /// # Errors
    /// The query could not be made.
    pub fn answer(&mut self, kind: u16, body: &[u8]) -> io::Result<io::Result<Vec<u8>>> {
        self.exchange(kind, 0, body)
    }

    /// Changes something in the kernel; `flags` say whether it may exist (`NLM_F_CREATE`, `NLM_F_EXCL`, ...).
    ///
    /// # Errors
    /// The kernel refused.
    pub fn change(&mut self, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
        self.exchange(kind, flags | NLM_F_ACK, body)?.map(drop)
    }

    fn exchange(&mut self, kind: u16, flags: u16, body: &[u8]) -> io::Result<io::Result<Vec<u8>>> {
        self.send(kind, flags, body)?;
        loop {
            self.buffer.clear();
            self.socket.recv(&mut self.buffer, 0)?;
            let (message, _) = Message::cut(&self.buffer).ok_or(io::ErrorKind::InvalidData)?;
            // The rest of an abandoned query.
            if message.sequence != self.sequence {
                continue;
            }
            return Ok(match message.kind {
                NLMSG_ERROR => message.error().map_or_else(|| Ok(Vec::new()), Err),
                _ => Ok(message.body.to_vec()),
            });
        }
    }

    fn send(&mut self, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
        if self.has_rest {
            self.has_rest = false;
            // How the abandoned list ends says nothing about this request.
            let _ = self.receive(&mut |_, _| ControlFlow::Continue(()));
        }
        self.sequence = self.sequence.wrapping_add(1).max(1);
        self.socket.send(&request(kind, flags, self.sequence, body), 0).map(drop)
    }

    fn receive(&mut self, take: &mut dyn FnMut(u16, &[u8]) -> ControlFlow<()>) -> io::Result<End> {
        let (mut end, mut flow) = (End::Whole, ControlFlow::Continue(()));
        loop {
            self.buffer.clear();
            self.socket.recv(&mut self.buffer, 0)?;
            let mut rest = self.buffer.as_slice();
            while let Some((message, behind)) = Message::cut(rest) {
                rest = behind;
                // The rest of an abandoned list.
                if message.sequence != self.sequence {
                    continue;
                }
                if message.flags & NLM_F_DUMP_INTR != 0 {
                    end = End::Torn;
                }
                match message.kind {
                    NLMSG_DONE | NLMSG_ERROR => return message.error().map_or(Ok(end), Err),
                    NLMSG_NOOP => {}
                    // The end of the list may be behind this in the same datagram.
                    _ if flow.is_break() => {}
                    kind => flow = take(kind, message.body),
                }
            }
            if flow.is_break() {
                self.has_rest = true;
                return Ok(End::Stopped);
            }
        }
    }
}
