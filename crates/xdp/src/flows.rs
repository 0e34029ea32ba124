//! The flows of the XDP path: tables that user space writes and the XDP program reads, byte for
//! byte as in `bpf/flows.h`.
//!
//! A flow's hash names a bucket of sixteen slots and the first slot to try. If all slots are taken,
//! a new flow evicts the one that was unused for the longest time, at least 2 s. A flow whose packets
//! are dropped gives way at once to one whose packets are not. A slot is a cache line (IPv6: two) in
//! shared memory, so entering a flow takes no system call.
//!
//! A writer changes a slot in three steps (a sequence lock):
//!
//! 1. The first word marks the slot inactive and gives it another version.
//! 2. The writer stores key and header.
//! 3. The first word gets the new generation.
//!
//! A reader that finds the same first word before and after has read consistent data.
//!
//! Each worker writes, with a lock for the part of the table that has the bucket. It does not wait for the lock: if
//! another worker has it, the flow enters with a later packet. So a worker that loses its processor during a change
//! holds nobody up.

mod key;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};
use std::sync::{Arc, Mutex, TryLockError};

use tollway_dataplane::clock::tick_of;
use tollway_dataplane::verdict::DropReason;
use tollway_dataplane::wire::{eth, vlan};

use super::maps::State;
use super::page::coarse_ns;
use super::shared::Shared;
use super::sys;
use key::Key;
pub(crate) use key::MOST_KEY;
pub use key::{Flow4Key, Flow6Key, FlowKey};
use tollway_linux::sync::lock;

/// The parts of a table that have a lock each. Two workers seldom enter flows into the same part at the same time.
const PARTS: usize = 256;
/// Slots of a bucket.
pub(super) const WAYS: usize = 16;
/// Words of a slot that hold the flow: the decision and the counters.
const FLOW_WORDS: usize = 6;
/// The word for the flow label, after those, in slots with room for it.
const LABEL_AT: usize = FLOW_WORDS;
/// Bits of a flow label.
const LABEL: u32 = 0xf_ffff;
/// Seeds of the flow hash: two for each word of the longest key.
pub(super) const SEEDS: usize = 2 * MOST_KEY;
/// Most bytes of a new Ethernet header: with two VLAN tags.
const MOST_L2: usize = 22;
/// Bytes of an Ethernet header without tags, and of a tag.
const UNTAGGED: u8 = eth::LEN as u8;
const TAG: u8 = vlan::LEN as u8;
/// Tallies for flows; the first one means none (bpf/maps.h).
pub const MOST_TALLIES: u16 = 4096;
/// In the egress port: the decision also used the route to the source.
const BY_SOURCE: u8 = 0x80;
/// In the egress port: there is none; the flow's packets take the kernel path.
pub const TO_KERNEL: u8 = 0x40;
/// In the egress port: there is none; the flow's packets are dropped ([`Flow::dropping`]).
const DROP: u8 = 0x60;
/// The bits of `used` that count packets; those above hold the tick of the last packet.
pub(super) const PACKETS: u64 = (1 << TICK_AT) - 1;
pub(super) const TICK_AT: u32 = 48;

/// A flow that was used within this many ticks (2 s) is not evicted. If more flows are alive than a
/// bucket holds, some of them take the user path, instead of all in turn.
pub(super) const KEPT_TICKS: u16 = 30;

/// What the XDP path does with a flow's packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// The generation under which the flow is active: it must equal a sum of generations in
    /// [`State`]. The sum has those of the XDP path and the destination's region, and with
    /// `by_source` that of the source's region. Never 0 while active.
    pub generation: u32,
    /// Largest layer-3 packet, bytes.
    pub mtu: u16,
    /// The egress [`PortId`](tollway_dataplane::id::PortId), below 64, or [`TO_KERNEL`], or that of
    /// [`Flow::dropping`].
    pub egress_port: u8,
    /// Whether the decision also used the route to the source.
    pub by_source: bool,
    /// Bytes of the new Ethernet header: 14, 18 or 22.
    pub l2_len: u8,
    /// The new Ethernet header, tags included, from the start.
    pub l2: [u8; MOST_L2],
    /// The tally of the firewall rules that its packets matched, below [`MOST_TALLIES`]; 0 for
    /// none.
    pub tally: u16,
    /// Packets that took this flow. Exact while one processor at a time serves the flow, which
    /// receive queues ensure; the counters of ports are always exact.
    pub packets: u64,
    /// Their bytes, from the Ethernet header on, as received.
    pub bytes: u64,
    /// The only flow label that the flow accepts (IPv6); `None` for any label.
    pub label: Option<u32>,
}

