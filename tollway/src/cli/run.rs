//! `tollway run`: forwards between live ports.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tollway_dataplane::port::Port as _;
use tollway_dataplane::router::Router;

use super::CliError;
use super::summary::Summary;
use crate::compile::{compile, rule_links};
use crate::control::{
    self, Board, Client, ClientError, Command, HandedOver, Names, Powers, Request, Server, Socket,
    SocketError,
};
use crate::filter::log::{Journal, Logger};
use crate::kernel::{self, Follower, Watch};
use crate::model::{Model, PortKind};
use crate::ports::steering::ModelSteering;
use crate::ports::{self, Devices, Facts, State};
use crate::reload::{Reloader, Started};
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
    /// Take the ports over from the router that has the same control socket; the kernel forwards
    /// meanwhile
    #[arg(long)]
    replace: bool,
}

/// A predecessor has so long to end.
const HAND_OVER: Duration = Duration::from_secs(10);

pub(super) fn run(args: &Args) -> Result<(), CliError> {
    let mut model = super::load(&args.config)?;
    let configured = model.clone();
    if let Some(files) = only_files(&model) {
        return super::replay::replay(&model, &files, false);
    }
    let no_descriptor = |error| {
        CliError::failed(format!("signals can not be waited for: {error}"), "Close other programs")
    };
    let stop = Stop::on_signals().map_err(no_descriptor)?;
    let (post, mut inbox) = worker::post().map_err(no_descriptor)?;
    if args.replace {
        succeed(args.socket.as_ref().or(model.control.as_ref()))?;
    }
    let socket = control_socket(args, &model)?;
    let umem = ports::umem(&model).ok_or_else(|| {
        CliError::failed("the memory for frames can not be had", "Lower the MTUs")
    })?;
    let steering = Arc::new(ModelSteering::load(&model));
    let mut programs = |_: &Model, port| steering.program(port);
    let devices = ports::open(&mut model, &umem, &mut programs);
    let mut devices = devices.map_err(|error| CliError::failed(&error, error.remedy()))?;
    let compiled = compile(&model).map_err(|error| CliError::failed(&error, error.remedy()))?;
    let mut router = Router::new(compiled.tables, umem, compiled.host);
    let lane = steering.lane(&model).map_err(|error| {
        CliError::failed(
            format!("the express lane can not be had: {error}"),
            "Set express = \"off\"",
        )
    })?;
    let _watch = lane.map(|(lane, watch)| {
        router.express = Some(lane);
        watch
    });
    let journal = journal(&model)?;
    let board = Board::new(Names::from(&model));
    let started = Started {
        file: args.config.clone(),
        configured,
        in_force: model.clone(),
        facts: devices.iter().map(|device| Facts::of(device.as_ref())).collect(),
        largest_mtu: router.umem.limit() - ports::LARGEST_HEADER,
        kernel: devices.iter().map(|device| device.has_kernel()).collect(),
        board: board.clone(),
        steering: Arc::clone(&steering),
        journal: journal.clone(),
    };
    let reloader = live(started, &model, &post).map_err(|error| {
        CliError::failed(format!("the kernel can not be followed: {error}"), "Close other programs")
    })?;
    let (stopper, left) = (stop.stopper(), Arc::clone(&steering));
    let hand_over = move || {
        left.leave();
        stopper.stop();
    };
    let powers = Powers { reloader: Some(reloader), hand_over: Some(Box::new(hand_over)) };
    let server = socket.map(|socket| serve(socket, post, board, powers)).transpose()?;
    announce(&model, &devices);
    warn_of_kernel(&model);
    steering.set_ruled(model.filter.is_some());
    let pulse = steering.start(&devices);
    let ran = worker::run(&mut router, &mut devices, &stop, &mut inbox, pulse.as_ref(), &journal);
    drop(server);
    let done = report(&model, &mut router, &mut devices);
    ran.map_err(|error| {
        CliError::failed(format!("the ports can not be waited for: {error}"), "Start again")
    })?;
    done
}

