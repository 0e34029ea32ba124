//! `tollway run`: forwards between live ports.

mod file;
mod kernel;
mod machine;
mod socket;

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::CliError;
use super::engine::{self, EngineArg};
use super::log::Log;
use crate::control::{Backends, Server, Socket};
use machine::Machine;
use tollway_linux::sys;
use tollway_model::config;
use tollway_model::{Engine, XdpPathMode};
use tollway_worker::priority::Priority;
use tollway_worker::{self, Stop, WorkerMailbox, WorkerMailboxReceiver};

/// Arguments of `tollway run`.
#[derive(clap::Args)]
#[command(
    override_usage = "tollway run [OPTIONS] DEVICE...\n       tollway run [OPTIONS] --config FILE",
    after_help = "Where all ports of a configuration are capture files, they are replayed as by \
                  `tollway replay`."
)]
pub(super) struct Args {
    /// Forward between these network devices; a bridge stands for its ports
    ///
    /// Follow the kernel's addresses, routes, policy rules and neighbours.
    ///
    /// Follow its VLANs, VRFs and nftables rules likewise.
    ///
    /// Traffic that Tollway cannot forward exactly so takes the kernel path.
    #[arg(value_name = "DEVICE", required_unless_present = "config", conflicts_with = "config")]
    devices: Vec<String>,
    /// Use this file instead of the kernel's configuration
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Select the devices that have the XDP path
    ///
    /// auto: network cards without zero-copy; on: all devices (engine xdp); off: none (engine user).
    ///
    /// It concerns devices that --engine says nothing about.
    #[arg(long, value_enum, default_value = "auto", conflicts_with = "config")]
    xdp: XdpPathArg,
    /// Select what decides about packets of all devices, or of one
    ///
    /// xdp: an XDP program, and the user path; tc: a tc program, and the kernel for the rest.
    ///
    /// user: the user path alone; auto: xdp on network cards but virtio-net, else tc (the default).
    #[arg(long, value_name = "[DEVICE=]ENGINE", value_parser = engine::parse,
          conflicts_with = "config")]
    engine: Vec<EngineArg>,
    /// Limit the flows of each family in the XDP path
    #[arg(long, value_name = "NUMBER", default_value_t = config::DEFAULT_FLOWS,
          value_parser = clap::value_parser!(u32).range(FLOWS), conflicts_with = "config")]
    xdp_flows: u32,
    /// Leave connections to the kernel while it counts their packets
    ///
    /// It does with net.netfilter.nf_conntrack_acct. Only the kernel can write its counters.
    #[arg(long, conflicts_with = "config")]
    exact_counters: bool,
    /// Set how often to compare all state with the kernel
    #[arg(long, value_name = "SECONDS", default_value_t = 60,
          value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "config")]
    audit: u32,
    /// Set the control socket of `tollway show` and `top`
    ///
    /// Default for root: /run/tollway/net-NAMESPACE.sock.
    ///
    /// Default for other users: $XDG_RUNTIME_DIR/tollway.sock.
    ///
    /// A configuration file may name another default.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Set the number of workers, threads that forward
    ///
    /// Worker number q modulo NUMBER serves queue q of each device.
    ///
    /// Default: as many as a device has receive queues, at most one for each processor.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(WORKERS))]
    workers: Option<u16>,
    /// Set the workers' priority for the processor
    #[arg(long, value_enum, default_value = "realtime")]
    priority: PriorityArg,
    /// Take over the ports of the router at this socket
    ///
    /// The kernel forwards meanwhile.
    #[arg(long)]
    replace: bool,
}

/// The numbers of flows that the XDP path can have.
const FLOWS: RangeInclusive<i64> = *config::FLOWS.start() as i64..=*config::FLOWS.end() as i64;

/// The numbers of workers that a router can have.
const WORKERS: RangeInclusive<i64> = 1..=tollway_xdp::MOST_WORKERS as i64;

/// The devices that have the XDP path.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum XdpPathArg {
    Auto,
    On,
    Off,
}

