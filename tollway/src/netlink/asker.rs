//! Lists and single answers that are asked for by netlink, message by message. The kernel has answered when it has
//! taken a question, or tells a list bit by bit as it is read: nothing is waited for.

use std::io;

use netlink_packet_core::{NLM_F_DUMP, NLM_F_DUMP_INTR, NLMSG_DONE, NLMSG_ERROR, NLMSG_NOOP};
use netlink_sys::{Socket, SocketAddr};

use super::bytes::{Message, request};

/// The kernel fills no larger datagram.
const DATAGRAM: usize = 1 << 16;
/// A list that changes while it is told is asked for so often.
const TRIES: usize = 4;

/// A socket to ask by.
pub(crate) struct Asker {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

/// How a list ended.
enum End {
    Whole,
    /// What it lists changed meanwhile.
    Torn,
}

impl Asker {
    /// A socket of a protocol (`NETLINK_ROUTE`, ...).
    ///
    /// # Errors
    /// The kernel does not have it, or no descriptor is left.
    pub(crate) fn open(protocol: isize) -> io::Result<Self> {
        let mut socket = Socket::new(protocol)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self { socket, sequence: 0, buffer: Vec::with_capacity(DATAGRAM) })
    }

    /// Lists are of what was asked for and of nothing else (`NETLINK_GET_STRICT_CHK`), on a kernel that
    /// can (4.20).
    pub(crate) fn ask_strictly(&self) {
        let _ = self.socket.set_netlink_get_strict_chk(true);
    }

    /// Everything of a list: the messages' kinds and bodies, as `read` takes them. One that changes
    /// all the time is told as it was seen last.
    ///
    /// # Errors
    /// The kernel refused.
    pub(crate) fn list<T>(
        &mut self,
        kind: u16,
        body: &[u8],
        mut read: impl FnMut(u16, &[u8]) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        let mut all = Vec::new();
        for _ in 0..TRIES {
            all.clear();
            self.send(kind, NLM_F_DUMP, body)?;
            match self.receive(&mut |kind, body| all.extend(read(kind, body)))? {
                End::Whole => break,
                End::Torn => {}
            }
        }
        Ok(all)
    }

    /// The body of the one message that answers a request.
    ///
    /// # Errors
    /// The kernel refused, or could not be asked.
    pub(crate) fn ask(&mut self, kind: u16, body: &[u8]) -> io::Result<Vec<u8>> {
        self.answer(kind, body)?
    }

    /// The same, or what the kernel says in its place.
    ///
    /// # Errors
    /// The kernel could not be asked.
    pub(crate) fn answer(&mut self, kind: u16, body: &[u8]) -> io::Result<io::Result<Vec<u8>>> {
        self.send(kind, 0, body)?;
        loop {
            self.buffer.clear();
            self.socket.recv(&mut self.buffer, 0)?;
            let (message, _) = Message::cut(&self.buffer).ok_or(io::ErrorKind::InvalidData)?;
            // What is left of a question that was given up.
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
        self.sequence = self.sequence.wrapping_add(1).max(1);
        self.socket.send(&request(kind, flags, self.sequence, body), 0).map(drop)
    }

    fn receive(&mut self, take: &mut dyn FnMut(u16, &[u8])) -> io::Result<End> {
        let mut end = End::Whole;
        loop {
            self.buffer.clear();
            self.socket.recv(&mut self.buffer, 0)?;
            let mut rest = self.buffer.as_slice();
            while let Some((message, behind)) = Message::cut(rest) {
                rest = behind;
                // What is left of a list that was given up.
                if message.sequence != self.sequence {
                    continue;
                }
                if message.flags & NLM_F_DUMP_INTR != 0 {
                    end = End::Torn;
                }
                match message.kind {
                    NLMSG_DONE | NLMSG_ERROR => return message.error().map_or(Ok(end), Err),
                    NLMSG_NOOP => {}
                    kind => take(kind, message.body),
                }
            }
        }
    }
}