/// Follows what changes while the router runs: the configuration at its file's owner's wish, and the
/// kernel's neighbours where the kernel is the host.
fn live(started: Started, model: &Model, post: &Post) -> io::Result<Reloader> {
    let watch = Watch::of(model, |port| started.kernel.get(port.0) == Some(&true));
    Reloader::start(started, post.clone(), |reloader| {
        if watch.is_empty() {
            return Ok(None);
        }
        let reloader = reloader.clone();
        let on_device = Box::new(move |port, facts| reloader.device_changed(port, facts));
        Follower::start(watch, post.clone(), on_device, kernel::Settings::default()).map(Some)
    })
}

/// Has the router at a control socket hand its ports over, and waits until it has ended. Where nobody
/// is there is nothing to take over.
fn succeed(path: Option<&PathBuf>) -> Result<(), CliError> {
    let failed = |error: ClientError| CliError::control(&error);
    let mut client = match Client::connect(path.map(PathBuf::as_path)) {
        Ok(client) => client,
        Err(ClientError::Nobody { .. } | ClientError::Nowhere) => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    let who = format!("the tollway at {}", client.path().display());
    let unwatched = |error: io::Error| {
        CliError::failed(
            format!("{who} can not be waited for: {}", ports::why(&error)),
            "Start again",
        )
    };
    let Some(predecessor) = client.peer().map_err(unwatched)? else {
        let what = format!("{who} is in another PID namespace, where nobody would see it end");
        let remedy = "Replace it from that PID namespace, or use Linux 6.5 or newer";
        return Err(CliError::failed(what, remedy));
    };
    let HandedOver { .. } = client.request(&Request::Do(Command::HandOver)).map_err(failed)?;
    if !predecessor.ends_within(HAND_OVER).map_err(unwatched)? {
        let what = format!("{who} was asked to hand its ports over and does not end");
        return Err(CliError::failed(what, "End it; the kernel forwards meanwhile"));
    }
    tracing::info!("{who} has handed its ports over");
    Ok(())
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

fn serve(socket: Socket, post: Post, board: Board, powers: Powers) -> Result<Server, CliError> {
    tracing::info!("control socket {}", socket.path().display());
    let server = Server::start(socket, post, board, powers);
    server.map_err(|error| CliError::failed(&error, error.remedy()))
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

/// The kernel forwards by its own rules wherever Tollway does not, and does not know those of a file.
fn warn_of_kernel(model: &Model) {
    let is_steered = |port: &crate::model::Port| matches!(port.kind, PortKind::AfXdp { .. });
    if model.filter.is_some() && model.ports.iter().any(is_steered) {
        tracing::warn!(
            "while Tollway does not run, the kernel forwards by its own rules only: load them there too"
        );
    }
}

/// Where what the rules log is written.
fn journal(model: &Model) -> Result<Journal, CliError> {
    let logger =
        Logger::of(model.filter.as_deref(), &rule_links(model), model.filter_log.as_deref());
    let logger = logger.map_err(|error| CliError::failed(&error, error.remedy()))?;
    Ok(Journal::new(logger))
}

/// Prints what became of the packets, and makes sure that none is missing.
fn report(model: &Model, router: &mut Router, devices: &mut Devices) -> Result<(), CliError> {
    let ports = model.ports.iter().map(|port| port.name.as_str()).collect();
    let missed = devices.iter_mut().map(|device| device.missed()).collect();
    let counters = router.counters_in_all();
    let host = router.host.counters();
    let printed = super::print(Summary { ports, counters: &counters, host, missed }.text());
    // All of them, whatever went wrong with one: they give their devices back to the kernel.
    let finished: Vec<_> = devices.iter_mut().map(|device| device.finish()).collect();
    counters.check().map_err(|sentence| {
        CliError::failed(sentence, "This is a defect of Tollway: report it with the table above")
    })?;
    let finished: Result<(), _> = finished.into_iter().collect();
    finished.map_err(|error| CliError::failed(&error, error.remedy()))?;
    printed
}
