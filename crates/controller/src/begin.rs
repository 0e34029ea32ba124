//! Starts the controller: reads the kernel's whole configuration before the first frame is taken.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use super::devices::{self, DeviceError};
use super::fib_sync::FibSync;
use super::handle::{ControllerMailbox, Handle, handle};
use super::kernel_state::{KernelState, Rules};
use super::locals::Locals;
use super::netlink::{self, Source};
use super::offload::Offload;
use super::plan::Plan;
use super::policies::Policies;
use super::ports::Port;
use tollway_dataplane::memory::Memory;
use tollway_dataplane::tables::TablesError;
use tollway_model::compile::{CompileError, Compiled, Problem, compile, compile_in};
use tollway_model::{Engines, Model, XdpPathMode};
use tollway_rules as rules;

/// The limit for reading the kernel's configuration; a million routes take two seconds.
const PATIENCE: Duration = Duration::from_secs(120);
/// The limit for reading the rules of nftables.
const RULES_PATIENCE: Duration = Duration::from_secs(20);

/// Settings of the controller.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How to follow the kernel's notifications.
    pub netlink: netlink::Settings,
    /// Which ports have the XDP path, and the number of flows that it has room for.
    pub xdp_path: (XdpPathMode, u32),
    /// What decides about the packets of the ports.
    pub engines: Engines,
}

/// Why the controller cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartupError {
    /// A query of the kernel failed.
    #[error("the kernel's configuration cannot be queried: {0}")]
    System(#[from] io::Error),
    /// The kernel does not answer.
    #[error("the kernel does not report its configuration within {} s", PATIENCE.as_secs())]
    Silent,
    /// A device cannot be a port.
    #[error("{0}")]
    Device(#[from] DeviceError),
}

/// The kernel's configuration as of a moment ago, and all that the controller starts with.
pub struct Startup {
    pub(super) source: Source,
    pub(super) policies: Policies,
    pub(super) kernel_state: KernelState,
    pub(super) plan: Plan,
    pub(super) offload: Offload,
    pub(super) locals: Locals,
    pub(super) fib_sync: Option<FibSync>,
    pub(super) rules: rules::Follower,
    pub(super) rule_events: Receiver<rules::Event>,
    pub(super) mailbox: ControllerMailbox,
    pub(super) settings: netlink::Settings,
    pub(super) handle: Handle,
}

impl Startup {
    /// Reads everything. `devices` names the devices to use as ports.
    ///
    /// # Errors
    /// See [`StartupError`].
    pub fn begin(devices: &[String], settings: Settings) -> Result<Self, StartupError> {
        let (handle, mailbox) = handle()?;
        let (sender, rule_events) = mpsc::channel();
        let waker = handle.clone();
        let rules = rules::Follower::start(Box::new(move |event| {
            // An error means that the receiver has gone and needs no more events.
            let _ = sender.send(event);
            waker.wake();
        }))?;
        // Before the first query, so that no change is missed.
        let policies = Policies::open();
        let mut source = Source::open(settings.netlink)?;
        let mut kernel_state = KernelState::new(settings.xdp_path);
        if !source.read_all(PATIENCE, &mut |event| kernel_state.receive(event))? {
            return Err(StartupError::Silent);
        }
        let ports = devices::find(&kernel_state.kernel, devices, &settings.engines)?;
        kernel_state.ports = ports
            .into_iter()
            .filter_map(|(index, choice)| {
                Some(Port::new(index, kernel_state.kernel.netdevs.get(&index)?, choice))
            })
            .collect();
        kernel_state.set_rules(first_rules(&rule_events));
        kernel_state.query_again();
        kernel_state.query();
        kernel_state.tally();
        kernel_state.doubt();
        let mut locals = Locals::default();
        locals.read(&kernel_state.rib);
        let (mut plan, mut offload) = kernel_state.plan().ok_or(StartupError::Silent)?;
        let tried = compile(&model(&plan, &kernel_state, &locals));
        if let Err(error) = tried
            && error.is_of_rules()
            && kernel_state.refuse_rules(&error.to_string())
        {
            (plan, offload) = kernel_state.plan().ok_or(StartupError::Silent)?;
        }
        Ok(Self {
            source,
            policies,
            kernel_state,
            plan,
            offload,
            locals,
            fib_sync: None,
            rules,
            rule_events,
            mailbox,
            settings: settings.netlink,
            handle,
        })
    }

    /// The model of the configuration.
    #[must_use]
    pub fn model(&self) -> Model {
        model(&self.plan, &self.kernel_state, &self.locals)
    }

    /// Compiles a model of this configuration to tables, routes included.
    ///
    /// # Errors
    /// The first object that does not fit.
    pub fn compile(&mut self, memory: &Memory, model: &Model) -> Result<Compiled, CompileError> {
        let (compiled, fib_sync) = build(&self.plan, &mut self.kernel_state, model, memory)?;
        self.fib_sync = Some(fib_sync);
        Ok(compiled)
    }

    /// The handle for requests to the controller.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// For each port, why it has nothing to do at the moment.
    #[must_use]
    pub fn idle(&self) -> Vec<Option<String>> {
        let idle = |port: &Port| self.offload.idle(port.device?);
        self.kernel_state.ports.iter().map(idle).collect()
    }

    /// The offload: which traffic takes which path.
    #[must_use]
    pub const fn offload(&self) -> &Offload {
        &self.offload
    }
}

/// The rules of nftables, or why they cannot be read.
fn first_rules(rule_events: &Receiver<rules::Event>) -> Rules {
    match rules::first(rule_events, RULES_PATIENCE) {
        Ok(Ok(reading)) => Rules::Read(reading, None),
        Ok(Err(why)) => Rules::Unread(why),
        Err(_) => Rules::Unread("nft does not answer".to_owned()),
    }
}

/// The model of a plan, with the rules that have been read.
pub(super) fn model(plan: &Plan, kernel_state: &KernelState, locals: &Locals) -> Model {
    let mut model = plan.model(locals.addresses());
    if let Rules::Read(reading, None) = kernel_state.rules() {
        model.filter = reading.has_rules().then(|| Arc::clone(&reading.rules));
        let differs = !Arc::ptr_eq(&reading.rules, &reading.connections);
        model.connections =
            (reading.has_rules() && differs).then(|| Arc::clone(&reading.connections));
    }
    model
}

/// Builds tables of a plan with all routes. It leaves out rules that cannot be compiled, and everything
/// then takes the kernel path; [`KernelState::rules()`] gives the reason.
pub(super) fn build(
    plan: &Plan,
    kernel_state: &mut KernelState,
    model: &Model,
    memory: &Memory,
) -> Result<(Compiled, FibSync), CompileError> {
    let mut compiled = compile_in(memory, model)?;
    let tables = &mut compiled.tables;
    let (lookup_chains, egress_links) =
        (plan.topology.lookup_chains.clone(), plan.egress_links.clone());
    let filled = FibSync::build(&mut kernel_state.rib, lookup_chains, egress_links, tables);
    let fib_sync = filled.map_err(at_all)?;
    plan.apply(tables, None).map_err(at_all)?;
    Ok((compiled, fib_sync))
}

/// The error of the tables as one that concerns no object in particular.
pub(super) fn at_all(error: TablesError) -> CompileError {
    let object = "the kernel's configuration".to_owned();
    CompileError { object, error: Problem::Tables(error) }
}
