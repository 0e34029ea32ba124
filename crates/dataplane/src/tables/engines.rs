//! What the BPF programs read beside FIBs, next hops and groups: where they look up a packet's route, if they may
//! decide about it, and how they select a group's member.

mod bridge_ports;
mod gap;
mod route_rules;
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
use crate::wire::eth::MacWord;
use bridge_ports::BridgePorts;
pub use bridge_ports::{MOST_BRIDGE_PORTS, MOST_BRIDGES};
pub use route_rules::{MOST_ROUTE_RULES, ROOT_RULES};
use route_rules::{RouteRules, Start};
pub use rules::MOST_ENGINE_COUNTERS;
use rules::{EngineRules, Placement};

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
/// A source without a route is valid, and one with a unicast route, wherever it leads ([`Rpf::Kind`]).
pub const SOURCE_KIND4: u32 = 1 << 6;
/// The programs drop IPv4 packets whose source is not valid.
pub const SOURCE_DROPS4: u32 = 1 << 7;

/// A link, in the order of `struct engine_link` in `bpf/fib.h`.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
#[repr(C)]
struct EngineLink {
    /// The root of its FIB, or the first of the rules that select one ([`ROOT_RULES`]).
    root4: AtomicU32,
    root6: AtomicU32,
    /// The flags, and in the upper half the line of the rules: one word, so that no program decides by other rules than
    /// the flags mean.
    decision: AtomicU64,
}

/// Links by [`LinkId`], and how members are selected, as the BPF programs read them.
///
/// A program decides only about packets for which the path of user space would need nothing but links, rules of the
/// firewall and of the policy, FIBs and next hops. About all others it asks the flows, and then user space.
pub(crate) struct Engines {
    rules: EngineRules,
    route_rules: RouteRules,
    links: Aligned<EngineLink>,
    multipath: Aligned<AtomicU64>,
    bridge_ports: BridgePorts,
}

impl Engines {
    /// Takes their parts of this memory.
    pub(super) fn new(memory: &Memory, epochs: &Arc<Epochs>) -> Self {
        Self {
            rules: EngineRules::new(memory, epochs),
            route_rules: RouteRules::new(memory, epochs),
            links: Aligned::new(memory, Part::Links, MOST_LINKS),
            multipath: Aligned::new(memory, Part::Multipath, MULTIPATH_WORDS),
            bridge_ports: BridgePorts::new(memory),
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
        self.route_rules.begin();
        for (number, place) in (0..state.routes.links.len()).zip(self.links.get()) {
            self.write_link(state, LinkId(number as u16), rules, place);
        }
        self.route_rules.end();
        self.bridge_ports.write(&state.bridge_ports);
        self.rules.retire();
    }

    /// Writes what has changed for a link.
    fn write_link(
        &self,
        state: &ForwardingState,
        link: LinkId,
        rules: Placement,
        place: &EngineLink,
    ) {
        let starts = [4, 6].map(|version| self.route_rules.place(&state.routes, link, version));
        let decision = decision(flags(state, link) & decidable(starts), rules);
        let [root4, root6] = [&place.root4, &place.root6].map(|root| root.load(Relaxed));
        let is_moved = [root4, root6] != starts.map(Start::root);
        // Whoever may no longer decide learns that first.
        if is_moved {
            set_long(&place.decision, decision & !u64::from(DECIDES4 | DECIDES6));
        }
        for (place, start) in [&place.root4, &place.root6].into_iter().zip(starts) {
            set(place, start.root());
        }
        set_long(&place.decision, decision);
    }

    /// Whether rules wait for room in the memory of the programs.
    pub(crate) fn are_waiting(&self) -> bool {
        self.rules.is_waiting() || self.route_rules.is_waiting()
    }

    /// The rules that the programs have.
    pub(crate) const fn rules(&self) -> &EngineRules {
        &self.rules
    }

    /// Ends the decisions by the links of a state.
    pub(super) fn end(&self, state: &ForwardingState) {
        for (_, place) in state.routes.links.iter().zip(self.links.get()) {
            set_long(&place.decision, 0);
        }
        self.bridge_ports.end();
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

/// The flags that a link may have whose packets find their routes there, IPv4 and IPv6.
fn decidable([start4, start6]: [Start; 2]) -> u32 {
    let refused = |start, flag| if matches!(start, Start::Nowhere(_)) { flag } else { 0 };
    !(refused(start4, DECIDES4) | refused(start6, DECIDES6))
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
    let record = &state.routes.links[link];
    // The programs know only the address of the port, or of the bridge.
    let below = match record.port.bridge() {
        Some(_) => state.bridge_ports.get(&record.port).map(|of| MacWord::new(of.mac)),
        None => state.ports.get(usize::from(record.port.0)).map(|port| port.mac),
    };
    if below != Some(record.mac) {
        return 0;
    }
    source_flags(state, link).map_or(0, |flags| flags | DECIDES4) | DECIDES6
}

/// How the programs check the source of an IPv4 packet; none if they cannot. User space, or the kernel, says what
/// becomes of the packets whose source they are not sure of.
fn source_flags(state: &ForwardingState, link: LinkId) -> Option<u32> {
    let Some(sources) = &state.sources else { return Some(0) };
    let check = sources.of(link);
    let plain = SourceLookup { vrf_device: check.lookup.vrf_device, ..SourceLookup::default() };
    let route = match check.source.rpf {
        Rpf::Off => return Some(0),
        _ if check.lookup != plain => return None,
        Rpf::Kind => SOURCE_ROUTE4 | SOURCE_KIND4,
        Rpf::Loose => SOURCE_ROUTE4,
        Rpf::Strict => SOURCE_ROUTE4 | SOURCE_LINK4,
        Rpf::Unnumbered => return None,
    };
    let drops = if check.source.martians_to_kernel { 0 } else { SOURCE_DROPS4 };
    let vrf = if sources.has_one_route_back(check) { 0 } else { SOURCE_NOT_TO_VRF4 };
    Some(route | drops | vrf)
}

impl std::fmt::Debug for Engines {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Engines").finish_non_exhaustive()
    }
}
