//! The ports of bridges, as the BPF programs read them.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use super::{set, set_long};
use crate::id::{BridgeId, PortId};
use crate::memory::{Aligned, Memory, Part};
use crate::stages::bridge::{BridgePort, BridgedIp, SourceRule, Tagged};
use crate::sync::{AtomicU32, AtomicU64};

/// The number of ports that there is room for (`MOST_PORTS` of `bpf/maps.h`).
const MOST_PORTS: usize = 64;
/// The number of bridges that there is room for. Each has a port at least.
pub const MOST_BRIDGES: usize = MOST_PORTS;
/// The number of records: those of bridges themselves are behind those of ports.
pub const MOST_BRIDGE_PORTS: usize = MOST_PORTS + MOST_BRIDGES;

/// Flags of `bpf/bridge_ports.h`.
const FORWARDS: u32 = 1;
const CHECKS_SOURCE: u32 = 1 << 1;
const ISOLATED: u32 = 1 << 2;
const VALIDATES: [u32; 2] = [1 << 3, 1 << 4];
const KERNEL: [u32; 2] = [1 << 5, 1 << 6];
const KERNEL_TAGGED: u32 = 1 << 7;
const SUPPRESSES_ND: u32 = 1 << 8;

/// A port, in the order of `struct bridge_port` in `bpf/bridge_ports.h`: a cache line.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
#[repr(C)]
struct EngineBridgePort {
    /// The address of the bridge, as it lies in a frame.
    mac: AtomicU64,
    flags: AtomicU32,
    refresh_ticks: AtomicU32,
    mtu: AtomicU32,
    domain: AtomicU32,
    bridge: AtomicU32,
    /// The programs write it.
    has_left: AtomicU32,
    rest: [AtomicU64; 4],
}

/// The ports of bridges by [`PortId`], then the bridges: what is routed leaves by these.
pub(super) struct BridgePorts(Aligned<EngineBridgePort>);

impl BridgePorts {
    /// Takes their part of this memory.
    pub(super) fn new(memory: &Memory) -> Self {
        Self(Aligned::new(memory, Part::BridgePorts, MOST_BRIDGE_PORTS))
    }

    /// Writes what has changed.
    pub(super) fn write(&self, ports: &BTreeMap<PortId, BridgePort>) {
        let ids = (0..MOST_PORTS as u16).map(PortId);
        let bridges = (0..MOST_BRIDGES as u16).map(|bridge| PortId::of_bridge(BridgeId(bridge)));
        for (port, place) in ids.chain(bridges).zip(self.0.get()) {
            place.write(ports.get(&port));
        }
    }

    /// Forwards nothing any more.
    pub(super) fn end(&self) {
        self.0.get().iter().for_each(|place| place.write(None));
    }
}

impl EngineBridgePort {
    fn write(&self, port: Option<&BridgePort>) {
        let Some(port) = port else { return set(&self.flags, 0) };
        let words = [
            (&self.refresh_ticks, port.refresh_ticks),
            (&self.mtu, port.mtu),
            (&self.domain, port.domain.get().into()),
            (&self.bridge, port.bridge.0.into()),
        ];
        let mac = mac_word(port.mac);
        let is_same = words.iter().all(|(place, word)| place.load(Relaxed) == *word);
        // No frame is forwarded by half of a record.
        if !is_same || self.mac.load(Relaxed) != mac {
            set(&self.flags, 0);
        }
        set_long(&self.mac, mac);
        words.into_iter().for_each(|(place, word)| set(place, word));
        set(&self.flags, flags(port));
    }
}

/// An address as the programs read it from a frame.
const fn mac_word([a, b, c, d, e, f]: [u8; 6]) -> u64 {
    u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
}

fn flags(port: &BridgePort) -> u32 {
    let flag = |is_on: bool, flag| if is_on { flag } else { 0 };
    let ip = |version: usize| match port.ip[version] {
        BridgedIp::Plain => 0,
        BridgedIp::Validated => VALIDATES[version],
        BridgedIp::Kernel => KERNEL[version],
    };
    FORWARDS
        | flag(port.source == SourceRule::Known, CHECKS_SOURCE)
        | flag(port.is_isolated, ISOLATED)
        | ip(0)
        | ip(1)
        | flag(port.tagged == Tagged::Kernel, KERNEL_TAGGED)
        | flag(port.suppresses_nd, SUPPRESSES_ND)
}
