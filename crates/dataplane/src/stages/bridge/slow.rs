//! What the loop leaves: senders to learn, frames to flood, and the reasons of drops.

use super::fdb::FdbKey;
use super::table::{LearningBridge, LearningBridges, LearningPort, PortSet};
use crate::burst::{Burst, Lanes};
use crate::clock::tick_of;
use crate::frame::{Descriptor, Umem};
use crate::id::PortId;
use crate::stages::transmit::Egress;
use crate::verdict::{DropReason, Verdict};
use crate::wire::eth::{self, EthView};

/// Where a frame goes.
enum Way {
    To(PortId),
    Flood(PortSet),
}

/// Forwards frames one by one, in order, and so before others of their burst, whose addresses are known. Those between the
/// same two addresses stay in order: they are known, or not, all together.
#[cold]
pub(super) fn run(
    burst: &mut Burst,
    umem: &mut Umem,
    bridges: &LearningBridges,
    port: &LearningPort,
    egress: &mut Egress,
    now_ns: u64,
    lanes: Lanes,
) {
    let Some(bridge) = bridges.bridge_of(port) else { return };
    let ingress = Ingress { bridges, bridge, port, id: burst.port, now_ns };
    for lane in lanes {
        let frame = Descriptor { addr: burst.addr[lane], len: burst.len[lane].into() };
        let eth = EthView(umem.bytes(frame.addr, 0));
        match ingress.decide(eth, burst.len[lane]) {
            Ok(Way::To(port)) => _ = egress.push(frame, port),
            Ok(Way::Flood(ports)) => flood(umem, egress, frame, ports),
            Err(reason) => burst.exit(lane, Verdict::Drop(reason)),
        }
    }
}

/// Queues copies of a frame for all ports of a set but the last one, which gets the frame itself.
fn flood(umem: &mut Umem, egress: &mut Egress, frame: Descriptor, ports: PortSet) {
    let mut ports = ports.iter();
    // A set without ports is no way.
    let mut last = ports.next().unwrap_or_default();
    for next in ports {
        egress.push_copy(umem, frame, std::mem::replace(&mut last, next));
    }
    _ = egress.push(frame, last);
}

/// Where the frames of a burst came in.
struct Ingress<'a> {
    bridges: &'a LearningBridges,
    bridge: &'a LearningBridge,
    port: &'a LearningPort,
    id: PortId,
    now_ns: u64,
}

impl Ingress<'_> {
    fn decide(&self, eth: EthView<'_>, len: u16) -> Result<Way, DropReason> {
        let Some(payload) = len.checked_sub(eth::LEN as u16) else {
            return Err(DropReason::PktTooSmall);
        };
        if !eth.has_station_source() {
            return Err(DropReason::MacInvalidSource);
        }
        if self.port.learns {
            let key = FdbKey::new(self.port.domain, eth.src());
            self.bridge.learn(self.bridges, key, self.id, tick_of(self.now_ns));
        }
        if eth.is_reserved() {
            return Err(DropReason::MacReserved);
        }
        let known = match eth.is_group() {
            true => None,
            false => self.bridges.fdb.look_up(FdbKey::new(self.port.domain, eth.dst())),
        };
        match known {
            Some(hit) => self.to(hit.port(), payload),
            None => self.flood(payload),
        }
    }

    fn to(&self, port: PortId, payload: u16) -> Result<Way, DropReason> {
        if !self.port.targets.has(port) {
            return Err(DropReason::NoTxTarget);
        }
        if !self.fits(port, payload) {
            return Err(DropReason::PktTooBig);
        }
        Ok(Way::To(port))
    }

    /// To all ports that the frame may leave by, and fits.
    fn flood(&self, payload: u16) -> Result<Way, DropReason> {
        let targets = self.port.targets;
        if targets.is_empty() {
            return Err(DropReason::NoTxTarget);
        }
        let fit = targets.only(|port| self.fits(port, payload));
        if fit.is_empty() {
            return Err(DropReason::PktTooBig);
        }
        if !self.port.may_flood(self.now_ns) {
            return Err(DropReason::StormLimit);
        }
        Ok(Way::Flood(fit))
    }

    fn fits(&self, port: PortId, payload: u16) -> bool {
        self.bridges.port(port).is_some_and(|port| payload <= port.mtu)
    }
}
