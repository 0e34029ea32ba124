//! `tollway run`: forwards between live ports.

mod file;
mod kernel;
mod machine;
mod socket;

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::CliError;
use super::log::Log;
use crate::config;
use crate::control::{Powers, Server, Socket};
use crate::model::ExpressMode;
use crate::ports::sys;
use crate::worker::priority::Priority;
use crate::worker::{self, Inbox, Post, Stop};
use machine::Machine;

/// Arguments of `tollway run`.
#[derive(clap::Args)]
#[command(
    override_usage = "tollway run [OPTIONS] DEVICE...\n       tollway run [OPTIONS] --config FILE",
    after_help = "Where all ports of a configuration are capture files, they are replayed as by \
                  `tollway replay`."
)]
pub(super) struct Args {
    /// Network devices to forward between, by what the kernel is configured with: addresses, routes,
    /// rules, neighbours, VLANs, VRFs, nftables. What Tollway can not do exactly so, the kernel does
    #[arg(value_name = "DEVICE", required_unless_present = "config", conflicts_with = "config")]
    devices: Vec<String>,
    /// A configuration file, in place of the kernel's configuration
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Which devices have the express lane: those without zero-copy, all, or none
    #[arg(long, value_enum, default_value = "auto", conflicts_with = "config")]
    express: Express,
    /// Flows of each family that the express lane holds at most
    #[arg(long, value_name = "NUMBER", default_value_t = config::DEFAULT_FLOWS,
          value_parser = clap::value_parser!(u32).range(FLOWS), conflicts_with = "config")]
    express_flows: u32,
    /// How often all that is known of the kernel is compared with what it has
    #[arg(long, value_name = "SECONDS", default_value_t = 60,
          value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "config")]
    audit: u32,
    /// The control socket, by which `tollway show` and `tollway top` ask (default: what the
    /// configuration says, else /run/tollway/net-NAMESPACE.sock for root and
    /// $XDG_RUNTIME_DIR/tollway.sock for others)
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// How soon the worker gets a processor that others want too
    #[arg(long, value_enum, default_value = "realtime")]
    priority: Priority,
    /// Take the ports over from the router that has the same control socket; the kernel forwards
    /// meanwhile
    #[arg(long)]
    replace: bool,
}

/// Flows that the express lane can have.
const FLOWS: RangeInclusive<i64> = *config::FLOWS.start() as i64..=*config::FLOWS.end() as i64;

/// Which devices have the express lane.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Express {
    Auto,
    On,
    Off,
}

impl From<Express> for ExpressMode {
    fn from(express: Express) -> Self {
        match express {
            Express::Auto => Self::Auto,
            Express::On => Self::On,
            Express::Off => Self::Off,
        }
    }
}

pub(super) fn run(args: &Args, log: &Arc<Log>) -> Result<(), CliError> {
    match &args.config {
        Some(file) => file::run(args, file, log),
        None => kernel::run(args, log),
    }
}

/// What a router needs before it has ports.
struct Stage {
    stop: Stop,
    post: Post,
    inbox: Inbox,
    socket: Option<Socket>,
    priority: Priority,
}

impl Stage {
    /// Listens to signals, and takes the control socket, from a predecessor if that is wanted.
    /// `usual` is where the socket is if the arguments do not say.
    fn set(args: &Args, usual: Option<&Path>) -> Result<Self, CliError> {
        has_address_space()?;
        let no_descriptor = |error| {
            let what = format!("signals can not be waited for: {error}");
            CliError::failed(what, "Close other programs")
        };
        let stop = Stop::on_signals().map_err(no_descriptor)?;
        let (post, inbox) = worker::post().map_err(no_descriptor)?;
        let path = args.socket.as_deref().or(usual);
        if args.replace {
            socket::succeed(path)?;
        }
        Ok(Self { stop, post, inbox, socket: socket::open(path)?, priority: args.priority })
    }

    /// Answers those who ask by the control socket, if there is one, from now on.
    fn serve(&mut self, machine: &Machine, powers: Powers) -> Result<Option<Server>, CliError> {
        let Some(socket) = self.socket.take() else { return Ok(None) };
        tracing::info!("control socket {}", socket.path().display());
        let stopper = self.stop.stopper();
        let hand_over = machine.hand_over(stopper);
        let powers = Powers { hand_over: Some(hand_over), ..powers };
        let server = Server::start(socket, self.post.clone(), machine.board.clone(), powers);
        server.map(Some).map_err(|error| CliError::failed(&error, error.remedy()))
    }
}

/// Address space that a router takes, bytes. Most of it is kept free for tables to grow, and takes no memory.
const ADDRESS_SPACE: u64 = 1600 << 20;

/// Makes sure that the tables fit in the address space that this process may have.
fn has_address_space() -> Result<(), CliError> {
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

/// The kernel's messages can not be had.
fn unfollowed(error: std::io::Error) -> CliError {
    CliError::failed(format!("the kernel can not be followed: {error}"), "Close other programs")
}
