//! Records compiler and commit of the build for the reports, and builds the BPF programs of
//! generators and sinks.

use std::path::PathBuf;
use std::process::{Command, exit};

fn main() {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let compiler = output(&rustc, &["--version"]);
    let commit = output("git", &["describe", "--always", "--dirty", "--abbrev=12"]);
    println!("cargo::rustc-env=TOLLWAY_COMPILER={compiler}");
    println!("cargo::rustc-env=TOLLWAY_COMMIT={commit}");
    println!("cargo::rerun-if-changed=../../.git/HEAD");
    println!("cargo::rerun-if-changed=../../.git/index");
    println!("cargo::rerun-if-changed=bpf");
    println!("cargo::rerun-if-env-changed=CLANG");
    for name in ["generator", "sink", "traffic", "collect", "xsk"] {
        if let Err(error) = bpf(name) {
            println!("cargo::error={error}");
            exit(1);
        }
    }
}

/// The first line that a command prints, or "unknown" if it fails.
fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().ok();
    let text = output.filter(|output| output.status.success()).map(|output| output.stdout);
    let text = text.map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned());
    text.filter(|text| !text.is_empty()).unwrap_or_else(|| "unknown".to_owned())
}

/// Compiles `bpf/NAME.c` to an object of that name.
fn bpf(name: &str) -> Result<(), String> {
    let variable = |name| std::env::var(name).unwrap_or_default();
    let object = PathBuf::from(variable("OUT_DIR")).join(format!("{name}.o"));
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let mut command = Command::new(&clang);
    command.args(["-O2", "-g", "-Wall", "-Werror", "-fno-strict-aliasing"]);
    command.args(["-target", target(), "-mcpu=v3"]);
    // Debian keeps the kernel's asm/ headers per machine; the BPF target names no machine.
    command.args(machines().map(|machine| format!("-I/usr/include/{machine}-linux-gnu")));
    command.arg("-c").arg(format!("bpf/{name}.c")).arg("-o").arg(object);
    let done = command.output().map_err(|error| {
        format!(
            "cannot compile crates/lab/bpf/{name}.c: cannot start {clang}: {error}; install it with \
             `apt-get install clang libbpf-dev linux-libc-dev`"
        )
    })?;
    if done.status.success() {
        return Ok(());
    }
    let messages = String::from_utf8_lossy(&done.stderr);
    let reason = messages.lines().find(|line| line.contains("error")).unwrap_or("no reason given");
    Err(format!(
        "cannot compile crates/lab/bpf/{name}.c with {clang}: {reason}; if a header is missing, install \
         it with `apt-get install libbpf-dev linux-libc-dev`"
    ))
}

/// The BPF target with the byte order of the target machine.
fn target() -> &'static str {
    let is_big = std::env::var("CARGO_CFG_TARGET_ENDIAN").is_ok_and(|endian| endian == "big");
    if is_big { "bpfeb" } else { "bpfel" }
}

/// The target machine, then the build machine. The build needs few numbers from these headers, so
/// those of either machine work.
fn machines() -> impl Iterator<Item = String> {
    let target = std::env::var("CARGO_CFG_TARGET_ARCH").ok();
    target.into_iter().chain([std::env::consts::ARCH.to_owned()])
}