impl Flow {
    /// A flow whose packets are dropped for a reason, whatever their length. `counts_frames` says
    /// whether its tally counts all bytes of a frame after the Ethernet header, rather than those of the
    /// packet.
    #[must_use]
    pub fn dropping(reason: DropReason, counts_frames: bool) -> Self {
        let mut flow =
            Self { mtu: u16::MAX, egress_port: DROP, l2_len: UNTAGGED, ..Self::default() };
        (flow.l2[0], flow.l2[1]) = (reason as u8, counts_frames.into());
        flow
    }

    /// Why the flow's packets are dropped, if they are.
    #[must_use]
    pub fn drop_reason(&self) -> Option<DropReason> {
        let reason = DropReason::ALL.get(usize::from(self.l2[0])).copied();
        reason.filter(|_| self.egress_port == DROP)
    }

    /// The slot's first word: the active generation and the slot's version.
    fn head(&self, version: u8) -> u64 {
        let ([a, b, c, d], [e, f]) = (self.generation.to_ne_bytes(), self.mtu.to_ne_bytes());
        let flags = if self.by_source { BY_SOURCE } else { 0 };
        u64::from_ne_bytes([a, b, c, d, e, f, self.egress_port & !BY_SOURCE | flags, version])
    }

    /// The header, the number of its tags, and the tally.
    fn l2_words(&self) -> [u64; 3] {
        let mut bytes = [0; 24];
        bytes[..MOST_L2].copy_from_slice(&self.l2);
        // The value for an invalid header length, which no packet gets.
        let tags = (0..3).find(|tags| self.l2_len == UNTAGGED + TAG * tags).unwrap_or(3);
        bytes[MOST_L2..].copy_from_slice(&(self.tally << 2 | u16::from(tags)).to_ne_bytes());
        let (words, _) = bytes.as_chunks::<8>();
        [0, 1, 2].map(|at| u64::from_ne_bytes(words[at]))
    }

    fn of(words: [u64; FLOW_WORDS]) -> Self {
        let [a, b, c, d, e, f, port, _] = words[0].to_ne_bytes();
        let mut bytes = [0; 24];
        for (bytes, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(&words[1..4]) {
            *bytes = word.to_ne_bytes();
        }
        let mut l2 = [0; MOST_L2];
        l2.copy_from_slice(&bytes[..MOST_L2]);
        let tally_tags = u16::from_ne_bytes([bytes[MOST_L2], bytes[MOST_L2 + 1]]);
        Self {
            generation: u32::from_ne_bytes([a, b, c, d]),
            mtu: u16::from_ne_bytes([e, f]),
            egress_port: port & !BY_SOURCE,
            by_source: port & BY_SOURCE != 0,
            l2_len: UNTAGGED + TAG * (tally_tags & 3) as u8,
            l2,
            tally: tally_tags >> 2,
            packets: words[4] & PACKETS,
            bytes: words[5],
            label: None,
        }
    }

    /// The flow label as in a packet's first word, then the mask of the bits to compare.
    fn label_word(&self) -> u64 {
        let Some(label) = self.label else { return 0 };
        let [_, a, b, c] = (label & LABEL).to_be_bytes();
        let [_, d, e, f] = LABEL.to_be_bytes();
        u64::from_ne_bytes([0, a, b, c, 0, d, e, f])
    }
}

/// The label in a label word, if its mask is not empty.
fn label_of(word: u64) -> Option<u32> {
    let [_, a, b, c, _, counts, ..] = word.to_ne_bytes();
    (counts != 0).then(|| u32::from_be_bytes([0, a, b, c]))
}

/// The generation in a slot's first word.
fn generation_of(head: u64) -> u32 {
    let [a, b, c, d, ..] = head.to_ne_bytes();
    u32::from_ne_bytes([a, b, c, d])
}

/// The first word while its slot changes: inactive, with the next version.
fn closed(head: u64) -> (u64, u8) {
    let [.., version] = head.to_ne_bytes();
    // A slot that was used once must not look unused.
    let version = version.checked_add(1).unwrap_or(1);
    (u64::from_ne_bytes([0, 0, 0, 0, 0, 0, 0, version]), version)
}

/// The secret seeds of the flow hash; see `pair` in bpf/flows.h.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seeds(pub(super) [u64; SEEDS]);

impl Seeds {
    pub(super) fn random() -> Self {
        use std::hash::{BuildHasher, RandomState};
        let random = RandomState::new();
        Self(std::array::from_fn(|index| random.hash_one(index)))
    }

