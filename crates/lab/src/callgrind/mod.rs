//! Instructions per packet, counted by valgrind's callgrind: the same number in every run.
//!
//! The program's `lab probe` runs a row at two lengths, and callgrind counts only while the program
//! forwards frames. This module subtracts the shorter count from the longer one, so that one-time
//! work does not count. Then it attributes every instruction to its function, inlined functions
//! included.
//!
//! Valgrind reports no AVX-512 to programs, so the counted path is at most the one for x86-64-v3.

mod parse;

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::bench::IN_FLIGHT;
use crate::profile::stacks::is_library;
use crate::profile::symbols::{Frame, Symbols};
use parse::{Costs, parse};

/// Passes of the two runs: multiples of 64, so that a row of 65,536 flows sends each flow equally
/// often.
const PASSES: [u64; 2] = [64, 128];

/// How long a run may take, including the construction of the largest tables.
const TIMEOUT: Duration = Duration::from_secs(180);

/// The functions of the bench that do nothing but forward frames.
const COUNTED: [&str; 2] = ["*Bench*forward*", "*Bench*touch*"];

/// The instructions that a packet takes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Count {
    /// Instructions per packet.
    pub(crate) per_packet: f64,
    /// The same by function, and whether each was inlined wherever it occurs.
    pub(crate) functions: BTreeMap<String, (f64, bool)>,
    /// The instruction set of the path: `v3`. Empty if it cannot be determined.
    pub(crate) level: String,
}

/// Counts a row of a program.
///
/// # Errors
/// A message, if valgrind is missing, does not know the program's instructions, or there is nothing
/// to count.
pub(crate) fn count(program: &Path, row: &str) -> Result<Count, String> {
    let [short, long] = PASSES.map(|passes| run(program, row, passes));
    let costs = parse::difference(&long?, &short?);
    sum_up(&costs, (PASSES[1] - PASSES[0]) * IN_FLIGHT as u64)
}

/// Counts one run length.
fn run(program: &Path, row: &str, passes: u64) -> Result<Costs, String> {
    let output =
        Output::new().map_err(|error| format!("cannot create a file for callgrind: {error}"))?;
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--dump-instr=yes", "--dump-line=no"]);
    command.args(["--compress-pos=no", "--compress-strings=no"]);
    command.args(COUNTED.map(|function| format!("--toggle-collect={function}")));
    command.arg(format!("--callgrind-out-file={}", output.0.display()));
    command.arg(program).args(["lab", "probe", row]);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            "valgrind is not installed (`apt-get install valgrind`)".to_owned()
        }
        _ => format!("cannot start valgrind: {error}"),
    })?;
    if let Some(mut input) = child.stdin.take() {
        // If the program ends before it reads this, it reports why.
        let _ = writeln!(input, "{passes}");
    }
    let mut stderr = child.stderr.take();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        let _ = stderr.as_mut().map(|stderr| stderr.read_to_string(&mut text));
        text
    });
    let ended = wait(&mut child);
    let messages = reader.join().unwrap_or_default();
    if !ended? {
        return Err(format!("callgrind fails: {}", failure_cause(&messages)));
    }
    let text = fs::read_to_string(&output.0)
        .map_err(|error| format!("cannot read callgrind's output: {error}"))?;
    let costs = parse(&text);
    match costs.is_empty() {
        true => Err("the program under valgrind has no bench that can be counted".to_owned()),
        false => Ok(costs),
    }
}

/// Waits for a process and says whether it succeeded.
fn wait(child: &mut Child) -> Result<bool, String> {
    let start = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status.success()),
            Ok(None) if start.elapsed() < TIMEOUT => std::thread::sleep(Duration::from_millis(5)),
            other => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(match other {
                    Err(error) => format!("cannot wait for valgrind: {error}"),
                    _ => format!("callgrind takes longer than {} seconds", TIMEOUT.as_secs()),
                });
            }
        }
    }
}

