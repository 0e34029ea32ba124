use crate::burst::{BURST, Burst, Lanes};
use crate::frame::{Descriptor, Umem};
use crate::id::PortId;

/// Queues of frames that wait for their ports, one for each port.
#[derive(Clone, Debug, Default)]
pub struct Egress {
    queues: Vec<Queue>,
    copies: Copies,
}

/// Frames that were copied for further ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copies {
    /// The copies that were to be made.
    pub due: u64,
    /// Those for which there was no memory.
    pub lost: u64,
}

#[derive(Clone, Debug)]
struct Queue {
    count: usize,
    frames: [Descriptor; BURST],
}

impl Egress {
    /// Creates empty queues for `ports` ports.
    #[must_use]
    pub fn new(ports: usize) -> Self {
        let queue = Queue { count: 0, frames: [Descriptor::default(); BURST] };
        Self { queues: vec![queue; ports], copies: Copies::default() }
    }

    /// Queues a frame for a port of the router; returns whether there is room, which each port has for a burst.
    pub(crate) fn push(&mut self, frame: Descriptor, port: PortId) -> bool {
        let Some(queue) = self.queues.get_mut(usize::from(port.0)) else { return false };
        let Some(slot) = queue.frames.get_mut(queue.count) else { return false };
        *slot = frame;
        queue.count += 1;
        true
    }

    /// Queues a copy of a frame for a further port.
    pub(crate) fn push_copy(&mut self, umem: &mut Umem, frame: Descriptor, port: PortId) {
        self.copies.due += 1;
        let Some(copy) = umem.copy(frame) else { return self.copies.lost += 1 };
        if !self.push(copy, port) {
            self.copies.lost += 1;
            umem.free(copy.addr);
        }
    }

    /// Returns how many frames were copied since the last call.
    #[inline(always)]
    pub fn take_copies(&mut self) -> Copies {
        std::mem::take(&mut self.copies)
    }

    /// The frames that wait for a port.
    #[must_use]
    pub fn frames(&self, port: PortId) -> &[Descriptor] {
        let queue = self.queues.get(usize::from(port.0));
        queue.and_then(|queue| queue.frames.get(..queue.count)).unwrap_or_default()
    }

    /// Calls `send` for each port with waiting frames, and empties its queue.
    #[inline(always)]
    pub fn drain(&mut self, mut send: impl FnMut(PortId, &[Descriptor])) {
        for (port, queue) in self.queues.iter_mut().enumerate() {
            if let Some(frames) = queue.frames.get(..queue.count)
                && !frames.is_empty()
            {
                send(PortId(port as u16), frames);
                queue.count = 0;
            }
        }
    }
}

/// Queues every packet for its egress port; the queues are empty before a burst, so all fit.
#[inline(always)]
pub fn run(burst: &Burst, egress: &mut Egress, lanes: Lanes) {
    let Some(first) = lanes.lowest() else { return };
    let port = burst.egress[first];
    let differing = match lanes.dense() {
        Some(range) => differing(burst, port, range),
        None => differing(burst, port, lanes),
    };
    if differing { group(burst, egress, lanes) } else { append(burst, egress, port, lanes) }
}

/// Says whether any packet has another egress port than `port`.
#[inline(always)]
fn differing(burst: &Burst, port: PortId, lanes: impl IntoIterator<Item = usize>) -> bool {
    let mut differing = 0;
    for lane in lanes {
        differing |= burst.egress[lane].0 ^ port.0;
    }
    differing != 0
}

/// Queues the packets of one port after the other.
fn group(burst: &Burst, egress: &mut Egress, mut rest: Lanes) {
    while let Some(first) = rest.lowest() {
        let port = burst.egress[first];
        let mut group = Lanes::NONE;
        for lane in rest {
            group.put(lane, burst.egress[lane] == port);
        }
        append(burst, egress, port, group);
        rest = rest.without(group);
    }
}

#[inline(always)]
fn append(burst: &Burst, egress: &mut Egress, port: PortId, lanes: Lanes) {
    let Some(queue) = egress.queues.get_mut(usize::from(port.0)) else { return };
    let room = &mut queue.frames[queue.count.min(BURST)..];
    queue.count += match lanes.dense() {
        Some(range) => fill(burst, room, range),
        None => fill(burst, room, lanes),
    };
}

/// Writes descriptors until packets or room are used up; returns how many.
#[inline(always)]
fn fill(burst: &Burst, room: &mut [Descriptor], lanes: impl IntoIterator<Item = usize>) -> usize {
    let mut count = 0;
    for (slot, lane) in room.iter_mut().zip(lanes) {
        *slot = Descriptor { addr: burst.addr[lane], len: u32::from(burst.len[lane]) };
        count += 1;
    }
    count
}
