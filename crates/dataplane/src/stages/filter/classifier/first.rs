//! The straight loops: find the first matching rule for each packet of a burst.

use std::ops::Range;

use super::super::Field;
use super::super::dim::{Dim, Lookup};
use super::super::parsed::is_extension;
use super::super::scratch::{GATHERED, GATHERED_FROM, Scratch};
#[cfg(target_arch = "x86_64")]
use super::super::wide::Avx512;
use super::super::wide::{Wide, Words};
use super::by_rule::{self, ByRule};
use super::find::find_first;
use super::member::{are_members, offset6};
use super::window::{take_words, window};
use super::{Classifier, Work};
use crate::burst::{BURST, Burst, Lanes};
use crate::cpu::Level;
use crate::wire::{be16, be32};

/// The loops, built for one instruction set.
#[derive(Clone, Copy)]
pub(crate) struct Classify {
    find: unsafe fn(&Classifier, &Work<'_>, &mut Scratch),
    execute: unsafe fn(&Classifier, &ByRule, &Burst, &mut Scratch, Lanes),
}

impl Classify {
    /// The build for a level that the machine supports; otherwise the baseline.
    pub(crate) fn at(level: Level) -> Self {
        match level.min(Level::detect()) {
            #[cfg(target_arch = "x86_64")]
            Level::V3 => Self { find: v3, execute: by_rule::v3 },
            #[cfg(target_arch = "x86_64")]
            Level::V4 => Self { find: v4, execute: by_rule::v4 },
            _ => Self { find: baseline, execute: by_rule::baseline },
        }
    }

    /// Writes the first rule of each packet to [`Scratch::first`], its classes to [`Scratch::class`].
    #[inline(always)]
    #[allow(unsafe_code)]
    pub(crate) fn run(self, classifier: &Classifier, work: &Work<'_>, scratch: &mut Scratch) {
        // SAFETY: the function only requires the instructions of its level, which the machine supports
        // (`at`).
        unsafe { (self.find)(classifier, work, scratch) }
    }

