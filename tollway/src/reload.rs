//! A changed configuration put in force while packets flow.
//!
//! The file is read and compiled on a thread of its own; the worker only swaps the tables between two
//! bursts, and what it gives back is dropped here as well. Counts go on, learned neighbours and the
//! packets that wait for them go over ([`Router::swap`]), and the kernel's neighbours are in the new
//! tables before they are in force. The firewall's rules are of the same swap, and those that are still
//! there go on counting ([`carried`]). Elements of sets that came and went by the control socket are as the file
//! has them then. A file with a mistake changes nothing.
//!
//! [`Router::swap`]: tollway_dataplane::router::Router::swap

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::time::{Duration, Instant};

use signal_hook::consts::SIGHUP;
use signal_hook::iterator::Signals;
use tollway_dataplane::id::LinkId;
use tollway_dataplane::stages::filter::Filter;

use crate::compile::{CompileError, Compiled, compile, rule_links};
use crate::config::{self, Mistake, Running};
use crate::control::{Board, Names};
use crate::filter::carry::carried;
use crate::filter::ir::Ruleset;
use crate::filter::log::{Journal, Logger};
use crate::kernel::{Follower, Watch};
use crate::model::{LinkKind, Model, PortIndex, VlanProtocol};
use crate::ports::capture::CaptureError;
use crate::ports::steering::ModelSteering;
use crate::ports::{self, Facts};
use crate::steer::SteerError;
use crate::worker::Post;

/// The worker takes no longer to look into its inbox, whatever it does.
const PATIENCE: Duration = Duration::from_secs(10);

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
    /// The steering programs can not follow.
    #[error("{0}; {remedy}", remedy = .0.remedy())]
    Steering(Arc<SteerError>),
    /// The worker has ended, or does not answer.
    #[error("the worker does not answer; restart tollway")]
    Gone,
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
    /// What is in force, with what was adopted.
    pub in_force: Model,
    /// What devices say of themselves, by port.
    pub facts: Vec<Facts>,
    /// The largest layer-3 packet that its frames have room for, with their tags.
    pub largest_mtu: usize,
    /// Ports behind which the kernel is the host, by number.
    pub kernel: Vec<bool>,
    /// Where links and VRFs have their names.
    pub board: Board,
    /// What steers frames to its ports.
    pub steering: Arc<ModelSteering>,
    /// Where what rules log goes.
    pub journal: Journal,
}

impl Reloader {
    /// Waits for requests from now on, SIGHUP among them. `follow` starts to follow the kernel's
    /// neighbours where that is wanted, so that they go over to new tables.
    ///
    /// # Errors
    /// The system has no thread or descriptor left, or `follow` failed.
    pub fn start(
        started: Started,
        post: Post,
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
        let worker = Worker { started, post, follower, is_held: false };
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
        self.0.send(Request::File(Some(answer))).map_err(|_| ReloadError::Gone)?;
        reply.recv().map_err(|_| ReloadError::Gone)?
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

/// What is to be in force next.
struct Next {
    compiled: Compiled,
    logger: Logger,
}

/// What the thread has.
struct Worker {
    started: Started,
    post: Post,
    follower: Option<Follower>,
    /// The kernel forwards, since what steers could neither go on nor back.
    is_held: bool,
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
            ports: &self.started.configured.ports,
            largest_mtu: self.started.largest_mtu,
            control: self.started.configured.control.as_deref(),
            express: {
                let Model { express, express_flows, .. } = self.started.configured;
                (express, express_flows)
            },
        };
        let loaded = config::load_for(&self.started.file, &running);
        let configured = loaded.map_err(ReloadError::Mistakes)?.model;
        let done = self.put_in_force(&configured, Cause::File, start)?;
        self.started.configured = configured;
        Ok(done)
    }

