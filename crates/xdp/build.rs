//! Compiles the BPF programs with clang.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The programs, each a file of `bpf/`.
const PROGRAMS: [&str; 6] = ["port", "tc", "refused", "refused_event", "probe", "links"];

fn main() -> ExitCode {
    println!("cargo:rerun-if-changed=bpf");
    println!("cargo:rerun-if-env-changed=CLANG");
    match PROGRAMS.iter().try_for_each(|program| compile(program)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("cargo:error={error}");
            ExitCode::FAILURE
        }
    }
}

fn compile(program: &str) -> Result<(), String> {
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let source = Path::new("bpf").join(program).with_extension("c");
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    let object = out.join(program).with_extension("o");
    let mut command = Command::new(&clang);
    command.args(["-O2", "-g", "-Wall", "-Wextra", "-Werror", "-fno-strict-aliasing"]);
    // Version 3 of the instructions: kernels from 5.1 on.
    command.args(["-target", &target(), "-mcpu=v3"]);
    // Debian keeps `asm/` by machine, where clang does not look for this target.
    command.args(machines().map(|machine| format!("-I/usr/include/{machine}-linux-gnu")));
    command.arg("-c").arg(&source).arg("-o").arg(&object);
    let output = command.output().map_err(|error| {
        format!(
            "cannot compile the BPF programs: cannot start {clang}: {error}; install it with \
             `apt-get install clang libbpf-dev linux-libc-dev`, or name another in CLANG"
        )
    })?;
    if output.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let first = errors.lines().find(|line| line.contains("error")).unwrap_or("clang failed");
    errors.lines().for_each(|line| eprintln!("{line}"));
    if first.contains("file not found") {
        let headers = "install the headers with `apt-get install libbpf-dev linux-libc-dev`";
        return Err(format!("cannot compile {}: {first}; {headers}", source.display()));
    }
    Err(format!("cannot compile {}: {first}", source.display()))
}

/// The BPF target with the byte order of the machine that the program is built for.
fn target() -> String {
    let is_big = env::var("CARGO_CFG_TARGET_ENDIAN").is_ok_and(|endian| endian == "big");
    if is_big { "bpfeb".to_owned() } else { "bpfel".to_owned() }
}

/// The machine that the program is built for, then the one that builds it. The build needs few numbers
/// from these headers, so those of either machine work.
fn machines() -> impl Iterator<Item = String> {
    let target = env::var("CARGO_CFG_TARGET_ARCH").ok();
    target.into_iter().chain([env::consts::ARCH.to_owned()])
}
