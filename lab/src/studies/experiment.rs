//! What measures a study's rows, in this process or in one that is started for it.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{self, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How long a slice may take on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(120);

/// What every row cost once, all measured in turn.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Slice {
    /// Nanoseconds a packet, by row.
    pub(super) rows: BTreeMap<String, f64>,
    /// Other figures.
    #[serde(default)]
    pub(super) counts: BTreeMap<String, f64>,
    /// What became of the packets, by what was sent: the same for all who measure, or they did not do the
    /// same work.
    #[serde(default)]
    pub(super) digests: BTreeMap<String, u64>,
}

impl Slice {
    /// Takes up what somebody else has measured at the same time.
    ///
    /// # Errors
    /// A sentence, where the packets became something else there.
    pub(super) fn join(&mut self, other: Self) -> Result<(), String> {
        for (sent, digest) in other.digests {
            let known = *self.digests.entry(sent.clone()).or_insert(digest);
            if known != digest {
                return Err(format!(
                    "variants differ in what they make of {sent}: {known:x}, {digest:x}"
                ));
            }
        }
        self.rows.extend(other.rows);
        self.counts.extend(other.counts);
        Ok(())
    }
}

/// Someone who measures rows.
pub(super) trait Experiment {
    /// Measures each of its rows once, in turn.
    ///
    /// # Errors
    /// A sentence, where that failed or variants differ in what they do.
    fn slice(&mut self) -> Result<Slice, String>;
}

/// Measures a slice for every line of `input`, and writes it to `output` as a line of JSON.
///
/// # Errors
/// A sentence, where a slice fails or nobody reads the output.
pub(super) fn serve(
    experiment: &mut dyn Experiment,
    input: impl BufRead,
    mut output: impl Write,
) -> Result<(), String> {
    for line in input.lines() {
        line.map_err(|error| format!("the next request can not be read: {error}"))?;
        let slice = experiment.slice()?;
        let text = serde_json::to_string(&slice).map_err(|error| error.to_string())?;
        writeln!(output, "{text}")
            .and_then(|()| output.flush())
            .map_err(|error| format!("the slice can not be written to stdout: {error}"))?;
    }
    Ok(())
}

/// A process that measures by [`serve`], or does as if; it ends with this.
pub(super) struct Child {
    child: process::Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    name: String,
}

impl Child {
    /// Starts it.
    ///
    /// # Errors
    /// A sentence where it can not be started.
    pub(super) fn start(mut command: Command, name: impl Into<String>) -> Result<Self, String> {
        let name = name.into();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child =
            command.spawn().map_err(|error| format!("{name} can not be started: {error}"))?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            let lines = output.map(BufReader::new).into_iter().flat_map(BufRead::lines);
            lines.map_while(Result::ok).all(|line| sender.send(line).is_ok())
        });
        Ok(Self { child, input, lines, name })
    }

    /// Why the process has ended, by what it says.
    fn last_words(&mut self) -> String {
        self.input = None;
        let mut told = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            let _ = stderr.read_to_string(&mut told);
        }
        let told = told.lines().find(|line| !line.trim().is_empty()).unwrap_or("no reason given");
        let told = told.strip_prefix("error: ").unwrap_or(told);
        format!("{} has ended: {told}", self.name)
    }
}

impl Experiment for Child {
    fn slice(&mut self) -> Result<Slice, String> {
        let asked =
            self.input.as_mut().map(|input| input.write_all(b"\n").and_then(|()| input.flush()));
        if !matches!(asked, Some(Ok(()))) {
            return Err(self.last_words());
        }
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => serde_json::from_str(&line)
                .map_err(|error| format!("{} answers {line:?}: {error}", self.name)),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                Err(format!("{} has not answered for {} s", self.name, PATIENCE.as_secs()))
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(self.last_words()),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Its input ends, and so does it; what hangs is not waited for.
        self.input = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Count(u64);

    impl Experiment for Count {
        fn slice(&mut self) -> Result<Slice, String> {
            self.0 += 1;
            let mut slice = Slice::default();
            slice.rows.insert("row".to_owned(), self.0 as f64);
            slice.digests.insert("packets".to_owned(), u64::MAX);
            Ok(slice)
        }
    }

    #[test]
    fn each_line_gets_a_slice_that_can_be_read_back() {
        let mut output = Vec::new();
        serve(&mut Count(0), &b"\n\n"[..], &mut output).unwrap();
        let text = String::from_utf8(output).unwrap();
        let slices: Vec<Slice> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(slices.iter().map(|slice| slice.rows["row"]).collect::<Vec<_>>(), [1.0, 2.0]);
        assert_eq!(slices[0].digests["packets"], u64::MAX);
    }

    #[test]
    fn those_who_do_other_work_do_not_join() {
        let mut slice = Count(0).slice().unwrap();
        let mut other = Count(0).slice().unwrap();
        slice.join(other.clone()).unwrap();
        other.digests.insert("packets".to_owned(), 1);
        assert!(slice.join(other).unwrap_err().contains("packets"));
    }

    #[test]
    fn a_child_that_ends_says_why() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo no luck >&2; exit 1"]);
        let mut child = Child::start(command, "the shell").unwrap();
        let told = child.slice().unwrap_err();
        assert!(told.contains("the shell has ended: no luck"), "{told}");
        let mut command = Command::new("sh");
        command.args(["-c", "read line; echo '{\"rows\":{\"a\":2}}'; read line; echo 1"]);
        let mut child = Child::start(command, "the shell").unwrap();
        assert_eq!(child.slice().unwrap().rows["a"], 2.0);
        assert!(child.slice().unwrap_err().contains("answers"));
    }
}
