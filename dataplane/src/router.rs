//! One worker's router: path, host, tables, memory and counts, and the turn that joins them.

use std::sync::Arc;

use crate::burst::{BURST, Burst, Lanes};
use crate::counters::{Counters, Traffic};
use crate::dispatch::Path;
use crate::epoch::Reader;
use crate::express::Express;
use crate::frame::{Descriptor, Umem};
use crate::host::{Context, Host, Outgoing, Packet};
use crate::id::{LinkId, PortId};
use crate::path::{Everything, Features};
use crate::port::Port;
use crate::punts::{Crowd, Limits};
use crate::stages::filter::{Count, Filter, State, Steer};
use crate::stages::transmit::Egress;
use crate::tables::Tables;
use crate::tolls::Tolls;
use crate::verdict::{DropReason, PuntReason, Verdict};

/// A router, built with the optional stages of `F`, with everything that it needs but its ports.
pub struct Router<F: Features = Everything> {
    /// What the stages read.
    pub tables: Tables,
    /// Memory of the frames.
    pub umem: Umem,
    /// What became of every packet.
    pub counters: Counters,
    /// What each stage costs.
    pub tolls: Tolls,
    /// The router as a host.
    pub host: Host,
    /// Who is told of forwarded packets, if anyone.
    pub express: Option<Box<dyn Express>>,
    /// Counts and limits of the firewall's rules.
    pub filter: State,
    /// The kernel behind ports has the same rules as the firewall. What they reject, send another way or
    /// can not decide is then the kernel's, as all that leaves the road, and as it was received.
    pub kernel_has_rules: bool,
    /// How much the kernel is given to answer.
    pub limits: Limits,
    /// Ports at which too much is the kernel's to carry.
    pub crowd: Crowd,
    path: Path<F>,
    reader: Reader,
    burst: Box<Burst>,
    egress: Egress,
    outbox: Vec<Outgoing>,
}

impl<F: Features> Router<F> {
    /// A router for the ports that `tables` has, on the widest path that the machine runs.
    #[must_use]
    pub fn new(tables: Tables, umem: Umem, host: Host) -> Self {
        Self::with_path(Path::detect(), tables, umem, host)
    }

