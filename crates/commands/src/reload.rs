//! Reloads: a changed configuration file, and devices whose address or MTU changed.
//!
//! A thread of its own reads and compiles the file, and installs it while packets flow
//! ([`tollway_worker::installer`]). Sets of the firewall then have the file's elements; changes made through
//! the control socket are lost. A file with a mistake changes nothing.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::time::{Duration, Instant};

use signal_hook::consts::SIGHUP;
use signal_hook::iterator::Signals;
use tollway_dataplane::stages::filter::Filter;

use tollway_capture::CaptureError;
use tollway_firewall::ir::Ruleset;
use tollway_firewall::log::Logger;
use tollway_model::compile::{CompileError, compile_in, rule_links};
use tollway_model::config::{self, Mistake, Running};
use tollway_model::{Model, PortIndex};
use tollway_worker::installer::{InstallError, Installer, Next, Parts};
use tollway_worker::neighbours::Follower;
use tollway_worker::ports::{self, Facts};

/// The result of a successful reload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// The configuration is the same as before; nothing changed.
    Unchanged,
    /// The configuration is active.
    Installed {
        /// The number of its links.
        links: usize,
        /// The number of its routes, not counting the connected ones.
        routes: usize,
        /// The number of its firewall's rules, if it has a firewall.
        rules: Option<usize>,
        /// How long the installation blocked the worker.
        pause: Duration,
        /// How long it took to read and compile, while packets flowed.
        took: Duration,
    },
}

impl std::fmt::Display for Done {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unchanged => f.write_str("the configuration has not changed"),
            Self::Installed { links, routes, rules, pause, took } => {
                write!(f, "the configuration is active: {links} links, {routes} routes")?;
                if let Some(rules) = rules {
                    write!(f, ", {rules} firewall rules")?;
                }
                let (took, pause) = (took.as_millis(), pause.as_micros());
                write!(f, "; compiled in {took} ms, forwarding paused for {pause} us")
            }
        }
    }
}

/// Why a reload has changed nothing.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ReloadError {
    /// The configuration has mistakes, or needs a restart.
    #[error("{}", sentences(.0))]
    Mistakes(Vec<Mistake>),
    /// It does not fit in the tables.
    #[error("{0}; {remedy}", remedy = .0.remedy())]
    Compile(CompileError),
    /// The rules' log cannot be written.
    #[error("{0}; {remedy}", remedy = .0.remedy())]
    Log(Arc<CaptureError>),
    /// It cannot be installed.
    #[error("{0}")]
    Installer(InstallError),
}

fn sentences(mistakes: &[Mistake]) -> String {
    mistakes.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// The result of a reload.
pub type ReloadResult = Result<Done, ReloadError>;

enum Request {
    /// Read the file again; without a sender, only the log gets the result.
    File(Option<SyncSender<ReloadResult>>),
    /// A device's address or MTU changed.
    Device(PortIndex, Facts),
}

/// Installs changed configurations, one after the other.
#[derive(Clone)]
pub struct Reloader(Sender<Request>);

/// What a running router was started with.
pub struct Started {
    /// Its configuration's file.
    pub file: PathBuf,
    /// The file's model, before anything was adopted from devices.
    pub configured: Model,
    /// The devices' properties, by port.
    pub facts: Vec<Facts>,
    /// The largest layer-3 packet that fits in a frame together with its tags, in bytes.
    pub largest_mtu: usize,
    /// The router itself; the active model is the configured one with what was adopted from
    /// devices.
    pub parts: Parts,
}

impl Reloader {
    /// Starts the thread that serves requests, SIGHUP among them. If the ports use the kernel's
    /// neighbours, `follow` starts to follow these, so that they move to new tables.
    ///
    /// # Errors
    /// The system has no thread or descriptor left, or `follow` failed.
    pub fn start(
        started: Started,
        follow: impl FnOnce(&Self) -> io::Result<Option<Follower>>,
    ) -> io::Result<Self> {
        let (sender, requests) = mpsc::channel();
        let mut signals = Signals::new([SIGHUP])?;
        let on_signal = sender.clone();
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            for _ in signals.forever() {
                if on_signal.send(Request::File(None)).is_err() {
                    return;
                }
            }
        })?;
        let this = Self(sender);
        let follower = follow(&this)?;
        let Started { file, configured, facts, largest_mtu, parts } = started;
        let installer = Installer::new(parts, follower);
        let worker = ReloadThread { file, configured, facts, largest_mtu, installer };
        let thread = std::thread::Builder::new().name("reload".to_owned());
        thread.spawn(move || worker.serve(&requests))?;
        Ok(this)
    }

    /// Reads the configuration again and installs it.
    ///
    /// # Errors
    /// See [`ReloadError`]; the old configuration stays active.
    pub fn reload(&self) -> ReloadResult {
        let (answer, reply) = mpsc::sync_channel(1);
        self.0
            .send(Request::File(Some(answer)))
            .map_err(|_| ReloadError::Installer(InstallError::Gone))?;
        reply.recv().map_err(|_| ReloadError::Installer(InstallError::Gone))?
    }

    /// Reports a device's new address or MTU; the links on the device are updated.
    pub fn device_changed(&self, port: PortIndex, facts: Facts) {
        // If the thread has ended, nothing is updated.
        let _ = self.0.send(Request::Device(port, facts));
    }
}

