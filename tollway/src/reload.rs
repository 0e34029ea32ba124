//! A changed configuration file, and devices that say something else of themselves.
//!
//! The file is read and compiled on a thread of its own, and put in force while packets flow
//! ([`crate::force`]). Elements of sets that came and went by the control socket are as the file has
//! them then. A file with a mistake changes nothing.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::time::{Duration, Instant};

use signal_hook::consts::SIGHUP;
use signal_hook::iterator::Signals;
use tollway_dataplane::stages::filter::Filter;

use crate::compile::{CompileError, compile, rule_links};
use crate::config::{self, Mistake, Running};
use crate::filter::ir::Ruleset;
use crate::filter::log::Logger;
use crate::force::{Force, ForceError, Next, PATIENCE, Parts};
use crate::kernel::Follower;
use crate::model::{Model, PortIndex};
use crate::ports::capture::CaptureError;
use crate::ports::{self, Facts};

/// What a reload has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// The configuration says what it said before: nothing was touched.
    Unchanged,
    /// It is in force.
    InForce {
        /// Links that it has.
        links: usize,
        /// Routes that it has, beside the connected ones.
        routes: usize,
        /// Rules that its firewall has, if it has one.
        rules: Option<usize>,
        /// How long the worker did nothing else.
        pause: Duration,
        /// How long it took to read and compile, while packets flowed.
        took: Duration,
    },
}

impl std::fmt::Display for Done {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unchanged => f.write_str("the configuration has not changed"),
            Self::InForce { links, routes, rules, pause, took } => {
                write!(f, "the configuration is in force: {links} links, {routes} routes")?;
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
    /// The configuration has mistakes, or asks for what only a restart can do.
    #[error("{}", sentences(.0))]
    Mistakes(Vec<Mistake>),
    /// It fits no tables.
    #[error("{0}; {remedy}", remedy = .0.remedy())]
    Compile(CompileError),
    /// What rules log can not be written.
    #[error("{0}; {remedy}", remedy = .0.remedy())]
    Log(Arc<CaptureError>),
    /// It can not be put in force.
    #[error("{0}")]
    Force(ForceError),
}

fn sentences(mistakes: &[Mistake]) -> String {
    mistakes.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// What a reload came to.
pub type Outcome = Result<Done, ReloadError>;

enum Request {
    /// Read the file again; none wants to hear what came of it but the log.
    File(Option<SyncSender<Outcome>>),
    /// A device says something else of itself.
    Device(PortIndex, Facts),
}

/// Puts changed configurations in force, one after the other.
#[derive(Clone)]
pub struct Reloader(Sender<Request>);

/// What a running router was started with.
pub struct Started {
    /// Its configuration's file.
    pub file: PathBuf,
    /// What that said, before anything was adopted from devices.
    pub configured: Model,
    /// What devices say of themselves, by port.
    pub facts: Vec<Facts>,
    /// The largest layer-3 packet that its frames have room for, with their tags.
    pub largest_mtu: usize,
    /// The router itself; in force is what was configured, with what was adopted.
    pub parts: Parts,
}

impl Reloader {
    /// Waits for requests from now on, SIGHUP among them. `follow` starts to follow the kernel's
    /// neighbours where that is wanted, so that they go over to new tables.
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
        let force = Force::new(parts, follower);
        let worker = Worker { file, configured, facts, largest_mtu, force };
        let thread = std::thread::Builder::new().name("reload".to_owned());
        thread.spawn(move || worker.serve(&requests))?;
        Ok(this)
    }

    /// Reads the configuration again and puts it in force.
    ///
    /// # Errors
    /// See [`ReloadError`]; what was in force still is.
    pub fn reload(&self) -> Outcome {
        let (answer, reply) = mpsc::sync_channel(1);
        self.0
            .send(Request::File(Some(answer)))
            .map_err(|_| ReloadError::Force(ForceError::Gone))?;
        reply.recv().map_err(|_| ReloadError::Force(ForceError::Gone))?
    }

    /// Says that a device has another address or MTU now: the links on it follow.
    pub fn device_changed(&self, port: PortIndex, facts: Facts) {
        // If nobody is there any more, nothing follows.
        let _ = self.0.send(Request::Device(port, facts));
    }
}

/// Who wants a configuration in force.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// Its file was read again.
    File,
    /// A device says something else: sets keep the elements that they have by now.
    Device,
}