    /// Executes the rules for packets whose matching rules are in the scratch memory. The result is
    /// there, too.
    #[inline(always)]
    #[allow(unsafe_code)]
    pub(in super::super) fn execute(
        self,
        classifier: &Classifier,
        by_rule: &ByRule,
        burst: &Burst,
        scratch: &mut Scratch,
        lanes: Lanes,
    ) {
        // SAFETY: as above.
        unsafe { (self.execute)(classifier, by_rule, burst, scratch, lanes) }
    }
}

fn baseline(classifier: &Classifier, work: &Work<'_>, scratch: &mut Scratch) {
    classify::<Words>(classifier, work, scratch);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,fma,lzcnt,movbe,popcnt")]
fn v3(classifier: &Classifier, work: &Work<'_>, scratch: &mut Scratch) {
    classify::<Words>(classifier, work, scratch);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,fma,lzcnt,movbe,popcnt")]
#[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
fn v4(classifier: &Classifier, work: &Work<'_>, scratch: &mut Scratch) {
    classify::<Avx512>(classifier, work, scratch);
}

/// Looks up all packets from the first to the last requested one. That takes less time than skipping
/// the others, and every lookup has some result for garbage.
#[inline(always)]
fn classify<V: Wide>(classifier: &Classifier, work: &Work<'_>, scratch: &mut Scratch) {
    let Some(first) = work.lanes.lowest() else { return };
    let lanes = first..BURST - work.lanes.0.leading_zeros() as usize;
    let (transport, walks) = classifier.wants;
    let gathered = classifier.gathers();
    let rare = match (classifier.version, gathered || transport > 0 || walks) {
        (_, false) => Lanes::NONE,
        (4, _) if gathered => gather(work, scratch, transport, lanes.clone()),
        (4, _) => rare4(work, transport, lanes.clone()),
        (6, _) => rare6(work, transport, lanes.clone()),
        _ => Lanes::NONE,
    };
    let Some(flows) = scratch.flows.get_mut(classifier.index()) else { return };
    if !gathered || !flows.pays_off() {
        return classify_all::<V>(classifier, work, scratch, rare, (gathered, lanes));
    }
    let mut flows = std::mem::take(flows);
    let rare_ones = rare.without(rare.without(work.lanes));
    let unknown = flows.look_up(scratch, work.lanes.without(rare)).or(rare_ones);
    if unknown.count() > FEW {
        classify_all::<V>(classifier, work, scratch, rare, (gathered, lanes));
    } else if !unknown.is_empty() {
        classify_few::<V>(classifier, work, scratch, unknown);
    }
    flows.store(&classifier.summaries, scratch, unknown.without(rare));
    scratch.flows[classifier.index()] = flows;
}

/// The number of packets up to which looking up one by one takes less time.
const FEW: usize = 6;

/// Looks up packets one by one.
#[cold]
fn classify_few<V: Wide>(
    classifier: &Classifier,
    work: &Work<'_>,
    scratch: &mut Scratch,
    few: Lanes,
) {
    look_up_rare(classifier, work, scratch, few);
    for lane in few {
        find_first::<V>(classifier, scratch, lane..lane + 1, Lanes(1 << lane));
    }
}

/// Looks up all packets of a burst, field by field.
#[inline(always)]
fn classify_all<V: Wide>(
    classifier: &Classifier,
    work: &Work<'_>,
    scratch: &mut Scratch,
    rare: Lanes,
    (gathered, lanes): (bool, Range<usize>),
) {
    let (transport, walks) = classifier.wants;
    if classifier.width == 1 {
        scratch.set = [classifier.all[0]; BURST];
    }
    for (index, dim) in classifier.dims.iter().enumerate() {
        look_up(classifier, dim, work, scratch, index, gathered, lanes.clone());
    }
    if !rare.is_empty() && (transport > 0 || walks) {
        look_up_rare(classifier, work, scratch, rare);
    }
    find_first::<V>(classifier, scratch, lanes, work.lanes);
}

/// Gathers the words of IPv4 headers that rules match on most. Returns the packets whose transport
/// header is missing or not at its usual place.
#[inline(always)]
fn gather(work: &Work<'_>, scratch: &mut Scratch, transport: u16, lanes: Range<usize>) -> Lanes {
    let mut rare = Lanes::NONE;
    let least = 20 + u32::from(transport);
    let burst = work.burst;
    for lane in lanes {
        let lane = lane & (BURST - 1);
        let l3 = u32::from(burst.l3[lane]);
        let header: &[u8; 24] = work.umem.bytes(burst.addr[lane], l3 as usize);
        for word in 0..GATHERED {
            scratch.word[word][lane] = be32(header, GATHERED_FROM + 4 * word);
        }
        let first = be32(header, 0);
        let total_len = first & 0xffff;
        if be16(header, 6) & 0x1fff != 0
            || total_len < least
            || first >> 24 != 0x45
            || l3 + total_len > u32::from(burst.len[lane])
        {
            rare.insert_rare(lane);
        }
    }
    rare
}

/// IPv4 packets whose transport header is missing or not where the straight loops expect it.
#[inline(always)]
fn rare4(work: &Work<'_>, transport: u16, lanes: Range<usize>) -> Lanes {
    let mut rare = Lanes::NONE;
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
            rare.insert_rare(lane);
        }
    }
    rare
}

/// The same for IPv6 packets.
#[inline(always)]
fn rare6(work: &Work<'_>, transport: u16, lanes: Range<usize>) -> Lanes {
    let mut rare = Lanes::NONE;
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
            rare.insert_rare(lane);
        }
    }
    rare
}

/// Looks packets up one by one.
#[cold]
fn look_up_rare(classifier: &Classifier, work: &Work<'_>, scratch: &mut Scratch, rare: Lanes) {
    for lane in rare.into_iter().filter(|lane| work.lanes.has(*lane)) {
        let parsed = work.parsed(classifier, lane);
        for (dim, class) in classifier.dims.iter().zip(&mut scratch.class) {
            class[lane] = work.class_of(dim, &parsed, lane);
        }
        if classifier.width == 1 {
            let sets = classifier.dims.iter().zip(&scratch.class);
            let parts = sets.map(|(dim, class)| dim.sets.word(class[lane], 0));
            scratch.set[lane] = parts.fold(classifier.all[0], |set, part| set & part);
        }
    }
}

/// Writes the values of a field to [`Scratch::value`]; false if the straight loops do not handle it.
#[inline(always)]
fn take_values(
    classifier: &Classifier,
    field: Field,
    work: &Work<'_>,
    scratch: &mut Scratch,
    gathered: bool,
    lanes: Range<usize>,
) -> bool {
    if let Some(window) = window(field, classifier.version, classifier.point) {
        take_words(window, work, scratch, gathered, lanes);
        return true;
    }
    match field {
        Field::InSet { set, of } => {
            let Some(live) = classifier.live.get(usize::from(set)) else { return false };
            are_members(classifier, (live, of), work, scratch, gathered, lanes);
        }
        Field::Input => {
            for (value, link) in scratch.value.iter_mut().zip(&work.burst.link) {
                *value = link.0.into();
            }
        }
        Field::Mark => scratch.value = *work.mark,
        _ => return false,
    }
    true
}

