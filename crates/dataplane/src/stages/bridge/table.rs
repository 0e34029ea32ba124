//! Bridges that learn by themselves: their ports, and what they allow.

use std::sync::Arc;

use super::counts::{Counts, Sweep};
use super::fdb::{Fdb, FdbEntry, FdbKey, FdbKind};
use crate::clock::tick_of;
use crate::id::{BridgeId, Domain, PortId};
use crate::token_bucket::{Rate, TokenBucket};
use crate::wire::eth::MacWord;

/// An entry is refreshed when it is as old as this part of the ageing time, or [`LONGEST_REFRESH_TICKS`].
const REFRESH_SHARE: u32 = 8;

/// One second: what is refreshed later is forgotten so much too late.
const LONGEST_REFRESH_TICKS: u32 = 15;

const SECOND_NS: u64 = 1_000_000_000;

/// A bridge that learns by itself, as it is configured.
#[derive(Clone, Debug, Default)]
pub struct BridgeSettings {
    /// Its ports.
    pub ports: Vec<BridgePortSettings>,
    /// The time after which it forgets an address that sends nothing, in seconds.
    pub ageing_s: u32,
    /// The most addresses that it learns.
    pub max_entries: u32,
    /// Addresses that it neither learns nor forgets, and their ports.
    pub entries: Vec<([u8; 6], PortId)>,
}

/// A port of such a bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BridgePortSettings {
    /// The port.
    pub port: PortId,
    /// Whether nothing is forwarded to another isolated port.
    pub is_isolated: bool,
    /// Whether frames may leave by the port that they came from.
    pub is_hairpin: bool,
    /// Whether the addresses of senders are learned.
    pub learns: bool,
    /// The most frames in a second that are flooded from the port.
    pub storm_limit: Option<u32>,
}

impl BridgePortSettings {
    /// A port without special settings.
    #[must_use]
    pub const fn new(port: PortId) -> Self {
        Self { port, is_isolated: false, is_hairpin: false, learns: true, storm_limit: None }
    }

    /// Whether frames of this port may leave by another one of its bridge.
    fn may_send_to(&self, other: &Self) -> bool {
        if self.port == other.port {
            return self.is_hairpin;
        }
        !(self.is_isolated && other.is_isolated)
    }
}

/// A set of ports, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PortSet(u64);

impl PortSet {
    /// The number of ports that can be in a set.
    const ROOM: u16 = u64::BITS as u16;

    fn with(self, port: PortId) -> Self {
        Self(self.0 | 1 << (port.0 % Self::ROOM))
    }

    #[inline(always)]
    pub(super) const fn has(self, port: PortId) -> bool {
        self.0 >> (port.0 % Self::ROOM) & 1 != 0
    }

    pub(super) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The ports of this set for which `holds` is true.
    pub(super) fn only(self, holds: impl Fn(PortId) -> bool) -> Self {
        self.iter().filter(|port| holds(*port)).fold(Self::default(), Self::with)
    }

    pub(super) fn iter(self) -> impl Iterator<Item = PortId> {
        (0..Self::ROOM).map(PortId).filter(move |port| self.has(*port))
    }
}

/// A port of a bridge, as the stage reads it.
#[derive(Debug)]
pub(crate) struct LearningPort {
    /// The ports by which its frames may leave.
    pub(super) targets: PortSet,
    /// Where its frames' addresses are looked up.
    pub(super) domain: Domain,
    pub(super) bridge: BridgeId,
    /// The longest packet that leaves by the port, in bytes behind the Ethernet header.
    pub(super) mtu: u16,
    /// The longest one that leaves by each port of the bridge.
    pub(super) common_mtu: u16,
    pub(super) learns: bool,
    pub(super) refresh_ticks: u32,
    storm: Option<StormLimit>,
}

#[derive(Debug)]
struct StormLimit {
    rate: Rate,
    tokens: TokenBucket,
}

impl LearningPort {
    /// Says whether one more frame may be flooded.
    pub(super) fn may_flood(&self, now_ns: u64) -> bool {
        self.storm.as_ref().is_none_or(|storm| storm.tokens.take(storm.rate, now_ns))
    }
}

