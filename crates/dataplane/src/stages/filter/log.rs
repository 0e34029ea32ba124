//! The queue of packets that rules log or capture: it keeps the start of each until a reader takes it
//! between two bursts. The path itself does no output.

use std::collections::VecDeque;

use super::Parsed;
use super::head::Head;
use crate::id::LinkId;

/// Bytes of a frame that are kept: all the headers that a log line shows.
pub const LOG_BYTES: usize = 256;

/// The maximum number of waiting packets: a tenth of a second of a rule that logs ten thousand per
/// second.
pub const MOST_LOGGED: usize = 1024;

/// A packet that a rule logs.
#[derive(Clone, Debug)]
pub struct Logged {
    /// The number of the rules that log it ([`Control::next_rules`](crate::router::Control::next_rules)).
    pub rules: u64,
    /// The index among the ruleset's logs.
    pub log: u32,
    /// The time in ns.
    pub now_ns: u64,
    /// The link that it arrived on.
    pub input: LinkId,
    /// The egress link, if known at this point.
    pub output: Option<LinkId>,
    /// Its mark.
    pub mark: u32,
    /// Bytes in the frame.
    pub len: u32,
    /// Bytes before layer 3.
    pub l3: u8,
    kept: u16,
    bytes: [u8; LOG_BYTES],
}

impl Logged {
    pub(super) fn new(log: u32, parsed: &Parsed<'_>, head: Option<&Head>, now: (u64, u32)) -> Self {
        let frame = parsed.frame();
        let kept = frame.len().min(LOG_BYTES);
        let mut bytes = [0; LOG_BYTES];
        bytes[..kept].copy_from_slice(&frame[..kept]);
        let l3 = parsed.l3();
        if let Some(layer3) = bytes[..kept].get_mut(l3..) {
            if let Some(head) = head {
                for (to, from) in layer3.iter_mut().zip(head.bytes) {
                    *to = from;
                }
            }
            parsed.count_hop(layer3);
        }
        let (now_ns, mark) = now;
        let (input, output) = parsed.links();
        let (len, l3, kept) = (frame.len() as u32, l3 as u8, kept as u16);
        // The queue sets the number of the rules.
        Self { rules: 0, log, now_ns, input, output, mark, len, l3, kept, bytes }
    }

    /// The start of the frame, as the rule saw it.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.kept)]
    }
}

/// Packets that wait to be taken.
#[derive(Clone, Debug, Default)]
pub struct LogQueue {
    queue: VecDeque<Logged>,
    room: usize,
    /// The number of the rules that log now.
    rules: u64,
    /// Packets that found no room.
    pub lost: u64,
    /// Packets above a rule's log limit.
    pub limited: u64,
}

impl LogQueue {
    /// Continues with other rules of this number, with room only if some rule logs. What waits goes on waiting.
    pub(super) fn renew(&mut self, is_used: bool, rules: u64) {
        self.rules = rules;
        self.room = if is_used { MOST_LOGGED } else { 0 };
        self.queue.reserve(self.room.saturating_sub(self.queue.len()));
    }

    pub(super) fn push(&mut self, logged: Logged) {
        if self.queue.len() < self.room {
            self.queue.push_back(Logged { rules: self.rules, ..logged });
        } else {
            self.lost += 1;
        }
    }

    /// Says whether there is nothing to report.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty() && (self.lost, self.limited) == (0, 0)
    }

    /// Takes the oldest entry.
    pub fn pop(&mut self) -> Option<Logged> {
        self.queue.pop_front()
    }
}
