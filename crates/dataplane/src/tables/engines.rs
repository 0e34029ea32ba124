//! What the BPF programs read beside FIBs, next hops and groups: where they look up a packet's route, if they may
//! decide about it, and how they select a group's member.

use std::sync::atomic::Ordering::{Relaxed, Release};

use super::ForwardingState;
use crate::id::LinkId;
use crate::memory::{Aligned, Memory, Part};
use crate::stages::ecmp::MULTIPATH_WORDS;
use crate::stages::source_check::{Check, Rpf, SourceLookup};
use crate::sync::{AtomicU32, AtomicU64};

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

/// A link, in the order of `struct engine_link` in `bpf/fib.h`.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
#[repr(C)]
struct EngineLink {
    root4: AtomicU32,
    root6: AtomicU32,
    flags: AtomicU32,
    unused: AtomicU32,
}

/// Links by [`LinkId`], and how members are selected, as the BPF programs read them.
///
/// A program decides only about packets for which the path of user space would need nothing but links, FIBs and next
/// hops. About all others it asks the flows, and then user space.
pub(super) struct Engines {
    links: Aligned<EngineLink>,
    multipath: Aligned<AtomicU64>,
}

impl Engines {
    /// Takes their parts of this memory.
    pub(super) fn new(memory: &Memory) -> Self {
        Self {
            links: Aligned::new(memory, Part::Links, MOST_LINKS),
            multipath: Aligned::new(memory, Part::Multipath, MULTIPATH_WORDS),
        }
    }

    /// Writes what has changed in a state. The programs may see it before workers take the state.
    pub(super) fn write(&self, state: &ForwardingState) {
        for (place, word) in self.multipath.get().iter().zip(state.routes.multipath.words()) {
            if place.load(Relaxed) != word {
                place.store(word, Release);
            }
        }
        for ((number, link), place) in (0..).zip(state.routes.links.iter()).zip(self.links.get()) {
            let flags = flags(state, LinkId(number));
            // Whoever may no longer decide learns that first.
            set(&place.flags, flags & place.flags.load(Relaxed));
            set(&place.root4, link.root4);
            set(&place.root6, link.root6);
            set(&place.flags, flags);
        }
    }
}

/// Stores a word that has changed: programs on other processors read its cache line for each packet.
fn set(word: &AtomicU32, value: u32) {
    if word.load(Relaxed) != value {
        word.store(value, Release);
    }
}

/// What the programs may decide about packets that arrive on a link.
fn flags(state: &ForwardingState, link: LinkId) -> u32 {
    let routes = &state.routes;
    let has_policy = routes.policies.as_ref().is_some_and(|policies| policies.of(link).is_some());
    if state.filter.is_some() || has_policy {
        return 0;
    }
    let record = &routes.links[link];
    let falls_back = |version, root| {
        routes.fallbacks.as_ref().is_some_and(|all| all.next_root(version, root).is_some())
    };
    let check = state.sources.as_ref().map_or_else(Check::default, |sources| sources.of(link));
    let v4 = source_flags(check).filter(|_| !falls_back(4, record.root4));
    v4.map_or(0, |flags| flags | DECIDES4) | if falls_back(6, record.root6) { 0 } else { DECIDES6 }
}

/// How the programs check the source of an IPv4 packet; none if they cannot. Whatever they find, the kernel gets the
/// packets of the others.
fn source_flags(check: Check) -> Option<u32> {
    let plain = SourceLookup { vrf_device: check.lookup.vrf_device, ..SourceLookup::default() };
    match check.source.rpf {
        Rpf::Off => Some(0),
        _ if check.lookup != plain => None,
        Rpf::Loose => Some(SOURCE_ROUTE4),
        Rpf::Strict => Some(SOURCE_ROUTE4 | SOURCE_LINK4),
        Rpf::Kind | Rpf::Unnumbered => None,
    }
}

impl std::fmt::Debug for Engines {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Engines").finish_non_exhaustive()
    }
}