/// Writes every packet's class of one field, or narrows its set of rules if that is one word.
#[inline(always)]
fn look_up(
    classifier: &Classifier,
    dim: &Dim,
    work: &Work<'_>,
    scratch: &mut Scratch,
    index: usize,
    gathered: bool,
    lanes: Range<usize>,
) {
    if index >= scratch.class.len() {
        return;
    }
    if take_values(classifier, dim.field, work, scratch, gathered, lanes.clone()) {
        if let (Lookup::Bounds(bounds), 1) = (&dim.lookup, classifier.width) {
            compare(dim, bounds, scratch);
            return;
        }
        look_up_values(dim, scratch, index, lanes.clone());
    } else {
        look_up_others(classifier, dim, work, &mut scratch.class[index], lanes.clone());
    }
    if classifier.width == 1 {
        for lane in lanes {
            let lane = lane & (BURST - 1);
            scratch.set[lane] &= dim.sets.word(scratch.class[index][lane], 0);
        }
    }
}

/// Narrows sets of one word by a field of few classes. Each bound that a value reaches flips the
/// bits in which the sets of the two adjacent classes differ.
#[inline(always)]
fn compare(dim: &Dim, bounds: &[u32], scratch: &mut Scratch) {
    let Some((first, others)) = dim.sets.dense.split_first() else { return };
    let mut part = [*first; BURST];
    let mut before = *first;
    for (bound, set) in bounds.iter().zip(others) {
        let change = before ^ set;
        before = *set;
        for (part, value) in part.iter_mut().zip(&scratch.value) {
            *part ^= if value >= bound { change } else { 0 };
        }
    }
    for (set, part) in scratch.set.iter_mut().zip(&part) {
        *set &= part;
    }
}

/// Maps values to classes.
#[inline(always)]
fn look_up_values(dim: &Dim, scratch: &mut Scratch, index: usize, lanes: Range<usize>) {
    let class = &mut scratch.class[index];
    match &dim.lookup {
        Lookup::Value => *class = scratch.value,
        Lookup::Bounds(bounds) => {
            *class = [0; BURST];
            for bound in bounds {
                for (class, value) in class.iter_mut().zip(&scratch.value) {
                    *class += u32::from(value >= bound);
                }
            }
        }
        Lookup::Cut(cut) => cut.look_up(&scratch.value, class, lanes),
        Lookup::Table(table) => {
            for lane in lanes {
                let lane = lane & (BURST - 1);
                class[lane] = table[usize::from(scratch.value[lane] as u16)].into();
            }
        }
        Lookup::Trie { fib, root } => {
            for (key, value) in scratch.key.iter_mut().zip(&scratch.value) {
                *key = u64::from(*value) << 32;
            }
            fib.look_up_keys(*root, &scratch.key, class, lanes);
        }
        Lookup::Search(_) => {
            for lane in lanes {
                let lane = lane & (BURST - 1);
                class[lane] = dim.class(Some(scratch.value[lane].into()));
            }
        }
    }
}

/// Looks up the classes of a field that is not in a word.
#[inline(always)]
fn look_up_others(
    classifier: &Classifier,
    dim: &Dim,
    work: &Work<'_>,
    class: &mut [u32; BURST],
    lanes: Range<usize>,
) {
    if let (Lookup::Trie { fib, root }, 6, Some(at)) =
        (&dim.lookup, classifier.version, offset6(dim.field))
    {
        for lane in lanes {
            let lane = lane & (BURST - 1);
            let l3 = usize::from(work.burst.l3[lane]);
            let address = work.umem.bytes::<16>(work.burst.addr[lane], l3 + at);
            class[lane] = fib.lookup(*root, u128::from_be_bytes(*address)).0;
        }
        return;
    }
    if let Field::Connection(field) = dim.field {
        for lane in work.lanes {
            class[lane] = dim.class(work.connections.number(lane, field));
        }
        return;
    }
    for lane in work.lanes {
        let parsed = work.parsed(classifier, lane);
        class[lane] = work.class_of(dim, &parsed, lane);
    }
}
