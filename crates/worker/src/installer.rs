//! Installs models while packets flow.
//!
//! The caller passes rebuilt tables to the installer. A worker only swaps them between two bursts, because it
//! also sends packets that the swap releases. The old tables are dropped on the caller's thread. Counters continue; learned
//! neighbours, and the packets that wait for them, move to the new tables ([`Worker::swap`]). The
//! kernel's neighbours are in the new tables before these become active. The firewall's rules are
//! part of the same swap, and unchanged rules keep their counters ([`carried`]).
//!
//! Tables and XDP programs cannot change in one moment, so the kernel forwards between the two
//! changes.
//!
//! [`Worker::swap`]: tollway_dataplane::worker::Worker::swap

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use tollway_dataplane::id::{BridgeId, Domain, LinkId, PortId};

use crate::fdb::{FdbFollower, FdbWatch};
use crate::neighbours::{Follower, Watch};
use crate::ports::dispatcher::{Dispatcher, ruled};
use crate::{Updater, WorkerMailbox};
use tollway_firewall::carry::carried;
use tollway_firewall::log::{Journal, Logger};
use tollway_model::compile::{CompileError, Compiled, rule_hops, rules};
use tollway_model::names::{NameTable, Names};
use tollway_model::{LinkKind, Model};
use tollway_net::VlanProtocol;
use tollway_xdp::XdpError;

/// The longest that the worker takes to check its mailbox, whatever it does.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Why an installation failed. The earlier state is still active, or the kernel forwards.
#[derive(Clone, Debug, thiserror::Error)]
pub enum InstallError {
    /// The XDP programs cannot be updated.
    #[error("{0}; {remedy}", remedy = .0.remedy())]
    XdpPrograms(Arc<XdpError>),
    /// The firewall's rules do not fit.
    #[error("{0}; {remedy}", remedy = .0.remedy())]
    Rules(CompileError),
    /// The worker has ended, or does not answer.
    #[error("the worker does not answer; restart tollway")]
    Gone,
}

/// The next tables to activate, built from their model.
pub struct Next {
    /// The tables, and the router as a host.
    pub compiled: Compiled,
    /// The logger of the rules.
    pub logger: Logger,
}

/// The parts of a running router.
pub struct Parts {
    /// The active model.
    pub model: Model,
    /// By port: whether the kernel is the host behind it.
    pub kernel: Vec<bool>,
    /// The names of links and VRFs.
    pub name_table: NameTable,
    /// Dispatches frames to the router's ports.
    pub dispatcher: Arc<Dispatcher>,
    /// The destination of the rules' log.
    pub journal: Journal,
    /// Changes the router.
    pub updater: Updater,
}

impl Parts {
    /// The links of a model whose neighbours come from the kernel.
    #[must_use]
    pub fn watch(&self, model: &Model) -> Watch {
        Watch::of(model, |port| self.kernel.get(port.0).copied().unwrap_or(false))
    }
}

/// Installs models, one after the other.
pub struct Installer {
    parts: Parts,
    follower: Option<Follower>,
    fdb: Option<FdbFollower>,
    /// The kernel forwards, since the dispatcher could neither be updated nor restored.
    is_bypassed: bool,
    /// The kernel forwards at the caller's request.
    is_wanted: bool,
}

impl Installer {
    /// Creates the installer of a running router; `follower` follows the kernel's neighbours.
    #[must_use]
    pub const fn new(parts: Parts, follower: Option<Follower>) -> Self {
        Self { parts, follower, fdb: None, is_bypassed: false, is_wanted: false }
    }

    /// Has the tables know what the kernel's bridges have learned, which `fdb` follows for those of the active model
    /// ([`watch_bridges`]).
    #[must_use]
    pub fn with_bridges(self, fdb: FdbFollower) -> Self {
        Self { fdb: Some(fdb), ..self }
    }

    /// The active model.
    #[must_use]
    pub const fn model(&self) -> &Model {
        &self.parts.model
    }

    /// The worker's mailbox.
    #[must_use]
    pub const fn mailbox(&self) -> &WorkerMailbox {
        self.parts.updater.mailbox()
    }

    /// Changes the active tables.
    #[must_use]
    pub const fn updater(&self) -> &Updater {
        &self.parts.updater
    }

    /// The dispatcher.
    #[must_use]
    pub const fn dispatcher(&self) -> &Arc<Dispatcher> {
        &self.parts.dispatcher
    }

    /// The destination of the rules' log.
    #[must_use]
    pub const fn journal(&self) -> &Journal {
        &self.parts.journal
    }

    /// Whether the kernel forwards until the next model is active.
    #[must_use]
    pub const fn is_bypassed(&self) -> bool {
        self.is_bypassed
    }

    /// The follower of the kernel's neighbours, if there is one.
    #[must_use]
    pub const fn follower(&self) -> Option<&Follower> {
        self.follower.as_ref()
    }

