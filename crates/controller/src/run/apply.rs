//! Installs what has changed, by the smallest sufficient means.

use std::sync::Arc;
use std::sync::mpsc::TryRecvError;
use std::time::Instant;

use tollway_dataplane::stages::filter::Filter;
use tollway_dataplane::tables::Tables;
use tollway_dataplane::worker::Worker;

use super::{AGAIN, Controller, ModeEvent, PORTS_AGAIN, PORTS_ANSWER, PORTS_EVERY};
use crate::begin;
use crate::fib_sync::ActiveTables;
use crate::offload::Offload;
use crate::plan::Plan;
use tollway_firewall::ir::Ruleset;
use tollway_firewall::log::Logger;
use tollway_linux::pace;
use tollway_model::Model;
use tollway_model::compile::{CompileError, rule_links};
use tollway_rules as rules;
use tollway_worker::Updater;
use tollway_worker::installer::{InstallError, Next, PATIENCE};
use tollway_worker::ports::{Device, Devices, State};

impl Controller {
    /// Installs what has changed.
    pub(super) fn apply(&mut self) {
        if self.again_at.is_some_and(|at| at <= Instant::now()) {
            self.again_at = None;
            self.kernel_state.doubt();
        }
        let mut done = self.try_apply();
        if let Err(error) = &done
            && error.is_of_rules()
            && self.kernel_state.refuse_rules(&error.to_string())
        {
            // Install without the rules; all packets that they concern then take the kernel path.
            self.on(ModeEvent::RulesRefused);
            done = self.try_apply();
        }
        let Err(error) = done else { return };
        tracing::error!("{error}; the kernel forwards until the installation succeeds");
        // It is unknown how much was installed: the RIB no longer has the changes, and an unfinished job may
        // have lost next hops. Only new tables are correct again, regardless of later changes.
        self.fib_sync = None;
        self.on(ModeEvent::InstallFailed(error.to_string()));
        self.again_at = Some(Instant::now() + AGAIN);
    }

    fn try_apply(&mut self) -> Result<(), ApplyError> {
        self.query_ports()?;
        if let Some((plan, offload)) = self.kernel_state.plan() {
            self.publish_offload(offload);
            if plan.topology != self.plan.topology || self.fib_sync.is_none() {
                return self.rebuild(plan);
            }
            self.change(plan)?;
            self.adjust()?;
        }
        self.follow()?;
        self.elements()?;
        // The model has the rules as read. If these rules are not active yet, a later step installs
        // them and the addresses.
        if !self.mode.has_new_rules() && self.locals.take_changed() {
            self.adjust()?;
        }
        for dest in self.kernel_state.rib.take_drift() {
            self.source.drifted(dest.table, dest.net());
        }
        if self.kernel_state.rib.doubts() {
            self.source.resync();
        }
        Ok(())
    }

    /// Publishes the offload, and derives which ports should be attached.
    fn publish_offload(&mut self, offload: Offload) {
        let now = Instant::now();
        if self.attach_requests.update(&offload, &self.kernel_state.ports, now) {
            // The pending query has set the old states at the ports.
            (self.ports_answer, self.ports_at) = (None, now);
        }
        if *self.live.get() != offload {
            self.live.set(offload);
        }
    }

    /// Sets the wanted states of the ports, and queries whether they work. Packets that would leave by a
    /// broken port take the kernel path.
    fn query_ports(&mut self) -> Result<(), ApplyError> {
        let now = Instant::now();
        if self.attach_requests.expire(now) {
            (self.ports_answer, self.ports_at) = (None, now);
        }
        let linked = self.kernel_state.take_linked();
        if !linked && self.ports_at > now {
            return Ok(());
        }
        let idle = self.attach_requests.idle();
        let (mailbox, wanted) = (self.installer.mailbox(), idle.clone());
        let works = if linked {
            self.ports_answer = None;
            let look = move |_: &mut Worker, devices: &mut Devices| port_states(devices, &wanted);
            mailbox.change(PATIENCE, look).ok_or(InstallError::Gone)?
        } else {
            // Nothing is known to have changed, so do not wait for the worker, which may be late.
            let look = move |_: &mut Worker, devices: &mut Devices| port_states(devices, &wanted);
            let answer = self.ports_answer.take().unwrap_or_else(|| mailbox.send(look));
            match answer.try_recv() {
                Ok(works) => works,
                Err(TryRecvError::Empty) => {
                    self.ports_answer = Some(answer);
                    self.ports_at = pace::next(PORTS_ANSWER);
                    return Ok(());
                }
                Err(TryRecvError::Disconnected) => return Err(InstallError::Gone.into()),
            }
        };
        let mut every = PORTS_EVERY;
        let ports = self.kernel_state.ports.iter_mut().zip(&idle).zip(works);
        for ((port, idle), (works, device, room)) in ports {
            if device.is_some() && port.device != device {
                // The port has opened the device again by its name, which another device now has.
                port.device = device;
                self.kernel_state.stale = true;
            }
            // A port that does not work has no sockets, and reports no room.
            let room = if works { room.filter(|room| *room < port.mtu) } else { port.room };
            if (port.works, port.room) != (works, room) {
                (port.works, port.room) = (works, room);
                self.kernel_state.stale = true;
            }
            if !works && port.device.is_some() && idle.is_none() {
                every = PORTS_AGAIN;
            }
        }
        self.ports_at = pace::next(every);
        Ok(())
    }