    pub(super) fn hash(&self, words: &[u64]) -> u64 {
        let pairs = words.iter().zip(self.0.as_chunks::<2>().0).map(|(word, [first, second])| {
            let (low, high) = (word & 0xffff_ffff, word >> 32);
            first.wrapping_add(low).wrapping_mul(second.wrapping_add(high))
        });
        pairs.fold(0, u64::wrapping_add)
    }
}

/// The number of buckets for so many flows.
pub(super) fn buckets(flows: u32) -> u32 {
    flows.div_ceil(WAYS as u32).next_power_of_two()
}

/// Memory for so many IPv4 and IPv6 flows, in bytes.
#[must_use]
pub fn memory_bytes(flows4: u32, flows6: u32) -> usize {
    let slots = |flows, stride| buckets(flows) as usize * WAYS * stride * size_of::<u64>();
    slots(flows4, Flow4Key::STRIDE) + slots(flows6, Flow6Key::STRIDE)
}

/// The flows of one family.
struct Table {
    slots: Shared<AtomicU64>,
    seeds: Seeds,
    mask: usize,
    /// Who changes a bucket holds the lock of its number, modulo their number.
    writers: Box<[Mutex<()>]>,
}

impl Table {
    fn map<K: Key>(map: &OwnedFd, buckets: u32, seeds: Seeds) -> io::Result<Self> {
        let words = buckets as usize * WAYS * K::STRIDE;
        let writers = (0..PARTS).map(|_| Mutex::default()).collect();
        let slots = Shared::map(map.as_fd(), words)?;
        Ok(Self { slots, seeds, mask: buckets as usize - 1, writers })
    }

    /// The bucket of a key, and the first slot to try.
    fn bucket(&self, key: &[u64]) -> (usize, usize) {
        let hash = self.seeds.hash(key);
        ((hash >> 32) as usize & self.mask, (hash >> 60) as usize)
    }

    /// The lock of whoever changes a bucket. A slot with an unfinished change is inactive, so a poisoned lock does no
    /// harm.
    fn writer(&self, bucket: usize) -> &Mutex<()> {
        &self.writers[bucket % PARTS]
    }

    /// The slots of a key's bucket, in the order of search.
    fn ways<K: Key>(&self, key: &[u64]) -> impl Iterator<Item = &[AtomicU64]> {
        let (bucket, first) = self.bucket(key);
        (0..WAYS).map(move |way| {
            let slot = bucket * WAYS + (first + way) % WAYS;
            &self.slots[slot * K::STRIDE..(slot + 1) * K::STRIDE]
        })
    }

    fn find<K: Key>(&self, key: &[u64]) -> Option<&[AtomicU64]> {
        self.ways::<K>(key).find(|slot| {
            generation_of(slot[K::WORDS].load(Relaxed)) != 0
                && slot.iter().zip(key).all(|(word, own)| word.load(Relaxed) == *own)
        })
    }