    /// Lets the kernel forward everything, whatever is installed meanwhile; `false` ends this.
    pub fn bypass(&mut self, wanted: bool) {
        if wanted != self.is_wanted {
            self.is_wanted = wanted;
            self.parts.dispatcher.bypass(wanted || self.is_bypassed);
        }
    }

    /// Updates the XDP programs for a model that differs from the active one only in what takes the
    /// kernel path ([`Model::own`], [`Link::kernel_path`](tollway_model::Link::kernel_path)).
    ///
    /// # Errors
    /// See [`InstallError`].
    pub fn adjust(&mut self, model: Model) -> Result<(), InstallError> {
        let loaded_port = self.parts.dispatcher.follow(&model);
        loaded_port.map_err(|error| InstallError::XdpPrograms(Arc::new(error)))?;
        self.parts.model = model;
        Ok(())
    }

    /// Installs the firewall's rules of a model that differs from the active one only in them; the
    /// other tables stay.
    ///
    /// # Errors
    /// See [`InstallError`].
    pub fn install_rules(&mut self, model: Model, logger: Logger) -> Result<(), InstallError> {
        let updater = &self.parts.updater;
        let (hops, epochs) = updater.change(|locked| {
            let hops = rule_hops(&model, &mut locked.tables);
            (hops, Arc::clone(&locked.tables.epochs))
        });
        let hops = hops.map_err(InstallError::Rules)?;
        let filter = rules(&model, hops, &epochs).map_err(InstallError::Rules)?;
        if let Some(filter) = &filter {
            updater.router().fill_sets(filter);
        }
        let before = &self.parts.model;
        let carried = carried(before.filter.as_deref(), model.filter.as_deref());
        let same_log = before.filter_log == model.filter_log;
        let (journal, name_table) = (&self.parts.journal, &self.parts.name_table);
        let names = Names::from(&model);
        let old = updater.change(|locked| {
            journal.change(locked.next_rules(), logger, same_log);
            let old = (locked.set_filter(filter, &carried), name_table.names());
            name_table.set(names);
            old
        });
        // Without the lock, as that may take long.
        drop(old);
        self.parts.model = model;
        Ok(())
    }

    /// Installs the tables built from a model with the same number of ports; returns how long this
    /// blocked the worker.
    ///
    /// # Errors
    /// See [`InstallError`].
    pub fn install(&mut self, mut model: Model, next: Next) -> Result<Duration, InstallError> {
        // The programs must know of rules before the first one is active, and until the last one is
        // not.
        let before = ruled(&self.parts.model);
        self.parts.dispatcher.set_ruled(before.max(ruled(&model)));
        // The programs decide nothing by these tables before a worker has them.
        self.parts.dispatcher.use_tables(&next.compiled.tables);
        let done = if self.is_bypassed || !self.only_rules_differ(&mut model) {
            self.dispatch_and_swap(&model, next)
        } else {
            self.swap_rules(&model, next)
        };
        self.parts.dispatcher.set_ruled(if done.is_ok() { ruled(&model) } else { before });
        if done.is_ok() {
            self.parts.model = model;
        } else {
            // No worker will have the next tables.
            self.parts.dispatcher.use_active_tables(self.parts.updater.router());
        }
        done
    }

    /// Swaps tables that differ in the firewall's rules. Workers get what comes for own addresses while old or new rules
    /// translate it: they give the kernel what is its own.
    fn swap_rules(&self, model: &Model, next: Next) -> Result<Duration, InstallError> {
        let Parts { dispatcher, model: before, .. } = &self.parts;
        let followed = dispatcher.follow_rules([before, model]);
        followed.map_err(|error| InstallError::XdpPrograms(Arc::new(error)))?;
        let done = self.swap(model, next).ok_or(InstallError::Gone);
        let active = if done.is_ok() { model } else { before };
        if let Err(error) = dispatcher.follow_rules([active; 2]) {
            tracing::warn!("what comes for own addresses still takes the user path: {error}");
        }
        done
    }

    /// Whether a model differs from the active one by the firewall's rules at most. Of these, the dispatcher
    /// only depends on which addresses they translate. So no bypass is needed, in which the kernel would forward packets
    /// that the rules drop.
    fn only_rules_differ(&mut self, model: &mut Model) -> bool {
        let installed = &mut self.parts.model;
        let rules = (model.filter.take(), installed.filter.take());
        let connections = (model.connections.take(), installed.connections.take());
        let logs = (model.filter_log.take(), installed.filter_log.take());
        let same = model == installed;
        (model.filter, installed.filter) = rules;
        (model.connections, installed.connections) = connections;
        (model.filter_log, installed.filter_log) = logs;
        same
    }

