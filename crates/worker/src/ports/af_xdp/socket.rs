//! One AF_XDP socket: a queue of a device, with four rings.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use libc::xdp_desc;
use tollway_dataplane::burst::{BURST, Burst};
use tollway_dataplane::counters::Traffic;
use tollway_dataplane::frame::{Area, Descriptor, FrameAddr, Umem};
use tollway_dataplane::wire::eth;

use super::custody::Custody;
use super::ring::{Consumer, Producer};
use super::sys::{self, Kind, Mapped};
use super::umem::{Binding, SharedUmem};
use crate::ports::QueueCounts;

/// Slots of the TX and completion rings.
pub(super) const RING: u32 = 2048;

/// Slots of the RX ring, for each queue of a device with so many queues. Together they hold 8 ms of a
/// million packets a second, so that a burst waits there while the worker is elsewhere; each alone
/// holds at least 2 ms.
pub(super) const fn receive_slots(queues: u32) -> u32 {
    match queues {
        0 | 1 => 4 * RING,
        2 | 3 => 2 * RING,
        _ => RING,
    }
}

/// The same if all queues share so many chunks: a device may get more queues than it had when the
/// memory was allocated, and other ports need the rest.
pub(super) const fn receive_slots_within(queues: u32, chunks: u32) -> u32 {
    let mut slots = receive_slots(queues);
    while slots > FEWEST_SLOTS && queues * receive_chunks(slots) > chunks {
        slots /= 2;
    }
    slots
}

/// The fewest slots: a burst.
const FEWEST_SLOTS: u32 = BURST as u32;

/// The surplus of chunks over the slots of the RX ring. When that ring is full, the device still
/// has these chunks, so it never lacks one to receive in.
///
/// Otherwise igb would stop receiving for good, if it has separate interrupts for sending and
/// receiving, as on two processors: a wakeup makes it look only at what it sends (`igb_xsk_wakeup`,
/// Linux 7.3).
const SPARE: u32 = 64;

/// Chunks in which a queue receives whose RX ring has so many slots.
pub(super) const fn receive_chunks(slots: u32) -> u32 {
    slots + SPARE
}

/// The number of chunks missing in the fill ring at which it is refilled.
const REFILL: u32 = 32;

/// A frame of which only the first chunks have arrived.
#[derive(Clone, Copy, Debug)]
struct Partial {
    head: FrameAddr,
    last: Descriptor,
    len: u32,
    /// The frame exceeds the largest size; the rest of it is freed.
    too_large: bool,
}

/// A queue, and the chunks by which a socket receives from it.
#[derive(Clone, Copy)]
pub(super) struct QueueShare<'a> {
    pub(super) ifindex: u32,
    pub(super) queue: u32,
    /// The slots of the ring that it receives by.
    pub(super) slots: u32,
    /// The chunks for its fill ring.
    pub(super) chunks: &'a [FrameAddr],
}

/// A socket that is bound to a queue.
pub(super) struct Socket {
    queue: u32,
    fd: Arc<OwnedFd>,
    rx: Consumer<Mapped<xdp_desc>>,
    tx: Producer<Mapped<xdp_desc>>,
    fill: Producer<Mapped<u64>>,
    completion: Consumer<Mapped<u64>>,
    /// The number of chunks that the fill ring lacks.
    owed: u32,
    /// The number of chunks given to the TX ring that the kernel has not returned yet.
    in_flight: u32,
    /// Whether the kernel may not have taken all of the TX ring.
    unsent: bool,
    partial: Option<Partial>,
    /// Whether the device itself writes the frames, so that their headers may be in no cache.
    zero_copy: bool,
    /// Frames received, those that were too large included.
    received: u64,
    /// The kernel writes to it until the socket is closed.
    _area: Arc<Area>,
}

