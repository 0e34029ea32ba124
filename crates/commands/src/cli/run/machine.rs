//! A router with its ports, from setup to the final report.

use std::io;
use std::sync::Arc;

use tollway_dataplane::frame::Umem;
use tollway_dataplane::hand_over::Consumer;
use tollway_dataplane::memory::Memory;
use tollway_dataplane::port::Port as _;
use tollway_dataplane::punts::Crowd;
use tollway_dataplane::router::Router;
use tollway_dataplane::worker::{Worker, check_memory};

use super::Prepared;
use crate::cli::summary::Summary;
use crate::cli::{CliError, print};
use tollway_firewall::log::{Journal, Logger};
use tollway_linux::sys;
use tollway_model::compile::{CompileError, Compiled, rule_links};
use tollway_model::names::{NameTable, Names};
use tollway_model::{Model, PortKind};
use tollway_worker::hand_over::HandOver;
use tollway_worker::installer::Parts;
use tollway_worker::ports::dispatcher::Dispatcher;
use tollway_worker::ports::redirect::Watch;
use tollway_worker::ports::{self, Devices, Opening, Peer, State};
use tollway_worker::service::Watchdog;
use tollway_worker::{
    self, Duties, First, OnPause, Other, Stopper, Updater, WorkerMailbox, WorkerMailboxReceiver,
};

/// A router with its ports.
pub(super) struct Machine {
    pub(super) worker: Worker,
    pub(super) devices: Devices,
    /// The workers from number 1 on.
    others: Vec<Other>,
    /// The rings by which they hand frames over to worker 0.
    handed_over: Vec<Consumer>,
    pub(super) name_table: NameTable,
    pub(super) dispatcher: Arc<Dispatcher>,
    journal: Journal,
    updater: Updater,
    /// Watches the devices to which the XDP path can redirect.
    _watch: Option<Watch>,
}

impl Machine {
    /// Opens the ports of a model, adopts the facts that their devices report, and builds the
    /// router with `compile`. A port with a reason in `idle` starts detached.
    pub(super) fn open(
        model: &mut Model,
        idle: &[Option<String>],
        (mailbox, workers): (WorkerMailbox, Option<usize>),
        mut compile: impl FnMut(&Memory, &Model) -> Result<Compiled, CompileError>,
    ) -> Result<Self, CliError> {
        let workers = workers.unwrap_or_else(|| ports::most_workers(model).min(sys::processors()));
        let mut umem = ports::umem(model, workers).ok_or_else(|| {
            CliError::failed("the memory for frames cannot be allocated", "Lower the MTUs")
        })?;
        let dispatcher = Arc::new(Dispatcher::load(model));
        let mut ways = Ways::open(&mailbox, workers - 1)?;
        let mut programs = |_: &Model, port| dispatcher.program(port);
        let opening = Opening { programs: &mut programs, idle, others: &ways.out };
        let opened = ports::open(model, &mut umem, opening);
        let (devices, of_others) =
            opened.map_err(|error| CliError::failed(&error, error.remedy()))?;
        let compiled = dispatcher
            .make_tables(model, |memory| compile(memory, model))
            .map_err(|error| CliError::failed(&error, error.remedy()))?;
        dispatcher.use_tables(&compiled.tables);
        let umems = ports::share(&umem, workers - 1);
        let mut worker = Worker::alone(compiled.tables, umem, compiled.host);
        let router = Arc::clone(worker.router());
        let mut others = ways.workers(&router, umems.into_iter().zip(of_others));
        let updater = Updater::new(&router, mailbox, dispatcher.outdated());
        let xdp_path = dispatcher.xdp_path(model, workers).map_err(|error| {
            CliError::failed(format!("the XDP path cannot be set up: {error}"), "Set xdp = \"off\"")
        })?;
        let (parts, watch) =
            xdp_path.map_or_else(Default::default, |(parts, watch)| (parts, Some(watch)));
        let mut parts = parts.into_iter();
        let all = std::iter::once(&mut worker);
        for worker in all.chain(others.iter_mut().map(|other| &mut other.worker)) {
            worker.xdp_path = parts.next();
            worker.crowd = Crowd::of_workers(workers as u32);
            worker.park();
        }
        let journal = journal(model)?;
        let name_table = NameTable::new(Names::from(&*model));
        Ok(Self {
            worker,
            devices,
            others,
            handed_over: ways.back,
            name_table,
            dispatcher,
            journal,
            updater,
            _watch: watch,
        })
    }

