//! Runs a router from the kernel's configuration.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use signal_hook::consts::SIGHUP;
use signal_hook::iterator::Signals;

use super::{Args, Machine, Prepared};
use crate::cli::CliError;
use crate::cli::engine;
use crate::cli::log::Log;
use crate::control::Backends;
use tollway_conntrack::Conntrack;
use tollway_controller::handle::Handle;
use tollway_controller::offload::Live;
use tollway_controller::{Settings, Startup, StartupError, netlink};
use tollway_dataplane::router::Router;
use tollway_linux::privileges;
use tollway_linux::sync::lock;
use tollway_model::Model;
use tollway_worker::connections::ConnectionFollower;
use tollway_worker::fdb::{FdbFollower, FdbSettings};
use tollway_worker::installer::{Installer, watch_bridges};
use tollway_worker::neighbours::{self, Follower};
use tollway_worker::ports;
use tollway_worker::service::{Beat, Service, Watchdog};
use tollway_xdp::State;

pub(super) fn run(args: &Args, log: &Arc<Log>) -> Result<(), CliError> {
    let audit_every = Duration::from_secs(args.audit.into());
    let settings = Settings {
        netlink: netlink::Settings { audit_every, ..netlink::Settings::default() },
        xdp_path: (args.xdp.into(), args.xdp_flows),
        engines: engine::of_devices(&args.engine, &args.devices, args.xdp.into())?,
    };
    let mut prepared = Prepared::new(args, None)?;
    // Programs that are loaded before the module of connections cannot ask it.
    if !tollway_xdp::has_conntrack() {
        let _ = Conntrack::open().and_then(|mut conntrack| conntrack.load());
    }
    // Takes more privileges than a router needs.
    tollway_xdp::prepare();
    // A thread inherits the privileges of the thread that starts it, so this comes first.
    privileges::give_up()
        .map_err(|error| CliError::failed(error, "Run it as root or by its unit"))?;
    log.detach();
    let mut startup = Startup::begin(&args.devices, settings).map_err(begin_failed)?;
    let mut model = startup.model();
    let idle = startup.idle();
    let compile = |memory: &_, model: &_| startup.compile(memory, model);
    let mut machine = Machine::open(&mut model, &idle, prepared.workers(args), compile)?;
    machine.set_kernel_has_rules();
    let parts = machine.parts(&model);
    let connections = connections(&machine, parts.updater.router(), args.exact_counters);
    let (watch, follow) = (parts.watch(&model), neighbours::Settings::default());
    // The controller already receives the events of devices.
    let follower = Follower::start(watch, parts.updater.clone(), Box::new(|_, _| {}), follow);
    let follower = follower.map_err(super::follow_failed)?;
    let of_neighbours = follower.beat();
    let fdb = fdb(parts.updater.router(), &model).map_err(super::follow_failed)?;
    let (of_bridges, fdb_paused) = (fdb.beat(), fdb.pause_reporter());
    let installer = Installer::new(parts, Some(follower)).with_bridges(fdb);
    let beat = Beat::default();
    let live = Live::new(machine.dispatcher.programs().map(|programs| lock(programs).counts()));
    live.set(startup.offload().clone());
    let handle = startup.handle();
    let (controller, offload) = (Some(handle.clone()), Some(live.clone()));
    let live_connections = connections.as_ref().map(|follower| follower.live().clone());
    let backends =
        Backends { controller, offload, connections: live_connections, ..Backends::default() };
    let server = prepared.serve(&machine, backends)?;
    machine.announce(&model);
    let room = machine.worker.umem.limit() - ports::LARGEST_HEADER;
    let most_mtu = u32::try_from(room).unwrap_or(u32::MAX);
    let controller =
        startup.start(installer, most_mtu, (live, beat.clone()), || tracing::info!("forwarding"));
    let controller = controller.map_err(super::follow_failed)?;
    audit_on_signal(handle.clone()).map_err(super::follow_failed)?;
    let service = Service::from_environment();
    service.ready();
    let watchdog = Watchdog::new(service, vec![beat, of_neighbours, of_bridges]);
    let on_pause = move |state: &State| {
        fdb_paused.paused();
        handle.paused(state);
    };
    let ran = machine.run(&mut prepared, watchdog, Some(Arc::new(on_pause)));
    drop(server);
    drop(connections);
    // The controller may be waiting for the worker, which has ended; this ends the wait.
    drop(prepared);
    drop(controller);
    machine.end(&model, ran)
}

/// Starts the thread that follows what the kernel's bridges have learned.
fn fdb(router: &Router, model: &Model) -> io::Result<FdbFollower> {
    let fdb = Arc::clone(&router.state().fdb);
    FdbFollower::start(watch_bridges(model), fdb, FdbSettings::default())
}

/// Starts the thread that enters connections of the kernel into the XDP programs' table; none if there are no programs, or
/// they cannot ask the kernel.
fn connections(
    machine: &Machine,
    router: &Arc<Router>,
    exact_counters: bool,
) -> Option<ConnectionFollower> {
    let programs = machine.dispatcher.programs().filter(|_| tollway_xdp::has_conntrack())?;
    let (parts, state) = {
        let programs = lock(programs);
        (programs.connections(), programs.state())
    };
    let warn = |error: &dyn std::fmt::Display| {
        tracing::warn!("the kernel forwards all connections that it tracks: {error}");
    };
    let parts = parts.inspect_err(|error| warn(error)).ok()?;
    let started = ConnectionFollower::start(parts, state, Arc::clone(router), exact_counters);
    started.inspect_err(|error| warn(error)).ok()
}

/// Starts an audit on SIGHUP, the signal on which other daemons reread a configuration file.
fn audit_on_signal(handle: Handle) -> io::Result<()> {
    let mut signals = Signals::new([SIGHUP])?;
    let thread = std::thread::Builder::new().name("signals".to_owned());
    thread.spawn(move || signals.forever().for_each(|_| handle.audit()))?;
    Ok(())
}

fn begin_failed(error: StartupError) -> CliError {
    match error {
        StartupError::Device(error) => CliError::usage(error, "`ip -brief link` lists the devices"),
        StartupError::System(_) | StartupError::Silent => {
            CliError::failed(error, "Run as root, on Linux 6.1 or newer")
        }
    }
}
