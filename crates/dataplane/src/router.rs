//! The router of one worker: path, host, tables, memory and counters, and the turn that runs them.

use std::sync::Arc;

use crate::burst::{BURST, Burst, Lanes};
use crate::counters::{Counters, Traffic};
use crate::dispatch::Path;
use crate::epoch::Reader;
use crate::frame::{Descriptor, Umem};
use crate::host::{Context, Host, Outgoing, Packet};
use crate::id::{LinkId, PortId};
use crate::port::Port;
use crate::punts::{Crowd, Limits};
use crate::stages::filter::{Count, Filter, PolicyRoute, State};
use crate::stages::transmit::Egress;
use crate::tables::Tables;
use crate::tolls::Tolls;
use crate::verdict::{DropReason, PuntReason, Verdict};
use crate::xdp_path::XdpPath;

/// A router with everything that it needs except its ports.
pub struct Router {
    /// The tables that the stages read.
    pub tables: Tables,
    /// The memory of the frames.
    pub umem: Umem,
    /// Counts of what happened to every packet.
    pub counters: Counters,
    /// The cost of each stage.
    pub tolls: Tolls,
    /// The router as a host.
    pub host: Host,
    /// The XDP path that is notified of forwarded packets, if any.
    pub xdp_path: Option<Box<dyn XdpPath>>,
    /// Counters of the firewall rules.
    pub filter: State,
    /// Whether the kernel behind the ports has the same rules as the firewall. If so, packets that
    /// the rules reject, reroute or cannot decide take the kernel path, like all that exit the path, as
    /// they were received.
    pub kernel_has_rules: bool,
    /// Limits on the packets that the kernel has to answer; routers of several workers share one.
    pub limits: Arc<Limits>,
    /// Finds ports at which the kernel has to carry too many packets; it is of one worker.
    pub crowd: Crowd,
    path: Path,
    reader: Reader,
    burst: Box<Burst>,
    egress: Egress,
    outbox: Vec<Outgoing>,
}

impl Router {
    /// Creates a router for the ports in `tables`, with the path for the widest instructions of the
    /// machine.
    #[must_use]
    pub fn new(tables: Tables, umem: Umem, host: Host) -> Self {
        Self::with_path(Path::detect(), tables, umem, host)
    }

    /// Creates a router that uses the given path.
    #[must_use]
    pub fn with_path(path: Path, tables: Tables, umem: Umem, host: Host) -> Self {
        let ports = tables.ports.len();
        // No reader uses these tables yet, so every next hop can get its own record back.
        tables.routes.next_hops.restore_displaced();
        let reader = tables.epochs.join();
        let mut state = State::new();
        if let Some(filter) = &tables.filter {
            state.renew(filter, &[]);
        }
        Self {
            tables,
            umem,
            counters: Counters::new(ports),
            tolls: Tolls::new(),
            host,
            xdp_path: None,
            filter: state,
            kernel_has_rules: false,
            limits: Limits::new(),
            crowd: Crowd::of_workers(1),
            path,
            reader,
            burst: Box::new(Burst::new()),
            egress: Egress::new(ports),
            outbox: Vec::new(),
        }
    }

    /// Receives one burst from `port`, runs the path on it and sends the result; returns the number of
    /// packets received. `now_ns` is the time since any fixed moment.
    pub fn turn<P: Port>(&mut self, port: PortId, ports: &mut [P], now_ns: u64) -> usize {
        // Between two bursts: the worker holds no reference that it found in a table.
        self.reader.pass();
        if let Some(xdp_path) = &mut self.xdp_path {
            xdp_path.begin(&self.tables.epochs.changes, now_ns);
        }
        let burst = &mut *self.burst;
        burst.reset(port);
        let known = usize::from(port.0) < self.tables.ports.len();
        let Some(source) = ports.get_mut(usize::from(port.0)).filter(|_| known) else { return 0 };
        source.receive(&mut self.umem, burst);
        if burst.count == 0 {
            if let Some(xdp_path) = &mut self.xdp_path {
                xdp_path.idle(port);
            }
            return 0;
        }
        let bytes = burst.len[..burst.count].iter().map(|len| u64::from(*len)).sum();
        self.counters.received(port, burst.count as u64, bytes);
        self.filter.now_ns = now_ns;
        self.filter.kernel_has_rules = self.kernel_has_rules;
        self.path.forward(
            burst,
            &mut self.umem,
            &self.tables,
            &mut self.tolls,
            &mut self.egress,
            &mut self.filter,
        );
        let exited = self.burst.exited;
        if let Some(xdp_path) = &mut self.xdp_path {
            let lanes = self.burst.lanes().without(exited);
            xdp_path.forwarded(&self.burst, &self.umem, &self.tables, lanes);
        }
        self.transmit(ports);
        if let Some(Verdict::Drop(reason)) = self.burst.verdict_of(exited) {
            self.drop_all(exited, reason);
        } else if !exited.is_empty() {
            let kernel = ports.get_mut(usize::from(port.0)).filter(|port| port.has_kernel());
            let ours = match kernel {
                Some(port) => {
                    self.report_punted(exited);
                    // Packets with verdicts from rules that the kernel does not know.
                    let ruled =
                        if self.kernel_has_rules { Lanes::NONE } else { self.ruled(exited) };
                    self.punt_to_kernel(port, exited.without(ruled), now_ns);
                    ruled
                }
                None => exited,
            };
            if !ours.is_empty() {
                self.handle_exits(ours, now_ns);
            }
            self.send_outbox(ports);
        }
        self.burst.count
    }

