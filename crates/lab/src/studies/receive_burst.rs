//! `receive-burst`: the cost of copying each packet, and of receiving one packet at a time.
//!
//! The setup has a ring of descriptors, four per cache line, and a pool of buffers in random order.
//! In place of a network card, the study fills the buffers while no clock runs. Each packet is
//! checked, routed, rewritten and put into an output queue.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

use tollway_dataplane::cpu::prefetch;
use tollway_dataplane::frame::{FrameAddr, Umem};

use super::experiment::{Experiment, Slice};
use super::small_path::{self, Agreement, Digest, HEADER, Routes};
use super::{Options, Plan, Size, Spec, Study, alone};
use crate::frames::{FRAME_LEN, Template, Xorshift};
use crate::memory;

pub(super) const STUDY: Study = Study {
    name: "receive-burst",
    question: "what does it cost a packet to be copied, and to be received alone instead of in a burst?",
    by_difference: false,
    plan,
    open,
    extra: None,
};

/// Memory for a frame, bytes.
const CHUNK: u32 = 4096;

/// Set in a descriptor whose buffer holds a packet.
const DONE: u16 = 1;

/// Words to read between filling the buffers and receiving, to empty the caches: twice the
/// third-level cache of large processors.
const FLUSH_WORDS: usize = 64 << 20 >> 3;

/// Passes of a slice.
const PASSES: usize = 3;

/// How far the packets are from the processor: which caches have them.
#[derive(Clone, Copy)]
struct Set {
    name: &'static str,
    title: &'static str,
    /// Buffers that receive packets; as many again are free.
    frames: usize,
    /// How often they receive in a pass.
    rounds: usize,
    flush: bool,
}

const SETS: [Set; 3] = [
    Set {
        name: "inside",
        title: "256 buffers, whose headers the first two caches hold",
        frames: 256,
        rounds: 16,
        flush: false,
    },
    Set {
        name: "outside",
        title: "16,384 buffers, whose headers only the third cache holds",
        frames: 16_384,
        rounds: 1,
        flush: false,
    },
    Set {
        name: "memory",
        title: "16,384 buffers that no cache holds, as where the card writes to memory",
        frames: 16_384,
        rounds: 1,
        flush: true,
    },
];

/// A way to receive: its name, description, base for comparison and published figure.
struct Method {
    name: &'static str,
    title: &'static str,
    base: Option<&'static str>,
    published: Option<&'static str>,
    receive: fn(&mut Card),
}

const fn method(name: &'static str, title: &'static str, receive: fn(&mut Card)) -> Method {
    Method { name, title, base: Some("burst-1"), published: None, receive }
}

const fn ahead(
    name: &'static str,
    base: &'static str,
    title: &'static str,
    receive: fn(&mut Card),
) -> Method {
    Method { name, title, base: Some(base), published: None, receive }
}

const METHODS: [Method; 14] = [
    Method {
        base: None,
        published: Some("6.5 Mpps"),
        ..method("copy", "copied to a fresh buffer", Card::copy)
    },
    Method {
        base: Some("copy"),
        published: Some("7.6 Mpps"),
        ..method("burst-1", "zero-copy, one at a time", Card::bursts::<1, false>)
    },
    Method {
        published: Some("9.0 Mpps"),
        ..method("burst-2", "bursts of 2", Card::bursts::<2, false>)
    },
    method("burst-4", "bursts of 4, a cache line of descriptors", Card::bursts::<4, false>),
    method("burst-8", "bursts of 8", Card::bursts::<8, false>),
    method("burst-16", "bursts of 16", Card::bursts::<16, false>),
    method("burst-32", "bursts of 32", Card::bursts::<32, false>),
    method("burst-64", "bursts of 64", Card::bursts::<64, false>),
    ahead("ahead-2", "burst-2", "bursts of 2, the next prefetched", Card::bursts::<2, true>),
    ahead("ahead-4", "burst-4", "bursts of 4, the next prefetched", Card::bursts::<4, true>),
    ahead("ahead-8", "burst-8", "bursts of 8, the next prefetched", Card::bursts::<8, true>),
    ahead("ahead-16", "burst-16", "bursts of 16, the next prefetched", Card::bursts::<16, true>),
    ahead("ahead-32", "burst-32", "bursts of 32, the next prefetched", Card::bursts::<32, true>),
    ahead("ahead-64", "burst-64", "bursts of 64, the next prefetched", Card::bursts::<64, true>),
];

