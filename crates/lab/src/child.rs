//! Child processes that measure on request: the parent writes a line, the child answers with a line
//! of JSON.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{self, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Answers every line of `input` with a line on `output`, until `input` ends.
///
/// # Errors
/// A message, if an answer fails or the output is closed.
pub(crate) fn serve<T: Serialize>(
    input: impl BufRead,
    mut output: impl Write,
    mut answer: impl FnMut(&str) -> Result<T, String>,
) -> Result<(), String> {
    for line in input.lines() {
        let line = line.map_err(|error| format!("cannot read the next request: {error}"))?;
        let answer = answer(line.trim())?;
        let text = serde_json::to_string(&answer).map_err(|error| error.to_string())?;
        writeln!(output, "{text}")
            .and_then(|()| output.flush())
            .map_err(|error| format!("cannot write the slice to stdout: {error}"))?;
    }
    Ok(())
}

/// A process that answers as [`serve`] does. Dropping this ends the process.
pub(crate) struct Child {
    child: process::Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    name: String,
}

impl Child {
    /// Starts the process.
    ///
    /// # Errors
    /// A message, if the process cannot be started.
    pub(crate) fn start(mut command: Command, name: impl Into<String>) -> Result<Self, String> {
        let name = name.into();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("cannot start {name}: {error}"))?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            let lines = output.map(BufReader::new).into_iter().flat_map(BufRead::lines);
            lines.map_while(Result::ok).all(|line| sender.send(line).is_ok())
        });
        Ok(Self { child, input, lines, name })
    }

    /// Sends one request and waits for the answer, for at most `patience`.
    ///
    /// # Errors
    /// A message, if no answer arrives.
    pub(crate) fn request<T: DeserializeOwned>(&mut self, patience: Duration) -> Result<T, String> {
        let sent =
            self.input.as_mut().map(|input| input.write_all(b"\n").and_then(|()| input.flush()));
        if !matches!(sent, Some(Ok(()))) {
            return Err(self.exit_reason());
        }
        match self.lines.recv_timeout(patience) {
            Ok(line) => serde_json::from_str(&line)
                .map_err(|error| format!("{} answers {line:?}: {error}", self.name)),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                Err(format!("{} has not answered for {} seconds", self.name, patience.as_secs()))
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(self.exit_reason()),
        }
    }

    /// Why the process ended, from its error output.
    fn exit_reason(&mut self) -> String {
        self.input = None;
        let mut messages = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            let _ = stderr.read_to_string(&mut messages);
        }
        format!("{} has ended: {}", self.name, first_line(&messages))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // The process may be in the middle of a slice, or stopped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The first line of a failing program's output.
pub(crate) fn first_line(messages: &str) -> &str {
    let line = messages.lines().map(str::trim).find(|line| !line.is_empty());
    line.map_or("it prints nothing", |line| line.trim_start_matches("error: "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_gets_an_answer() {
        let (mut output, mut count) = (Vec::new(), 0);
        let answer = |line: &str| {
            count += 1;
            Ok(format!("{line}{count}"))
        };
        serve(&b"\n a \n"[..], &mut output, answer).unwrap();
        assert_eq!(String::from_utf8(output).unwrap(), "\"1\"\n\"a2\"\n");
        let failed = serve(&b"\n"[..], Vec::new(), |_| Err::<(), _>("no luck".to_owned()));
        assert_eq!(failed, Err("no luck".to_owned()));
    }

    #[test]
    fn a_child_answers_or_reports_why_it_does_not() {
        let start = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            Child::start(command, "the shell").unwrap()
        };
        let request = |child: &mut Child| child.request::<u64>(Duration::from_secs(60));
        let error = request(&mut start("echo error: no luck >&2; exit 1")).unwrap_err();
        assert_eq!(error, "the shell has ended: no luck");
        let mut child = start("read line; echo 2; read line; echo two");
        assert_eq!(request(&mut child), Ok(2));
        assert!(request(&mut child).unwrap_err().contains("the shell answers \"two\""));
        let error = start("exec sleep 100").request::<u64>(Duration::ZERO).unwrap_err();
        assert_eq!(error, "the shell has not answered for 0 seconds");
    }
}