    /// Checks that every chunk of the memory is free, at a port or in a queue of the host. Call it
    /// between two bursts only. If chunks get lost, frames get lost sooner or later.
    ///
    /// # Errors
    ///
    /// A sentence that says how many chunks are missing, or were returned twice.
    pub fn check_memory<P: Port>(&self, ports: &[P]) -> Result<(), String> {
        let umem = &self.umem;
        let (free, waiting) = (umem.available(), self.host.chunks(umem));
        let at_ports: usize = ports.iter().map(|port| port.chunks(umem)).sum();
        let chunks = umem.chunks();
        if free + at_ports + waiting == chunks {
            return Ok(());
        }
        Err(format!(
            "the memory for frames does not add up: {free} chunks are free, {at_ports} at ports and \
             {waiting} wait for neighbours, of {chunks}"
        ))
    }

    /// Counts of what happened to every packet, including those that the XDP path forwarded.
    #[must_use]
    pub fn counters_in_all(&mut self) -> Counters {
        let mut counters = self.counters.clone();
        if let Some(xdp_path) = &mut self.xdp_path {
            xdp_path.add_to(&mut counters);
        }
        counters
    }

    /// The counts of the firewall rules by counter number, including packets that the XDP path
    /// forwarded.
    pub fn rule_counts(&mut self) -> &[Count] {
        if let Some(xdp_path) = &mut self.xdp_path {
            xdp_path.add_to_rules(&mut self.filter.counts, false);
        }
        &self.filter.counts
    }

    /// Replaces tables and host between two bursts. Counts continue, and the new host takes over what
    /// the old one has learned and queued. `links` has for each old link its number in the new tables,
    /// if it still exists. `carried` is as in [`Router::set_filter`], for the rules in the new tables.
    ///
    /// Returns the old tables and host, which may be large: drop them where time does not matter.
    ///
    /// # Errors
    ///
    /// The new tables do not have as many ports; they are returned, and nothing has changed.
    pub fn swap<P: Port>(
        &mut self,
        ports: &mut [P],
        mut tables: Tables,
        mut host: Host,
        links: &[Option<LinkId>],
        carried: &[Option<u32>],
    ) -> Result<(Tables, Host), Box<(Tables, Host)>> {
        if tables.ports.len() != self.tables.ports.len() {
            return Err(Box::new((tables, host)));
        }
        // No reader uses these tables yet, so every next hop can get its own record back.
        tables.routes.next_hops.restore_displaced();
        self.reader = tables.epochs.join();
        std::mem::swap(&mut self.tables, &mut tables);
        std::mem::swap(&mut self.host, &mut host);
        self.renew_filter(carried);
        // Nothing here needs the time.
        let (new, mut context, _) = self.slow_path(0);
        new.succeed(&mut context, &mut host, links);
        self.send_outbox(ports);
        Ok((tables, host))
    }

    /// Replaces the active rules, or removes them; call it between two bursts, like any change of the
    /// router. To continue a counter, `carried` has for each counter of the new rules its number in the
    /// old ones.
    ///
    /// Returns the previous rules, which may be large: drop them where time does not matter.
    pub fn set_filter(
        &mut self,
        filter: Option<Arc<Filter>>,
        carried: &[Option<u32>],
    ) -> Option<Arc<Filter>> {
        let old = std::mem::replace(&mut self.tables.filter, filter);
        self.tables.epochs.changes.note();
        self.renew_filter(carried);
        old
    }

    /// Starts counters and marks for the rules that the tables have now.
    fn renew_filter(&mut self, carried: &[Option<u32>]) {
        if let Some(xdp_path) = &mut self.xdp_path {
            xdp_path.add_to_rules(&mut self.filter.counts, true);
        }
        match &self.tables.filter {
            Some(filter) => self.filter.renew(filter, carried),
            None => self.filter = State::new(),
        }
    }

    /// Reports that no turn is taken until [`Router::wake`]: changes of tables need not wait for this
    /// router until then.
    pub fn park(&self) {
        self.reader.park();
    }

    /// Reports that the router takes turns again.
    pub fn wake(&self) {
        self.reader.wake();
    }

