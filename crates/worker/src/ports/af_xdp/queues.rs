//! The queues of a device that one worker serves: their sockets, and the chunks that the kernel has by them.

use std::os::fd::BorrowedFd;

use tollway_dataplane::burst::{BURST, Burst};
use tollway_dataplane::counters::Traffic;
use tollway_dataplane::frame::{Area, Descriptor, FrameAddr, Umem};

use super::RETRY_NS;
use super::custody::Custody;
use super::socket::Socket;
use super::steps::Punter;
use crate::ports::QueueCounts;

/// A worker's sockets, and what belongs to them.
#[derive(Default)]
pub(super) struct OpenQueues {
    pub(super) sockets: Vec<Socket>,
    /// The chunks that the kernel got when they were bound.
    pub(super) chunks: Vec<FrameAddr>,
    pub(super) zero_copy: bool,
    pub(super) punter: Option<Punter>,
}

/// A worker's queues of a device. Only this worker touches them, so that it takes no lock.
pub(super) struct Queues {
    sockets: Vec<Socket>,
    /// The queue to read first next time.
    turn: usize,
    /// Whether the device itself reads and writes the chunks.
    zero_copy: bool,
    /// Where frames go back to the kernel, while there are sockets.
    punter: Option<Punter>,
    pub(super) custody: Custody,
    /// Chunks to free, which closed sockets had.
    orphans: Vec<FrameAddr>,
    /// Chunks of closed sockets, with the time before which a device may still write to them. The next tick after the
    /// close sets it.
    quarantine: Vec<(Option<u64>, Vec<FrameAddr>)>,
    oversized: Traffic,
    /// By queue, what closed sockets have received.
    closed: Vec<QueueCounts>,
}

impl Queues {
    /// No sockets yet, for chunks of this area.
    pub(super) fn new(area: &Area) -> Self {
        Self {
            sockets: Vec::new(),
            turn: 0,
            zero_copy: false,
            punter: None,
            custody: Custody::new(area.bytes(), area.chunk_bytes()),
            orphans: Vec::new(),
            quarantine: Vec::new(),
            oversized: Traffic::default(),
            closed: Vec::new(),
        }
    }

    /// Takes sockets, in place of none. The kernel has those chunks that it got when they were bound.
    pub(super) fn open(&mut self, opened: OpenQueues) {
        let OpenQueues { sockets, chunks, zero_copy, punter } = opened;
        debug_assert!(self.sockets.is_empty(), "the queues were closed before");
        chunks.iter().for_each(|chunk| self.custody.give(chunk.0));
        (self.sockets, self.turn) = (sockets, 0);
        (self.zero_copy, self.punter) = (zero_copy, punter);
    }

    /// Gives the sockets chunks to receive in, as far as they lack some.
    pub(super) fn refill(&mut self, umem: &mut Umem) {
        for socket in &mut self.sockets {
            socket.refill(umem, &mut self.custody);
        }
    }

    /// Closes the sockets; their chunks are freed at the next opportunity.
    pub(super) fn close(&mut self) {
        // Its device must be gone before another is created under its name.
        self.punter = None;
        if self.sockets.is_empty() {
            return;
        }
        let mut chunks = Vec::new();
        for socket in &mut self.sockets {
            let mut counts = socket.counts();
            counts.missed += socket.unread();
            add(&mut self.closed, counts);
            chunks.extend(socket.take_partial());
        }
        // Before this returns, the kernel waits for pending copies.
        self.sockets.clear();
        chunks.extend(self.custody.take_all().into_iter().map(FrameAddr));
        if self.zero_copy {
            self.quarantine.push((None, chunks));
        } else {
            self.orphans.append(&mut chunks);
        }
    }

    /// Takes back the chunks that sockets had which never worked. A device may have got to know them, if they
    /// were bound.
    pub(super) fn recall(&mut self, were_bound: bool) {
        let lent: Vec<_> = self.custody.take_all().into_iter().map(FrameAddr).collect();
        match were_bound {
            _ if lent.is_empty() => {}
            true => self.quarantine.push((None, lent)),
            false => self.orphans.extend(lent),
        }
    }

    /// Frees the chunks of closed sockets.
    #[inline]
    pub(super) fn free_orphans(&mut self, umem: &mut Umem) {
        if !self.orphans.is_empty() {
            self.orphans.drain(..).for_each(|addr| umem.free(addr));
        }
    }