    fn device(&mut self, port: PortIndex, facts: Facts) {
        let Some(known) = self.started.facts.get_mut(port.0) else { return };
        *known = facts;
        let configured = self.started.configured.clone();
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
        for (index, facts) in self.started.facts.iter().enumerate() {
            ports::adopt(&mut model, PortIndex(index), *facts);
        }
        let sets = self.changed_sets()?;
        let are_sets_stale = sets.is_some() && cause == Cause::File;
        if model == self.started.in_force && !self.is_held && !are_sets_stale {
            return Ok(Done::Unchanged);
        }
        if let (Some(filter), Some(rules), Cause::Device) = (sets, &mut model.filter, cause) {
            Arc::make_mut(rules).take_live_sets(&filter);
        }
        let compiled = compile(&model).map_err(ReloadError::Compile)?;
        let next = Next { compiled, logger: self.logger(&model)? };
        let took = start.elapsed();
        // Before the first rule is in force, and until the last one is not.
        let had_rules = self.started.in_force.filter.is_some();
        self.started.steering.set_ruled(had_rules || model.filter.is_some());
        let done = if self.is_held || !self.only_rules_differ(&mut model) {
            self.steer_and_swap(&model, next)
        } else {
            self.swap(&model, next).ok_or(ReloadError::Gone)
        };
        let has_rules = if done.is_ok() { model.filter.is_some() } else { had_rules };
        self.started.steering.set_ruled(has_rules);
        let pause = done?;
        let (links, routes) = (model.links.len(), model.routes.len());
        let rules = model.filter.as_deref().map(Ruleset::rule_count);
        self.started.in_force = model;
        Ok(Done::InForce { links, routes, rules, pause, took })
    }

    /// Says if a model differs from what is in force by the firewall's rules at most: nothing that
    /// steers looks at these, so the kernel need not forward meanwhile what they might drop.
    fn only_rules_differ(&mut self, model: &mut Model) -> bool {
        let in_force = &mut self.started.in_force;
        let rules = (model.filter.take(), in_force.filter.take());
        let logs = (model.filter_log.take(), in_force.filter_log.take());
        let same = model == in_force;
        (model.filter, in_force.filter) = rules;
        (model.filter_log, in_force.filter_log) = logs;
        same
    }

    /// The rules in force, where sets of them have other elements than the file has.
    fn changed_sets(&self) -> Result<Option<Arc<Filter>>, ReloadError> {
        if self.started.in_force.filter.is_none() {
            return Ok(None);
        }
        let filter = self.post.ask(PATIENCE, |router, _| router.tables.filter.clone());
        let is_changed =
            |filter: &Arc<Filter>| filter.live_sets().iter().any(|set| set.is_changed());
        Ok(filter.ok_or(ReloadError::Gone)?.filter(is_changed))
    }

    /// The logger for the rules of a model, with a capture where the one in force is not the same.
    fn logger(&self, model: &Model) -> Result<Logger, ReloadError> {
        let goes_on = model.filter_log == self.started.in_force.filter_log;
        let file = model.filter_log.as_deref().filter(|_| !goes_on);
        Logger::of(model.filter.as_deref(), &rule_links(model), file)
            .map_err(|error| ReloadError::Log(Arc::new(error)))
    }

    /// Puts everything in force that follows from a model. Tables and steering programs can not change
    /// in one moment, so the kernel forwards while one has changed and not the other.
    fn steer_and_swap(&mut self, model: &Model, next: Next) -> Result<Duration, ReloadError> {
        let steering = Arc::clone(&self.started.steering);
        self.is_held = true;
        steering.hold(true);
        let steered =
            steering.follow(model).map_err(|error| ReloadError::Steering(Arc::new(error)));
        let done = steered.and_then(|()| self.swap(model, next).ok_or(ReloadError::Gone));
        if done.is_err()
            && let Err(error) = steering.follow(&self.started.in_force)
        {
            tracing::error!("the kernel forwards until the next reload: {error}");
            return done;
        }
        steering.hold(false);
        self.is_held = false;
        done
    }

