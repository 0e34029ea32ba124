//! Notes which compiler and which commit a build is of, for the reports.

use std::process::Command;

fn main() {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let compiler = output(&rustc, &["--version"]);
    let commit = output("git", &["describe", "--always", "--dirty", "--abbrev=12"]);
    println!("cargo::rustc-env=TOLLWAY_COMPILER={compiler}");
    println!("cargo::rustc-env=TOLLWAY_COMMIT={commit}");
    println!("cargo::rerun-if-changed=../.git/HEAD");
    println!("cargo::rerun-if-changed=../.git/index");
}

/// The first line that a command prints, or "unknown" where it can not be had.
fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().ok();
    let text = output.filter(|output| output.status.success()).map(|output| output.stdout);
    let text = text.map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned());
    text.filter(|text| !text.is_empty()).unwrap_or_else(|| "unknown".to_owned())
}
