//! From nothing to all that the kernel is configured with, before any frame is taken.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use super::coverage::{Coverage, Live};
use super::devices::{self, DeviceError};
use super::fill::Fill;
use super::handle::{Door, Handle, handle};
use super::keep::Keeper;
use super::known::{Known, Rules};
use super::locals::Locals;
use super::netlink::{self, Source};
use super::policies::Policies;
use super::ports::Port;
use super::rules;
use super::shape::Shape;
use crate::compile::{CompileError, Compiled, Problem, compile};
use crate::force::Force;
use crate::model::{ExpressMode, Model};
use crate::service::Beat;
use tollway_dataplane::tables::TablesError;

/// What the kernel is configured with is read within this time; a million routes take two seconds.
const PATIENCE: Duration = Duration::from_secs(120);
/// Its rules of nftables are.
const RULES_PATIENCE: Duration = Duration::from_secs(20);

/// What a mirror is to be like.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How the kernel is listened to.
    pub netlink: netlink::Settings,
    /// Which ports have the express lane, and how many flows it holds.
    pub express: (ExpressMode, u32),
}

/// Why there is no mirror.
#[derive(Debug, thiserror::Error)]
pub enum MirrorError {
    /// The kernel can not be asked.
    #[error("the kernel can not be asked what it is configured with: {0}")]
    System(#[from] io::Error),
    /// It says nothing.
    #[error("the kernel does not say within {} s what it is configured with", PATIENCE.as_secs())]
    Silent,
    /// A device can not be a port.
    #[error("{0}")]
    Device(#[from] DeviceError),
}

/// What the kernel is configured with, as of a moment ago.
pub struct Mirror {
    pub(super) source: Source,
    pub(super) policies: Policies,
    pub(super) known: Known,
    pub(super) shape: Shape,
    pub(super) coverage: Coverage,
    pub(super) locals: Locals,
    pub(super) fill: Option<Fill>,
    pub(super) rules: rules::Follower,
    pub(super) told: Receiver<rules::Event>,
    pub(super) door: Door,
    pub(super) settings: netlink::Settings,
    handle: Handle,
}

impl Mirror {
    /// Reads everything. The devices are to be ports, by name.
    ///
    /// # Errors
    /// See [`MirrorError`].
    pub fn begin(devices: &[String], settings: Settings) -> Result<Self, MirrorError> {
        let (handle, door) = handle()?;
        let (tell, told) = mpsc::channel();
        let waker = handle.clone();
        let rules = rules::Follower::start(Box::new(move |event| {
            // If nobody is there any more, nobody wants to know.
            let _ = tell.send(event);
            waker.wake();
        }))?;
        // Before they are asked for, so that no change is missed.
        let policies = Policies::open();
        let mut source = Source::open(settings.netlink)?;
        let mut known = Known::new(settings.express);
        if !source.read_all(PATIENCE, &mut |event| known.take(event))? {
            return Err(MirrorError::Silent);
        }
        let ports = devices::find(&known.kernel, devices)?;
        known.ports = ports
            .into_iter()
            .filter_map(|index| Some(Port::new(index, known.kernel.netdevs.get(&index)?)))
            .collect();
        known.set_rules(first_rules(&told));
        known.ask_again();
        known.ask();
        known.tally();
        known.doubt();
        let mut locals = Locals::default();
        locals.read(&known.rib);
        let (mut shape, mut coverage) = known.shape().ok_or(MirrorError::Silent)?;
        let tried = compile(&model(&shape, &known, &locals));
        if let Err(error) = tried
            && error.is_of_rules()
            && known.refuse_rules(&error.to_string())
        {
            (shape, coverage) = known.shape().ok_or(MirrorError::Silent)?;
        }
        Ok(Self {
            source,
            policies,
            known,
            shape,
            coverage,
            locals,
            fill: None,
            rules,
            told,
            door,
            settings: settings.netlink,
            handle,
        })
    }

    /// The model that follows.
    #[must_use]
    pub fn model(&self) -> Model {
        model(&self.shape, &self.known, &self.locals)
    }

    /// Turns a model of this mirror into tables, routes included.
    ///
    /// # Errors
    /// The first object that does not fit.
    pub fn compile(&mut self, model: &Model) -> Result<Compiled, CompileError> {
        let (compiled, fill) = build(&self.shape, &mut self.known, model)?;
        self.fill = Some(fill);
        Ok(compiled)
    }

    /// By which the mirror is asked.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Of each port, why it has nothing to do by now.
    #[must_use]
    pub fn idle(&self) -> Vec<Option<String>> {
        let idle = |port: &Port| self.coverage.idle(port.device?);
        self.known.ports.iter().map(idle).collect()
    }

    /// Which traffic takes which road.
    #[must_use]
    pub const fn coverage(&self) -> &Coverage {
        &self.coverage
    }

    /// Goes on mirroring, on a thread of its own; the kernel forwards until all is in force that it has
    /// told meanwhile, which `ready` is to tell. `most_mtu` is the largest packet that there is room for,
    /// `live` is where others find which traffic takes which road.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(
        mut self,
        mut force: Force,
        most_mtu: u32,
        (live, beat): (Live, Beat),
        ready: impl FnOnce() + Send + 'static,
    ) -> io::Result<Keep> {
        self.known.most_mtu = most_mtu;
        self.known.doubt();
        force.hold(true);
        let handle = self.handle.clone();
        let thread = std::thread::Builder::new().name("mirror".to_owned());
        let thread = thread.spawn(move || Keeper::new(self, force, live, beat).run(ready))?;
        Ok(Keep { handle, thread: Some(thread) })
    }
}

/// A mirror that runs, until it is dropped.
#[derive(Debug)]
pub struct Keep {
    handle: Handle,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Drop for Keep {
    fn drop(&mut self) {
        self.handle.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The rules of nftables, or why they can not be read.
fn first_rules(told: &Receiver<rules::Event>) -> Rules {
    match rules::first(told, RULES_PATIENCE) {
        Ok(Ok(reading)) => Rules::Read(reading, None),
        Ok(Err(why)) => Rules::Unread(why),
        Err(_) => Rules::Unread("nft does not answer".to_owned()),
    }
}

/// The model of a shape, with what rules there are.
pub(super) fn model(shape: &Shape, known: &Known, locals: &Locals) -> Model {
    let mut model = shape.model(locals.addresses());
    if let Rules::Read(reading, None) = known.rules() {
        model.filter = reading.has_rules().then(|| Arc::clone(&reading.rules));
    }
    model
}

/// Tables of a shape with all routes. Rules that can not be compiled are left out, and all is the
/// kernel's then: [`Known::rules()`] says so.
pub(super) fn build(
    shape: &Shape,
    known: &mut Known,
    model: &Model,
) -> Result<(Compiled, Fill), CompileError> {
    let mut compiled = compile(model)?;
    let tables = &mut compiled.tables;
    let (views, ways) = (shape.frame.views.clone(), shape.ways.clone());
    let filled = Fill::fresh(&mut known.rib, views, ways, tables);
    let fill = filled.map_err(at_all)?;
    shape.dress(tables, None).map_err(at_all)?;
    Ok((compiled, fill))
}

/// Says that an error of the tables is about no object in particular.
pub(super) fn at_all(error: TablesError) -> CompileError {
    let object = "the kernel's configuration".to_owned();
    CompileError { object, error: Problem::Tables(error) }
}

/// What is readable when there is something to do.
pub(super) fn entries(
    source: &Source,
    door: &Door,
    policies: &Policies,
    known: &Known,
) -> [libc::pollfd; 4] {
    let entry = |fd: i32| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let (source, door) = (source.fd().as_raw_fd(), door.woken.as_fd().as_raw_fd());
    [entry(source), entry(door), entry(policies.fd()), entry(known.exceptions.fd())]
}
