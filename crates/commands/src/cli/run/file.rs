//! Runs a router from a configuration file.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::{Args, Machine, Prepared};
use crate::cli::log::Log;
use crate::cli::{CliError, load, replay};
use crate::control::Backends;
use crate::reload::{Reloader, Started};
use crate::replay::Files;
use tollway_model::compile::compile_in;
use tollway_model::{Model, PortKind};
use tollway_worker::OnPause;
use tollway_worker::neighbours::{self, Follower, PauseReporter};
use tollway_worker::ports::dispatcher::ruled;
use tollway_worker::ports::{self, Facts};
use tollway_worker::service::{Beat, Service, Watchdog};
use tollway_xdp::Ruled;

pub(super) fn run(args: &Args, file: &Path, log: &Arc<Log>) -> Result<(), CliError> {
    let mut model = load(file)?;
    let configured = model.clone();
    if let Some(files) = only_files(&model) {
        return replay::replay(&model, &files, false);
    }
    log.detach();
    let mut prepared = Prepared::new(args, model.control.as_deref())?;
    let mut machine = Machine::open(&mut model, &[], prepared.workers(args), compile_in)?;
    let started = Started {
        file: file.to_owned(),
        configured,
        facts: machine.devices.iter().map(|device| Facts::of(device.as_ref())).collect(),
        largest_mtu: machine.worker.umem.limit() - ports::LARGEST_HEADER,
        parts: machine.parts(&model),
    };
    let (reloader, follows) = live(started).map_err(super::follow_failed)?;
    let backends = Backends { reloader: Some(reloader), ..Backends::default() };
    let server = prepared.serve(&machine, backends)?;
    machine.announce(&model);
    tracing::info!("forwarding");
    warn_of_kernel(&model);
    let service = Service::from_environment();
    service.ready();
    let (pause_reporter, beat) = follows.unzip();
    let on_pause = pause_reporter
        .map(|pause_reporter| -> OnPause { Arc::new(move |state| pause_reporter.paused(state)) });
    let watchdog = Watchdog::new(service, Vec::from_iter(beat));
    let ran = machine.run(&mut prepared, watchdog, on_pause);
    drop(server);
    machine.end(&model, ran)
}

/// Starts what changes the running router: reloads of the configuration file, and the follower of
/// the kernel's neighbours on ports where the kernel is the host.
fn live(started: Started) -> io::Result<(Reloader, Option<(PauseReporter, Beat)>)> {
    let parts = &started.parts;
    let (updater, watch) = (parts.updater.clone(), parts.watch(&parts.model));
    let mut follows = None;
    let reloader = Reloader::start(started, |reloader| {
        if watch.is_empty() {
            return Ok(None);
        }
        let reloader = reloader.clone();
        let on_device = Box::new(move |port, facts| reloader.device_changed(port, facts));
        let follower = Follower::start(watch, updater, on_device, neighbours::Settings::default())?;
        follows = Some((follower.pause_reporter(), follower.beat()));
        Ok(Some(follower))
    })?;
    Ok((reloader, follows))
}

/// The files of a configuration that has no live port; none if it has one.
fn only_files(model: &Model) -> Option<Files> {
    let mut files = Files::default();
    for (index, port) in model.ports.iter().enumerate() {
        match &port.kind {
            PortKind::Memory => {}
            PortKind::Capture { input, output } => {
                files.inputs.extend(input.iter().map(|file| (index, file.clone())));
                files.outputs.extend(output.iter().map(|file| (index, file.clone())));
            }
            PortKind::Tap { .. } | PortKind::AfPacket { .. } | PortKind::AfXdp { .. } => {
                return None;
            }
        }
    }
    Some(files)
}

/// Warns that the kernel lacks the rules of the file, and forwards before the start and after a
/// stop.
fn warn_of_kernel(model: &Model) {
    let is_af_xdp = |port: &tollway_model::Port| matches!(port.kind, PortKind::AfXdp { .. });
    if model.filter.is_some() && model.ports.iter().any(is_af_xdp) {
        tracing::warn!(
            "before the start and after a stop, the kernel forwards without the rules of the file; load them into the kernel too"
        );
        let meanwhile = match ruled(model) {
            Ruled::Not => return,
            Ruled::FailClosed => {
                "the programs drop packets that these rules cannot decide (fail = \"closed\")"
            }
            Ruled::FailOpen => "the kernel forwards without these rules (fail = \"open\")",
        };
        tracing::info!(
            "while Tollway is there but gets no processor, changes or has died, {meanwhile}"
        );
    }
}