/// What the thread has.
struct Worker {
    file: PathBuf,
    configured: Model,
    facts: Vec<Facts>,
    largest_mtu: usize,
    force: Force,
}

impl Worker {
    fn serve(mut self, requests: &Receiver<Request>) {
        while let Ok(request) = requests.recv() {
            match request {
                Request::File(answer) => {
                    let outcome = self.read();
                    tell(&outcome);
                    // Whoever asked may have gone.
                    answer.map(|answer| answer.send(outcome));
                }
                Request::Device(port, facts) => self.device(port, facts),
            }
        }
    }

    fn read(&mut self) -> Outcome {
        let start = Instant::now();
        let running = Running {
            ports: &self.configured.ports,
            largest_mtu: self.largest_mtu,
            control: self.configured.control.as_deref(),
            express: {
                let Model { express, express_flows, .. } = self.configured;
                (express, express_flows)
            },
        };
        let loaded = config::load_for(&self.file, &running);
        let configured = loaded.map_err(ReloadError::Mistakes)?.model;
        let done = self.put_in_force(&configured, Cause::File, start)?;
        self.configured = configured;
        Ok(done)
    }

    fn device(&mut self, port: PortIndex, facts: Facts) {
        let Some(known) = self.facts.get_mut(port.0) else { return };
        *known = facts;
        let configured = self.configured.clone();
        match self.put_in_force(&configured, Cause::Device, Instant::now()) {
            Ok(Done::Unchanged) => {}
            outcome => {
                let name = configured.ports.get(port.0).map_or("", |port| port.name.as_str());
                tracing::info!("port {name}: its device has another address or MTU");
                tell(&outcome);
            }
        }
    }

    fn put_in_force(&mut self, configured: &Model, cause: Cause, start: Instant) -> Outcome {
        let mut model = configured.clone();
        for (index, facts) in self.facts.iter().enumerate() {
            ports::adopt(&mut model, PortIndex(index), *facts);
        }
        let sets = self.changed_sets()?;
        let are_sets_stale = sets.is_some() && cause == Cause::File;
        if model == *self.force.model() && !self.force.is_held() && !are_sets_stale {
            return Ok(Done::Unchanged);
        }
        if let (Some(filter), Some(rules), Cause::Device) = (sets, &mut model.filter, cause) {
            Arc::make_mut(rules).take_live_sets(&filter);
        }
        let compiled = compile(&model).map_err(ReloadError::Compile)?;
        let next = Next { compiled, logger: self.logger(&model)? };
        let took = start.elapsed();
        let pause = self.force.put(model, next).map_err(ReloadError::Force)?;
        let model = self.force.model();
        let (links, routes) = (model.links.len(), model.routes.len());
        let rules = model.filter.as_deref().map(Ruleset::rule_count);
        Ok(Done::InForce { links, routes, rules, pause, took })
    }

    /// The rules in force, where sets of them have other elements than the file has.
    fn changed_sets(&self) -> Result<Option<Arc<Filter>>, ReloadError> {
        if self.force.model().filter.is_none() {
            return Ok(None);
        }
        let filter = self.force.post().ask(PATIENCE, |router, _| router.tables.filter.clone());
        let is_changed =
            |filter: &Arc<Filter>| filter.live_sets().iter().any(|set| set.is_changed());
        let gone = ReloadError::Force(ForceError::Gone);
        Ok(filter.ok_or(gone)?.filter(is_changed))
    }

    /// The logger for the rules of a model, with a capture where the one in force is not the same.
    fn logger(&self, model: &Model) -> Result<Logger, ReloadError> {
        let goes_on = model.filter_log == self.force.model().filter_log;
        let file = model.filter_log.as_deref().filter(|_| !goes_on);
        Logger::of(model.filter.as_deref(), &rule_links(model), file)
            .map_err(|error| ReloadError::Log(Arc::new(error)))
    }
}

fn tell(outcome: &Outcome) {
    match outcome {
        Ok(done) => tracing::info!("{done}"),
        Err(ReloadError::Mistakes(mistakes)) => {
            for mistake in mistakes {
                tracing::error!("{mistake}");
            }
            tracing::error!("the configuration that was in force stays in force");
        }
        Err(error) => {
            tracing::error!("{error}; the configuration that was in force stays in force")
        }
    }
}
