//! What has changed, put in force by the smallest means that does.

use std::sync::Arc;
use std::sync::mpsc::TryRecvError;
use std::time::Instant;

use tollway_dataplane::router::Router;
use tollway_dataplane::stages::filter::Filter;
use tollway_dataplane::tables::Tables;

use super::{AGAIN, Keeper, PORTS_AGAIN, PORTS_ANSWER, PORTS_EVERY};
use crate::compile::{CompileError, rule_links};
use crate::filter::ir::Ruleset;
use crate::filter::log::Logger;
use crate::force::{ForceError, Next, PATIENCE};
use crate::mirror::begin;
use crate::mirror::coverage::Coverage;
use crate::mirror::fill::{FillError, InForce};
use crate::mirror::rules;
use crate::mirror::shape::Shape;
use crate::model::Model;
use crate::ports::{Device, Devices, State};
use crate::worker::Post;

impl Keeper {
    /// Puts in force what has changed.
    pub(super) fn apply(&mut self) {
        if self.again_at.is_some_and(|at| at <= Instant::now()) {
            self.again_at = None;
            self.known.doubt();
        }
        let mut done = self.try_apply();
        if let Err(error) = &done
            && error.is_of_rules()
            && self.known.refuse_rules(&error.to_string())
        {
            // Without them, and all that they are about is the kernel's.
            self.rules_are_new = true;
            self.force.hold(true);
            done = self.try_apply();
        }
        let Err(error) = done else { return };
        tracing::error!("{error}; the kernel forwards until that is mended");
        // Nobody knows how far it came: what had changed has been taken out of the rib, and next hops may be
        // lost with a job that was not done. Only new tables are right again, whatever changes before.
        self.fill = None;
        self.holds.broken = Some(error.to_string());
        self.again_at = Some(Instant::now() + AGAIN);
    }

    fn try_apply(&mut self) -> Result<(), Trouble> {
        self.ask_ports()?;
        if let Some((shape, coverage)) = self.known.shape() {
            self.judge(coverage);
            if shape.frame != self.shape.frame || self.fill.is_none() {
                return self.rebuild(shape);
            }
            self.change(shape)?;
            self.adjust()?;
        }
        self.follow()?;
        self.elements()?;
        // The model has the rules that were read; where those are not in force, what follows puts both so.
        if !self.rules_are_new && self.locals.take_changed() {
            self.adjust()?;
        }
        for dest in self.known.rib.take_drift() {
            self.source.drifted(dest.table, dest.net());
        }
        if self.known.rib.doubts() {
            self.source.resync();
        }
        Ok(())
    }

    /// Says which traffic takes which road, if it is otherwise than before.
    fn judge(&mut self, coverage: Coverage) {
        let now = Instant::now();
        if self.wishes.judge(&coverage, &self.known.ports, now) {
            // What was asked before has told the ports otherwise.
            (self.asked_ports, self.ports_at) = (None, now);
        }
        if *self.live.get() != coverage {
            self.live.set(coverage);
        }
    }

    /// Tells the ports whether they are to be attached, and asks whether they work: packets that would leave
    /// by one that does not are the kernel's.
    fn ask_ports(&mut self) -> Result<(), Trouble> {
        let now = Instant::now();
        if self.wishes.expire(now) {
            (self.asked_ports, self.ports_at) = (None, now);
        }
        let linked = self.known.take_linked();
        if !linked && self.ports_at > now {
            return Ok(());
        }
        let idle = self.wishes.idle();
        let (post, wanted) = (self.force.post(), idle.clone());
        let works = if linked {
            self.asked_ports = None;
            let look = move |_: &mut Router, devices: &mut Devices| look(devices, &wanted);
            post.change(PATIENCE, look).ok_or(ForceError::Gone)?
        } else {
            // Nothing has changed that is known of: nobody waits for the worker, who may be late.
            let look = move |_: &mut Router, devices: &mut Devices| look(devices, &wanted);
            let asked = self.asked_ports.take().unwrap_or_else(|| post.send(look));
            match asked.try_recv() {
                Ok(works) => works,
                Err(TryRecvError::Empty) => {
                    self.asked_ports = Some(asked);
                    self.ports_at = now + PORTS_ANSWER;
                    return Ok(());
                }
                Err(TryRecvError::Disconnected) => return Err(ForceError::Gone.into()),
            }
        };
        let mut every = PORTS_EVERY;
        let ports = self.known.ports.iter_mut().zip(&idle).zip(works);
        for ((port, idle), (works, device, room)) in ports {
            if device.is_some() && port.device != device {
                // It was opened anew by its name, which is another device's by now.
                port.device = device;
                self.known.stale = true;
            }
            // One that does not work has no sockets, and says nothing.
            let room = if works { room.filter(|room| *room < port.mtu) } else { port.room };
            if (port.works, port.room) != (works, room) {
                (port.works, port.room) = (works, room);
                self.known.stale = true;
            }
            if !works && port.device.is_some() && idle.is_none() {
                every = PORTS_AGAIN;
            }
        }
        self.ports_at = now + every;
        Ok(())
    }

    /// Puts changed routes in tables that are in use.
    fn follow(&mut self) -> Result<(), Trouble> {
        let Some(fill) = &mut self.fill else { return Ok(()) };
        let rib = &mut self.known.rib;
        for dest in rib.touched() {
            self.locals.look(rib, dest);
        }
        let followed = fill.follow(rib, &Between(self.force.post()));
        // The worker may sleep, or have no processor.
        self.force.void(fill.epochs());
        match followed {
            Ok(_) => Ok(()),
            Err(FillError::Gone) => Err(ForceError::Gone.into()),
            Err(FillError::All | FillError::Views | FillError::Tables(_)) => {
                self.known.doubt();
                let Some((shape, coverage)) = self.known.shape() else { return Ok(()) };
                self.judge(coverage);
                self.rebuild(shape)
            }
        }
    }

