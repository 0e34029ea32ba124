//! Tests that run in a virtual machine, whose kernel has devices and modules that not every kernel has.

use std::process::{Command, ExitCode};
use std::time::Instant;

/// The script that starts the virtual machine.
const RUN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/qemu/run.sh");

/// A test in the machine, with namespaces of its own.
pub type Part = (&'static str, fn());

/// Returns why no virtual machine can run here.
pub fn missing() -> Option<&'static str> {
    let has_qemu = Command::new("qemu-system-x86_64").arg("--version").output().is_ok();
    let files = std::fs::read_dir("/boot").into_iter().flatten().flatten();
    let is_kernel = |name: &str| name.starts_with("vmlinuz-") && name.ends_with("-amd64");
    let has_kernel = files.into_iter().any(|file| is_kernel(&file.file_name().to_string_lossy()));
    (!has_qemu || !has_kernel).then_some("no emulator, or no kernel of Debian's (scripts/setup.sh)")
}

/// Runs on the host: starts the machine with this program in a role, and asserts that its tests pass.
pub fn host(role: &str) {
    let mut command = Command::new(RUN);
    command.arg(std::env::current_exe().unwrap()).args(["--role", role]);
    let status = command.env("CI", "1").status().unwrap();
    assert!(status.success(), "in the virtual machine: {status}");
}

/// Runs in the machine: all tests of a role, or one.
pub fn inside(role: &str, parts: &[Part], part: Option<&str>) -> ExitCode {
    if let Some(part) = part {
        parts.iter().find(|(name, _)| *name == part).unwrap().1();
        return ExitCode::SUCCESS;
    }
    let mut failed = 0;
    for (name, _) in parts {
        let start = Instant::now();
        let mut command = Command::new("unshare");
        command.args(["-nm", "--"]).arg(std::env::current_exe().unwrap());
        let status = command.args(["--role", role, name]).status().unwrap();
        println!("{name} in the virtual machine: {status}, {} s", start.elapsed().as_secs());
        failed += u8::from(!status.success());
    }
    ExitCode::from(failed)
}