    fn dispatch_and_swap(&mut self, model: &Model, next: Next) -> Result<Duration, InstallError> {
        let dispatcher = Arc::clone(&self.parts.dispatcher);
        self.is_bypassed = true;
        dispatcher.bypass(true);
        let loaded_port =
            dispatcher.follow(model).map_err(|error| InstallError::XdpPrograms(Arc::new(error)));
        let done = loaded_port.and_then(|()| self.swap(model, next).ok_or(InstallError::Gone));
        if done.is_err()
            && let Err(error) = dispatcher.follow(&self.parts.model)
        {
            tracing::error!("the kernel forwards until the next reload: {error}");
            return done;
        }
        self.is_bypassed = false;
        dispatcher.bypass(self.is_wanted);
        done
    }

    /// Has the worker swap the tables; returns how long this blocked it, or `None` if it is not
    /// there.
    fn swap(&self, model: &Model, next: Next) -> Option<Duration> {
        let before = &self.parts.model;
        let Next { compiled, logger } = next;
        let (journal, same_log) =
            (self.parts.journal.clone(), before.filter_log == model.filter_log);
        let links = successors(before, model);
        let carried = carried(before.filter.as_deref(), model.filter.as_deref());
        let mtus: Vec<u16> = model.ports.iter().zip(&model.links).map(|(_, l)| l.mtu).collect();
        let (name_table, names) = (self.parts.name_table.clone(), Names::from(model));
        let (answer, reply) = mpsc::sync_channel(1);
        // Set by the first of two: the worker when it begins, or the caller when it stops waiting.
        let claimed = Arc::new(AtomicBool::new(false));
        let begun = Arc::clone(&claimed);
        let swap = |compiled: Compiled| {
            // Without a worker, no answer comes.
            let _ = self.mailbox().post(move |worker, devices| {
                if begun.swap(true, Ordering::AcqRel) {
                    return;
                }
                let start = Instant::now();
                let Compiled { tables, host } = compiled;
                journal.change(worker.lock().next_rules(), logger, same_log);
                let old_names = name_table.names();
                let old = worker.swap(devices, tables, host, &links, &carried);
                name_table.set(names);
                let pause = start.elapsed();
                for (device, mtu) in devices.iter_mut().zip(mtus) {
                    device.set_mtu(mtu);
                }
                // Return the old tables to the caller, to be dropped there: that takes long.
                let _ = answer.send((pause, old, old_names));
            });
            let answered = match reply.recv_timeout(PATIENCE) {
                // The worker has begun, and is about to answer.
                Err(RecvTimeoutError::Timeout) if claimed.swap(true, Ordering::AcqRel) => {
                    reply.recv().ok()
                }
                answered => answered.ok(),
            };
            // The callers check that the number of ports is the same.
            debug_assert!(answered.as_ref().is_none_or(|(_, old, _)| old.is_ok()));
            answered.filter(|(_, old, _)| old.is_ok())
        };
        let swap = |compiled: Compiled| match &self.fdb {
            Some(follower) => {
                let fdb = Arc::clone(&compiled.tables.fdb);
                follower.hand_over(watch_bridges(model), fdb, || swap(compiled))
            }
            None => swap(compiled),
        };
        let swapped = match &self.follower {
            Some(follower) => follower.hand_over(self.parts.watch(model), compiled, swap),
            None => swap(compiled),
        };
        let (pause, old, _) = swapped?;
        drop(old);
        self.updater().synchronize();
        Some(pause)
    }
}

/// The bridges of a model's ports, for a follower of what they learn.
#[must_use]
pub fn watch_bridges(model: &Model) -> FdbWatch {
    /// Of a bridge that does not tell VLANs apart.
    const NO_VLAN: u16 = 0;
    model.bridge_ports.iter().fold(FdbWatch::default(), |watch, (port, member)| {
        let number = model.bridge_number(member.bridge).map(BridgeId);
        let (Some(domain), Ok(port)) = (number.and_then(Domain::of_bridge), u16::try_from(port.0))
        else {
            return watch;
        };
        watch.with_domain(member.bridge, NO_VLAN, domain).with_port(member.device, PortId(port))
    })
}

/// For each link of the old model, the link of the new one on the same port, or bridge, under the same tags.
fn successors(old: &Model, new: &Model) -> Vec<Option<LinkId>> {
    let now: std::collections::HashMap<_, _> =
        (0..new.links.len()).map(|index| (place(new, index), index)).collect();
    let of = |index| now.get(&place(old, index)).and_then(|index| u16::try_from(*index).ok());
    (0..old.links.len()).map(|index| of(index).map(LinkId)).collect()
}

/// The link of a port, or of a bridge, below a link, and the tags of its frames, innermost first. Parents precede their VLAN
/// links.
fn place(model: &Model, mut index: usize) -> (LinkKind, Vec<(VlanProtocol, u16)>) {
    let mut tags = Vec::new();
    loop {
        match model.links[index].kind {
            LinkKind::Vlan { parent, vid, protocol } => {
                tags.push((protocol, vid));
                index = parent.0;
            }
            below => return (below, tags),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollway_model::config;

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
