//! The straight loops: for each packet of a burst the first rule that it matches.

use std::ops::Range;

use super::bits::{BLOCK_BITS, Sets, Summary};
use super::classifier::Classifier;
use super::dim::{Dim, Lookup};
use super::field::is_extension;
use super::state::Room;
use super::{Field, Parsed, Point};
use crate::burst::{BURST, Burst, Lanes};
use crate::cpu::{Level, prefetch};
use crate::frame::Umem;
use crate::tables::Tables;
use crate::wire::{be16, be32};

/// What the loops work on.
pub(super) struct Work<'a> {
    pub(super) burst: &'a Burst,
    pub(super) umem: &'a Umem,
    pub(super) tables: &'a Tables,
    pub(super) mark: &'a [u32; BURST],
    /// The packets that are asked about.
    pub(super) lanes: Lanes,
}

/// The loops, built for one instruction set.
#[derive(Clone, Copy)]
pub(super) struct Classify(unsafe fn(&Classifier, &Work<'_>, &mut Room));

impl Classify {
    /// The build for a level that the machine has; the baseline's where it has not.
    pub(super) fn at(level: Level) -> Self {
        Self(match level.min(Level::detect()) {
            #[cfg(target_arch = "x86_64")]
            Level::V3 => v3,
            #[cfg(target_arch = "x86_64")]
            Level::V4 => v4,
            _ => baseline,
        })
    }

    /// Writes the first rule of each packet to [`Room::first`], its classes to [`Room::class`].
    #[inline(always)]
    #[allow(unsafe_code)]
    pub(super) fn run(self, classifier: &Classifier, work: &Work<'_>, room: &mut Room) {
        // SAFETY: all that the function asks for is the instructions of its level, which the
        // machine has (`at`).
        unsafe { (self.0)(classifier, work, room) }
    }
}

fn baseline(classifier: &Classifier, work: &Work<'_>, room: &mut Room) {
    classify(classifier, work, room);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,fma,lzcnt,movbe,popcnt")]
fn v3(classifier: &Classifier, work: &Work<'_>, room: &mut Room) {
    classify(classifier, work, room);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,fma,lzcnt,movbe,popcnt")]
#[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
fn v4(classifier: &Classifier, work: &Work<'_>, room: &mut Room) {
    classify(classifier, work, room);
}

/// Packets between the first and the last that is asked about are all looked up: that takes less time
/// than to search for them, and every lookup has some answer for rubbish.
#[inline(always)]
fn classify(classifier: &Classifier, work: &Work<'_>, room: &mut Room) {
    let Some(first) = work.lanes.lowest() else { return };
    let lanes = first..BURST - work.lanes.0.leading_zeros() as usize;
    let mut transport = 0;
    let mut walks = classifier.point == Point::Ingress;
    for (index, dim) in classifier.dims.iter().enumerate() {
        transport = transport.max(dim.field.transport_bytes());
        walks |= matches!(dim.field, Field::Protocol);
        look_up(classifier, dim, work, room, index, lanes.clone());
    }
    let is_plain = classifier.version == 4 && classifier.point != Point::Ingress;
    if transport > 0 || walks && !is_plain {
        let odd = match classifier.version {
            4 => odd4(work, transport, lanes.clone()),
            _ => odd6(work, transport, lanes.clone()),
        };
        if !odd.is_empty() {
            look_up_odd(classifier, work, room, odd);
        }
    }
    match classifier.width {
        1 => find::<1>(classifier, room, lanes),
        2 => find::<2>(classifier, room, lanes),
        4 => find::<4>(classifier, room, lanes),
        8 => find::<8>(classifier, room, lanes),
        16 => find::<16>(classifier, room, lanes),
        _ => find_in_blocks(classifier, room, lanes),
    }
}

/// IPv4 packets whose transport header is not where the straight loops look, or not there.
#[inline(always)]
fn odd4(work: &Work<'_>, transport: u16, lanes: Range<usize>) -> Lanes {
    let mut odd = Lanes::NONE;
    let least = 20 + u32::from(transport);
    for lane in lanes {
        let l3 = u32::from(work.burst.l3[lane & (BURST - 1)]);
        let lane = lane & (BURST - 1);
        let header: &[u8; 8] = work.umem.bytes(work.burst.addr[lane], l3 as usize);
        let total_len = u32::from(be16(header, 2));
        if be16(header, 6) & 0x1fff != 0
            || total_len < least
            || header[0] != 0x45
            || l3 + total_len > u32::from(work.burst.len[lane])
        {
            odd.put_odd(lane);
        }
    }
    odd
}

/// IPv6 packets likewise.
#[inline(always)]
fn odd6(work: &Work<'_>, transport: u16, lanes: Range<usize>) -> Lanes {
    let mut odd = Lanes::NONE;
    for lane in lanes {
        let lane = lane & (BURST - 1);
        let l3 = u32::from(work.burst.l3[lane]);
        let header: &[u8; 8] = work.umem.bytes(work.burst.addr[lane], l3 as usize);
        let payload = u32::from(be16(header, 4));
        if is_extension(header[6])
            || payload < u32::from(transport)
            || header[0] >> 4 != 6
            || l3 + 40 + payload > u32::from(work.burst.len[lane])
        {
            odd.put_odd(lane);
        }
    }
    odd
}

/// Looks packets up one by one.
#[cold]
fn look_up_odd(classifier: &Classifier, work: &Work<'_>, room: &mut Room, odd: Lanes) {
    for lane in odd.into_iter().filter(|lane| work.lanes.has(*lane)) {
        let parsed = work.parsed(classifier, lane);
        for (dim, class) in classifier.dims.iter().zip(&mut room.class) {
            class[lane] = one(classifier, dim, &parsed, work.mark[lane]);
        }
    }
}

fn one(classifier: &Classifier, dim: &Dim, parsed: &Parsed<'_>, mark: u32) -> u32 {
    let bits = super::build::bits_of(dim.field, classifier.version);
    dim.class(parsed.number(dim.field, mark), bits)
}

impl<'a> Work<'a> {
    /// A packet taken apart.
    pub(super) fn parsed(&self, classifier: &Classifier, lane: usize) -> Parsed<'a> {
        let output = (classifier.point == Point::Forward)
            .then(|| self.tables.next_hops.view().record(self.burst.next[lane]))
            .flatten()
            .map(|record| record.link().0);
        Parsed::new(self.burst, self.umem, lane, classifier.version, classifier.point, output)
    }
}

/// Where a field is, for the straight loops: in four bytes of the IP header, if that has its usual
/// length.
#[derive(Clone, Copy)]
struct Window {
    at: usize,
    shift: u32,
    mask: u32,
    plus: u32,
}

const fn window(field: Field, version: u8, point: Point) -> Option<Window> {
    let minus_hop = if matches!(point, Point::Forward) { u32::MAX } else { 0 };
    let (at, shift, mask, plus) = match (field, version) {
        (Field::TrafficClass, 4) => (0, 16, 0xff, 0),
        (Field::Length, 4) => (0, 0, 0xffff, 0),
        (Field::Fragment, 4) => (4, 0, 0x7fff, 0),
        (Field::FragmentOffset, 4) => (4, 0, 0x1fff, 0),
        (Field::Ttl, 4) => (8, 24, 0xff, minus_hop),
        (Field::Protocol, 4) => (8, 16, 0xff, 0),
        (Field::Source, 4) => (12, 0, u32::MAX, 0),
        (Field::Destination, 4) => (16, 0, u32::MAX, 0),
        (Field::SourcePort, 4) => (20, 16, 0xffff, 0),
        (Field::DestinationPort, 4) => (20, 0, 0xffff, 0),
        (Field::IcmpType, 4) => (20, 24, 0xff, 0),
        (Field::IcmpCode, 4) => (20, 16, 0xff, 0),
        (Field::TcpFlags, 4) => (32, 16, 0xff, 0),
        (Field::TrafficClass, _) => (0, 20, 0xff, 0),
        (Field::Length, 6) => (4, 16, 0xffff, 40),
        (Field::NextHeader6 | Field::Protocol, 6) => (4, 8, 0xff, 0),
        (Field::Ttl, 6) => (4, 0, 0xff, minus_hop),
        (Field::SourcePort, 6) => (40, 16, 0xffff, 0),
        (Field::DestinationPort, 6) => (40, 0, 0xffff, 0),
        (Field::IcmpType, 6) => (40, 24, 0xff, 0),
        (Field::IcmpCode, 6) => (40, 16, 0xff, 0),
        (Field::TcpFlags, 6) => (52, 16, 0xff, 0),
        _ => return None,
    };
    Some(Window { at, shift, mask, plus })
}

/// Writes every packet's class of one field.
#[inline(always)]
fn look_up(
    classifier: &Classifier,
    dim: &Dim,
    work: &Work<'_>,
    room: &mut Room,
    index: usize,
    lanes: Range<usize>,
) {
    let Some(class) = room.class.get_mut(index) else { return };
    let (burst, umem) = (work.burst, work.umem);
    if let Some(window) = window(dim.field, classifier.version, classifier.point) {
        for lane in lanes.clone() {
            let lane = lane & (BURST - 1);
            let at = usize::from(burst.l3[lane]) + window.at;
            let word = be32(umem.bytes::<4>(burst.addr[lane], at), 0);
            room.value[lane] = (word >> window.shift & window.mask).wrapping_add(window.plus);
        }
    } else if dim.field == Field::Input {
        for lane in lanes.clone() {
            let lane = lane & (BURST - 1);
            room.value[lane] = burst.link[lane].0.into();
        }
    } else if dim.field == Field::Mark {
        room.value = *work.mark;
    } else if let (Lookup::Trie { fib, root }, 6) = (&dim.lookup, classifier.version) {
        let at = if dim.field == Field::Source { 8 } else { 24 };
        for lane in lanes {
            let lane = lane & (BURST - 1);
            let address = umem.bytes::<16>(burst.addr[lane], usize::from(burst.l3[lane]) + at);
            class[lane] = fib.lookup(*root, u128::from_be_bytes(*address)).0;
        }
        return;
    } else {
        for lane in work.lanes {
            let parsed = work.parsed(classifier, lane);
            class[lane] = one(classifier, dim, &parsed, work.mark[lane]);
        }
        return;
    }
    match &dim.lookup {
        Lookup::Bounds(bounds) => {
            *class = [0; BURST];
            for bound in bounds {
                for (class, value) in class.iter_mut().zip(&room.value) {
                    *class += u32::from(value >= bound);
                }
            }
        }
        Lookup::Table(table) => {
            for lane in lanes {
                let lane = lane & (BURST - 1);
                class[lane] = table[usize::from(room.value[lane] as u16)].into();
            }
        }
        Lookup::Trie { fib, root } => {
            for (key, value) in room.key.iter_mut().zip(&room.value) {
                *key = u64::from(*value) << 32;
            }
            fib.look_up_keys(*root, &room.key, class, lanes);
        }
        Lookup::Search(_) => {
            let bits = super::build::bits_of(dim.field, classifier.version);
            for lane in lanes {
                let lane = lane & (BURST - 1);
                class[lane] = dim.class(Some(room.value[lane].into()), bits);
            }
        }
    }
}

/// A set of few rules.
#[inline(always)]
fn row<const W: usize>(sets: &Sets, class: u32) -> &[u64; W] {
    const { assert!(W <= 16) };
    static NONE: [u64; 16] = [0; 16];
    let rows = sets.dense.as_chunks::<W>().0;
    rows.get(class as usize).unwrap_or(NONE.first_chunk::<W>().unwrap_or(&[0; W]))
}

/// Intersects the sets of each packet's classes, and notes the first rule.
#[inline(always)]
fn find<const W: usize>(classifier: &Classifier, room: &mut Room, lanes: Range<usize>) {
    let mut all = [0; W];
    all.copy_from_slice(&classifier.all[..W]);
    for lane in lanes {
        let lane = lane & (BURST - 1);
        let mut set = all;
        for (dim, class) in classifier.dims.iter().zip(&room.class) {
            let row = row::<W>(&dim.sets, class[lane]);
            for word in 0..W {
                set[word] &= row[word];
            }
        }
        room.first[lane] = lowest(&set);
    }
}

/// The first bit of a set; past all where there is none.
#[inline(always)]
fn lowest<const W: usize>(set: &[u64; W]) -> u32 {
    if W == 1 {
        return set[0].trailing_zeros();
    }
    let mut words = 0_u32;
    for (index, word) in set.iter().enumerate() {
        words |= u32::from(*word != 0) << index;
    }
    let word = words.trailing_zeros();
    word * 64 + set[word as usize & (W - 1)].trailing_zeros()
}

/// The same for many rules: only blocks in which all the summaries have a bit.
#[inline(always)]
fn find_in_blocks(classifier: &Classifier, room: &mut Room, lanes: Range<usize>) {
    for lane in lanes.clone() {
        let lane = lane & (BURST - 1);
        let mut candidates = u64::MAX;
        for (dim, class) in classifier.dims.iter().zip(&room.class) {
            candidates &= dim.sets.summary(class[lane]).blocks;
        }
        room.candidates[lane] = candidates;
        for (dim, class) in classifier.dims.iter().zip(&room.class) {
            let place = dim.sets.summary(class[lane]).place(candidates.trailing_zeros());
            prefetch(dim.sets.blocks.as_ptr().wrapping_add(place));
        }
    }
    let mut pending = Lanes(u64::MAX >> (BURST - lanes.len().clamp(1, BURST)) << lanes.start);
    while !pending.is_empty() {
        let mut more = Lanes::NONE;
        for lane in pending {
            let candidates = room.candidates[lane];
            let block = candidates.trailing_zeros();
            let mut set = [u64::MAX; 8];
            for (dim, class) in classifier.dims.iter().zip(&room.class) {
                let summary: Summary = dim.sets.summary(class[lane]);
                let Some(part) = dim.sets.blocks.get(summary.place(block)) else { continue };
                for word in 0..8 {
                    set[word] &= part[word];
                }
            }
            room.first[lane] = (block * BLOCK_BITS as u32).wrapping_add(lowest(&set));
            let rest = candidates & candidates.wrapping_sub(1);
            room.candidates[lane] = rest;
            more.put(lane, set == [0; 8] && rest != 0);
        }
        pending = more;
    }
}
