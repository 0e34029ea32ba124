use crate::burst::{BURST, Burst, Lanes};
use crate::frame::Descriptor;
use crate::id::PortId;

/// Frames that wait to be handed to their ports, one queue for each.
#[derive(Clone, Debug, Default)]
pub struct Egress {
    queues: Vec<Queue>,
}

#[derive(Clone, Debug)]
struct Queue {
    count: usize,
    frames: [Descriptor; BURST],
}

impl Egress {
    /// Empty queues for so many ports.
    #[must_use]
    pub fn new(ports: usize) -> Self {
        let queue = Queue { count: 0, frames: [Descriptor::default(); BURST] };
        Self { queues: vec![queue; ports] }
    }

    /// The frames that wait for a port.
    #[must_use]
    pub fn frames(&self, port: PortId) -> &[Descriptor] {
        let queue = self.queues.get(usize::from(port.0));
        queue.and_then(|queue| queue.frames.get(..queue.count)).unwrap_or_default()
    }

    /// Calls `take` for each port that frames wait for, and empties its queue.
    #[inline(always)]
    pub fn drain(&mut self, mut take: impl FnMut(PortId, &[Descriptor])) {
        for (port, queue) in self.queues.iter_mut().enumerate() {
            if let Some(frames) = queue.frames.get(..queue.count)
                && !frames.is_empty()
            {
                take(PortId(port as u16), frames);
                queue.count = 0;
            }
        }
    }
}

/// Queues every packet at its egress port; the queues are empty before a burst, so all fit.
#[inline(always)]
pub fn run(burst: &Burst, egress: &mut Egress, lanes: Lanes) {
    if lanes.is_empty() {
        return;
    }
    let first = burst.egress[lanes.0.trailing_zeros() as usize];
    let mut differing = 0;
    lanes.each(|lane| differing |= burst.egress[lane].0 ^ first.0);
    if differing == 0 {
        append(burst, egress, first, lanes);
        return;
    }
    let mut rest = lanes;
    while !rest.is_empty() {
        let port = burst.egress[rest.0.trailing_zeros() as usize];
        let group = rest.filter(|lane| burst.egress[lane] == port);
        append(burst, egress, port, group);
        rest = rest.without(group);
    }
}

#[inline(always)]
fn append(burst: &Burst, egress: &mut Egress, port: PortId, lanes: Lanes) {
    let Some(queue) = egress.queues.get_mut(usize::from(port.0)) else { return };
    let mut count = queue.count;
    lanes.each(|lane| {
        if let Some(slot) = queue.frames.get_mut(count) {
            *slot = Descriptor { addr: burst.addr[lane], len: u32::from(burst.len[lane]) };
            count += 1;
        }
    });
    queue.count = count;
}
