//! What the BPF programs read beside FIBs, next hops and groups: where they look up a packet's route, if they may
//! decide about it, and how they select a group's member.

mod rules;
#[cfg(all(test, not(loom)))]
mod tests;

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};

use super::ForwardingState;
use crate::epoch::Epochs;
use crate::id::LinkId;
use crate::memory::{Aligned, Memory, Part};
use crate::stages::ecmp::MULTIPATH_WORDS;
use crate::stages::source_check::{Rpf, SourceLookup};
use crate::sync::{AtomicU32, AtomicU64};
pub(crate) use rules::EngineRules;
pub use rules::MOST_ENGINE_COUNTERS;
use rules::Placement;

/// The number of links that there is room for: one for each [`LinkId`].
pub const MOST_LINKS: usize = 1 << 16;

/// The programs decide about IPv4 packets.
pub const DECIDES4: u32 = 1;
/// The programs decide about IPv6 packets.
pub const DECIDES6: u32 = 1 << 1;
/// There must be a route to the source of an IPv4 packet ([`Rpf::Loose`]).
pub const SOURCE_ROUTE4: u32 = 1 << 2;
/// That route must lead to the link that the packet arrived on ([`Rpf::Strict`]).
pub const SOURCE_LINK4: u32 = 1 << 3;
/// IPv4 packets that leave by a link of a VRF ([`IN_VRF`]) are not decided: the route to their source depends on it.
pub const SOURCE_NOT_TO_VRF4: u32 = 1 << 4;
/// The link belongs to a VRF device.
pub const IN_VRF: u32 = 1 << 5;

/// A link, in the order of `struct engine_link` in `bpf/fib.h`.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
#[repr(C)]
struct EngineLink {
    root4: AtomicU32,
    root6: AtomicU32,
    /// The flags, and in the upper half the line of the rules: one word, so that no program decides by other rules than
    /// the flags mean.
    decision: AtomicU64,
}

/// Links by [`LinkId`], and how members are selected, as the BPF programs read them.
///
/// A program decides only about packets for which the path of user space would need nothing but links, rules, FIBs and
/// next hops. About all others it asks the flows, and then user space.
pub(super) struct Engines {
    rules: Arc<EngineRules>,
    links: Aligned<EngineLink>,
    multipath: Aligned<AtomicU64>,
}

impl Engines {
    /// Takes their parts of this memory.
    pub(super) fn new(memory: &Memory, epochs: &Arc<Epochs>) -> Self {
        Self {
            rules: Arc::new(EngineRules::new(memory, epochs)),
            links: Aligned::new(memory, Part::Links, MOST_LINKS),
            multipath: Aligned::new(memory, Part::Multipath, MULTIPATH_WORDS),
        }
    }

    /// Writes what has changed in a state. The programs may see it before workers take the state.
    pub(super) fn write(&self, state: &ForwardingState, rules: u64) {
        let rules = self.rules.place(state.filter.as_ref(), rules);
        for (place, word) in self.multipath.get().iter().zip(state.routes.multipath.words()) {
            if place.load(Relaxed) != word {
                place.store(word, Release);
            }
        }
        for ((number, link), place) in (0..).zip(state.routes.links.iter()).zip(self.links.get()) {
            let decision = decision(flags(state, LinkId(number)), rules);
            let is_moved =
                link.root4 != place.root4.load(Relaxed) || link.root6 != place.root6.load(Relaxed);
            // Whoever may no longer decide learns that first.
            if is_moved {
                set_long(&place.decision, decision & !u64::from(DECIDES4 | DECIDES6));
            }
            set(&place.root4, link.root4);
            set(&place.root6, link.root6);
            set_long(&place.decision, decision);
        }
        self.rules.retire();
    }

    /// The rules that the programs have.
    pub(super) const fn rules(&self) -> &Arc<EngineRules> {
        &self.rules
    }

    /// Ends the decisions by the links of a state.
    pub(super) fn end(&self, state: &ForwardingState) {
        for (_, place) in state.routes.links.iter().zip(self.links.get()) {
            set_long(&place.decision, 0);
        }
    }
}

/// Stores a word that has changed: programs on other processors read its cache line for each packet.
fn set(word: &AtomicU32, value: u32) {
    if word.load(Relaxed) != value {
        word.store(value, Release);
    }
}

/// As [`set`], for a long word.
fn set_long(word: &AtomicU64, value: u64) {
    if word.load(Relaxed) != value {
        word.store(value, Release);
    }
}

/// A link's word: its flags, and where its packets' rules are.
fn decision(flags: u32, rules: Placement) -> u64 {
    match rules {
        Placement::NoRules => flags.into(),
        Placement::At(line) => u64::from(flags) | u64::from(line) << 32,
        Placement::Nowhere => u64::from(flags & !(DECIDES4 | DECIDES6)),
    }
}

/// A link's flags: what the programs may decide about packets that arrive on it, and what it is for those that leave.
fn flags(state: &ForwardingState, link: LinkId) -> u32 {
    let sources = state.sources.as_deref();
    let in_vrf = sources.is_some_and(|all| all.of(link).lookup.vrf_device.is_some());
    decides(state, link) | if in_vrf { IN_VRF } else { 0 }
}

/// What the programs may decide about packets that arrive on a link.
fn decides(state: &ForwardingState, link: LinkId) -> u32 {
    let routes = &state.routes;
    let record = &routes.links[link];
    let has_policy = routes.policies.as_ref().is_some_and(|policies| policies.of(link).is_some());
    // The programs know only the address of the port.
    let port = state.ports.get(usize::from(record.port.0));
    let has_own_mac = port.is_none_or(|port| port.mac != record.mac);
    if has_policy || has_own_mac {
        return 0;
    }
    let falls_back = |version, root| {
        routes.fallbacks.as_ref().is_some_and(|all| all.next_root(version, root).is_some())
    };
    let v4 = source_flags(state, link).filter(|_| !falls_back(4, record.root4));
    v4.map_or(0, |flags| flags | DECIDES4) | if falls_back(6, record.root6) { 0 } else { DECIDES6 }
}

/// How the programs check the source of an IPv4 packet; none if they cannot. User space says what becomes of the packets
/// whose source they do not find valid.
fn source_flags(state: &ForwardingState, link: LinkId) -> Option<u32> {
    let Some(sources) = &state.sources else { return Some(0) };
    let check = sources.of(link);
    let plain = SourceLookup { vrf_device: check.lookup.vrf_device, ..SourceLookup::default() };
    let route = match check.source.rpf {
        Rpf::Off => return Some(0),
        _ if check.lookup != plain => return None,
        Rpf::Loose => SOURCE_ROUTE4,
        Rpf::Strict => SOURCE_ROUTE4 | SOURCE_LINK4,
        Rpf::Kind | Rpf::Unnumbered => return None,
    };
    Some(route | if sources.has_one_route_back(check) { 0 } else { SOURCE_NOT_TO_VRF4 })
}

impl std::fmt::Debug for Engines {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Engines").finish_non_exhaustive()
    }
}
