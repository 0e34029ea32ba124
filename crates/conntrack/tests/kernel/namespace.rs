//! A test in a network namespace of its own.

use std::io::Write as _;
use std::process::{Command, Stdio};

/// Set in the namespace.
const INSIDE: &str = "TOLLWAY_CONNTRACK_INSIDE";

/// Runs `body` in a network namespace of its own: starts this program again there, for the test `name` alone.
pub fn in_namespace(name: &str, body: fn()) {
    if std::env::var_os(INSIDE).is_some() {
        return body();
    }
    let is_root = Command::new("id").arg("-u").output().unwrap().stdout == b"0\n";
    let output = Command::new("unshare")
        .arg(if is_root { "-n" } else { "-Urn" })
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    print!("{text}");
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name} failed in its namespace");
    // A wrong name would select no test.
    assert!(text.contains("1 passed"), "{name} did not run in its namespace");
}

/// Runs a command, which has to succeed.
pub fn run(command: &str) {
    let mut words = command.split_whitespace();
    let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
    assert!(output.status.success(), "{command}: {output:?}");
}

/// Loads rules of nftables.
pub fn rules(text: &str) {
    let mut nft = Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    nft.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(nft.wait().unwrap().success());
}
