//! `tollway lab sink`: counts the generator's frames at a device.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tollway_lab::generate::track::Wanted;
use tollway_lab::generate::{self, Error, sink};

use super::generate::{sink as open, stop_flag, to_cli_error};
use super::port::Via;
use super::traffic::seconds;
use super::{CliError, show};

/// Arguments of `tollway lab sink`.
#[derive(clap::Args)]
#[command(
    after_help = "The command ends after --time or at SIGINT. Then it reports the received frames."
)]
pub(super) struct Args {
    /// Receive at this device
    #[arg(short = 'i', long, value_name = "DEV")]
    device: String,
    /// Choose how to receive
    #[arg(long, default_value = "auto", value_enum)]
    via: Via,
    /// Receive for S seconds [default: until a signal]
    #[arg(long, value_name = "S", value_parser = seconds)]
    time: Option<Duration>,
    /// Sample the latency of one frame in N
    #[arg(long, default_value_t = 1, value_name = "N")]
    sample: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<(), CliError> {
    let report = receive(args).map_err(|error| to_cli_error(&error))?;
    show(&report, args.json, generate::render)
}

fn receive(args: &Args) -> Result<generate::Report, Error> {
    let stop = stop_flag()?;
    let sink = open(&args.device, args.via, Wanted::Marked, args.sample)?;
    let start = Instant::now();
    while !stop.load(Ordering::Relaxed) && args.time.is_none_or(|time| start.elapsed() < time) {
        std::thread::sleep(Duration::from_millis(10));
    }
    let time = start.elapsed();
    Ok(sink::report(&sink.end()?, time))
}
