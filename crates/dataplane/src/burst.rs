//! A burst: up to 64 packets at once as a structure of arrays, and sets of its packets.

use std::ops::Range;

use crate::frame::{FrameAddr, HEADERS_END};
use crate::id::{LinkId, PortId, RecordId};
use crate::verdict::Verdict;

/// The maximum number of packets in a burst: one bit each in [`Lanes`].
///
/// Bursts of 256 would double the first-level cache misses (measured by DPDK's grout).
pub const BURST: usize = 64;

/// A set of a burst's packets, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lanes(pub u64);

impl Lanes {
    /// No packet.
    pub const NONE: Self = Self(0);

    /// The first `n` packets (all 64 where `n` is larger).
    #[inline(always)]
    #[must_use]
    pub const fn first(n: usize) -> Self {
        if n >= BURST { Self(u64::MAX) } else { Self((1 << n) - 1) }
    }

    /// Says whether the set is empty.
    #[inline(always)]
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The number of packets in the set.
    #[inline(always)]
    #[must_use]
    pub const fn count(self) -> usize {
        self.0.count_ones() as usize
    }

    /// The packets of this set that are not in `other`.
    #[inline(always)]
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The packets of both sets.
    #[inline(always)]
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Says whether packet `lane` is in the set.
    #[inline(always)]
    #[must_use]
    pub const fn has(self, lane: usize) -> bool {
        self.0 >> (lane & (BURST - 1)) & 1 != 0
    }

    /// The set as a plain range, if it holds the burst's first packets without a gap (the usual case).
    /// A counted loop takes a third less time than one that searches for bits.
    #[inline(always)]
    #[must_use]
    pub const fn dense(self) -> Option<Range<usize>> {
        if self.0 & self.0.wrapping_add(1) == 0 {
            Some(0..self.0.trailing_ones() as usize)
        } else {
            None
        }
    }

    /// The set's first packet, if any.
    #[inline(always)]
    #[must_use]
    pub const fn lowest(self) -> Option<usize> {
        if self.0 == 0 { None } else { Some(self.0.trailing_zeros() as usize) }
    }

    /// The packets of this set for which `holds` is true.
    #[inline(always)]
    #[must_use]
    pub fn filter(self, holds: impl Fn(usize) -> bool) -> Self {
        let mut lanes = Self::NONE;
        match self.dense() {
            Some(range) => {
                for lane in range {
                    lanes.put(lane, holds(lane));
                }
            }
            None => {
                for lane in self {
                    lanes.put(lane, holds(lane));
                }
            }
        }
        lanes
    }

    /// Adds packet `lane` if `member` is true.
    #[inline(always)]
    pub const fn put(&mut self, lane: usize, member: bool) {
        self.0 |= (member as u64) << lane;
    }

    /// Adds packet `lane`, for rare cases: the compiler moves the code out of the hot loop.
    #[inline(always)]
    pub fn insert_rare(&mut self, lane: usize) {
        std::hint::cold_path();
        self.0 |= 1 << lane;
    }
}

impl IntoIterator for Lanes {
    type Item = usize;
    type IntoIter = LaneIter;

    #[inline(always)]
    fn into_iter(self) -> LaneIter {
        LaneIter(self.0)
    }
}

/// The packets of a [`Lanes`] in ascending order.
#[derive(Clone, Debug)]
pub struct LaneIter(u64);

impl Iterator for LaneIter {
    type Item = usize;

    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let lane = self.0.trailing_zeros() as usize;
        self.0 &= self.0 - 1;
        Some(lane)
    }
}

