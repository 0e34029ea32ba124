//! What follows from a model, put in force while packets flow.
//!
//! Whoever has made other tables leaves them here: the worker only swaps them between two bursts, and
//! what it gives back is dropped on the caller's thread. Counts go on, learned neighbours and the
//! packets that wait for them go over ([`Router::swap`]), and the kernel's neighbours are in the new
//! tables before they are in force. The firewall's rules are of the same swap, and those that are still
//! there go on counting ([`carried`]).
//!
//! Tables and steering programs can not change in one moment, so the kernel forwards while one has
//! changed and not the other.
//!
//! [`Router::swap`]: tollway_dataplane::router::Router::swap

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use tollway_dataplane::epoch::Epochs;
use tollway_dataplane::id::LinkId;
use tollway_dataplane::router::Router;

use crate::compile::{CompileError, Compiled, rule_hops, rules};
use crate::control::{Board, Names};
use crate::express::Outdated;
use crate::filter::carry::carried;
use crate::filter::log::{Journal, Logger};
use crate::kernel::{Follower, Watch};
use crate::model::{LinkKind, Model, PortIndex, VlanProtocol};
use crate::ports::steering::{ModelSteering, ruled};
use crate::steer::SteerError;
use crate::worker::Post;

/// The worker takes no longer to look into its inbox, whatever it does.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Why something is not in force; what was in force before still is, or the kernel forwards.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ForceError {
    /// The steering programs can not follow.
    #[error("{0}; {remedy}", remedy = .0.remedy())]
    Steering(Arc<SteerError>),
    /// The firewall's rules do not fit.
    #[error("{0}; {remedy}", remedy = .0.remedy())]
    Rules(CompileError),
    /// The worker has ended, or does not answer.
    #[error("the worker does not answer; restart tollway")]
    Gone,
}

/// What is to be in force next, made from its model.
pub struct Next {
    /// The tables, and the router as a host.
    pub compiled: Compiled,
    /// What the rules log.
    pub logger: Logger,
}

/// What a running router was put together from.
pub struct Parts {
    /// The model in force.
    pub model: Model,
    /// Ports behind which the kernel is the host, by number.
    pub kernel: Vec<bool>,
    /// Where links and VRFs have their names.
    pub board: Board,
    /// What steers frames to its ports.
    pub steering: Arc<ModelSteering>,
    /// Where what rules log goes.
    pub journal: Journal,
    /// Where the worker is left its work.
    pub post: Post,
}

impl Parts {
    /// The links of a model that have their neighbours from the kernel.
    #[must_use]
    pub fn watch(&self, model: &Model) -> Watch {
        Watch::of(model, |port| self.kernel.get(port.0).copied().unwrap_or(false))
    }
}

/// Puts models in force, one after the other.
pub struct Force {
    parts: Parts,
    follower: Option<Follower>,
    /// The kernel forwards, since what steers could neither go on nor back.
    is_held: bool,
    /// The kernel forwards, since somebody wants it to.
    is_wanted: bool,
    /// What is known of changes of the tables in force.
    outdated: Outdated,
}

impl Force {
    /// For a running router; `follower` has its neighbours from the kernel.
    #[must_use]
    pub const fn new(parts: Parts, follower: Option<Follower>) -> Self {
        let outdated = Outdated::new();
        Self { parts, follower, is_held: false, is_wanted: false, outdated }
    }

    /// The model in force.
    #[must_use]
    pub const fn model(&self) -> &Model {
        &self.parts.model
    }

    /// Where the worker is left its work.
    #[must_use]
    pub const fn post(&self) -> &Post {
        &self.parts.post
    }

    /// Whether the kernel forwards until a model is in force again.
    #[must_use]
    pub const fn is_held(&self) -> bool {
        self.is_held
    }

    /// The neighbours from the kernel, if they are followed.
    #[must_use]
    pub const fn follower(&self) -> Option<&Follower> {
        self.follower.as_ref()
    }

    /// Lets the kernel forward everything, whatever is put in force meanwhile, or no more.
    pub fn hold(&mut self, wanted: bool) {
        if wanted != self.is_wanted {
            self.is_wanted = wanted;
            self.parts.steering.hold(wanted || self.is_held);
        }
    }

    /// Has no packet more go by what was decided before the changes that have been made in tables.
    pub fn void(&mut self, tables: &Epochs) {
        self.parts.steering.void(&mut self.outdated, &tables.changes);
    }

    /// Has the steering programs know of a model that differs from the one in force by what is left to
    /// the kernel only ([`Model::own`], [`Link::left`](crate::model::Link::left)).
    ///
    /// # Errors
    /// See [`ForceError`].
    pub fn adjust(&mut self, model: Model) -> Result<(), ForceError> {
        let steered = self.parts.steering.follow(&model);
        steered.map_err(|error| ForceError::Steering(Arc::new(error)))?;
        self.parts.model = model;
        Ok(())
    }

