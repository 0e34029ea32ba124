//! Forwarding by what the kernel is configured with.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use signal_hook::consts::SIGHUP;
use signal_hook::iterator::Signals;

use super::{Args, Machine, Stage};
use crate::cli::CliError;
use crate::cli::log::Log;
use crate::control::Powers;
use crate::force::Force;
use crate::kernel::{self, Follower};
use crate::mirror::coverage::Live;
use crate::mirror::handle::Handle;
use crate::mirror::{Mirror, MirrorError, Settings, netlink};
use crate::ports;
use crate::privileges;
use crate::service::{Beat, Service, Watchdog};
use crate::sync::lock;

pub(super) fn run(args: &Args, log: &Arc<Log>) -> Result<(), CliError> {
    let audit_every = Duration::from_secs(args.audit.into());
    let settings = Settings {
        netlink: netlink::Settings { audit_every, ..netlink::Settings::default() },
        express: (args.express.into(), args.express_flows),
    };
    let mut stage = Stage::set(args, None)?;
    // Threads have the privileges of the one that begins them.
    privileges::give_up()
        .map_err(|error| CliError::failed(error, "Run it as root or by its unit"))?;
    log.detach();
    let mut mirror = Mirror::begin(&args.devices, settings).map_err(unmirrored)?;
    let mut model = mirror.model();
    let idle = mirror.idle();
    let compile = |model: &_| mirror.compile(model);
    let mut machine = Machine::open(&mut model, &idle, stage.post.clone(), compile)?;
    machine.router.kernel_has_rules = true;
    let parts = machine.parts(&model);
    let (watch, follow) = (parts.watch(&model), kernel::Settings::default());
    // What devices say of themselves, the mirror hears.
    let follower = Follower::start(watch, stage.post.clone(), Box::new(|_, _| {}), follow);
    let force = Force::new(parts, Some(follower.map_err(super::unfollowed)?));
    let beat = Beat::default();
    let live = Live::new(machine.steering.steering().map(|steering| lock(steering).counts()));
    live.set(mirror.coverage().clone());
    let handle = mirror.handle();
    let (mirrored, coverage) = (Some(handle.clone()), Some(live.clone()));
    let powers = Powers { mirror: mirrored, coverage, ..Powers::default() };
    let server = stage.serve(&machine, powers)?;
    machine.announce(&model);
    let room = machine.router.umem.limit() - ports::LARGEST_HEADER;
    let most_mtu = u32::try_from(room).unwrap_or(u32::MAX);
    let keep = mirror.start(force, most_mtu, (live, beat.clone()), || tracing::info!("forwarding"));
    let keep = keep.map_err(super::unfollowed)?;
    audit_on_signal(handle.clone()).map_err(super::unfollowed)?;
    let service = Service::from_environment();
    service.ready();
    let watchdog = Watchdog::new(service, vec![beat]);
    let ran =
        machine.run(&mut stage, watchdog, Some(Box::new(move |state| handle.was_away(state))));
    drop(server);
    // It waits for the worker, who is no longer there.
    drop(stage);
    drop(keep);
    machine.end(&model, ran)
}

/// Compares everything on SIGHUP, where a configuration's file would be read anew.
fn audit_on_signal(handle: Handle) -> io::Result<()> {
    let mut signals = Signals::new([SIGHUP])?;
    let thread = std::thread::Builder::new().name("signals".to_owned());
    thread.spawn(move || signals.forever().for_each(|_| handle.audit()))?;
    Ok(())
}

fn unmirrored(error: MirrorError) -> CliError {
    match error {
        MirrorError::Device(error) => CliError::usage(error, "`ip -brief link` lists the devices"),
        MirrorError::System(_) | MirrorError::Silent => {
            CliError::failed(error, "Run as root, on Linux 6.1 or newer")
        }
    }
}