    /// The same on a path of the caller's choice.
    #[must_use]
    pub fn with_path(path: Path<F>, tables: Tables, umem: Umem, host: Host) -> Self {
        let ports = tables.ports.len();
        // Whatever changed until now, no reader is in the way yet.
        tables.next_hops.settle();
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
            express: None,
            filter: state,
            kernel_has_rules: false,
            limits: Limits::new(),
            crowd: Crowd::new(),
            path,
            reader,
            burst: Box::new(Burst::new()),
            egress: Egress::new(ports),
            outbox: Vec::new(),
        }
    }

    /// Receives one burst from `port`, takes it down the road and sends what comes out; says how
    /// many packets were received. `now_ns` is the time since any fixed moment.
    pub fn turn<P: Port>(&mut self, port: PortId, ports: &mut [P], now_ns: u64) -> usize {
        // Between two bursts: nothing is held that was found in a table.
        self.reader.pass();
        if let Some(express) = &mut self.express {
            express.begin(&self.tables.epochs.changes, now_ns);
        }
        let burst = &mut *self.burst;
        burst.reset(port);
        let known = usize::from(port.0) < self.tables.ports.len();
        let Some(source) = ports.get_mut(usize::from(port.0)).filter(|_| known) else { return 0 };
        source.receive(&mut self.umem, burst);
        if burst.count == 0 {
            if let Some(express) = &mut self.express {
                express.idle(port);
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
        let left = self.burst.left;
        if let Some(express) = &mut self.express {
            let lanes = self.burst.lanes().without(left);
            express.forwarded(&self.burst, &self.umem, &self.tables, lanes);
        }
        self.transmit(ports);
        if let Some(Verdict::Drop(reason)) = self.burst.verdict_of(left) {
            self.drop_all(left, reason);
        } else if !left.is_empty() {
            let kernel = ports.get_mut(usize::from(port.0)).filter(|port| port.has_kernel());
            let ours = match kernel {
                Some(port) => {
                    self.tell_punted(left);
                    // Where the kernel does not know the rules.
                    let ruled = if self.kernel_has_rules { Lanes::NONE } else { self.ruled(left) };
                    self.punt_to_kernel(port, left.without(ruled), now_ns);
                    ruled
                }
                None => left,
            };
            if !ours.is_empty() {
                self.settle(ours, now_ns);
            }
            self.send_outbox(ports);
        }
        self.burst.count
    }

    /// Makes sure that every chunk of the memory is free, at a port or in a queue of the host; between two
    /// bursts only. Where chunks are lost, frames are too, sooner or later.
    ///
    /// # Errors
    /// A sentence that says how many are missing, or were given back twice.
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

    /// What became of every packet, those included that were forwarded without the path.
    #[must_use]
    pub fn counters_in_all(&mut self) -> Counters {
        let mut counters = self.counters.clone();
        if let Some(express) = &mut self.express {
            express.add_to(&mut counters);
        }
        counters
    }

    /// What the firewall's rules have counted by their counters' numbers, those packets included that
    /// were forwarded without the path.
    pub fn rule_counts(&mut self) -> &[Count] {
        if let Some(express) = &mut self.express {
            express.add_to_rules(&mut self.filter.counts, false);
        }
        &self.filter.counts
    }

    /// Puts other tables and another host in the place of its own, between two bursts: counts go on,
    /// and what the host has learned and holds goes over to the new one. `links` says what each of
    /// the old links is in the new tables, if it is still there; `carried` is as in
    /// [`Router::set_filter`], for the rules that the new tables have.
    ///
    /// Gives back the old tables and host, which may be large: who has the time is to drop them.
    ///
    /// # Errors
    /// The new tables have not as many ports; they are given back, and nothing has changed.
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
        // Whatever changed until now, no reader is in the way yet.
        tables.next_hops.settle();
        self.reader = tables.epochs.join();
        std::mem::swap(&mut self.tables, &mut tables);
        std::mem::swap(&mut self.host, &mut host);
        self.renew_filter(carried);
        // Nothing that is done here asks for the time.
        let (new, mut context, _) = self.slow_road(0);
        new.succeed(&mut context, &mut host, links);
        self.send_outbox(ports);
        Ok((tables, host))
    }

    /// Puts other rules in force, or none; between two bursts, as any change of the router. `carried` has
    /// for each counter of the new rules the number it had, where it is to go on.
    ///
    /// Gives back the rules before, which may be large: who has the time is to drop them.
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

    /// Begins to count, limit and mark by the rules that the tables have now.
    fn renew_filter(&mut self, carried: &[Option<u32>]) {
        if let Some(express) = &mut self.express {
            express.add_to_rules(&mut self.filter.counts, true);
        }
        match &self.tables.filter {
            Some(filter) => self.filter.renew(filter, carried),
            None => self.filter = State::new(),
        }
    }

    /// Says that no turn will be taken until [`Router::wake`]: whoever changes tables need not wait
    /// for this router meanwhile.
    pub fn park(&self) {
        self.reader.park();
    }

    /// Says that turns will be taken again.
    pub fn wake(&self) {
        self.reader.wake();
    }

    /// Lets the host do what is due; to be called some ten times a second.
    pub fn tick<P: Port>(&mut self, ports: &mut [P], now_ns: u64) {
        self.count_oversized(ports);
        self.tables.next_hops.settle();
        let (host, mut context, _) = self.slow_road(now_ns);
        host.tick(&mut context);
        self.send_outbox(ports);
    }

    /// Counts the frames that ports could not hand over.
    fn count_oversized<P: Port>(&mut self, ports: &mut [P]) {
        for (index, port) in ports.iter_mut().enumerate() {
            let Traffic { packets, bytes } = port.oversized();
            let Some(rx) = self.counters.rx.get_mut(index) else { return };
            rx.add(packets, bytes);
            self.counters.drops[DropReason::PktTooBig as usize] += packets;
        }
    }

    /// Hands the path's frames to their ports.
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

    /// The host, what it works on, and the burst that it may be told of.
    fn slow_road(&mut self, now_ns: u64) -> (&mut Host, Context<'_>, &Burst) {
        let context = Context {
            tables: &mut self.tables,
            umem: &mut self.umem,
            counters: &mut self.counters,
            outbox: &mut self.outbox,
            now_ns,
        };
        (&mut self.host, context, &self.burst)
    }

    /// Frees packets that are all dropped for one reason, as under an attack that a rule wards off.
    fn drop_all(&mut self, lanes: Lanes, reason: DropReason) {
        self.counters.drops[reason as usize] += lanes.count() as u64;
        match lanes.dense() {
            Some(range) => self.umem.free_all(self.burst.addr[range].iter().copied()),
            None => self.umem.free_all(lanes.into_iter().map(|lane| self.burst.addr[lane])),
        }
    }

    /// Those of some packets that rules reject, or send another way than their route.
    fn ruled(&self, lanes: Lanes) -> Lanes {
        let mut ruled = Lanes::NONE;
        for lane in lanes {
            ruled.put(
                lane,
                match self.burst.verdict[lane] {
                    Verdict::Punt(PuntReason::Reject) => true,
                    Verdict::Punt(PuntReason::FilterUnsupported) => false,
                    _ => self.filter.steer_of(lane) != Steer::Not,
                },
            );
        }
        ruled
    }

    /// Deals with packets that left the road.
    #[cold]
    fn settle(&mut self, lanes: Lanes, now_ns: u64) {
        let reject = self.filter.reject;
        let mut steer = [Steer::Not; BURST];
        for lane in lanes {
            steer[lane] = self.filter.steer_of(lane);
        }
        let (host, mut context, burst) = self.slow_road(now_ns);
        for lane in lanes {
            let packet = Packet {
                addr: burst.addr[lane],
                len: burst.len[lane],
                l3: burst.l3[lane],
                link: burst.link[lane],
                steer: steer[lane],
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

    /// Tells of packets that left the road, where the kernel may have them without being asked.
    fn tell_punted(&mut self, left: Lanes) {
        if let Some(express) = &mut self.express
            && (self.kernel_has_rules || self.tables.filter.is_none())
        {
            express.punted(&self.burst, &self.umem, &self.tables, left);
        }
    }

    /// Hands the packets that left the road to the kernel behind their port, but for those that are
    /// to be dropped.
    #[cold]
    fn punt_to_kernel<P: Port>(&mut self, port: &mut P, left: Lanes, now_ns: u64) {
        for lane in left {
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

    /// Sends what the host has made or released.
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

/// Hands frames to a port; those that it does not take are freed. Says how many it took.
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