    /// Puts the firewall's rules of a model in force, which differs from the one in force by them only; the
    /// other tables stay as they are.
    ///
    /// # Errors
    /// See [`ForceError`].
    pub fn put_rules(&mut self, model: Model, logger: Logger) -> Result<(), ForceError> {
        let named = Arc::new(model);
        let model = Arc::clone(&named);
        let hops = move |router: &mut Router, _: &mut _| {
            let hops = rule_hops(&model, &mut router.tables);
            hops.map(|hops| (hops, Arc::clone(&router.tables.epochs)))
        };
        let hops = self.parts.post.ask(PATIENCE, hops).ok_or(ForceError::Gone)?;
        let (hops, epochs) = hops.map_err(ForceError::Rules)?;
        let filter = rules(&named, hops, &epochs).map_err(ForceError::Rules)?;
        let before = &self.parts.model;
        let carried = carried(before.filter.as_deref(), named.filter.as_deref());
        let same_log = before.filter_log == named.filter_log;
        let (journal, board) = (self.parts.journal.clone(), self.parts.board.clone());
        let names = Names::from(&*named);
        let set = move |router: &mut Router, _: &mut _| {
            journal.change(&mut router.filter, logger, same_log);
            let old_names = board.names();
            let old = router.set_filter(filter, &carried);
            board.set(names);
            (old, old_names)
        };
        // The old rules are dropped here: that may take long.
        drop(self.parts.post.ask(PATIENCE, set).ok_or(ForceError::Gone)?);
        self.parts.model = Arc::unwrap_or_clone(named);
        Ok(())
    }

    /// Puts in force what follows from a model with as many ports; how long the worker did nothing else.
    ///
    /// # Errors
    /// See [`ForceError`].
    pub fn put(&mut self, mut model: Model, next: Next) -> Result<Duration, ForceError> {
        // Before the first rule is in force, and until the last one is not.
        let before = ruled(&self.parts.model);
        self.parts.steering.set_ruled(before.max(ruled(&model)));
        let done = if self.is_held || !self.only_rules_differ(&mut model) {
            self.steer_and_swap(&model, next)
        } else {
            self.swap(&model, next).ok_or(ForceError::Gone)
        };
        self.parts.steering.set_ruled(if done.is_ok() { ruled(&model) } else { before });
        if done.is_ok() {
            self.parts.model = model;
        }
        done
    }

    /// Says if a model differs from what is in force by the firewall's rules at most: nothing that
    /// steers looks at these, so the kernel need not forward meanwhile what they might drop.
    fn only_rules_differ(&mut self, model: &mut Model) -> bool {
        let in_force = &mut self.parts.model;
        let rules = (model.filter.take(), in_force.filter.take());
        let logs = (model.filter_log.take(), in_force.filter_log.take());
        let same = model == in_force;
        (model.filter, in_force.filter) = rules;
        (model.filter_log, in_force.filter_log) = logs;
        same
    }

    fn steer_and_swap(&mut self, model: &Model, next: Next) -> Result<Duration, ForceError> {
        let steering = Arc::clone(&self.parts.steering);
        self.is_held = true;
        steering.hold(true);
        let steered = steering.follow(model).map_err(|error| ForceError::Steering(Arc::new(error)));
        let done = steered.and_then(|()| self.swap(model, next).ok_or(ForceError::Gone));
        if done.is_err()
            && let Err(error) = steering.follow(&self.parts.model)
        {
            tracing::error!("the kernel forwards until the next reload: {error}");
            return done;
        }
        self.is_held = false;
        steering.hold(self.is_wanted);
        done
    }

    /// Has the worker swap the tables; how long that kept it, or none where it is not there.
    fn swap(&self, model: &Model, next: Next) -> Option<Duration> {
        let before = &self.parts.model;
        let Next { compiled, logger } = next;
        let (journal, same_log) =
            (self.parts.journal.clone(), before.filter_log == model.filter_log);
        let links = successors(before, model);
        let carried = carried(before.filter.as_deref(), model.filter.as_deref());
        let mtus: Vec<u16> = model.ports.iter().zip(&model.links).map(|(_, l)| l.mtu).collect();
        let (board, names) = (self.parts.board.clone(), Names::from(model));
        let (answer, reply) = mpsc::sync_channel(1);
        // Whoever is first: the worker begins, or nobody waits for it any more.
        let settled = Arc::new(AtomicBool::new(false));
        let begun = Arc::clone(&settled);
        let leave = |compiled: Compiled| {
            // If nobody is there any more, nobody answers.
            let _ = self.parts.post.leave(move |router, devices| {
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
                Some((follower, follower.hand_over(self.parts.watch(model), compiled, leave)))
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
    use crate::config;

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
