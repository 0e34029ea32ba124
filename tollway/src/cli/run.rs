//! `tollway run`: forwards between live ports.

use std::path::PathBuf;

use tollway_dataplane::router::Router;

use super::CliError;
use super::summary::Summary;
use crate::compile::compile;
use crate::model::{Model, PortKind};
use crate::ports::steering::ModelSteering;
use crate::ports::{self, Devices, State};
use crate::replay::Files;
use crate::worker::{self, Stop};

/// Arguments of `tollway run`.
#[derive(clap::Args)]
#[command(
    after_help = "Where all ports are capture files, they are replayed as by `tollway replay`."
)]
pub(super) struct Args {
    /// The configuration file
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
}

pub(super) fn run(args: &Args) -> Result<(), CliError> {
    let mut model = super::load(&args.config)?;
    if let Some(files) = only_files(&model) {
        return super::replay::replay(&model, &files, false);
    }
    let no_descriptor = |error| {
        CliError::failed(format!("signals can not be waited for: {error}"), "Close other programs")
    };
    let stop = Stop::on_signals().map_err(no_descriptor)?;
    let (_post, mut inbox) = worker::post().map_err(no_descriptor)?;
    let umem = ports::umem(&model).ok_or_else(|| {
        CliError::failed("the memory for frames can not be had", "Lower the MTUs")
    })?;
    let steering = ModelSteering::load(&model);
    let mut programs = |model: &Model, port| steering.program(model, port);
    let devices = ports::open(&mut model, &umem, &mut programs);
    let mut devices = devices.map_err(|error| CliError::failed(&error, error.remedy()))?;
    let compiled = compile(&model).map_err(|error| CliError::failed(&error, error.remedy()))?;
    let mut router = Router::new(compiled.tables, umem, compiled.host);
    announce(&model, &devices);
    let pulse = steering.start(&devices);
    let ran = worker::run(&mut router, &mut devices, &stop, &mut inbox, pulse.as_ref());
    let done = report(&model, &router, &mut devices);
    ran.map_err(|error| {
        CliError::failed(format!("the ports can not be waited for: {error}"), "Start again")
    })?;
    done
}

/// The files of a configuration without any live port.
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

fn announce(model: &Model, devices: &Devices) {
    for ((port, link), behind) in model.ports.iter().zip(&model.links).zip(devices) {
        let what = match &port.kind {
            PortKind::Memory => "memory".to_owned(),
            PortKind::Capture { .. } => "capture files".to_owned(),
            PortKind::Tap { device } => format!("TAP device {device}"),
            PortKind::AfPacket { device } | PortKind::AfXdp { device, .. } => {
                format!("interface {device}, {}", behind.how())
            }
        };
        let [a, b, c, d, e, f] = link.mac.0;
        let state = match behind.state() {
            State::Up => String::new(),
            State::Down(why) | State::Gone(why) => format!(", not working: {why}"),
        };
        tracing::info!(
            "port {}: {what}, address {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}, MTU {}{state}",
            port.name,
            link.mtu,
        );
    }
    tracing::info!("forwarding");
}

/// Prints what became of the packets, and makes sure that none is missing.
fn report(model: &Model, router: &Router, devices: &mut Devices) -> Result<(), CliError> {
    let ports = model.ports.iter().map(|port| port.name.as_str()).collect();
    let missed = devices.iter_mut().map(|device| device.missed()).collect();
    let (counters, host) = (&router.counters, router.host.counters());
    let printed = super::print(Summary { ports, counters, host, missed }.text());
    router.counters.check().map_err(|sentence| {
        CliError::failed(sentence, "This is a defect of Tollway: report it with the table above")
    })?;
    for device in devices {
        device.finish().map_err(|error| CliError::failed(&error, error.remedy()))?;
    }
    printed
}