    /// Lets the host do what is due; call it some ten times a second.
    pub fn tick<P: Port>(&mut self, ports: &mut [P], now_ns: u64) {
        self.count_oversized(ports);
        self.tables.routes.next_hops.restore_displaced();
        let (host, mut context, _) = self.slow_path(now_ns);
        host.tick(&mut context);
        self.send_outbox(ports);
    }

    /// Counts the frames that ports could not deliver because they fit no chunk.
    fn count_oversized<P: Port>(&mut self, ports: &mut [P]) {
        for (index, port) in ports.iter_mut().enumerate() {
            let Traffic { packets, bytes } = port.oversized();
            let Some(rx) = self.counters.rx.get_mut(index) else { return };
            rx.add(packets, bytes);
            self.counters.drops[DropReason::PktTooBig as usize] += packets;
        }
    }

    /// Hands the forwarded frames to their ports.
    fn transmit<P: Port>(&mut self, ports: &mut [P]) {
        let (umem, counters) = (&mut self.umem, &mut self.counters);
        self.egress.drain(|port, frames| {
            let sent = hand_over(umem, counters, ports, port, frames);
            counters.sent += sent as u64;
            for _ in sent..frames.len() {
                counters.drop(DropReason::DevTxFailed);
            }
        });
    }

    /// The host, the context it works on, and the burst for the notification of the XDP path.
    fn slow_path(&mut self, now_ns: u64) -> (&mut Host, Context<'_>, &Burst) {
        let context = Context {
            tables: &mut self.tables,
            umem: &mut self.umem,
            counters: &mut self.counters,
            outbox: &mut self.outbox,
            now_ns,
        };
        (&mut self.host, context, &self.burst)
    }

    /// Frees packets that are all dropped for one reason, as in an attack that a rule blocks.
    fn drop_all(&mut self, lanes: Lanes, reason: DropReason) {
        self.counters.drops[reason as usize] += lanes.count() as u64;
        match lanes.dense() {
            Some(range) => self.umem.free_all(self.burst.addr[range].iter().copied()),
            None => self.umem.free_all(lanes.into_iter().map(|lane| self.burst.addr[lane])),
        }
    }

    /// The packets among `lanes` that rules reject or reroute.
    fn ruled(&self, lanes: Lanes) -> Lanes {
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

    /// Handles packets that exited the path.
    #[cold]
    fn handle_exits(&mut self, lanes: Lanes, now_ns: u64) {
        let reject = self.filter.reject;
        let mut policy_route = [PolicyRoute::Not; BURST];
        for lane in lanes {
            policy_route[lane] = self.filter.policy_route_of(lane);
        }
        let (host, mut context, burst) = self.slow_path(now_ns);
        for lane in lanes {
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
    }

    /// Notifies the XDP path of packets that exited the path. It may pass such packets to the
    /// kernel directly.
    fn report_punted(&mut self, exited: Lanes) {
        if let Some(xdp_path) = &mut self.xdp_path
            && (self.kernel_has_rules || self.tables.filter.is_none())
        {
            xdp_path.punted(&self.burst, &self.umem, &self.tables, exited);
        }
    }

    /// Hands the packets that exited the path to the kernel behind their port, except those to be
    /// dropped.
    #[cold]
    fn punt_to_kernel<P: Port>(&mut self, port: &mut P, exited: Lanes, now_ns: u64) {
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
            let lost = if reason.is_some_and(|reason| !self.limits.allow(reason, now_ns)) {
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

    /// Sends the frames that the host has made or released.
    fn send_outbox<P: Port>(&mut self, ports: &mut [P]) {
        let (umem, counters) = (&mut self.umem, &mut self.counters);
        for outgoing in self.outbox.drain(..) {
            let sent = hand_over(umem, counters, ports, outgoing.port, &[outgoing.frame]) == 1;
            match (outgoing.released, sent) {
                (true, true) => counters.sent += 1,
                (true, false) => counters.drop(DropReason::DevTxFailed),
                (false, true) => counters.originated += 1,
                (false, false) => counters.originated_lost += 1,
            }
        }
    }
}

/// Hands frames to a port and frees those that it does not take. Returns how many it took.
fn hand_over<P: Port>(
    umem: &mut Umem,
    counters: &mut Counters,
    ports: &mut [P],
    port: PortId,
    frames: &[Descriptor],
) -> usize {
    let index = usize::from(port.0);
    let taken = match ports.get_mut(index) {
        Some(port) => port.transmit(umem, frames).min(frames.len()),
        None => 0,
    };
    let (sent, lost) = frames.split_at(taken);
    if let Some(traffic) = counters.tx.get_mut(index) {
        let bytes = sent.iter().map(|frame| u64::from(frame.len)).sum();
        traffic.add(sent.len() as u64, bytes);
    }
    for frame in lost {
        umem.free(frame.addr);
    }
    taken
}
