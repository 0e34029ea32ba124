//! `tollway lab rr`: requests and responses through two routers in turn.

use std::time::Duration;

use tollway_lab::rr::{Options, check, render, run as measure};

use super::traffic::seconds;
use super::{CliError, show};

/// Arguments of `tollway lab rr`.
#[derive(clap::Args)]
#[command(
    after_help = "Routers: kernel, tollway (on the user path), xdp, file (tollway by a configuration file), vrf (the same \
                  in a VRF). Rows: tcp-rr tcp-crr udp-rr tcp-stream, each \
                  with -ip4 or -ip6 behind."
)]
pub(super) struct Args {
    /// Take this router as the base
    #[arg(default_value = "kernel", value_name = "BASE")]
    base: String,
    /// Compare this router with it
    #[arg(default_value = "tollway", value_name = "HEAD")]
    head: String,
    /// Measure only these rows
    #[arg(long, num_args = 1.., value_name = "ROW")]
    only: Vec<String>,
    /// Measure both N times in turn
    #[arg(long, default_value_t = 9, value_name = "N")]
    pairs: usize,
    /// Measure for S seconds each time
    #[arg(long, default_value = "0.5", value_name = "S", value_parser = seconds)]
    time: Duration,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<(), CliError> {
    if args.time.is_zero() || args.pairs == 0 {
        let remedy = "Give both a number above zero";
        return Err(CliError::usage("--time or --pairs is zero", remedy));
    }
    let options = Options {
        only: args.only.clone(),
        routers: [args.base.clone(), args.head.clone()],
        pairs: args.pairs,
        time: args.time,
    };
    check(&options).map_err(|error| CliError::usage(error, "See `tollway lab rr --help`"))?;
    let report = measure(&options)
        .map_err(|error| CliError::failed(error, "See `tollway lab rr --help`"))?;
    show(&report, args.json, |report| render(report, [&args.base, &args.head]))
}