    /// Puts elements of sets in, or takes them out, that came and went since the rules were read. They are
    /// kept while those rules are not in force: sets of others may have nothing but the name in common.
    fn elements(&mut self) -> Result<(), Trouble> {
        if self.elements.is_empty() || self.rules_are_new {
            return Ok(());
        }
        let filter = self.filter()?;
        let changes = std::mem::take(&mut self.elements);
        self.elements_applied = true;
        let done = filter.map_or(Ok(()), |filter| rules::apply(&filter, &changes));
        if let Some(fill) = &self.fill {
            self.force.void(fill.epochs());
        }
        if let Err(why) = done {
            tracing::info!("{why}; the rules are read again");
            self.outdate_rules();
            self.rules.read_again();
        }
        Ok(())
    }

    /// The firewall's rules that are in force.
    fn filter(&self) -> Result<Option<Arc<Filter>>, ForceError> {
        let filter = |router: &mut Router, _: &mut _| router.tables.filter.clone();
        self.force.post().change(PATIENCE, filter).ok_or(ForceError::Gone)
    }

    /// Has the rules that were read know what the sets in force have by now: tables that are made anew are made
    /// of those.
    fn take_elements(&mut self) -> Result<(), Trouble> {
        if !self.elements_applied {
            return Ok(());
        }
        if let Some(filter) = self.filter()? {
            self.known.take_live_sets(&filter);
        }
        self.elements_applied = false;
        Ok(())
    }

    /// Makes tables anew.
    fn rebuild(&mut self, shape: Shape) -> Result<(), Trouble> {
        self.force.hold(true);
        if let Some(hurry) = &mut self.hurry {
            hurry.rest();
        }
        self.take_elements()?;
        self.locals.read(&self.known.rib);
        let model = begin::model(&shape, &self.known, &self.locals);
        self.fill = None;
        // If that fails, what changes until it is tried again need not be noted one by one.
        self.known.rib.touch_all();
        let (compiled, fill) = begin::build(&shape, &mut self.known, &model)?;
        let next = Next { compiled, logger: logger(&model) };
        self.force.put(model, next)?;
        (self.shape, self.fill) = (shape, Some(fill));
        self.status.rebuilds += 1;
        self.in_force();
        self.elements()
    }

    /// Changes what can be changed in tables that are in use.
    fn change(&mut self, shape: Shape) -> Result<(), Trouble> {
        if self.rules_are_new {
            let model = begin::model(&self.shape, &self.known, &self.locals);
            let logger = logger(&model);
            self.force.put_rules(model, logger)?;
        }
        if let Some(fill) = &mut self.fill {
            fill.set_ways(shape.ways.clone());
        }
        if shape != self.shape {
            let shape = Arc::new(shape);
            let (next, had) = (Arc::clone(&shape), self.shape.clone());
            let dress =
                move |router: &mut Router, _: &mut _| next.dress(&mut router.tables, Some(&had));
            let dressed = self.force.post().change(PATIENCE, dress).ok_or(ForceError::Gone)?;
            dressed.map_err(begin::at_all)?;
            if let Some(fill) = &self.fill {
                self.force.void(fill.epochs());
            }
            self.shape = Arc::unwrap_or_clone(shape);
        }
        self.in_force();
        Ok(())
    }

    /// Has the steering programs know what is the kernel's.
    fn adjust(&mut self) -> Result<(), Trouble> {
        let model = begin::model(&self.shape, &self.known, &self.locals);
        if model != *self.force.model() {
            self.force.adjust(model)?;
        }
        Ok(())
    }

    /// All that is known is in force.
    fn in_force(&mut self) {
        (self.rules_are_new, self.holds.rules) = (false, self.rules_are_old);
        (self.holds.broken, self.again_at) = (None, None);
    }
}

/// Whether each port works, its device and the largest packet that it has room for.
pub(super) type Looked = Vec<(bool, Option<u32>, Option<u32>)>;

/// Tells the ports why they are to be idle, if they are, and looks at them.
fn look(devices: &mut Devices, idle: &[Option<String>]) -> Looked {
    let works = |(device, idle): (&mut Box<dyn Device>, &Option<String>)| {
        device.set_idle(idle.as_deref());
        device.look_again();
        let works = device.state() == State::Up;
        (works, device.ifindex(), device.mtu().map(u32::from))
    };
    devices.iter_mut().zip(idle).map(works).collect()
}

/// Why something is not in force.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error("{0}")]
    Compile(#[from] CompileError),
    #[error("{0}")]
    Force(#[from] ForceError),
}

impl Trouble {
    /// Whether the rules of nftables are what does not fit.
    const fn is_of_rules(&self) -> bool {
        match self {
            Self::Compile(error) | Self::Force(ForceError::Rules(error)) => error.is_of_rules(),
            Self::Force(_) => false,
        }
    }
}

/// Logs nothing: rules that do are the kernel's.
fn logger(model: &Model) -> Logger {
    let none = Ruleset::default();
    Logger::new(model.filter.as_deref().unwrap_or(&none), &rule_links(model))
}

/// The worker, who changes tables between two bursts.
struct Between<'a>(&'a Post);

impl InForce for Between<'_> {
    fn between_bursts<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Tables) -> T + Send + 'static,
    ) -> Option<T> {
        self.0.change(PATIENCE, |router, _| job(&mut router.tables))
    }
}
