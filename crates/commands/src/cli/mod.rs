//! The command line: one file for each subcommand.

mod check;
mod detach;
mod engine;
mod lab;
mod log;
mod manual;
mod offload;
mod reload;
mod replay;
mod run;
mod set;
mod show;
mod summary;
mod sync;
mod text;
mod top;

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Parser, Subcommand};
use serde::Serialize;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::control;
use log::Log;
use tollway_firewall::mistake::Mistake;
use tollway_model::Model;
use tollway_model::config::{self, report};

/// A software router for Linux that posts what each feature costs, in ns per packet
#[derive(Parser)]
#[command(name = "tollway", version)]
struct Cli {
    /// Log more on stderr (-v: debug, -vv: trace)
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Set log level (error to trace) or RUST_LOG filter
    #[arg(long, global = true, value_name = "LEVEL", conflicts_with = "verbose")]
    log_level: Option<String>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Forward packets between ports until SIGINT or SIGTERM
    Run(run::Args),
    /// Show the state of a running router
    Show(show::Args),
    /// Watch the rates, drops, punts and tolls of a running router
    Top(top::Args),
    /// Reload the configuration of a running router while packets flow
    Reload(reload::Args),
    /// Wait until a router has activated all kernel changes so far
    Sync(sync::Args),
    /// Add addresses to a firewall set or delete them, as packets flow
    Set(set::Args),
    /// Send capture files through the router and write its output
    Replay(replay::Args),
    /// Measure packet paths
    Lab(lab::Args),
    /// Detach the XDP programs that killed routers left on devices
    Detach(detach::Args),
    /// Check a configuration or rules; report what devices can offload
    Check(check::Args),
    /// Print the completion script for a shell
    Completions(manual::CompletionsArgs),
    /// Print the manual page, or write one page per command
    Man(manual::ManArgs),
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    /// The command line is wrong.
    #[error("{what}. {remedy}.")]
    Usage {
        /// What is wrong.
        what: String,
        /// What to do about it.
        remedy: String,
    },
    /// The command failed.
    #[error("{what}. {remedy}.")]
    Failed {
        /// What is wrong.
        what: String,
        /// What to do about it.
        remedy: String,
    },
}

impl CliError {
    fn usage(what: impl ToString, remedy: impl ToString) -> Self {
        Self::Usage { what: what.to_string(), remedy: remedy.to_string() }
    }

    /// The error of a failed query to a running router.
    fn control(error: &control::ClientError) -> Self {
        Self::failed(error, error.remedy())
    }

    fn failed(what: impl ToString, remedy: impl ToString) -> Self {
        Self::Failed { what: what.to_string(), remedy: remedy.to_string() }
    }
}

/// Runs the command that the arguments name.
#[must_use]
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let log = Arc::new(Log::default());
    let done = start_log(&cli, &log).and_then(|()| {
        let done = match cli.command {
            // The only command whose result is part of its status.
            Command::Check(args) => return check::run(&args),
            Command::Run(args) => run::run(&args, &log),
            Command::Reload(args) => reload::run(&args),
            Command::Set(args) => set::run(&args),
            Command::Sync(args) => sync::run(&args),
            Command::Replay(args) => replay::run(&args),
            Command::Lab(args) => lab::run(&args),
            Command::Detach(args) => detach::run(&args),
            Command::Show(args) => show::run(&args),
            Command::Top(args) => top::run(&args),
            Command::Completions(args) => manual::completions(&args),
            Command::Man(args) => manual::man(&args),
        };
        done.map(|()| ExitCode::SUCCESS)
    });
    log.finish();
    let error = match done {
        Ok(status) => return status,
        Err(error) => error,
    };
    complain(format_args!("error: {error}\n"));
    match error {
        CliError::Usage { .. } => ExitCode::from(2),
        CliError::Failed { .. } => ExitCode::from(1),
    }
}

/// Prints a result. A closed pipe is no error: a reader such as `head` has read what it wants.
fn print(text: impl Display) -> Result<(), CliError> {
    let mut stdout = io::stdout().lock();
    match write!(stdout, "{text}").and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(CliError::failed(
            format!("the result cannot be written to stdout: {}", tollway_linux::sys::why(&error)),
            "Redirect it to a place that has room",
        )),
        _ => Ok(()),
    }
}

/// Prints a result as one JSON object.
fn print_json(result: &impl Serialize) -> Result<(), CliError> {
    let json = serde_json::to_string_pretty(result).map_err(|error| {
        CliError::failed(error, "Repeat it without --json, and report this as a defect")
    })?;
    print(format_args!("{json}\n"))
}

/// Prints an error. If stderr is closed, the exit code still reports it.
fn complain(text: impl Display) {
    let _ = write!(io::stderr(), "{text}");
}

/// Starts the log on stderr. The arguments set the level, else RUST_LOG, else it is `info`.
fn start_log(cli: &Cli, log: &Arc<Log>) -> Result<(), CliError> {
    let chosen = match (&cli.log_level, cli.verbose) {
        (Some(level), _) => Some(level.clone()),
        (None, 0) => std::env::var("RUST_LOG").ok().filter(|text| !text.is_empty()),
        (None, 1) => Some("debug".to_owned()),
        (None, _) => Some("trace".to_owned()),
    };
    let level = chosen.unwrap_or_else(|| "info".to_owned());
    let filter = level.parse::<Targets>().map_err(|error| {
        let remedy = "Write error, warn, info, debug or trace, or TARGET=LEVEL";
        CliError::usage(format!("the log level {level:?} is not understood: {error}"), remedy)
    })?;
    let plain = std::env::var_os("NO_COLOR").is_some_and(|text| !text.is_empty());
    let colour = io::stderr().is_terminal() && !plain;
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(Arc::clone(log))
        .log_internal_errors(false)
        .with_ansi(colour)
        .with_target(false);
    tracing_subscriber::registry().with(lines).with(filter).init();
    Ok(())
}

/// Reads a configuration; prints its mistakes to stderr.
fn load(path: &Path) -> Result<Model, CliError> {
    config::load(path).map(|loaded| loaded.model).map_err(|mistakes| refuse(path, &mistakes))
}

/// Prints the mistakes of a file to stderr.
fn refuse(path: &Path, mistakes: &[Mistake]) -> CliError {
    complain(report(mistakes));
    let count = match mistakes.len() {
        1 => "a mistake".to_owned(),
        n => format!("{n} mistakes"),
    };
    CliError::failed(format!("{} has {count}", path.display()), "Correct it and try again")
}