    /// Sets that the kernel behind the ports has the rules.
    pub(super) fn set_kernel_has_rules(&mut self) {
        let others = self.others.iter_mut().map(|other| &mut other.worker);
        others.chain([&mut self.worker]).for_each(|worker| worker.kernel_has_rules = true);
    }

    /// The mailboxes of the workers from number 1 on.
    pub(super) fn others(&self) -> Vec<WorkerMailbox> {
        self.others.iter().map(|other| other.mailbox.clone()).collect()
    }

    /// The parts of the router that a change of the model needs.
    pub(super) fn parts(&self, model: &Model) -> Parts {
        Parts {
            model: model.clone(),
            kernel: self.devices.iter().map(|device| device.has_kernel()).collect(),
            name_table: self.name_table.clone(),
            dispatcher: Arc::clone(&self.dispatcher),
            journal: self.journal.clone(),
            updater: self.updater.clone(),
        }
    }

    /// A function that stops the router and hands its ports over to a successor.
    pub(super) fn hand_over(&self, stopper: Stopper) -> Box<dyn Fn() + Send + Sync> {
        let dispatcher = Arc::clone(&self.dispatcher);
        Box::new(move || {
            dispatcher.hand_over();
            stopper.stop();
        })
    }

    /// Forwards until a signal or a request stops the router.
    pub(super) fn run(
        &mut self,
        prepared: &mut Prepared,
        watchdog: Watchdog,
        on_pause: Option<OnPause>,
    ) -> io::Result<()> {
        let priority = prepared.priority;
        let pulse = self.dispatcher.start(&self.devices, self.others.len() + 1);
        let Prepared { stop, mailbox_receiver, .. } = prepared;
        let counts = self.dispatcher.counts();
        let names = self.name_table.names().ports.iter().map(|port| port.name.clone()).collect();
        let xdp_counts = counts.map(|counts| (counts, names));
        let journal = self.journal.clone();
        let devices = self.name_table.names().ports.iter().filter_map(device_of).collect();
        let duties = Duties { pulse, on_pause, xdp_counts, priority, journal, watchdog, devices };
        let first = First {
            worker: &mut self.worker,
            devices: &mut self.devices,
            mailbox: mailbox_receiver,
            handed_over: &mut self.handed_over,
        };
        tollway_worker::run(first, &mut self.others, stop, duties)
    }

    /// Logs the ports.
    pub(super) fn announce(&self, model: &Model) {
        for ((port, link), behind) in model.ports.iter().zip(&model.links).zip(&self.devices) {
            let what = match &port.kind {
                PortKind::Memory => "memory".to_owned(),
                PortKind::Capture { .. } => "capture files".to_owned(),
                PortKind::Tap { device } => format!("TAP device {device}"),
                PortKind::AfPacket { device } | PortKind::AfXdp { device, .. } => {
                    format!("interface {device}, {}", behind.how())
                }
            };
            let state = match behind.state() {
                State::Up => String::new(),
                State::Down(why) | State::Gone(why) => format!(", not working: {why}"),
                // The reason was logged when the port was detached.
                State::Detached(_) => String::new(),
            };
            let address =
                link.mac.if_any().map_or_else(String::new, |mac| format!(", address {mac}"));
            tracing::info!("port {}: {what}{address}, MTU {}{state}", port.name, link.mtu);
        }
    }