/// The cause of a failure. The lines that valgrind itself prints begin with `==`.
fn failure_cause(messages: &str) -> &str {
    let unknown = messages.lines().find(|line| line.contains("unhandled instruction"));
    let error = || messages.lines().find(|line| line.contains("error"));
    let own = |line: &&str| !line.starts_with("==") && !line.trim().is_empty();
    unknown
        .or_else(error)
        .or_else(|| messages.lines().rfind(own))
        .map_or("it prints nothing", str::trim)
}

/// The file that callgrind writes. Dropping this deletes it.
struct Output(PathBuf);

impl Output {
    fn new() -> io::Result<Self> {
        use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Relaxed);
        let name = format!("tollway-callgrind-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        // `create_new` ensures that the file is ours; every user can write to the directory.
        fs::File::create_new(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Sums up instructions by function.
fn sum_up(costs: &Costs, packets: u64) -> Result<Count, String> {
    let mut symbols = Symbols::default();
    let mut functions: BTreeMap<String, (f64, bool)> = BTreeMap::new();
    let mut levels: HashMap<String, i64> = HashMap::new();
    let mut all = 0;
    for ((object, address), cost) in costs {
        let frames = symbols.at(Path::new(object), *address);
        all += cost;
        let Some(frame) = owner(&frames) else { continue };
        let function = functions.entry(frame.function.to_string()).or_insert((0.0, true));
        function.0 += *cost as f64 / packets as f64;
        function.1 &= frame.inlined;
        if let Some((_, level)) = frames[0].function.split_once("dispatch::") {
            *levels.entry(level.to_owned()).or_default() += cost;
        }
    }
    if all <= 0 {
        return Err("callgrind counted no instructions".to_owned());
    }
    let level = levels.into_iter().max_by_key(|(_, cost)| *cost).map(|(level, _)| level);
    // Work that happens a fixed number of times cancels out, except for a remainder that rounds to
    // zero.
    functions.retain(|_, (count, _)| count.abs() >= 5e-4);
    Ok(Count {
        per_packet: all as f64 / packets as f64,
        functions,
        level: level.unwrap_or_default(),
    })
}

/// The function that an instruction counts for: the innermost outside the standard library.
fn owner(frames: &[Frame]) -> Option<&Frame> {
    frames.iter().rfind(|frame| !is_library(&frame.function)).or(frames.last())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instruction_belongs_to_the_innermost_function_of_the_program() {
        let frames =
            ["tollway::a", "tollway::b", "core::ptr::read"].map(|name| Frame::new(name, true));
        assert_eq!(&*owner(&frames).unwrap().function, "tollway::b");
        assert_eq!(&*owner(&frames[2..]).unwrap().function, "core::ptr::read");
        assert_eq!(owner(&[]), None);
    }

    #[test]
    fn counts_are_by_packet_and_function() {
        let costs: Costs =
            [(("/nowhere/a".to_owned(), 1), 300), (("/nowhere/b".to_owned(), 2), 100)].into();
        let count = sum_up(&costs, 100).unwrap();
        assert_eq!(count.per_packet, 4.0);
        assert_eq!(count.functions["[a]"], (3.0, false));
        assert_eq!(count.level, "");
        assert!(sum_up(&Costs::new(), 1).is_err());
    }

    #[test]
    fn the_cause_of_a_failure_is_found() {
        assert_eq!(failure_cause("==1== x\nerror: no row\n==1== y\n"), "error: no row");
        assert_eq!(
            failure_cause("a\n==1== \nvex: unhandled instruction bytes: 0x62\n"),
            "vex: unhandled instruction bytes: 0x62"
        );
        assert_eq!(failure_cause("==1== x\n"), "it prints nothing");
    }

    #[test]
    fn a_program_without_a_bench_has_nothing_to_count() {
        let error = count(Path::new("/bin/cat"), "x").unwrap_err();
        assert!(!error.is_empty() && !error.contains('\n'), "{error}");
    }
}