    /// The slot with a key, or else one whose flow may be evicted; `None` if no flow may be. A flow
    /// that is dropped may be evicted by any other, so that those whom a rule blocks cannot fill the
    /// table.
    fn place<K: Key>(
        &self,
        (key, is_dropped): (&[u64], bool),
        state: &State,
        tick: u16,
    ) -> Option<&[AtomicU64]> {
        if let Some(slot) = self.find::<K>(key) {
            return Some(slot);
        }
        let idle = |slot: &[AtomicU64]| {
            let (key, flow) = read::<K>(slot);
            if flow.generation == 0 || flow.generation != key.installed(state, flow.by_source) {
                return u16::MAX;
            }
            let idle = tick.wrapping_sub((slot[K::WORDS + 4].load(Relaxed) >> TICK_AT) as u16);
            let gives_way = flow.egress_port == DROP && !is_dropped;
            if gives_way { idle.saturating_add(KEPT_TICKS + 1) } else { idle }
        };
        let (mut longest, mut best) = (KEPT_TICKS, None);
        for slot in self.ways::<K>(key) {
            if idle(slot) > longest {
                (longest, best) = (idle(slot), Some(slot));
            }
            // The search for a flow ends at a slot that was never used.
            if slot[K::WORDS].load(Relaxed) == 0 {
                break;
            }
        }
        best
    }

    /// Enters or replaces a flow; returns false if there is no room, or another worker changes this part of the table.
    fn insert<K: Key>(&self, key: K, flow: &Flow, state: &State, now_ns: u64) -> bool {
        let (words, tick) = (key.words(), tick_of(now_ns) as u16);
        let (bucket, _) = self.bucket(&words[..K::WORDS]);
        let _writer = match self.writer(bucket).try_lock() {
            Ok(writer) => writer,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        let newcomer = (&words[..K::WORDS], flow.egress_port == DROP);
        let place = self.place::<K>(newcomer, state, tick);
        let Some((key_words, rest)) = place.and_then(|slot| slot.split_at_checked(K::WORDS)) else {
            return false;
        };
        let (closed, version) = closed(rest[0].load(Relaxed));
        rest[0].store(closed, Relaxed);
        fence(Release);
        key_words.iter().zip(words).for_each(|(word, own)| word.store(own, Relaxed));
        rest[1..].iter().zip(flow.l2_words()).for_each(|(word, own)| word.store(own, Relaxed));
        rest[4].store(flow.packets & PACKETS | u64::from(tick) << TICK_AT, Relaxed);
        rest[5].store(flow.bytes, Relaxed);
        if let Some(word) = rest.get(LABEL_AT) {
            word.store(flow.label_word(), Relaxed);
        }
        rest[0].store(flow.head(version), Release);
        true
    }

    fn get<K: Key>(&self, key: K) -> Option<Flow> {
        let (bucket, _) = self.bucket(&key.words()[..K::WORDS]);
        let _writer = lock(self.writer(bucket));
        self.find::<K>(&key.words()[..K::WORDS]).map(|slot| read::<K>(slot).1)
    }

    fn remove<K: Key>(&self, key: K) -> bool {
        let (bucket, _) = self.bucket(&key.words()[..K::WORDS]);
        let _writer = lock(self.writer(bucket));
        let slot = self.find::<K>(&key.words()[..K::WORDS]);
        if let Some(slot) = slot {
            let (closed, _) = closed(slot[K::WORDS].load(Relaxed));
            slot[K::WORDS].store(closed, Release);
        }
        slot.is_some()
    }

    fn each<K: Key>(&self, mut each: impl FnMut(&K, &Flow)) {
        for (bucket, slots) in self.slots.chunks_exact(WAYS * K::STRIDE).enumerate() {
            let _writer = lock(self.writer(bucket));
            for slot in slots.chunks_exact(K::STRIDE) {
                if generation_of(slot[K::WORDS].load(Relaxed)) != 0 {
                    let (key, flow) = read::<K>(slot);
                    each(&key, &flow);
                }
            }
        }
    }
}

/// Reads a slot while no writer changes it.
fn read<K: Key>(slot: &[AtomicU64]) -> (K, Flow) {
    let (mut key, mut flow) = ([0; MOST_KEY], [0; FLOW_WORDS]);
    let (key_words, rest) = slot.split_at(K::WORDS);
    key.iter_mut().zip(key_words).for_each(|(own, word)| *own = word.load(Relaxed));
    flow.iter_mut().zip(rest).for_each(|(own, word)| *own = word.load(Relaxed));
    let label = rest.get(LABEL_AT).and_then(|word| label_of(word.load(Relaxed)));
    (K::of(key), Flow { label, ..Flow::of(flow) })
}

/// The flows of the XDP path; a handle for any thread, cheap to clone.
#[derive(Clone)]
pub struct FlowMaps {
    tables: Arc<Tables>,
    tallies: Arc<OwnedFd>,
    processors: usize,
    /// Decides which flows are active.
    state: State,
}

struct Tables {
    v4: Table,
    v6: Table,
}

impl FlowMaps {
    /// Maps the memory of the maps, which have so many buckets each.
    pub(super) fn map(
        [(v4, buckets4), (v6, buckets6)]: [(&OwnedFd, u32); 2],
        seeds: Seeds,
        tallies: OwnedFd,
        state: State,
    ) -> io::Result<Self> {
        let v4 = Table::map::<Flow4Key>(v4, buckets4, seeds)?;
        let v6 = Table::map::<Flow6Key>(v6, buckets6, seeds)?;
        let tables = Arc::new(Tables { v4, v6 });
        let processors = sys::possible_processors()?;
        Ok(Self { tables, tallies: Arc::new(tallies), processors, state })
    }