fn plan(study: &Study, options: &Options) -> Result<Plan, String> {
    let mut specs = Vec::new();
    for set in SETS {
        let group = format!("{}: {}", set.name, set.title);
        for method in &METHODS {
            let mut spec = Spec::new(&group, format!("{}-{}", set.name, method.name), method.title);
            if let Some(base) = method.base {
                spec = spec.against(format!("{}-{base}", set.name), None);
            }
            specs.push(match method.published {
                Some(figure) => spec.published(figure),
                None => spec,
            });
        }
    }
    Ok(Plan { specs, notes: Vec::new(), experiments: alone(study, options) })
}

/// A descriptor as in network cards, 16 bytes.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(16))]
struct Descriptor {
    addr: FrameAddr,
    len: u16,
    status: u16,
    hash: u32,
    tags: u32,
}

/// A card's ring, and its driver's state.
struct Card {
    umem: Umem,
    ring: Vec<Descriptor>,
    /// Free buffers; the first to return is the first to be used.
    free: Vec<FrameAddr>,
    /// Number of these that are in use again.
    taken: usize,
    sent: Vec<(FrameAddr, u16)>,
    routes: Routes,
    /// The first descriptor that the driver has not refilled.
    tail: AtomicU32,
    received: u64,
    bad: u64,
}

impl Card {
    fn new(frames: usize) -> Result<Self, String> {
        let count = u32::try_from(2 * frames).map_err(|error| error.to_string())?;
        let mut umem = memory::umem(count, CHUNK).ok_or("no memory for the frames")?;
        let mut buffers: Vec<FrameAddr> = std::iter::from_fn(|| umem.alloc()).collect();
        let mut rng = Xorshift::new(0x5eed);
        for last in (1..buffers.len()).rev() {
            buffers.swap(last, (rng.next() >> 11) as usize % (last + 1));
        }
        let free = buffers.split_off(frames);
        let filled = |addr| Descriptor { addr, ..Descriptor::default() };
        Ok(Self {
            umem,
            ring: buffers.into_iter().map(filled).collect(),
            free,
            taken: 0,
            sent: Vec::with_capacity(frames),
            routes: Routes::new(),
            tail: AtomicU32::new(0),
            received: 0,
            bad: 0,
        })
    }

    /// The network card's work: puts a packet into every buffer of the ring. Sent buffers become
    /// free.
    fn fill(&mut self, templates: &[Template]) {
        self.free.drain(..self.taken);
        self.taken = 0;
        self.free.extend(self.sent.drain(..).map(|(addr, _)| addr));
        for (descriptor, template) in self.ring.iter_mut().zip(templates.iter().cycle()) {
            *self.umem.bytes_mut(descriptor.addr, 0) = *template;
            descriptor.len = FRAME_LEN as u16;
            descriptor.status = DONE;
        }
    }

    #[inline(always)]
    fn fresh(&mut self) -> FrameAddr {
        let fresh = self.free.get(self.taken).copied().unwrap_or_default();
        self.taken += 1;
        fresh
    }

    /// Copies every packet to a new buffer; its own buffer stays in the ring.
    fn copy(&mut self) {
        for at in 0..self.ring.len() {
            self.copy_one(at);
        }
    }

    #[inline(never)]
    fn copy_one(&mut self, at: usize) {
        let Descriptor { addr, len, status, .. } = self.ring[at];
        if status & DONE == 0 {
            return;
        }
        let fresh = self.fresh();
        let packet: Template = *self.umem.bytes(addr, 0);
        *self.umem.bytes_mut(fresh, 0) = packet;
        self.forward(fresh, len);
        self.ring[at].status = 0;
        self.received += 1;
        self.tail.store(at as u32, Ordering::Release);
    }

    #[inline(always)]
    fn forward(&mut self, addr: FrameAddr, len: u16) {
        let header: &mut [u8; HEADER] = self.umem.bytes_mut(addr, 0);
        match small_path::destination(header) {
            Some(dst) => small_path::rewrite(header, self.routes.find(dst)),
            None => self.bad += 1,
        }
        self.sent.push((addr, len));
    }

    fn bursts<const N: usize, const AHEAD: bool>(&mut self) {
        for at in (0..self.ring.len()).step_by(N) {
            self.burst::<N, AHEAD>(at);
        }
    }