/// What causes an installation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// The configuration's file was read again.
    File,
    /// A device changed: sets keep their current elements.
    Device,
}

/// The state of the thread.
struct ReloadThread {
    file: PathBuf,
    configured: Model,
    facts: Vec<Facts>,
    largest_mtu: usize,
    installer: Installer,
}

impl ReloadThread {
    fn serve(mut self, requests: &Receiver<Request>) {
        while let Ok(request) = requests.recv() {
            match request {
                Request::File(answer) => {
                    let outcome = self.read();
                    report(&outcome);
                    // The caller may have stopped waiting.
                    answer.map(|answer| answer.send(outcome));
                }
                Request::Device(port, facts) => self.device(port, facts),
            }
        }
    }

    fn read(&mut self) -> ReloadResult {
        let start = Instant::now();
        let running = Running {
            ports: &self.configured.ports,
            largest_mtu: self.largest_mtu,
            control: self.configured.control.as_deref(),
            xdp_path: {
                let Model { xdp_path, xdp_flows, .. } = self.configured;
                (xdp_path, xdp_flows)
            },
        };
        let loaded = config::load_for(&self.file, &running);
        let configured = loaded.map_err(ReloadError::Mistakes)?.model;
        let done = self.install(&configured, Cause::File, start)?;
        self.configured = configured;
        Ok(done)
    }

    fn device(&mut self, port: PortIndex, facts: Facts) {
        let Some(known) = self.facts.get_mut(port.0) else { return };
        *known = facts;
        let configured = self.configured.clone();
        match self.install(&configured, Cause::Device, Instant::now()) {
            Ok(Done::Unchanged) => {}
            outcome => {
                let name = configured.ports.get(port.0).map_or("", |port| port.name.as_str());
                tracing::info!("port {name}: its device has another address or MTU");
                report(&outcome);
            }
        }
    }

    fn install(&mut self, configured: &Model, cause: Cause, start: Instant) -> ReloadResult {
        let mut model = configured.clone();
        for (index, facts) in self.facts.iter().enumerate() {
            ports::adopt(&mut model, PortIndex(index), *facts);
        }
        let sets = self.changed_sets();
        let are_sets_stale = sets.is_some() && cause == Cause::File;
        if model == *self.installer.model() && !self.installer.is_bypassed() && !are_sets_stale {
            return Ok(Done::Unchanged);
        }
        if let (Some(filter), Some(rules), Cause::Device) = (sets, &mut model.filter, cause) {
            Arc::make_mut(rules).take_live_sets(&filter);
        }
        let dispatcher = Arc::clone(self.installer.dispatcher());
        let compiled = dispatcher.make_tables(&model, |memory| compile_in(memory, &model));
        let compiled = compiled.map_err(ReloadError::Compile)?;
        let next = Next { compiled, logger: self.logger(&model)? };
        let took = start.elapsed();
        let pause = self.installer.install(model, next).map_err(ReloadError::Installer)?;
        let model = self.installer.model();
        let (links, routes) = (model.links.len(), model.routes.len());
        let rules = model.filter.as_deref().map(Ruleset::rule_count);
        Ok(Done::Installed { links, routes, rules, pause, took })
    }

    /// The active rules, if sets of them have other elements than in the file.
    fn changed_sets(&self) -> Option<Arc<Filter>> {
        let filter = self.installer.updater().router().state().filter.clone()?;
        filter.live_sets().iter().any(|set| set.is_changed()).then_some(filter)
    }

    /// The logger for the rules of a model; it gets a new capture if the active one differs.
    fn logger(&self, model: &Model) -> Result<Logger, ReloadError> {
        let keeps_capture = model.filter_log == self.installer.model().filter_log;
        let file = model.filter_log.as_deref().filter(|_| !keeps_capture);
        if file.is_some() {
            self.installer.journal().end_replaced();
        }
        Logger::of(model.filter.as_deref(), &rule_links(model), file)
            .map_err(|error| ReloadError::Log(Arc::new(error)))
    }
}

fn report(outcome: &ReloadResult) {
    match outcome {
        Ok(done) => tracing::info!("{done}"),
        Err(ReloadError::Mistakes(mistakes)) => {
            for mistake in mistakes {
                tracing::error!("{mistake}");
            }
            tracing::error!("the old configuration stays active");
        }
        Err(error) => {
            tracing::error!("{error}; the old configuration stays active")
        }
    }
}