impl Socket {
    /// Binds a new socket to a queue, with chunks in its fill ring. From then on, a zero-copy device
    /// has no other memory.
    pub(super) fn open(
        umem: &SharedUmem,
        binding: Binding,
        share: QueueShare<'_>,
    ) -> Result<Self, (&'static str, io::Error)> {
        while let Some(owner) = umem.owner(binding) {
            match Self::bind(umem, binding, share, Some(&owner)) {
                // Its device has gone, and its registration with it.
                Err((_, error)) if error.raw_os_error() == Some(libc::EBADF) => umem.forget(&owner),
                done => return done,
            }
        }
        Self::bind(umem, binding, share, None)
    }

    fn bind(
        umem: &SharedUmem,
        binding: Binding,
        share: QueueShare<'_>,
        owner: Option<&Arc<OwnedFd>>,
    ) -> Result<Self, (&'static str, io::Error)> {
        let QueueShare { ifindex, queue, slots, chunks } = share;
        let what = |what| move |error| (what, error);
        let fd = sys::socket().map_err(what("AF_XDP socket"))?;
        let socket = fd.as_fd();
        if owner.is_none() {
            sys::register(socket, umem.area()).map_err(what("XDP_UMEM_REG"))?;
        }
        let fill = sys::ring(socket, Kind::Fill, 2 * slots).map_err(what("fill ring"))?;
        let completion =
            sys::ring(socket, Kind::Completion, RING).map_err(what("completion ring"))?;
        let rx = sys::ring(socket, Kind::Rx, slots).map_err(what("RX ring"))?;
        let tx = sys::ring(socket, Kind::Tx, RING).map_err(what("TX ring"))?;
        sys::prepare_sending(socket);
        let mut fill = Producer::new(fill);
        let given = chunks.iter().take_while(|chunk| fill.push(u64::from(chunk.0))).count();
        debug_assert_eq!(given, chunks.len(), "an empty ring has room for as many as it has slots");
        fill.publish();
        let owner_fd = owner.map(|owner| owner.as_fd());
        sys::bind(socket, (ifindex, queue), binding.flags(), owner_fd).map_err(what("bind"))?;
        let fd = Arc::new(fd);
        umem.add(binding, &fd);
        Ok(Self {
            queue,
            fd,
            rx: Consumer::new(rx),
            tx: Producer::new(tx),
            fill,
            completion: Consumer::new(completion),
            owed: receive_chunks(slots) - given as u32,
            in_flight: 0,
            unsent: false,
            partial: None,
            zero_copy: binding.zero_copy,
            received: 0,
            _area: Arc::clone(umem.area()),
        })
    }