/// What a bridge learns by, and has learned.
#[derive(Debug)]
pub(super) struct LearningBridge {
    /// An entry is forgotten when no frame has refreshed it for so long.
    pub(super) forgotten_ticks: u32,
    pub(super) max_entries: u32,
    pub(super) counts: Counts,
}

/// All bridges that learn by themselves, and their database.
#[derive(Debug)]
pub struct LearningBridges {
    pub(super) fdb: Arc<Fdb>,
    pub(super) bridges: Vec<LearningBridge>,
    /// By number.
    ports: Vec<Option<LearningPort>>,
    pub(super) sweep: Sweep,
}

impl LearningBridges {
    /// Creates bridges; `mtus` has that of each port. None if there are more ports or bridges than there is room for, or a
    /// static entry finds none.
    #[must_use]
    pub fn new(fdb: &Arc<Fdb>, settings: &[BridgeSettings], mtus: &[u16]) -> Option<Self> {
        let mut new = Self {
            fdb: Arc::clone(fdb),
            bridges: Vec::new(),
            ports: Vec::new(),
            sweep: Sweep::default(),
        };
        new.ports.resize_with(mtus.len(), || None);
        for bridge in settings {
            new.add(bridge, mtus)?;
        }
        Some(new)
    }

    fn add(&mut self, settings: &BridgeSettings, mtus: &[u16]) -> Option<()> {
        let bridge = BridgeId(u16::try_from(self.bridges.len()).ok()?);
        let domain = Domain::of_bridge(bridge)?;
        let ageing_ticks = tick_of(u64::from(settings.ageing_s) * SECOND_NS).max(1);
        let refresh_ticks = (ageing_ticks / REFRESH_SHARE).clamp(1, LONGEST_REFRESH_TICKS);
        let mtus_of_ports = settings.ports.iter().map(|own| mtu_of(mtus, own.port));
        let common_mtu = mtus_of_ports.min().unwrap_or_default();
        for own in &settings.ports {
            if own.port.0 >= PortSet::ROOM {
                return None;
            }
            let others = settings.ports.iter().filter(|other| own.may_send_to(other));
            let targets = others.map(|other| other.port).fold(PortSet::default(), PortSet::with);
            *self.ports.get_mut(usize::from(own.port.0))? = Some(LearningPort {
                targets,
                domain,
                bridge,
                mtu: mtu_of(mtus, own.port),
                common_mtu,
                learns: own.learns,
                refresh_ticks,
                storm: own.storm_limit.map(StormLimit::new),
            });
        }
        let mut writer = self.fdb.lock();
        for (mac, port) in &settings.entries {
            let entry = FdbEntry { port: *port, kind: FdbKind::Static };
            writer.set(FdbKey::new(domain, MacWord::new(*mac)), entry, 0).ok()?;
        }
        self.bridges.push(LearningBridge {
            forgotten_ticks: ageing_ticks + refresh_ticks,
            max_entries: settings.max_entries,
            counts: Counts::default(),
        });
        Some(())
    }

    /// A port, if it belongs to a bridge.
    #[inline(always)]
    pub(crate) fn port(&self, port: PortId) -> Option<&LearningPort> {
        self.ports.get(usize::from(port.0))?.as_ref()
    }

    /// The bridge of a port.
    pub(super) fn bridge_of(&self, port: &LearningPort) -> Option<&LearningBridge> {
        self.bridges.get(usize::from(port.bridge.0))
    }
}

impl StormLimit {
    /// As many frames at once as in a second.
    fn new(per_second: u32) -> Self {
        let burst = u64::from(per_second.max(1));
        let rate = Rate { interval_ns: SECOND_NS / burst, burst };
        Self { rate, tokens: TokenBucket::default() }
    }
}

/// What the kernel lets through (`br_dev_queue_push_xmit`): four bytes more, for a tag.
fn mtu_of(mtus: &[u16], port: PortId) -> u16 {
    const TAG: u16 = crate::wire::vlan::LEN as u16;
    mtus.get(usize::from(port.0)).map_or(0, |mtu| mtu.saturating_add(TAG))
}
