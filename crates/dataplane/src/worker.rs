//! A worker: its burst, its frames, its counters, and the turn that runs the path for them. Every processor that
//! forwards has one; all of them share a [`Router`].

mod exits;
mod view;

use std::sync::Arc;

use crate::burst::{BURST, Burst, Lanes};
use crate::counters::{Counters, Traffic};
use crate::dispatch::Path;
use crate::frame::{Descriptor, Umem};
use crate::hand_over::{Consumer, HandedOver};
use crate::host::{Context, Host, Outgoing};
use crate::id::{LinkId, PortId};
use crate::port::Port;
use crate::punts::Crowd;
use crate::router::{Control, Locked, Router, lock};
use crate::stages::filter::{Count, Filter, State};
use crate::stages::transmit::Egress;
use crate::tables::{ForwardingState, Tables};
use crate::tolls::Tolls;
use crate::verdict::{DropReason, Verdict};
use crate::xdp_path::XdpPath;
use view::View;

/// A worker with everything that it needs except its ports.
pub struct Worker {
    router: Arc<Router>,
    view: View,
    /// The memory of the frames.
    pub umem: Umem,
    /// Counts of what happened to every packet.
    pub counters: Counters,
    /// The cost of each stage.
    pub tolls: Tolls,
    /// The XDP path that is notified of what the path decided, if any.
    pub xdp_path: Option<Box<dyn XdpPath>>,
    /// Counters and limits of the firewall rules.
    pub filter: State,
    /// Whether the kernel behind the ports has the same rules as the firewall. If so, packets that
    /// the rules reject, reroute or cannot decide take the kernel path, like all that exit the path, as
    /// they were received.
    pub kernel_has_rules: bool,
    /// Finds ports at which the kernel has to carry too many packets.
    pub crowd: Crowd,
    path: Path,
    burst: Box<Burst>,
    egress: Egress,
    outbox: Vec<Outgoing>,
}

impl Worker {
    /// Creates a worker of a router, with the path for the widest instructions of the machine. It is awake:
    /// park it until it takes turns.
    #[must_use]
    pub fn new(router: &Arc<Router>, umem: Umem) -> Self {
        Self::with_path(Path::detect(), router, umem)
    }

    /// Creates the only worker of a new router.
    #[must_use]
    pub fn alone(tables: Tables, umem: Umem, host: Host) -> Self {
        Self::new(&Router::new(tables, host), umem)
    }

    /// Creates the only worker of a new router, which uses the given path.
    #[must_use]
    pub fn alone_with_path(path: Path, tables: Tables, umem: Umem, host: Host) -> Self {
        Self::with_path(path, &Router::new(tables, host), umem)
    }

    /// Creates a worker that uses the given path.
    #[must_use]
    pub fn with_path(path: Path, router: &Arc<Router>, umem: Umem) -> Self {
        let view = View::take(router);
        lock(&router.rule_counts).join(view.generations.rules);
        let ports = view.state.ports.len();
        let mut filter = State::new();
        filter.renew(view.state.filter.as_deref(), view.generations.rules);
        Self {
            router: Arc::clone(router),
            view,
            umem,
            counters: Counters::new(ports),
            tolls: Tolls::new(),
            xdp_path: None,
            filter,
            kernel_has_rules: false,
            crowd: Crowd::of_workers(1),
            path,
            burst: Box::new(Burst::new()),
            egress: Egress::new(ports),
            outbox: Vec::new(),
        }
    }

    /// The router that the worker belongs to.
    #[must_use]
    pub const fn router(&self) -> &Arc<Router> {
        &self.router
    }