    /// Applies changed routes to the tables in use.
    fn follow(&mut self) -> Result<(), ApplyError> {
        let Some(fib_sync) = &mut self.fib_sync else { return Ok(()) };
        let rib = &mut self.kernel_state.rib;
        for dest in rib.touched() {
            self.locals.look(rib, dest);
        }
        let updater = self.installer.updater();
        let followed = fib_sync.sync(rib, updater);
        updater.void(fib_sync.epochs());
        match followed {
            Ok(_) => Ok(()),
            Err(error) => {
                if error.is_for_room() {
                    self.installer.dispatcher().grow_tables();
                }
                self.kernel_state.doubt();
                let Some((plan, offload)) = self.kernel_state.plan() else { return Ok(()) };
                self.publish_offload(offload);
                self.rebuild(plan)
            }
        }
    }

    /// Applies changes of elements since the rules were read. It keeps them while those rules are not active:
    /// the active rules' sets may have only the name in common.
    fn elements(&mut self) -> Result<(), ApplyError> {
        if self.elements.is_empty() || self.mode.has_new_rules() {
            return Ok(());
        }
        let filter = self.filter();
        let changes = std::mem::take(&mut self.elements);
        self.elements_applied = true;
        let done = filter.map_or(Ok(()), |filter| rules::apply(&filter, &changes));
        if let Some(fib_sync) = &self.fib_sync {
            self.installer.updater().void(fib_sync.epochs());
        }
        self.installer.updater().router().place_waiting_rules();
        if let Err(why) = done {
            tracing::info!("{why}; the rules are read again");
            self.on(ModeEvent::RulesChanged);
            self.rules.read_again();
        }
        Ok(())
    }

    /// The active filter.
    fn filter(&self) -> Option<Arc<Filter>> {
        self.installer.updater().router().state().filter.clone()
    }

    /// Copies the elements of the active sets to the rules as read, from which new tables are made.
    fn take_elements(&mut self) {
        if std::mem::take(&mut self.elements_applied)
            && let Some(filter) = self.filter()
        {
            self.kernel_state.take_live_sets(&filter);
        }
    }

    /// Rebuilds the tables.
    fn rebuild(&mut self, plan: Plan) -> Result<(), ApplyError> {
        self.on(ModeEvent::Changing);
        if let Some(priority) = &mut self.priority {
            priority.lower();
        }
        self.take_elements();
        self.locals.read(&self.kernel_state.rib);
        let model = begin::model(&plan, &self.kernel_state, &self.locals);
        self.fib_sync = None;
        // If the build fails, changes before the next attempt need not be recorded one by one.
        self.kernel_state.rib.touch_all();
        let dispatcher = Arc::clone(self.installer.dispatcher());
        let kernel_state = &mut self.kernel_state;
        let (compiled, fib_sync) = dispatcher
            .make_tables(&model, |memory| begin::build(&plan, kernel_state, &model, memory))?;
        let next = Next { compiled, logger: logger(&model) };
        self.installer.install(model, next)?;
        (self.plan, self.fib_sync) = (plan, Some(fib_sync));
        self.status.rebuilds += 1;
        self.installed();
        self.elements()
    }

    /// Changes what can be changed in the tables in use.
    fn change(&mut self, plan: Plan) -> Result<(), ApplyError> {
        if self.mode.has_new_rules() {
            let model = begin::model(&self.plan, &self.kernel_state, &self.locals);
            let logger = logger(&model);
            self.installer.install_rules(model, logger)?;
        }
        if let Some(fib_sync) = &mut self.fib_sync {
            fib_sync.set_egress_links(plan.egress_links.clone());
        }
        if plan != self.plan {
            let updater = self.installer.updater();
            let applied = updater.change(|locked| plan.apply(&mut locked.tables, Some(&self.plan)));
            applied.map_err(begin::at_all)?;
            self.plan = plan;
        }
        self.installed();
        Ok(())
    }

    /// Updates the XDP programs' flags for traffic that takes the kernel path.
    fn adjust(&mut self) -> Result<(), ApplyError> {
        let model = begin::model(&self.plan, &self.kernel_state, &self.locals);
        if model != *self.installer.model() {
            self.installer.adjust(model)?;
        }
        Ok(())
    }

    /// Records that all known changes are active.
    fn installed(&mut self) {
        self.again_at = None;
        self.on(ModeEvent::Installed);
    }
}

/// For each port: whether it works, its device, and the largest packet that it has room for, in bytes.
pub(super) type PortStates = Vec<(bool, Option<u32>, Option<u32>)>;

/// Sets the reasons why ports should be idle, if any, and returns the ports' states.
fn port_states(devices: &mut Devices, idle: &[Option<String>]) -> PortStates {
    let works = |(device, idle): (&mut Box<dyn Device>, &Option<String>)| {
        device.set_idle(idle.as_deref());
        device.look_again();
        let works = device.state() == State::Up;
        (works, device.ifindex(), device.mtu().map(u32::from))
    };
    devices.iter_mut().zip(idle).map(works).collect()
}

/// Why an installation failed.
#[derive(Debug, thiserror::Error)]
enum ApplyError {
    #[error("{0}")]
    Compile(#[from] CompileError),
    #[error("{0}")]
    Installer(#[from] InstallError),
}

impl ApplyError {
    /// Says whether the rules of nftables caused it.
    const fn is_of_rules(&self) -> bool {
        match self {
            Self::Compile(error) | Self::Installer(InstallError::Rules(error)) => {
                error.is_of_rules()
            }
            Self::Installer(_) => false,
        }
    }
}

/// A logger that logs nothing: packets of rules that log take the kernel path.
fn logger(model: &Model) -> Logger {
    let none = Ruleset::default();
    Logger::new(model.filter.as_deref().unwrap_or(&none), &rule_links(model))
}

impl ActiveTables for Updater {
    fn change<T>(&self, job: impl FnOnce(&mut Tables) -> T) -> T {
        Self::change(self, |locked| job(&mut locked.tables))
    }
}