    /// The descriptor to poll.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The descriptor for whoever directs frames to the socket.
    pub(super) fn shared_fd(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.fd)
    }

    /// The pending error, if any.
    pub(super) fn error(&self) -> Option<io::Error> {
        sys::error(&*self.fd)
    }

    /// The number of frames that the kernel could not deliver.
    pub(super) fn missed(&self) -> u64 {
        sys::statistics(self.fd()).map_or(0, |counts| counts.rx_dropped + counts.rx_ring_full)
    }

    /// What the queue has received through the socket.
    pub(super) fn counts(&self) -> QueueCounts {
        QueueCounts { queue: self.queue, received: self.received, missed: self.missed() }
    }

    /// Adds received frames to the burst.
    #[inline]
    pub(super) fn receive(
        &mut self,
        umem: &mut Umem,
        custody: &mut Custody,
        burst: &mut Burst,
        oversized: &mut Traffic,
    ) {
        let (mut taken, before) = (0, burst.count);
        while burst.count < BURST
            && let Some(desc) = self.rx.pop()
        {
            taken += 1;
            custody.take(desc.addr as u32);
            let piece = Descriptor { addr: FrameAddr(desc.addr as u32), len: desc.len };
            let goes_on = desc.options & libc::XDP_PKT_CONTD != 0;
            if goes_on || self.partial.is_some() {
                self.assemble(umem, burst, oversized, piece, goes_on);
            } else {
                // There is room: the loop's condition.
                let pushed = burst.push(piece.addr, piece.len as u16);
                debug_assert!(pushed);
            }
        }
        if self.zero_copy && burst.count == BURST {
            self.prefetch_next(umem);
        }
        if taken > 0 {
            self.rx.release();
            self.owed += taken;
            self.received += (burst.count - before) as u64;
        }
        if self.owed >= REFILL || (taken == 0 && self.owed > 0) {
            self.refill(umem, custody);
        }
    }

    /// Prefetches the headers of the next burst while the worker forwards this one.
    #[inline]
    fn prefetch_next(&self, umem: &Umem) {
        for desc in (0..BURST as u32).map_while(|behind| self.rx.peek(behind)) {
            umem.prefetch(FrameAddr(desc.addr as u32));
        }
    }

    /// Takes the next chunk of a frame with several chunks.
    #[cold]
    fn assemble(
        &mut self,
        umem: &mut Umem,
        burst: &mut Burst,
        oversized: &mut Traffic,
        piece: Descriptor,
        goes_on: bool,
    ) {
        let mut frame = match self.partial.take() {
            None => Partial { head: piece.addr, last: piece, len: piece.len, too_large: false },
            Some(frame) => follow(umem, frame, piece),
        };
        if !frame.too_large && frame.len as usize > umem.limit() {
            umem.free(frame.head);
            frame.too_large = true;
        }
        if goes_on {
            self.partial = Some(frame);
        } else if frame.too_large {
            oversized.add(1, u64::from(frame.len));
            self.received += 1;
        } else if !burst.push(frame.head, frame.len as u16) {
            umem.free(frame.head);
        }
    }

    /// Gives the kernel chunks to receive in, as far as it lacks some and there are any.
    pub(super) fn refill(&mut self, umem: &mut Umem, custody: &mut Custody) {
        let room = self.fill.room(self.owed).min(self.owed);
        let mut given = 0;
        while given < room
            && let Some(FrameAddr(addr)) = umem.alloc()
        {
            // The kernel finds the chunk and the offset in it by itself.
            if !self.fill.push(u64::from(addr)) {
                umem.free(FrameAddr(addr));
                break;
            }
            custody.give(addr);
            given += 1;
        }
        if given > 0 {
            self.owed -= given;
            self.fill.publish();
            if self.fill.needs_wakeup() {
                sys::kick_fill(self.fd());
            }
        }
    }

    /// Queues frames to send; returns how many. The kernel owns those from then on.
    #[inline]
    pub(super) fn transmit(
        &mut self,
        umem: &mut Umem,
        custody: &mut Custody,
        frames: &[Descriptor],
    ) -> usize {
        self.reap(umem, custody);
        let mut taken = 0;
        for frame in frames {
            if !self.queue(umem, custody, *frame) {
                // Once more, after the kernel has taken the waiting frames.
                self.send();
                self.reap(umem, custody);
                if !self.queue(umem, custody, *frame) {
                    break;
                }
            }
            taken += 1;
        }
        if taken > 0 {
            self.send();
        }
        taken
    }

    /// Puts one frame into the TX ring; returns false if there is no room.
    #[inline]
    fn queue(&mut self, umem: &mut Umem, custody: &mut Custody, frame: Descriptor) -> bool {
        if umem.has_chains() {
            return self.queue_chain(umem, custody, frame);
        }
        if self.tx.room(1) == 0 {
            return false;
        }
        if !is_sendable(umem, frame) {
            umem.free(frame.addr);
            return true;
        }
        self.put(custody, frame, 0);
        true
    }

    /// Puts a frame into the TX ring that may have several chunks; returns false if there is no room.
    #[cold]
    fn queue_chain(&mut self, umem: &mut Umem, custody: &mut Custody, frame: Descriptor) -> bool {
        let count = umem.pieces(frame).count();
        if (self.tx.room(count as u32) as usize) < count {
            return false;
        }
        let sound = umem.pieces(frame).all(|piece| fits_chunk(umem, piece));
        if !sound || frame.len < eth::LEN as u32 {
            umem.free(frame.addr);
            return true;
        }
        let mut index = 0;
        umem.take_apart(frame, |piece| {
            index += 1;
            self.put(custody, piece, if index < count { libc::XDP_PKT_CONTD } else { 0 });
        });
        true
    }

    #[inline(always)]
    fn put(&mut self, custody: &mut Custody, piece: Descriptor, options: u32) {
        let addr = piece.addr.0;
        let queued = self.tx.push(xdp_desc { addr: u64::from(addr), len: piece.len, options });
        debug_assert!(queued, "there is room: the callers have looked");
        custody.give(addr);
        self.in_flight += 1;
    }

    /// Makes the kernel send what is queued: one call per burst.
    fn send(&mut self) {
        self.tx.publish();
        if self.tx.needs_wakeup() {
            sys::kick_tx(self.fd());
            self.unsent = self.tx.pending() > 0;
        }
    }

    /// Frees sent chunks, and makes the kernel continue where it stopped.
    #[inline]
    pub(super) fn look_after_sent(&mut self, umem: &mut Umem, custody: &mut Custody) {
        if self.in_flight == 0 {
            return;
        }
        self.reap(umem, custody);
        if self.unsent {
            self.send();
        }
    }

    #[inline]
    fn reap(&mut self, umem: &mut Umem, custody: &mut Custody) {
        let mut freed = 0;
        while let Some(addr) = self.completion.pop() {
            freed += 1;
            if custody.take(addr as u32) {
                umem.free(FrameAddr(addr as u32));
            }
        }
        if freed > 0 {
            self.completion.release();
            self.in_flight = self.in_flight.saturating_sub(freed);
        }
    }

    /// The number of received chunks that were not read.
    pub(super) fn unread(&mut self) -> u64 {
        u64::from(self.rx.waiting())
    }

    /// The head of a frame that has not arrived completely.
    pub(super) fn partial(&self) -> Option<FrameAddr> {
        self.partial.as_ref().filter(|frame| !frame.too_large).map(|frame| frame.head)
    }

    /// Takes out the incomplete frame, for the caller to free.
    pub(super) fn take_partial(&mut self) -> Option<FrameAddr> {
        let head = self.partial();
        self.partial = None;
        head
    }
}

