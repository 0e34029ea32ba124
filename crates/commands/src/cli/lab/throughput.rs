//! `tollway lab throughput`: finds the highest rate with little loss, as in RFC 2544.

use std::time::Duration;

use tollway_lab::generate::search::Options;
use tollway_lab::generate::throughput::{Between, SIZES, render, run as measure};
use tollway_lab::generate::{Error, load::Rate, throughput};
use tollway_lab::report::Report;

use super::generate::{stop_flag, to_cli_error};
use super::port::Via;
use super::traffic::{Frames, check_device, seconds};
use super::{CliError, show};

/// Arguments of `tollway lab throughput`.
#[derive(clap::Args)]
#[command(
    after_help = "Rates are looked for by short trials first, then by whole ones; sizes are with check sequence."
)]
pub(super) struct Args {
    /// Send out of this device
    #[arg(short = 'i', long, value_name = "DEV")]
    device: String,
    /// Receive at this device
    #[arg(long, value_name = "DEV")]
    sink: String,
    /// Send frames of these sizes
    ///
    /// Default: 64 128 256 512 1024 1280 1518, raised to fit all headers.
    #[arg(short = 's', long, num_args = 1.., value_name = "BYTES")]
    size: Vec<usize>,
    #[command(flatten)]
    frames: Frames,
    /// Start N threads, each on its own CPU
    #[arg(short = 't', long, default_value_t = 1, value_name = "N")]
    threads: usize,
    /// Run the first thread on this processor
    #[arg(short = 'f', long, default_value_t = 0, value_name = "CPU")]
    first_cpu: usize,
    /// Hand over N frames at once
    #[arg(short = 'b', long, default_value_t = 32, value_name = "N")]
    burst: usize,
    /// Find the rate for each of these shares of loss
    #[arg(long, num_args = 1.., default_values_t = [0.0, 0.005], value_name = "SHARE")]
    loss: Vec<f64>,
    /// Send for S seconds in a trial
    #[arg(long, default_value = "2", value_name = "S", value_parser = seconds)]
    trial: Duration,
    /// Spend at most S seconds on one size
    #[arg(long, default_value = "120", value_name = "S", value_parser = seconds)]
    within: Duration,
    /// Stop when good and bad rate differ by this share
    #[arg(long, default_value_t = 0.01, value_name = "SHARE")]
    precision: f64,
    /// Try no higher rate
    #[arg(long, value_name = "RATE")]
    most: Option<Rate>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<(), CliError> {
    let report = look(args).map_err(|error| to_cli_error(&error))?;
    show(&report, args.json, render)
}

fn look(args: &Args) -> Result<Report<throughput::Row>, Error> {
    let most_pps = match args.most {
        None => None,
        Some(Rate::Pps(pps)) => Some(pps),
        Some(Rate::Bps(_)) => {
            let what = "--most is a rate of frames, because it holds for all sizes";
            return Err(Error::usage(what, "Give --most in pps"));
        }
    };
    let least = args.frames.smallest();
    let mut sizes: Vec<_> = args.size.iter().map(|size| (*size, 1)).collect();
    if sizes.is_empty() {
        sizes = SIZES.iter().map(|size| ((*size).max(least), 1)).collect();
        sizes.dedup();
    }
    let spec = args.frames.spec(Some(&args.device), sizes)?;
    check_device(&args.sink)?;
    let load = tollway_lab::generate::load::Load {
        rate: None,
        count: None,
        time: Some(args.trial),
        burst: args.burst,
        threads: args.threads,
        first_cpu: args.first_cpu,
    };
    load.check()?;
    Via::Xdp.for_sender(&args.device)?;
    let between = Between {
        device: &args.device,
        mtu: check_device(&args.device)?.mtu,
        sink: &args.sink,
        threads: args.threads,
        first_cpu: args.first_cpu,
        burst: args.burst,
    };
    let options = Options {
        trial: args.trial,
        within: args.within,
        losses: args.loss.clone(),
        precision: args.precision,
        most_pps,
    };
    let stop = stop_flag()?;
    measure(&spec, between, &options, &stop)
}
