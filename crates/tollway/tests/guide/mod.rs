//! Types the commands of the guides into a shell.

// Not every test program uses all of it.
#![allow(dead_code)]

use std::io::Write as _;
use std::process::{Command, Stdio};

/// Ends the output of a command, before its status.
const END: char = '\u{1e}';

/// No session takes longer, s.
const PATIENCE: &str = "120";

/// The commands in the console blocks of a page, in order.
pub fn commands(page: &str) -> Vec<&str> {
    let blocks = page.split("```console\n").skip(1).filter_map(|rest| rest.split("```").next());
    let typed = blocks.flat_map(str::lines).filter_map(|line| line.strip_prefix("# "));
    typed.map(|line| line.split("   #").next().unwrap_or(line).trim_end()).collect()
}

/// The indented block of a page that begins with a line.
pub fn block(page: &str, first: &str) -> String {
    let lines = page.lines().skip_while(|line| line.strip_prefix("    ") != Some(first));
    let block: Vec<_> = lines.map_while(|line| line.strip_prefix("    ")).collect();
    assert!(!block.is_empty(), "no block begins with {first}");
    block.join("\n") + "\n"
}

/// A typed command and its result.
#[derive(Debug)]
pub struct Typed {
    pub command: String,
    pub output: String,
    pub status: i32,
}

/// Types commands into a shell, which has the program in its path. The result lacks commands that run in the
/// background, start another shell or end one.
pub fn session(commands: &[&str]) -> Vec<Typed> {
    let is_watched = |command: &&&str| {
        !command.ends_with('&') && !command.starts_with("unshare ") && **command != "exit"
    };
    let mut script = "exec 2>&1\n".to_owned();
    for command in commands {
        script.push_str(command);
        if is_watched(&command) {
            script.push_str(&format!("\nprintf '%s{END}\\n' \"$?\""));
        }
        script.push('\n');
    }
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_tollway")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("timeout");
    shell.args([PATIENCE, "bash"]).env("PATH", path).env("LC_ALL", "C");
    let mut shell = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    // A shell that ends early reads no more; below, the lack of its output fails the test.
    let _ = shell.stdin.take().unwrap().write_all(script.as_bytes());
    let output = shell.wait_with_output().unwrap();
    let all = String::from_utf8_lossy(&output.stdout).into_owned();
    let end = format!("{END}\n");
    let mut outputs = all.split(&end);
    let typed = commands.iter().filter(is_watched).map(|command| {
        let output = outputs.next().unwrap_or_default();
        let (output, status) = output.rsplit_once('\n').unwrap_or(("", output));
        let command = (*command).to_owned();
        let status = status.parse();
        let status = status.unwrap_or_else(|_| panic!("{command} did not end:\n{all}"));
        Typed { command, output: output.to_owned(), status }
    });
    typed.collect()
}

/// Asserts that all commands did what they were to do.
pub fn succeeded(typed: &[Typed]) {
    for Typed { command, output, status } in typed {
        assert_eq!(*status, 0, "{command}:\n{output}");
    }
}

/// Returns the output of a command.
pub fn output_of<'t>(typed: &'t [Typed], command: &str) -> &'t str {
    let found = typed.iter().find(|typed| typed.command.starts_with(command));
    &found.unwrap_or_else(|| panic!("nobody typed {command}")).output
}