/// A burst of up to 64 packets: where their frames are, and what the stages have found out about them.
///
/// It takes 32 bytes per packet and is never zeroed: a field holds garbage until the stage that owns it
/// has run.
///
/// It begins with a page, and its fields lie after the place of headers in a page: stores to a burst must not seem to
/// be to the headers that are loaded next. A processor first compares the lower 12 bits of addresses when it looks
/// for the store that a load depends on.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct Burst {
    _headers: [u8; HEADERS_END],
    /// Frames in the burst; the rest of each array is garbage.
    pub count: usize,
    /// Packets that exited the path, with their [`Burst::verdict`].
    pub exited: Lanes,
    /// Packets whose verdict depended on more than their flow: on length, TCP flags, TTL or a rate.
    /// Each stage that examines such a property adds its packets; the XDP path does not repeat their
    /// verdicts.
    pub bound: Lanes,
    /// Packets whose verdict depended on the IPv6 flow label as well as on their flow (ecmp).
    pub labelled: Lanes,
    /// The port that all frames came from.
    pub port: PortId,
    /// The first byte of each frame.
    pub addr: [FrameAddr; BURST],
    /// Bytes in each frame, Ethernet header included, check sequence excluded.
    pub len: [u16; BURST],
    /// Bytes before the layer-3 header (classify).
    pub l3: [u8; BURST],
    /// The link that the frame arrived on (classify).
    pub link: [LinkId; BURST],
    /// Root of the link's FIB (classify).
    pub root: [u32; BURST],
    /// Lookup key: the IPv4 destination, or the upper half of the IPv6 one (validate).
    pub key: [u64; BURST],
    /// The result of the FIB lookup (route), replaced by the group's member (ecmp).
    pub next: [RecordId; BURST],
    /// The egress port (rewrite).
    pub egress: [PortId; BURST],
    /// Why the packet exited the path (set by the stage that ended it).
    pub verdict: [Verdict; BURST],
    /// Packets that came as far as the rules of hook forward, so that [`Burst::next`] is theirs (filter). Last, so
    /// that the arrays keep their places in cache lines.
    pub routed: Lanes,
}

impl Burst {
    /// An empty burst.
    #[must_use]
    pub fn new() -> Self {
        Self {
            _headers: [0; HEADERS_END],
            count: 0,
            exited: Lanes::NONE,
            bound: Lanes::NONE,
            labelled: Lanes::NONE,
            port: PortId(0),
            addr: [FrameAddr::default(); BURST],
            len: [0; BURST],
            l3: [0; BURST],
            link: [LinkId(0); BURST],
            root: [0; BURST],
            key: [0; BURST],
            next: [RecordId(0); BURST],
            egress: [PortId(0); BURST],
            verdict: [Verdict::Local; BURST],
            routed: Lanes::NONE,
        }
    }

    /// Empties the burst for frames of `port`.
    #[inline(always)]
    pub fn reset(&mut self, port: PortId) {
        self.count = 0;
        self.exited = Lanes::NONE;
        self.bound = Lanes::NONE;
        self.labelled = Lanes::NONE;
        self.routed = Lanes::NONE;
        self.port = port;
    }

    /// Adds a frame; false if the burst is full, in which case the caller keeps the frame.
    #[inline(always)]
    #[must_use]
    pub fn push(&mut self, addr: FrameAddr, len: u16) -> bool {
        if self.count >= BURST {
            return false;
        }
        self.addr[self.count] = addr;
        self.len[self.count] = len;
        self.count += 1;
        true
    }

    /// Bytes of a frame from layer 3 on; 0 for one that ends before, as a tagged frame at hook ingress may.
    #[inline(always)]
    #[must_use]
    pub fn layer3_bytes(&self, lane: usize) -> u16 {
        let lane = lane & (BURST - 1);
        self.len[lane].saturating_sub(self.l3[lane].into())
    }

    /// The burst's packets.
    #[inline(always)]
    #[must_use]
    pub const fn lanes(&self) -> Lanes {
        Lanes::first(self.count)
    }

    /// Makes packets exit the path, all with one verdict.
    #[inline(always)]
    pub fn exit_all(&mut self, lanes: Lanes, verdict: Verdict) {
        self.exited = self.exited.or(lanes);
        match lanes.dense() {
            Some(range) => self.verdict[range].fill(verdict),
            None => {
                for lane in lanes {
                    self.verdict[lane] = verdict;
                }
            }
        }
    }

    /// The verdict of all these packets, if they share one.
    #[must_use]
    pub fn verdict_of(&self, lanes: Lanes) -> Option<Verdict> {
        let verdict = self.verdict[lanes.lowest()?];
        let mut alike = true;
        match lanes.dense() {
            Some(range) => {
                for other in &self.verdict[range] {
                    alike &= *other == verdict;
                }
            }
            None => alike = lanes.into_iter().all(|lane| self.verdict[lane] == verdict),
        }
        alike.then_some(verdict)
    }

    /// Makes packet `lane` exit the path.
    #[inline(always)]
    pub fn exit(&mut self, lane: usize, verdict: Verdict) {
        self.exited.0 |= 1 << lane;
        self.verdict[lane] = verdict;
    }
}

impl Default for Burst {
    fn default() -> Self {
        Self::new()
    }
}