    /// Handles `N` packets, stage by stage. Each buffer stays with its packet, and a free one takes
    /// its place in the ring.
    #[inline(never)]
    fn burst<const N: usize, const AHEAD: bool>(&mut self, at: usize) {
        let Some(descriptors) = self.ring.get(at..at + N) else { return };
        let (mut addr, mut len, mut dst) = ([FrameAddr(0); N], [0; N], [None; N]);
        for (lane, descriptor) in descriptors.iter().enumerate() {
            if descriptor.status & DONE == 0 {
                return;
            }
            (addr[lane], len[lane]) = (descriptor.addr, descriptor.len);
        }
        if AHEAD {
            for descriptor in self.ring.iter().skip(at + N).take(N) {
                let header: &[u8; HEADER] = self.umem.bytes(descriptor.addr, 0);
                prefetch(header.as_ptr());
            }
        }
        for (dst, addr) in dst.iter_mut().zip(addr) {
            *dst = small_path::destination(self.umem.bytes(addr, 0));
        }
        for (dst, addr) in dst.into_iter().zip(addr) {
            match dst {
                Some(dst) => {
                    small_path::rewrite(self.umem.bytes_mut(addr, 0), self.routes.find(dst));
                }
                None => self.bad += 1,
            }
        }
        for lane in 0..N {
            let fresh = self.fresh();
            self.ring[at + lane] = Descriptor { addr: fresh, ..Descriptor::default() };
            self.sent.push((addr[lane], len[lane]));
        }
        self.received += N as u64;
        self.tail.store((at + N) as u32, Ordering::Release);
    }

    fn digest(&self) -> u64 {
        let mut digest = Digest::new();
        for (addr, len) in &self.sent {
            digest.add_frame(self.umem.bytes(*addr, 0));
            digest.add(u64::from(*len));
        }
        digest.add(self.bad);
        digest.0
    }
}

struct Bench {
    cards: Vec<(Set, Card)>,
    templates: Vec<Template>,
    flush: Vec<u64>,
    passes: usize,
    ns_per_clock: f64,
    agreement: Agreement,
    /// Slices so far: the resulting packets are checked in the first.
    slices: usize,
}

fn open(size: Size) -> Result<Box<dyn Experiment>, String> {
    let mut cards = Vec::new();
    for mut set in SETS {
        if size == Size::Brief {
            (set.frames, set.rounds, set.flush) = (set.frames.min(1024), 1, false);
        }
        cards.push((set, Card::new(set.frames)?));
    }
    Ok(Box::new(Bench {
        cards,
        templates: small_path::templates(1024, &[], 53),
        flush: vec![1; if size == Size::Full { FLUSH_WORDS } else { 1 }],
        passes: PASSES,
        ns_per_clock: small_path::ns_per_clock(),
        agreement: Agreement::default(),
        slices: 0,
    }))
}

impl Bench {
    /// Clocks per packet of a way to receive.
    fn pass(&mut self, set: usize, method: &Method) -> Result<f64, String> {
        let (set, card) = &mut self.cards[set];
        let mut clocks = 0.0;
        for _ in 0..set.rounds {
            card.fill(&self.templates);
            if set.flush {
                std::hint::black_box(self.flush.iter().sum::<u64>());
                // The tables stay in the caches, since every packet uses them; only the packets are
                // new.
                for dst in (0..u32::MAX).step_by(64 << 16) {
                    std::hint::black_box(card.routes.find(dst).port);
                }
            }
            clocks += small_path::clocks(|| (method.receive)(card));
            if card.sent.len() != set.frames {
                return Err(format!("{} forwards {} packets", method.name, card.sent.len()));
            }
            if self.slices == 0 {
                self.agreement.take(set.name, method.name, card.digest())?;
            }
        }
        Ok(clocks / (set.rounds * set.frames) as f64)
    }
}

impl Experiment for Bench {
    fn slice(&mut self) -> Result<Slice, String> {
        let (sets, passes) = (self.cards.len(), self.passes);
        let mut rows = BTreeMap::new();
        for set in 0..sets {
            let mut went = Ok(());
            let taken = small_path::in_turn(METHODS.len(), passes, |at| {
                self.pass(set, &METHODS[at]).unwrap_or_else(|error| {
                    went = Err(error);
                    f64::NAN
                })
            });
            went?;
            for (method, clocks) in METHODS.iter().zip(taken) {
                let name = format!("{}-{}", self.cards[set].0.name, method.name);
                rows.insert(name, clocks * self.ns_per_clock);
            }
        }
        self.slices += 1;
        Ok(Slice { rows, digests: self.agreement.clone(), ..Slice::default() })
    }
}

const _: () = assert!(size_of::<Descriptor>() == 16);
