//! `tollway lab study`: repeats published measurements.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tollway_lab::studies::{self, Options, STUDIES, Size};

use super::{CliError, print, seconds, show};

/// Arguments of `tollway lab study`.
#[derive(clap::Args)]
#[command(
    after_help = "Each study has a page in docs/studies/: the question, what was published, what was found."
)]
pub(super) struct Args {
    /// Name the study
    #[arg(required_unless_present = "list")]
    name: Option<String>,
    /// List the studies
    #[arg(long, conflicts_with_all = ["name", "json", "svg", "html"])]
    list: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Draw the result to this file, as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write result and picture as HTML to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Measure for S seconds
    #[arg(long, default_value_t = 45.0, value_name = "S", value_parser = seconds)]
    seconds: f64,
    /// Run N processes, each one observation
    ///
    /// Few processes prove nothing.
    #[arg(long, default_value_t = 15, value_name = "N", value_parser = clap::value_parser!(u16).range(3..=1000))]
    processes: u16,
    /// Measure a slice for each line on stdin, as one of those processes
    #[arg(long, hide = true, conflicts_with_all = ["json", "svg", "html", "list"])]
    serve: bool,
}

pub(super) fn run(args: &Args) -> Result<(), CliError> {
    let Some(name) = &args.name else { return list() };
    let study = studies::study(name)
        .map_err(|error| CliError::usage(error, "Run `tollway lab study --list`"))?;
    let failed = |error| CliError::failed(error, format!("See docs/studies/{}.md", study.name));
    if args.serve {
        return studies::serve(study, io::stdin().lock(), io::stdout().lock()).map_err(failed);
    }
    let program = std::env::current_exe().map_err(|error| {
        CliError::failed(format!("this program cannot be found: {error}"), "Install it again")
    })?;
    let options = Options {
        program: Some(program),
        processes: usize::from(args.processes),
        time: Duration::from_secs_f64(args.seconds),
        size: Size::Full,
    };
    let outcome = studies::run(study, &options).map_err(failed)?;
    let unwritten = |error| CliError::failed(error, "Name a file that can be written");
    if let Some(path) = &args.svg {
        studies::write_svg(&outcome, path).map_err(unwritten)?;
    }
    if let Some(path) = &args.html {
        studies::write_html(&outcome, path).map_err(unwritten)?;
    }
    show(&outcome, args.json, studies::render)
}

fn list() -> Result<(), CliError> {
    let line = |study: &studies::Study| format!("{:<14} {}\n", study.name, study.question);
    print(STUDIES.iter().map(line).collect::<String>())
}