    /// Prints what became of the packets, and checks that none is missing.
    pub(super) fn end(mut self, model: &Model, ran: io::Result<()>) -> Result<(), CliError> {
        let (worker, devices) = (&mut self.worker, &mut self.devices);
        let others = &mut self.others;
        let ports = model.ports.iter().map(|port| port.name.as_str()).collect();
        let missed = devices.iter_mut().map(|device| device.missed()).collect();
        let mut counters = worker.counters_in_all();
        others.iter_mut().for_each(|other| counters.add(&other.worker.counters_in_all()));
        let with_ports = others.iter().map(|other| (&other.worker, &other.devices[..]));
        let with_ports: Vec<_> = with_ports.chain([(&*worker, &devices[..])]).collect();
        let adds_up = counters.check().and_then(|()| check_memory(&with_ports));
        let host = worker.lock().host.counters().clone();
        let learned = worker.state().bridges.iter().flat_map(|bridges| bridges.counts());
        let names = model.bridges.iter().map(|bridge| bridge.name.as_str());
        let bridges = names.zip(learned).collect();
        let summary = Summary { ports, counters: &counters, host: &host, missed, bridges }.text();
        // This finishes all ports, even after an error, so that their devices return to the kernel.
        // It does not wait for a reader of the summary.
        let finished: Vec<_> = devices.iter_mut().map(|device| device.finish()).collect();
        let printed = print(summary);
        ran.map_err(|error| {
            CliError::failed(format!("the workers failed: {error}"), "Start again")
        })?;
        adds_up.map_err(|sentence| {
            CliError::failed(
                sentence,
                "This is a defect of Tollway: report it with the table above",
            )
        })?;
        let finished: Result<(), _> = finished.into_iter().collect();
        finished.map_err(|error| CliError::failed(&error, error.remedy()))?;
        printed
    }
}

/// The ways between worker 0 and the others.
struct Ways {
    /// To each of the others, and its ring to worker 0.
    out: Vec<(Arc<dyn Peer>, HandOver)>,
    mailboxes: Vec<WorkerMailbox>,
    receivers: Vec<WorkerMailboxReceiver>,
    back: Vec<Consumer>,
}

impl Ways {
    fn open(first: &WorkerMailbox, others: usize) -> Result<Self, CliError> {
        let (out, mailboxes, receivers, back) = Default::default();
        let mut this = Self { out, mailboxes, receivers, back };
        for _ in 0..others {
            let (mailbox, receiver) = tollway_worker::mailbox().map_err(|error| {
                let what = format!("a worker's mailbox cannot be opened: {error}");
                CliError::failed(what, "Close other programs")
            })?;
            let (hand_over, consumer) = first.ring();
            this.out.push((Arc::new(mailbox.clone()), hand_over));
            this.mailboxes.push(mailbox);
            this.receivers.push(receiver);
            this.back.push(consumer);
        }
        Ok(this)
    }

    /// Creates the workers from number 1 on, each with its memory and its ports.
    fn workers(
        &mut self,
        router: &Arc<Router>,
        parts: impl Iterator<Item = (Umem, Devices)>,
    ) -> Vec<Other> {
        let ways = self.receivers.drain(..).zip(&self.mailboxes);
        let other = |((umem, devices), (receiver, mailbox)): (_, (_, &WorkerMailbox))| Other {
            worker: Worker::new(router, umem),
            devices,
            receiver,
            mailbox: mailbox.clone(),
        };
        parts.zip(ways).map(other).collect()
    }
}

/// The network device of a port whose queues several workers can serve.
fn device_of(port: &tollway_model::Port) -> Option<String> {
    match &port.kind {
        PortKind::AfXdp { device, .. } => Some(device.clone()),
        _ => None,
    }
}

/// The journal for packets and lines that the rules log.
fn journal(model: &Model) -> Result<Journal, CliError> {
    let logger =
        Logger::of(model.filter.as_deref(), &rule_links(model), model.filter_log.as_deref());
    let logger = logger.map_err(|error| CliError::failed(&error, error.remedy()))?;
    Ok(Journal::new(logger))
}