    /// Packets and layer-3 bytes that flows have counted in this tally in all.
    ///
    /// # Errors
    /// There is no such tally, or the system refused.
    pub fn tally(&self, number: u16) -> io::Result<(u64, u64)> {
        let number = u32::from(number);
        let parts: Vec<[u64; 2]> = sys::lookup_each(self.tallies.as_fd(), number, self.processors)?;
        Ok(parts.iter().fold((0, 0), |sum, part| (sum.0 + part[0], sum.1 + part[1])))
    }

    /// Enters or replaces IPv4 flows, `flows[i]` for `keys[i]`; returns for how many there was
    /// room, and no other worker in the way.
    pub fn insert4(&self, keys: &[Flow4Key], flows: &[Flow]) -> usize {
        let (tables, now_ns) = (&self.tables, coarse_ns());
        let pairs = keys.iter().zip(flows);
        pairs.filter(|(key, flow)| tables.v4.insert(**key, flow, &self.state, now_ns)).count()
    }

    /// Enters or replaces IPv6 flows, `flows[i]` for `keys[i]`; returns for how many there was
    /// room, and no other worker in the way.
    pub fn insert6(&self, keys: &[Flow6Key], flows: &[Flow]) -> usize {
        let (tables, now_ns) = (&self.tables, coarse_ns());
        let pairs = keys.iter().zip(flows);
        pairs.filter(|(key, flow)| tables.v6.insert(**key, flow, &self.state, now_ns)).count()
    }

    /// The flow of a key, whether active or not.
    #[must_use]
    pub fn get4(&self, key: &Flow4Key) -> Option<Flow> {
        self.tables.v4.get(*key)
    }

    /// The flow of a key, whether active or not.
    #[must_use]
    pub fn get6(&self, key: &Flow6Key) -> Option<Flow> {
        self.tables.v6.get(*key)
    }

    /// Removes a flow; returns false if it did not exist.
    pub fn remove4(&self, key: &Flow4Key) -> bool {
        self.tables.v4.remove(*key)
    }

    /// Removes a flow; returns false if it did not exist.
    pub fn remove6(&self, key: &Flow6Key) -> bool {
        self.tables.v6.remove(*key)
    }

    /// Calls `each` for every IPv4 flow, whether active or not. It reads all slots: for reports
    /// only.
    pub fn each4(&self, each: impl FnMut(&Flow4Key, &Flow)) {
        self.tables.v4.each(each);
    }

    /// Calls `each` for every IPv6 flow, as [`FlowMaps::each4`].
    pub fn each6(&self, each: impl FnMut(&Flow6Key, &Flow)) {
        self.tables.v6.each(each);
    }

    /// The number of IPv4 and IPv6 flows, whether active or not; costs as much as
    /// [`FlowMaps::each4`].
    #[must_use]
    pub fn len(&self) -> (usize, usize) {
        let (mut v4, mut v6) = (0, 0);
        self.each4(|_, _| v4 += 1);
        self.each6(|_, _| v6 += 1);
        (v4, v6)
    }

    /// Whether there are no flows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == (0, 0)
    }
}
