//! What becomes of packets that exit the path: counted, given to the host, or to the kernel behind their port.

use std::net::IpAddr;
use std::sync::Arc;

use super::Worker;
use crate::burst::{BURST, Lanes};
use crate::frame::Descriptor;
use crate::host::Packet;
use crate::id::LinkId;
use crate::port::Port;
use crate::router::{Control, Generations};
use crate::stages::filter::PolicyRoute;
use crate::verdict::{DropReason, PuntReason, Verdict};

impl Worker {
    /// Frees packets that are all dropped for one reason, as in an attack that a rule blocks.
    pub(super) fn drop_all(&mut self, lanes: Lanes, reason: DropReason) {
        self.counters.drops[reason as usize] += lanes.count() as u64;
        match lanes.dense() {
            Some(range) => self.umem.free_all(self.burst.addr[range].iter().copied()),
            None => self.umem.free_all(lanes.into_iter().map(|lane| self.burst.addr[lane])),
        }
    }

    /// The packets among `lanes` that rules reject or reroute.
    pub(super) fn ruled(&self, lanes: Lanes) -> Lanes {
        let mut ruled = Lanes::NONE;
        for lane in lanes {
            ruled.put(
                lane,
                match self.burst.verdict[lane] {
                    Verdict::Punt(PuntReason::Reject) => true,
                    Verdict::Punt(PuntReason::FilterUnsupported) => false,
                    _ => self.filter.policy_route_of(lane) != PolicyRoute::Not,
                },
            );
        }
        ruled
    }

    /// The packets among `lanes` that rules translate, or would if they could be sent: the kernel does not know their
    /// connections. It would not know those of answers of its own sockets either, so packets for these are dropped.
    pub(super) fn translated(&mut self, lanes: Lanes) -> Lanes {
        let Some(filter) = &self.view.state.filter else { return Lanes::NONE };
        if !filter.is_translator(4) && !filter.is_translator(6) {
            return Lanes::NONE;
        }
        let mut translated = self.filter.translated(filter, lanes);
        for lane in lanes {
            match self.burst.verdict[lane] {
                Verdict::Local if translated.has(lane) => {
                    self.burst.exit(lane, Verdict::Drop(DropReason::NoSocket));
                }
                // The kernel may know a larger MTU, and would forward the packet as it is.
                Verdict::Punt(PuntReason::MtuExceeded) => {
                    let l3 = usize::from(self.burst.l3[lane]);
                    let version = self.umem.bytes::<1>(self.burst.addr[lane], l3)[0] >> 4;
                    translated.put(lane, translated.has(lane) || filter.is_translator(version));
                }
                _ => {}
            }
        }
        translated
    }

    /// Handles packets that exited the path.
    #[cold]
    pub(super) fn handle_exits(&mut self, lanes: Lanes, now_ns: u64) {
        let reject = self.filter.reject;
        let mut policy_route = [PolicyRoute::Not; BURST];
        let mut came = [None; BURST];
        for lane in lanes {
            policy_route[lane] = self.filter.policy_route_of(lane);
            let filter = self.view.state.filter.as_ref();
            came[lane] = filter.and_then(|filter| self.filter.destination_before(filter, lane));
        }
        let (router, generations) = (Arc::clone(&self.router), self.view.generations);
        let mut locked = router.lock();
        let lanes = self.translate(&locked, generations, lanes, &policy_route);
        let Control { tables, host, .. } = &mut *locked;
        let (mut context, burst) = self.slow_path(tables, now_ns);
        for lane in lanes {
            context.came = came[lane];
            let packet = Packet {
                addr: burst.addr[lane],
                len: burst.len[lane],
                l3: burst.l3[lane],
                link: burst.link[lane],
                policy_route: policy_route[lane],
            };
            match burst.verdict[lane] {
                Verdict::Drop(reason) => {
                    context.counters.drop(reason);
                    context.umem.free(packet.addr);
                }
                Verdict::Punt(PuntReason::Reject) => {
                    host.reject(&mut context, packet, reject[lane]);
                }
                Verdict::Punt(reason) => host.punt(&mut context, packet, reason),
                Verdict::Local => host.deliver(&mut context, packet),
            }
        }
        let wanted = host.take_wanted();
        drop(locked);
        self.ask_for(&wanted);
    }

    /// Asks the kernel for neighbours that the host has it resolve.
    pub(super) fn ask_for(&self, wanted: &[(LinkId, IpAddr)]) {
        if !wanted.is_empty() {
            self.router.ask_for(wanted);
        }
    }

    /// Gives packets the numbers of the tables now, if other tables came while the path worked on the burst.
    /// Drops those whose link or new target has gone. Returns the rest.
    fn translate(
        &mut self,
        control: &Control,
        generations: Generations,
        lanes: Lanes,
        policy_route: &[PolicyRoute; BURST],
    ) -> Lanes {
        if control.has_tables_of(generations) {
            return lanes;
        }
        let mut rest = lanes;
        for lane in lanes {
            let link = control.link_now(generations, self.burst.link[lane]);
            match link.filter(|_| policy_route[lane] == PolicyRoute::Not) {
                Some(link) => self.burst.link[lane] = link,
                None => {
                    self.counters.drop(DropReason::NeighFailed);
                    self.umem.free(self.burst.addr[lane]);
                    rest = rest.without(Lanes(1 << lane));
                }
            }
        }
        rest
    }

    /// Notifies the XDP path of packets that exited the path. It may pass such packets to the
    /// kernel directly.
    pub(super) fn report_punted(&mut self, exited: Lanes) {
        if let Some(xdp_path) = &mut self.xdp_path
            && (self.kernel_has_rules || self.view.state.filter.is_none())
        {
            xdp_path.punted(&self.burst, &self.umem, &self.view.state, exited);
        }
    }

    /// Hands the packets that exited the path to the kernel behind their port, except those to be
    /// dropped.
    #[cold]
    pub(super) fn punt_to_kernel<P: Port>(&mut self, port: &mut P, exited: Lanes, now_ns: u64) {
        for lane in exited {
            let addr = self.burst.addr[lane];
            let frame = Descriptor { addr, len: u32::from(self.burst.len[lane]) };
            let reason = match self.burst.verdict[lane] {
                Verdict::Drop(reason) => {
                    self.counters.drop(reason);
                    self.umem.free(addr);
                    continue;
                }
                Verdict::Punt(reason) => Some(reason),
                Verdict::Local => None,
            };
            if self.kernel_has_rules
                && let Some(head) = self.filter.received_head(lane)
            {
                *self.umem.bytes_mut(addr, usize::from(self.burst.l3[lane])) = *head;
            }
            if let Some(reason) = reason {
                let l3 = usize::from(self.burst.l3[lane]);
                let is_v6 = self.umem.bytes::<1>(addr, l3)[0] >> 4 == 6;
                let from = (self.burst.port, is_v6);
                self.crowd.note(from, reason, &self.counters.rx, now_ns);
            }
            let lost = if reason.is_some_and(|reason| !self.router.limits.allow(reason, now_ns)) {
                DropReason::PuntLimit
            } else if !port.punt(&mut self.umem, frame) {
                DropReason::PuntFailed
            } else {
                self.filter.uncount(lane);
                match reason {
                    Some(reason) => self.counters.punt(reason),
                    None => self.counters.delivered += 1,
                }
                continue;
            };
            self.counters.drop(lost);
            self.umem.free(addr);
        }
    }
}