impl From<XdpPathArg> for Engine {
    fn from(xdp: XdpPathArg) -> Self {
        match xdp {
            XdpPathArg::Auto => Self::Auto,
            XdpPathArg::On => Self::Xdp,
            XdpPathArg::Off => Self::User,
        }
    }
}

impl From<XdpPathArg> for XdpPathMode {
    fn from(xdp: XdpPathArg) -> Self {
        match xdp {
            XdpPathArg::Auto => Self::Auto,
            XdpPathArg::On => Self::On,
            XdpPathArg::Off => Self::Off,
        }
    }
}

/// The workers' priorities.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum PriorityArg {
    /// At once: before all threads that are not real-time, unless always busy
    Realtime,
    /// Before ordinary programs (nice -20)
    High,
    /// As any program
    Normal,
}

impl From<PriorityArg> for Priority {
    fn from(priority: PriorityArg) -> Self {
        match priority {
            PriorityArg::Realtime => Self::Realtime,
            PriorityArg::High => Self::High,
            PriorityArg::Normal => Self::Normal,
        }
    }
}

pub(super) fn run(args: &Args, log: &Arc<Log>) -> Result<(), CliError> {
    match &args.config {
        Some(file) => file::run(args, file, log),
        None => kernel::run(args, log),
    }
}

/// The parts of a router that exist before its ports.
struct Prepared {
    stop: Stop,
    mailbox: WorkerMailbox,
    mailbox_receiver: WorkerMailboxReceiver,
    socket: Option<Socket>,
    priority: Priority,
}

impl Prepared {
    /// Installs the signal handlers and opens the control socket; takes the socket over from a
    /// predecessor if `--replace` is given. `usual` is the socket's path if the arguments name none.
    fn new(args: &Args, usual: Option<&Path>) -> Result<Self, CliError> {
        check_address_space()?;
        let no_descriptor = |error| {
            let what = format!("the signal handlers cannot be installed: {error}");
            CliError::failed(what, "Close other programs")
        };
        let stop = Stop::on_signals().map_err(no_descriptor)?;
        let (mailbox, mailbox_receiver) = tollway_worker::mailbox().map_err(no_descriptor)?;
        let path = args.socket.as_deref().or(usual);
        if args.replace {
            socket::take_over(path)?;
        }
        Ok(Self {
            stop,
            mailbox,
            mailbox_receiver,
            socket: socket::open(path)?,
            priority: args.priority.into(),
        })
    }

    /// The mailbox of worker 0, and the number of workers.
    fn workers(&self, args: &Args) -> (WorkerMailbox, Option<usize>) {
        (self.mailbox.clone(), args.workers.map(usize::from))
    }

    /// Starts to serve the control socket, if there is one.
    fn serve(&mut self, machine: &Machine, backends: Backends) -> Result<Option<Server>, CliError> {
        let Some(socket) = self.socket.take() else { return Ok(None) };
        tracing::info!("control socket {}", socket.path().display());
        let stopper = self.stop.stopper();
        let hand_over = machine.hand_over(stopper);
        let (hand_over, others) = (Some(hand_over), machine.others());
        let backends = Backends { hand_over, others, ..backends };
        let server =
            Server::start(socket, self.mailbox.clone(), machine.name_table.clone(), backends);
        server.map(Some).map_err(|error| CliError::failed(&error, error.remedy()))
    }
}

/// The address space that a router reserves, bytes. Most of it lets tables grow, and uses no
/// memory.
const ADDRESS_SPACE: u64 = 1600 << 20;

/// Checks that the tables fit into the address space that this process may use.
fn check_address_space() -> Result<(), CliError> {
    match sys::address_space_limit() {
        Ok(limit) if limit < ADDRESS_SPACE => Err(CliError::failed(
            format!(
                "a router takes {} MiB of address space, and this process may have {}",
                ADDRESS_SPACE >> 20,
                limit >> 20
            ),
            "Raise the limit with `ulimit -v unlimited`, or LimitAS=infinity in its unit",
        )),
        _ => Ok(()),
    }
}

/// The error of a router that cannot receive the kernel's messages.
fn follow_failed(error: std::io::Error) -> CliError {
    CliError::failed(
        format!("the kernel's notifications cannot be received: {error}"),
        "Close other programs",
    )
}