    /// Locks the router; see [`Router::lock`].
    #[must_use]
    pub fn lock(&self) -> Locked<'_> {
        self.router.lock()
    }

    /// The time of the last turn or tick, from which the active rules count.
    #[must_use]
    pub const fn now_ns(&self) -> u64 {
        self.filter.now_ns
    }

    /// The state that the worker forwards by.
    #[must_use]
    pub fn state(&self) -> &ForwardingState {
        &self.view.state
    }

    /// Receives one burst from `port`, runs the path on it and sends the result; returns the number of
    /// packets received. `now_ns` is the time since any fixed moment.
    pub fn turn<P: Port>(&mut self, port: PortId, ports: &mut [P], now_ns: u64) -> usize {
        // Before the state is looked at: decisions by an older state than this version's are void.
        if let Some(xdp_path) = &mut self.xdp_path {
            xdp_path.begin(&self.view.state.epochs.changes, now_ns);
        }
        // Between two bursts: the worker holds no reference that it found in a table.
        if self.view.pass() {
            self.look();
        }
        let burst = &mut *self.burst;
        burst.reset(port);
        let known = usize::from(port.0) < self.view.state.ports.len();
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
            &self.view.state,
            &mut self.tolls,
            &mut self.egress,
            &mut self.filter,
        );
        let exited = self.burst.exited;
        if let Some(xdp_path) = &mut self.xdp_path {
            // Translated packets no longer have the key of their flow.
            let lanes = self.burst.lanes().without(exited).without(self.filter.aliased());
            xdp_path.forwarded(&self.burst, &self.umem, &self.view.state, lanes);
            if !exited.is_empty() {
                xdp_path.dropped(&self.burst, &self.umem, &self.view.state, exited);
            }
        }
        self.transmit(ports);
        if let Some(Verdict::Drop(reason)) = self.burst.verdict_of(exited) {
            self.drop_all(exited, reason);
        } else if !exited.is_empty() {
            let kernel = ports.get_mut(usize::from(port.0)).filter(|port| port.has_kernel());
            let ours = match kernel {
                Some(port) => {
                    self.report_punted(exited);
                    // Packets with verdicts from rules that the kernel does not know, or translated by these.
                    let ruled = if self.kernel_has_rules {
                        Lanes::NONE
                    } else {
                        self.ruled(exited).or(self.translated(exited))
                    };
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
        self.umem.balance();
        self.burst.count
    }

    /// Checks that every chunk of the memory is free, at a port or in a queue of the host, for a worker that
    /// shares its memory with no other; see [`check_memory`].
    ///
    /// # Errors
    ///
    /// See [`check_memory`].
    pub fn check_memory<P: Port>(&self, ports: &[P]) -> Result<(), String> {
        check_memory(&[(self, ports)])
    }

    /// Counts of what happened to every packet, including those that the XDP path forwarded or dropped.
    #[must_use]
    pub fn counters_in_all(&mut self) -> Counters {
        let mut counters = self.counters.clone();
        if let Some(xdp_path) = &mut self.xdp_path {
            xdp_path.add_to(&mut counters);
        }
        counters
    }

    /// Adds the worker's counts of the firewall rules to the router's, including packets that the XDP path
    /// forwarded.
    pub fn add_rule_counts(&mut self) {
        self.count_xdp_path(false);
        let mut all = lock(&self.router.rule_counts);
        all.add(self.view.generations.rules, &self.filter.counts);
        self.filter.counts.fill(Count::default());
    }

    /// The counts of the firewall rules by counter number, including those that workers have added.
    pub fn rule_counts(&mut self) -> Vec<Count> {
        self.add_rule_counts();
        self.router.rule_counts()
    }

    fn count_xdp_path(&mut self, end: bool) {
        if let Some(xdp_path) = &mut self.xdp_path {
            xdp_path.add_to_rules(&mut self.filter.counts, end);
        }
    }

    /// Takes the state that is published now, if it is another one. Call it between two bursts; each turn does
    /// so by itself.
    pub fn look(&mut self) {
        while self.view.is_outdated(&self.router) {
            let before = self.view.generations.rules;
            let next = View::take(&self.router);
            if next.generations.rules != before {
                self.count_xdp_path(true);
                lock(&self.router.rule_counts).join(next.generations.rules);
                lock(&self.router.rule_counts).leave(before, &self.filter.counts);
                self.filter.renew(next.state.filter.as_deref(), next.generations.rules);
            }
            // It joins its readers before the old ones leave, and returns the state to nobody: the router
            // frees it.
            self.view = next;
            if let Some(xdp_path) = &mut self.xdp_path {
                xdp_path.begin(&self.view.state.epochs.changes, self.filter.now_ns);
            }
        }
    }

    /// Replaces tables and host. Counts continue, and the new host takes over what the old one has learned and
    /// queued. `links` has for each old link its number in the new tables, if it still exists. To continue a
    /// counter of the rules, `carried` has for each counter of the new rules its number in the old ones.
    ///
    /// Returns the old tables and host, which may be large: drop them where time does not matter.
    ///
    /// # Errors
    ///
    /// The new tables do not have as many ports; they are returned, and nothing has changed.
    pub fn swap<P: Port>(
        &mut self,
        ports: &mut [P],
        tables: Tables,
        host: Host,
        links: &[Option<LinkId>],
        carried: &[Option<u32>],
    ) -> Result<(Tables, Host), Box<(Tables, Host)>> {
        if tables.ports.len() != self.view.state.ports.len() {
            return Err(Box::new((tables, host)));
        }
        let router = Arc::clone(&self.router);
        let mut locked = router.lock();
        let (old_tables, mut old_host) = locked.replace(tables, host, links, carried);
        // Nothing here needs the time.
        let Control { tables, host, .. } = &mut *locked;
        let (mut context, _) = self.slow_path(tables, 0);
        host.succeed(&mut context, &mut old_host, links);
        drop(locked);
        self.look();
        self.send_outbox(ports);
        Ok((old_tables, old_host))
    }

    /// Replaces the active rules; see [`Locked::set_filter`].
    pub fn set_filter(
        &mut self,
        filter: Option<Arc<Filter>>,
        carried: &[Option<u32>],
    ) -> Option<Arc<Filter>> {
        let old = self.router.lock().set_filter(filter, carried);
        self.look();
        old
    }

    /// Reports that no turn is taken until [`Worker::wake`]: changes of tables need not wait for this
    /// worker until then.
    pub fn park(&self) {
        self.view.park();
    }

    /// Reports that the worker takes turns again.
    pub fn wake(&self) {
        self.view.wake();
    }

    /// Does what is due ten times a second: [`Worker::tick_ports`], and what the host has to do. If somebody
    /// changes the router at this moment, the host does it the next time. One worker of a router does this; the
    /// others call `tick_ports`.
    pub fn tick<P: Port>(&mut self, ports: &mut [P], now_ns: u64) {
        self.tick_ports(ports);
        self.filter.now_ns = now_ns;
        if self.kernel_has_rules {
            // The kernel is the host, and the thread that follows its neighbours restores records. A worker that gets
            // no processor must not have a lock meanwhile.
            return;
        }
        // Any thread may do so, also beside another, but one is enough.
        self.view.state.routes.next_hops.restore_displaced();
        if let Some(bridges) = &self.view.state.bridges {
            bridges.age(now_ns);
        }
        let router = Arc::clone(&self.router);
        let Some(mut locked) = router.try_lock() else { return };
        let Control { tables, host, .. } = &mut *locked;
        let (mut context, _) = self.slow_path(tables, now_ns);
        host.tick(&mut context);
        let wanted = host.take_wanted();
        drop(locked);
        self.ask_for(&wanted);
        self.send_outbox(ports);
    }

    /// Sends the packets that wait for neighbours which others have put into the tables since: the kernel has resolved
    /// them.
    pub fn release_waiting<P: Port>(&mut self, ports: &mut [P]) {
        let router = Arc::clone(&self.router);
        let mut locked = router.lock();
        let Control { tables, host, .. } = &mut *locked;
        let (mut context, _) = self.slow_path(tables, self.filter.now_ns);
        host.release_resolved(&mut context);
        drop(locked);
        self.send_outbox(ports);
    }

    /// Counts the frames that ports could not deliver because they fit no chunk. Each worker does so for its own
    /// ports, some ten times a second.
    pub fn tick_ports<P: Port>(&mut self, ports: &mut [P]) {
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
        let copies = self.egress.take_copies();
        counters.cloned += copies.due;
        counters.drops[DropReason::NoMem as usize] += copies.lost;
        self.egress.drain(|port, frames| {
            let sent = hand_over(umem, counters, ports, port, frames);
            counters.sent = counters.sent.wrapping_add(sent as u64);
            for _ in sent..frames.len() {
                counters.drop(DropReason::DevTxFailed);
            }
        });
    }

    /// Sends up to a burst of the frames that another worker has handed over, which has counted them as sent; returns
    /// how many it found. Call it in each turn of the worker that has the ports' queues.
    pub fn send_handed_over<P: Port>(&mut self, ring: &mut Consumer, ports: &mut [P]) -> usize {
        let mut items = [HandedOver::default(); BURST];
        let count = ring.pop_all(&mut items);
        for run in items[..count].chunk_by(|one, next| one.port == next.port) {
            self.send_run(run, ports);
        }
        count
    }

    /// Sends frames that were handed over for one port.
    fn send_run<P: Port>(&mut self, run: &[HandedOver], ports: &mut [P]) {
        let mut frames = [Descriptor::default(); BURST];
        for (frame, item) in frames.iter_mut().zip(run) {
            *frame = item.frame;
        }
        let (port, frames) = (run[0].port, &frames[..run.len()]);
        let owner = ports.get_mut(usize::from(port.0));
        let sent = owner.map_or(0, |owner| owner.transmit(&mut self.umem, frames));
        for frame in frames.get(sent..).unwrap_or_default() {
            self.counters.take_back_sent(port, u64::from(frame.len));
            self.umem.free(frame.addr);
        }
    }

    /// What the host works on, and the burst.
    fn slow_path<'a>(
        &'a mut self,
        tables: &'a mut Tables,
        now_ns: u64,
    ) -> (Context<'a>, &'a Burst) {
        let context = Context {
            tables,
            umem: &mut self.umem,
            counters: &mut self.counters,
            outbox: &mut self.outbox,
            came: None,
            now_ns,
        };
        (context, &self.burst)
    }

    /// Sends the frames that the host has made or released.
    fn send_outbox<P: Port>(&mut self, ports: &mut [P]) {
        let (umem, counters) = (&mut self.umem, &mut self.counters);
        for outgoing in self.outbox.drain(..) {
            let sent = hand_over(umem, counters, ports, outgoing.port, &[outgoing.frame]) == 1;
            match (outgoing.released, sent) {
                (true, true) => counters.sent = counters.sent.wrapping_add(1),
                (true, false) => counters.drop(DropReason::DevTxFailed),
                (false, true) => counters.originated += 1,
                (false, false) => counters.originated_lost += 1,
            }
        }
    }
}

/// Checks that every chunk of the memory that workers of one router share is free, at a port or in a queue of the
/// host. Call it between two bursts only, while no chunk is on its way from one worker to another. If chunks get
/// lost, frames get lost sooner or later.
///
/// # Errors
///
/// A sentence that says how many chunks are missing, or were returned twice.
pub fn check_memory<P: Port>(workers: &[(&Worker, &[P])]) -> Result<(), String> {
    let Some((first, _)) = workers.first() else { return Ok(()) };
    let waiting = first.router.lock().host.chunks(&first.umem);
    let (mut free, mut at_ports) = (first.umem.pooled(), 0);
    for (worker, ports) in workers {
        free += worker.umem.available();
        at_ports += ports.iter().map(|port| port.chunks(&worker.umem)).sum::<usize>();
    }
    let chunks = first.umem.chunks();
    if free + at_ports + waiting == chunks {
        return Ok(());
    }
    Err(format!(
        "the memory for frames does not add up: {free} chunks are free, {at_ports} at ports and \
         {waiting} wait for neighbours, of {chunks}"
    ))
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.count_xdp_path(true);
        lock(&self.router.rule_counts).leave(self.view.generations.rules, &self.filter.counts);
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
