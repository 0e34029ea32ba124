//! `tollway lab`: the bench.

use super::CliError;

/// Arguments of `tollway lab`.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(clap::Subcommand)]
enum Bench {
    /// Measure what forwarding costs a packet, and what each feature adds
    Tolls(TollsArgs),
}

/// Arguments of `tollway lab tolls`.
#[derive(clap::Args)]
#[command(
    after_help = "Figures are TSC clocks and ns a packet, forwarding alone, on one core, memory to memory."
)]
struct TollsArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Measure only these rows
    #[arg(long, num_args = 1.., value_name = "NAME")]
    only: Vec<String>,
}

pub(super) fn run(args: &Args) -> Result<(), CliError> {
    let Bench::Tolls(args) = &args.bench;
    let report = tollway_lab::tolls::run(&args.only)
        .map_err(|error| CliError::usage(error, "Run `tollway lab tolls` for all rows"))?;
    if args.json {
        let json = serde_json::to_string_pretty(&report)
            .map_err(|error| CliError::failed(error, "Report this as a defect"))?;
        super::print(format_args!("{json}\n"))
    } else {
        super::print(tollway_lab::tolls::render(&report))
    }
}
