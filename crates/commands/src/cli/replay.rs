//! `tollway replay`: sends capture files through the router.

use std::collections::HashMap;
use std::io::{self, IsTerminal};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use indicatif::{ProgressBar, ProgressStyle};

use super::CliError;
use super::summary::Summary;
use crate::replay::{Files, Replay};
use tollway_model::{Model, PortKind};

/// The number of frames between two updates of the progress bar.
const PROGRESS_EVERY: u32 = 4096;
/// Smaller files are done before a user could read a bar.
const PROGRESS_BYTES: u64 = 16 << 20;

/// Arguments of `tollway replay`.
#[derive(clap::Args)]
#[command(after_help = "\
Frames enter in the order of their timestamps, which are the router's clock.
Every port of the configuration is replaced by files: what it would send is
written to DIR/PORT.pcap.

Example:
  tollway replay --config router.toml --in wan=wan.pcap --in lan=lan.pcapng --out results")]
pub(super) struct Args {
    /// Read this configuration file
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
    /// Receive a pcap or pcapng file on a port; repeatable
    #[arg(short, long = "in", value_name = "PORT=FILE", required = true, value_parser = input)]
    input: Vec<(String, PathBuf)>,
    /// Write what ports send here; create the directory
    #[arg(short, long, value_name = "DIR")]
    out: PathBuf,
    /// Choose the format of the written captures
    #[arg(long, value_enum, default_value_t = Format::Pcap)]
    format: Format,
    /// Print the summary as one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Format {
    /// Classic pcap with nanosecond timestamps
    Pcap,
    /// Next generation
    Pcapng,
}

fn input(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((port, file)) if !port.is_empty() && !file.is_empty() => {
            Ok((port.to_owned(), PathBuf::from(file)))
        }
        _ => Err("write PORT=FILE, for example lan=lan.pcap".to_owned()),
    }
}

pub(super) fn run(args: &Args) -> Result<(), CliError> {
    let model = super::load(&args.config)?;
    let files = files(args, &model)?;
    replay(&model, &files, args.json)
}

fn files(args: &Args, model: &Model) -> Result<Files, CliError> {
    let indices: HashMap<_, _> =
        model.ports.iter().enumerate().map(|(index, port)| (port.name.as_str(), index)).collect();
    let mut inputs = Vec::new();
    for (port, file) in &args.input {
        let index = indices.get(port.as_str()).ok_or_else(|| {
            let names: Vec<_> = model.ports.iter().map(|port| port.name.as_str()).collect();
            let what = format!("{} has no port {port}", args.config.display());
            CliError::usage(what, format!("Its ports are {}", names.join(", ")))
        })?;
        inputs.push((*index, file.clone()));
    }
    std::fs::create_dir_all(&args.out).map_err(|error| {
        let what = format!(
            "the directory {} cannot be made: {}",
            args.out.display(),
            tollway_linux::sys::why(&error)
        );
        CliError::failed(what, "Name a directory that this user can write to")
    })?;
    let extension = match args.format {
        Format::Pcap => "pcap",
        Format::Pcapng => "pcapng",
    };
    let output = |name: &str| args.out.join(format!("{name}.{extension}"));
    let outputs = model.ports.iter().enumerate().map(|(index, port)| (index, output(&port.name)));
    Ok(Files { inputs, outputs: outputs.collect() })
}

/// Replays and prints the summary.
pub(super) fn replay(model: &Model, files: &Files, json: bool) -> Result<(), CliError> {
    keep_inputs(files, model.filter_log.as_deref())?;
    if files.inputs.is_empty() {
        let all_memory = model.ports.iter().all(|port| port.kind == PortKind::Memory);
        let what =
            if all_memory { "no port has anything behind it" } else { "no port has an input" };
        return Err(CliError::failed(
            what,
            "Configure a port of kind af_packet or tap, or an input",
        ));
    }
    let failed = |error: crate::replay::ReplayError| CliError::failed(&error, error.remedy());
    let replay = Replay::new(model, files).map_err(failed)?;
    let bar = progress(&replay);
    let (_, counts) = replay.progress();
    let mut frames = 0;
    let outcome = replay.run(|| {
        frames += 1;
        if frames % PROGRESS_EVERY == 0 {
            bar.set_position(counts.iter().map(|count| count.load(Ordering::Relaxed)).sum());
        }
    });
    bar.finish_and_clear();
    let outcome = outcome.map_err(failed)?;

    let ports = model.ports.iter().map(|port| port.name.as_str()).collect();
    let (counters, host) = (&outcome.counters, &outcome.host);
    let names = model.bridges.iter().map(|bridge| bridge.name.as_str());
    let bridges = names.zip(outcome.bridges.iter().copied()).collect();
    let summary = Summary { ports, counters, host, missed: Vec::new(), bridges };
    let identity = outcome.adds_up.clone();
    let printed = if json {
        let damage = outcome.errors.iter().map(ToString::to_string);
        let errors: Vec<_> = damage.chain(identity.as_ref().err().cloned()).collect();
        super::print(format_args!("{:#}\n", summary.json(&errors)))
    } else {
        super::print(summary.text())
    };
    identity.map_err(|sentence| {
        CliError::failed(sentence, "This is a defect of Tollway: report it with the table above")
    })?;
    // The last error is the command's own; the others are printed here.
    let mut errors: Vec<_> =
        outcome.errors.iter().map(|error| CliError::failed(error, error.remedy())).collect();
    let Some(last) = errors.pop() else { return printed };
    for error in errors {
        super::complain(format_args!("error: {error}\n"));
    }
    Err(last)
}

/// Refuses to overwrite an input file.
fn keep_inputs(files: &Files, log: Option<&Path>) -> Result<(), CliError> {
    let inputs: Vec<_> = files.inputs.iter().filter_map(|(_, path)| identity(path)).collect();
    let outputs = files.outputs.iter().map(|(_, output)| output.as_path());
    for output in outputs.chain(log) {
        if identity(output).is_some_and(|output| inputs.contains(&output)) {
            let what = format!("{} is both an input and an output", output.display());
            return Err(CliError::usage(what, "Write to another directory"));
        }
    }
    Ok(())
}

/// Device and inode, which identify a file under all its names and links. None for devices and
/// pipes, which cannot be overwritten.
fn identity(path: &Path) -> Option<(u64, u64)> {
    let facts = path.metadata().ok()?;
    facts.is_file().then(|| (facts.dev(), facts.ino()))
}

/// A progress bar on stderr, if that is a terminal and the files are large.
fn progress(replay: &Replay) -> ProgressBar {
    let (total, _) = replay.progress();
    if total < PROGRESS_BYTES || !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(total);
    let template = "{bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
