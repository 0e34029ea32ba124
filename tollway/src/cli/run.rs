//! `tollway run`: forwards between live ports.

use std::path::PathBuf;

use tollway_dataplane::router::Router;

use super::CliError;
use super::summary::Summary;
use crate::compile::compile;
use crate::control::{self, Board, Names, Server, Socket, SocketError};
use crate::model::{Model, PortKind};
use crate::ports::steering::ModelSteering;
use crate::ports::{self, Devices, State};
use crate::replay::Files;
use crate::worker::{self, Post, Stop};

/// Arguments of `tollway run`.
#[derive(clap::Args)]
#[command(
    after_help = "Where all ports are capture files, they are replayed as by `tollway replay`."
)]
pub(super) struct Args {
    /// The configuration file
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
    /// The control socket, by which `tollway show` and `tollway top` ask (default: what the
    /// configuration says, else /run/tollway/net-NAMESPACE.sock for root and
    /// $XDG_RUNTIME_DIR/tollway.sock for others)
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
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
    let (post, mut inbox) = worker::post().map_err(no_descriptor)?;
    let socket = control_socket(args, &model)?;
    let umem = ports::umem(&model).ok_or_else(|| {
        CliError::failed("the memory for frames can not be had", "Lower the MTUs")
    })?;
    let steering = ModelSteering::load(&model);
    let mut programs = |model: &Model, port| steering.program(model, port);
    let devices = ports::open(&mut model, &umem, &mut programs);
    let mut devices = devices.map_err(|error| CliError::failed(&error, error.remedy()))?;
    let compiled = compile(&model).map_err(|error| CliError::failed(&error, error.remedy()))?;
    let mut router = Router::new(compiled.tables, umem, compiled.host);
    let board = Board::new(Names::from(&model));
    let server = socket.map(|socket| serve(socket, post, board)).transpose()?;
    announce(&model, &devices);
    let pulse = steering.start(&devices);
    let ran = worker::run(&mut router, &mut devices, &stop, &mut inbox, pulse.as_ref());
    drop(server);
    let done = report(&model, &router, &mut devices);
    ran.map_err(|error| {
        CliError::failed(format!("the ports can not be waited for: {error}"), "Start again")
    })?;
    done
}

/// Makes the control socket. One that was asked for must be had; without one at its usual place the
/// router forwards as well, unless there is another router already.
fn control_socket(args: &Args, model: &Model) -> Result<Option<Socket>, CliError> {
    let failed = |error: SocketError| CliError::failed(&error, error.remedy());
    if let Some(path) = args.socket.as_ref().or(model.control.as_ref()) {
        return Socket::open(path, false).map(Some).map_err(failed);
    }
    let mut why = "there is no usual place for it, since XDG_RUNTIME_DIR is not set".to_owned();
    for path in control::default_paths() {
        match Socket::open(&path, false) {
            Ok(socket) => return Ok(Some(socket)),
            Err(error @ SocketError::System { .. }) => why = error.to_string(),
            Err(error) => return Err(failed(error)),
        }
    }
    tracing::warn!("going on without a control socket: {why}; name one with --socket");
    Ok(None)
}

fn serve(socket: Socket, post: Post, board: Board) -> Result<Server, CliError> {
    tracing::info!("control socket {}", socket.path().display());
    Server::start(socket, post, board).map_err(|error| CliError::failed(&error, error.remedy()))
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
        let state = match behind.state() {
            State::Up => String::new(),
            State::Down(why) | State::Gone(why) => format!(", not working: {why}"),
        };
        tracing::info!("port {}: {what}, address {}, MTU {}{state}", port.name, link.mac, link.mtu,);
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