/// Appends the next chunk to a frame.
fn follow(umem: &mut Umem, frame: Partial, piece: Descriptor) -> Partial {
    if frame.too_large {
        umem.free(piece.addr);
    } else {
        umem.link(frame.last, piece.addr);
    }
    Partial { last: piece, len: frame.len + piece.len, ..frame }
}

/// Whether the kernel accepts this as a frame; otherwise it would not return it either.
#[inline(always)]
fn is_sendable(umem: &Umem, frame: Descriptor) -> bool {
    frame.len >= eth::LEN as u32 && fits_chunk(umem, frame)
}

#[inline(always)]
fn fits_chunk(umem: &Umem, piece: Descriptor) -> bool {
    let offset = piece.addr.0 & (umem.chunk_bytes() - 1);
    piece.len <= umem.chunk_bytes() - offset && (piece.addr.0 as usize) < umem.area().bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_queues_share_the_chunks_of_fewer() {
        let chunks = |queues| queues * receive_chunks(receive_slots(queues));
        for had in [1, 2, 4, 16] {
            for has in 1..=64 {
                let slots = receive_slots_within(has, chunks(had));
                let fits = has * receive_chunks(slots) <= chunks(had);
                assert!(slots.is_power_of_two() && slots <= receive_slots(has));
                assert!(fits || slots == FEWEST_SLOTS, "{had} queues become {has}: {slots} slots");
            }
            assert_eq!(receive_slots_within(had, chunks(had)), receive_slots(had));
        }
        assert_eq!(receive_slots_within(16, chunks(1)), 256);
    }
}
