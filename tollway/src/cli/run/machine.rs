//! A router with its ports, from being put together to its report.

use std::io;
use std::sync::Arc;

use tollway_dataplane::port::Port as _;
use tollway_dataplane::router::Router;

use super::Stage;
use crate::cli::summary::Summary;
use crate::cli::{CliError, print};
use crate::compile::{CompileError, Compiled, rule_links};
use crate::control::{Board, Names};
use crate::filter::log::{Journal, Logger};
use crate::force::Parts;
use crate::model::{Model, PortKind};
use crate::ports::redirect::Watch;
use crate::ports::steering::ModelSteering;
use crate::ports::{self, Devices, State};
use crate::service::Watchdog;
use crate::worker::{self, Duties, OnGap, Post, Stopper};

/// A router with its ports.
pub(super) struct Machine {
    pub(super) router: Router,
    pub(super) devices: Devices,
    pub(super) board: Board,
    pub(super) steering: Arc<ModelSteering>,
    journal: Journal,
    post: Post,
    /// Watches where the express lane can send.
    _watch: Option<Watch>,
}

impl Machine {
    /// Opens the ports of a model, adopts what their devices say of themselves, and puts the router
    /// together by `compile`. Ports for which `idle` has a reason are left to the kernel for now.
    pub(super) fn open(
        model: &mut Model,
        idle: &[Option<String>],
        post: Post,
        compile: impl FnOnce(&Model) -> Result<Compiled, CompileError>,
    ) -> Result<Self, CliError> {
        let mut umem = ports::umem(model).ok_or_else(|| {
            CliError::failed("the memory for frames can not be had", "Lower the MTUs")
        })?;
        let steering = Arc::new(ModelSteering::load(model));
        let mut programs = |_: &Model, port| steering.program(port);
        let devices = ports::open(model, &mut umem, &mut programs, idle);
        let devices = devices.map_err(|error| CliError::failed(&error, error.remedy()))?;
        let compiled = compile(model).map_err(|error| CliError::failed(&error, error.remedy()))?;
        let mut router = Router::new(compiled.tables, umem, compiled.host);
        let lane = steering.lane(model).map_err(|error| {
            CliError::failed(
                format!("the express lane can not be had: {error}"),
                "Set express = \"off\"",
            )
        })?;
        let watch = lane.map(|(lane, watch)| {
            router.express = Some(lane);
            watch
        });
        let journal = journal(model)?;
        let board = Board::new(Names::from(&*model));
        Ok(Self { router, devices, board, steering, journal, post, _watch: watch })
    }

    /// What whoever changes the model needs to know of the router.
    pub(super) fn parts(&self, model: &Model) -> Parts {
        Parts {
            model: model.clone(),
            kernel: self.devices.iter().map(|device| device.has_kernel()).collect(),
            board: self.board.clone(),
            steering: Arc::clone(&self.steering),
            journal: self.journal.clone(),
            post: self.post.clone(),
        }
    }

    /// What makes the router end and leave its ports to a successor.
    pub(super) fn hand_over(&self, stopper: Stopper) -> Box<dyn Fn() + Send + Sync> {
        let steering = Arc::clone(&self.steering);
        Box::new(move || {
            steering.leave();
            stopper.stop();
        })
    }

    /// Forwards until told to stop.
    pub(super) fn run(
        &mut self,
        stage: &mut Stage,
        watchdog: Watchdog,
        on_gap: Option<OnGap>,
    ) -> io::Result<()> {
        let priority = stage.priority;
        let pulse = self.steering.start(&self.devices);
        let Stage { stop, inbox, .. } = stage;
        let counts = self.steering.counts();
        let names = self.board.names().ports.iter().map(|port| port.name.clone()).collect();
        let steered = counts.map(|counts| (counts, names));
        let journal = self.journal.clone();
        let duties = Duties { pulse, on_gap, steered, priority, journal, watchdog };
        worker::run(&mut self.router, &mut self.devices, stop, inbox, duties)
    }

    /// Says what the ports are.
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
                // Its reason was told when it was detached.
                State::Detached(_) => String::new(),
            };
            tracing::info!(
                "port {}: {what}, address {}, MTU {}{state}",
                port.name,
                link.mac,
                link.mtu,
            );
        }
    }

    /// Prints what became of the packets, and makes sure that none is missing.
    pub(super) fn end(mut self, model: &Model, ran: io::Result<()>) -> Result<(), CliError> {
        let (router, devices) = (&mut self.router, &mut self.devices);
        let ports = model.ports.iter().map(|port| port.name.as_str()).collect();
        let missed = devices.iter_mut().map(|device| device.missed()).collect();
        let counters = router.counters_in_all();
        let adds_up = counters.check().and_then(|()| router.check_memory(devices));
        let host = router.host.counters();
        let summary = Summary { ports, counters: &counters, host, missed }.text();
        // All of them, whatever went wrong with one: they give their devices back to the kernel, which
        // waits for nobody who reads the summary.
        let finished: Vec<_> = devices.iter_mut().map(|device| device.finish()).collect();
        let printed = print(summary);
        ran.map_err(|error| {
            CliError::failed(format!("the ports can not be waited for: {error}"), "Start again")
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

/// Where what the rules log is written.
fn journal(model: &Model) -> Result<Journal, CliError> {
    let logger =
        Logger::of(model.filter.as_deref(), &rule_links(model), model.filter_log.as_deref());
    let logger = logger.map_err(|error| CliError::failed(&error, error.remedy()))?;
    Ok(Journal::new(logger))
}