    /// Lets chunks be freed which no device writes to any more; to be called about ten times a second.
    pub(super) fn release_quarantine(&mut self, now_ns: u64) {
        let orphans = &mut self.orphans;
        self.quarantine.retain_mut(|(until_ns, chunks)| {
            let over = until_ns.is_some_and(|until_ns| now_ns >= until_ns);
            until_ns.get_or_insert(now_ns.saturating_add(RETRY_NS));
            if over {
                orphans.append(chunks);
            }
            !over
        });
    }

    /// Whether a device may still write to chunks of closed sockets.
    pub(super) fn has_quarantine(&self) -> bool {
        !self.quarantine.is_empty()
    }

    /// Receives frames from the queues, each time from another one first.
    #[inline]
    pub(super) fn receive(&mut self, umem: &mut Umem, burst: &mut Burst) {
        let (count, first) = (self.sockets.len(), self.turn);
        self.turn = if first + 1 >= count { 0 } else { first + 1 };
        let (before, from) = self.sockets.split_at_mut(first.min(count));
        for socket in from.iter_mut().chain(before) {
            socket.receive(umem, &mut self.custody, burst, &mut self.oversized);
            if burst.count >= BURST {
                break;
            }
        }
        if let Some(sender) = self.sockets.first_mut() {
            sender.look_after_sent(umem, &mut self.custody);
        }
    }

    /// Sends frames by the first of the queues; `None` if there is none.
    #[inline]
    pub(super) fn transmit(&mut self, umem: &mut Umem, frames: &[Descriptor]) -> Option<usize> {
        let sender = self.sockets.first_mut()?;
        Some(sender.transmit(umem, &mut self.custody, frames))
    }

    /// Whether frames can go back to the kernel.
    pub(super) const fn can_punt(&self) -> bool {
        self.punter.is_some()
    }

    /// Hands a received frame to the kernel; returns false if that failed.
    pub(super) fn punt(&self, umem: &mut Umem, frame: Descriptor) -> bool {
        let done = self.punter.as_ref().is_some_and(|punter| punter.punt(&umem.whole(frame)));
        if done {
            umem.free(frame.addr);
        }
        done
    }

    /// Calls `visit` for the descriptor of each socket.
    pub(super) fn each_fd(&self, visit: &mut dyn FnMut(BorrowedFd<'_>)) {
        self.sockets.iter().for_each(|socket| visit(socket.fd()));
    }

    /// Whether a socket does not work any more.
    pub(super) fn has_error(&self) -> bool {
        self.sockets.iter().any(|socket| socket.error().is_some())
    }

    /// Takes the count of the frames that fit no chunk.
    pub(super) fn take_oversized(&mut self) -> Traffic {
        std::mem::take(&mut self.oversized)
    }

    /// The number of frames that the kernel dropped before they could be read.
    pub(super) fn missed(&self) -> u64 {
        let closed = self.closed.iter().map(|counts| counts.missed).sum::<u64>();
        closed + self.sockets.iter().map(Socket::missed).sum::<u64>()
    }

    /// What each queue has received, also through sockets that are closed now.
    pub(super) fn counts(&self) -> Vec<QueueCounts> {
        let mut all = self.closed.clone();
        self.sockets.iter().for_each(|socket| add(&mut all, socket.counts()));
        all
    }

    /// The number of chunks that the queues have, or the kernel by them.
    pub(super) fn chunks(&self, umem: &Umem) -> usize {
        let partial = self.sockets.iter().filter_map(Socket::partial);
        let closed = self.quarantine.iter().flat_map(|(_, chunks)| chunks).chain(&self.orphans);
        let frames = partial.chain(closed.copied()).map(|addr| umem.chunks_of(addr));
        self.custody.count() + frames.sum::<usize>()
    }
}

/// Adds the counts of a socket to those of its queue.
fn add(all: &mut Vec<QueueCounts>, counts: QueueCounts) {
    match all.iter_mut().find(|known| known.queue == counts.queue) {
        Some(known) => {
            known.received += counts.received;
            known.missed += counts.missed;
        }
        None => all.push(counts),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_goes_on_counting_with_another_socket() {
        let counts = |queue, received, missed| QueueCounts { queue, received, missed };
        let mut all = Vec::new();
        [counts(1, 10, 1), counts(3, 5, 0), counts(1, 2, 2)]
            .into_iter()
            .for_each(|socket| add(&mut all, socket));
        assert_eq!(all, [counts(1, 12, 3), counts(3, 5, 0)]);
    }
}