    /// Has the worker swap the tables; how long that kept it, or none where it is not there.
    fn swap(&self, model: &Model, next: Next) -> Option<Duration> {
        let before = &self.started.in_force;
        let Next { compiled, logger } = next;
        let (journal, same_log) =
            (self.started.journal.clone(), before.filter_log == model.filter_log);
        let links = successors(before, model);
        let carried = carried(before.filter.as_deref(), model.filter.as_deref());
        let mtus: Vec<u16> = model.ports.iter().zip(&model.links).map(|(_, l)| l.mtu).collect();
        let (board, names) = (self.started.board.clone(), Names::from(model));
        let (answer, reply) = mpsc::sync_channel(1);
        // Whoever is first: the worker begins, or nobody waits for it any more.
        let settled = Arc::new(AtomicBool::new(false));
        let begun = Arc::clone(&settled);
        let leave = |compiled: Compiled| {
            // If nobody is there any more, nobody answers.
            let _ = self.post.leave(move |router, devices| {
                if begun.swap(true, Ordering::AcqRel) {
                    return;
                }
                let start = Instant::now();
                let Compiled { tables, host } = compiled;
                journal.change(&mut router.filter, logger, same_log);
                let old_names = board.names();
                let old = router.swap(devices, tables, host, &links, &carried);
                board.set(names);
                let pause = start.elapsed();
                for (device, mtu) in devices.iter_mut().zip(mtus) {
                    device.set_mtu(mtu);
                }
                // The old tables go to whoever waits, to be dropped there: that takes long.
                let _ = answer.send((pause, old, old_names));
            });
        };
        let followed = match &self.follower {
            Some(follower) => {
                let watch = Watch::of(model, |port| self.is_kernels(port));
                Some((follower, follower.hand_over(watch, compiled, leave)))
            }
            None => {
                leave(compiled);
                None
            }
        };
        let answered = match reply.recv_timeout(PATIENCE) {
            // It has begun, and is about to answer.
            Err(RecvTimeoutError::Timeout) if settled.swap(true, Ordering::AcqRel) => {
                reply.recv().ok()
            }
            answered => answered.ok(),
        };
        // The number of ports is the same: that was looked at.
        debug_assert!(answered.as_ref().is_none_or(|(_, old, _)| old.is_ok()));
        let done = answered.and_then(|(pause, old, _)| old.is_ok().then_some(pause));
        if let (None, Some((follower, before))) = (done, followed) {
            follower.go_back(before);
        }
        done
    }

    fn is_kernels(&self, port: PortIndex) -> bool {
        self.started.kernel.get(port.0).copied().unwrap_or(false)
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

/// What each link of one model is in another: the same port under the same tags.
fn successors(old: &Model, new: &Model) -> Vec<Option<LinkId>> {
    let now: std::collections::HashMap<_, _> =
        (0..new.links.len()).map(|index| (place(new, index), index)).collect();
    let of = |index| now.get(&place(old, index)).and_then(|index| u16::try_from(*index).ok());
    (0..old.links.len()).map(|index| of(index).map(LinkId)).collect()
}

/// A link's port and the tags of its frames, innermost first. Parents precede their VLAN links.
fn place(model: &Model, mut index: usize) -> (PortIndex, Vec<(VlanProtocol, u16)>) {
    let mut tags = Vec::new();
    loop {
        match model.links[index].kind {
            LinkKind::Port(port) => return (port, tags),
            LinkKind::Vlan { parent, vid, protocol } => {
                tags.push((protocol, vid));
                index = parent.0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_the_same_by_port_and_tags() {
        let parse = |vlans: &str| {
            let text =
                format!("[ports.a]\nkind = \"memory\"\n[ports.b]\nkind = \"memory\"\n{vlans}");
            config::parse(&text, "t.toml").unwrap().model
        };
        let vlan = |name: &str, parent: &str, vid: u16| {
            format!("[vlans.{name}]\nparent = \"{parent}\"\nvid = {vid}\n")
        };
        let old = parse(&(vlan("v", "a", 5) + &vlan("w", "v", 6) + &vlan("x", "b", 5)));
        let new = parse(&(vlan("first", "b", 9) + &vlan("v", "b", 5) + &vlan("z", "a", 5)));
        let name = |model: &Model, index: usize| model.links[index].name.clone();
        let pairs: Vec<_> = successors(&old, &new)
            .iter()
            .enumerate()
            .map(|(index, now)| (name(&old, index), now.map(|now| name(&new, usize::from(now.0)))))
            .collect();
        let same = |old: &str, new: Option<&str>| (old.to_owned(), new.map(str::to_owned));
        let expected = [
            same("a", Some("a")),
            same("b", Some("b")),
            same("v", Some("z")),
            same("w", None),
            same("x", Some("v")),
        ];
        assert_eq!(pairs.len(), 5);
        assert!(expected.iter().all(|pair| pairs.contains(pair)), "{pairs:?}");
    }
}
