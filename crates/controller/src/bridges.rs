//! The ports of bridges as the tables have them.

use std::collections::BTreeMap;
use std::time::Duration;

use tollway_dataplane::clock::TICK_SHIFT;
use tollway_dataplane::id::{BridgeId, Domain, PortId};
use tollway_dataplane::stages::bridge::{BridgePort, BridgedIp, SourceRule, Tagged};

use super::kernel::BridgePortFlag;
use super::offload::{Bridged, BridgedPackets};
use super::ports::Port;
use tollway_model::Model;

/// The ports of bridges that forward, and the bridges that have such ports: what is routed leaves by these.
pub(super) fn ports(
    model: &Model,
    ports: &[Port],
    bridged: &[Bridged],
) -> BTreeMap<PortId, BridgePort> {
    let of_port = |(number, port): (u16, &Port)| {
        let of = bridged.iter().find(|of| Some(of.port.0) == port.device)?;
        let bridge = model.bridge_number(of.bridge.0).filter(|_| of.is_fast() && port.works)?;
        Some((PortId(number), bridge_port(of, BridgeId(bridge))?))
    };
    let ports: BTreeMap<_, _> = (0..).zip(ports).filter_map(of_port).collect();
    // Of its bridge, a port's record has all that counts for what is routed: the domain, and the address.
    let bridges: Vec<_> = ports.values().map(|of| (PortId::of_bridge(of.bridge), *of)).collect();
    ports.into_iter().chain(bridges).collect()
}

fn bridge_port(of: &Bridged, bridge: BridgeId) -> Option<BridgePort> {
    let checks = of.flags.has(BridgePortFlag::Learning) || of.flags.has(BridgePortFlag::Locked);
    let packets = |packets: &BridgedPackets| match packets {
        BridgedPackets::Plain => BridgedIp::Plain,
        BridgedPackets::Validated => BridgedIp::Validated,
        BridgedPackets::Kernel(_) => BridgedIp::Kernel,
    };
    Some(BridgePort {
        bridge,
        domain: Domain::of_bridge(bridge)?,
        mac: of.mac,
        mtu: of.mtu,
        refresh_ticks: ticks(of.refresh),
        source: if checks { SourceRule::Known } else { SourceRule::Any },
        is_isolated: of.flags.has(BridgePortFlag::Isolated),
        ip: [packets(&of.ip.v4), packets(&of.ip.v6)],
        tagged: if of.tagged.is_some() { Tagged::Kernel } else { Tagged::Plain },
        suppresses_nd: of.suppresses_nd,
    })
}

fn ticks(time: Duration) -> u32 {
    u32::try_from(time.as_nanos() >> TICK_SHIFT).unwrap_or(u32::MAX)
}

/// What differs from the ports that the tables have; those that no longer forward come first.
pub(super) fn changes(
    had: Option<&BTreeMap<PortId, BridgePort>>,
    now: &BTreeMap<PortId, BridgePort>,
) -> Vec<(PortId, Option<BridgePort>)> {
    let gone = had.into_iter().flatten().filter(|(port, _)| !now.contains_key(port));
    let gone = gone.map(|(port, _)| (*port, None));
    let is_new = |(port, own): &(&PortId, &BridgePort)| {
        had.and_then(|had| had.get(port)).is_none_or(|known| known != *own)
    };
    gone.chain(now.iter().filter(is_new).map(|(port, own)| (*port, Some(*own)))).collect()
}
