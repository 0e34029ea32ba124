//! The oracle of the router in a virtual machine, whose kernel has VLAN and VRF devices.

use std::process::Command;

use crate::setting;

/// Number of cases if the environment does not set another: each takes seconds in the machine.
const CASES: u64 = 3;
/// The script that starts the machine.
const RUN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/qemu/run.sh");

/// The reason why no machine can run here, if there is one.
pub fn missing() -> Option<&'static str> {
    let has_qemu = Command::new("qemu-system-x86_64").arg("--version").output().is_ok();
    let kernels = std::fs::read_dir("/boot").into_iter().flatten().flatten();
    let is_kernel = |name: &str| name.starts_with("vmlinuz-") && name.ends_with("-amd64");
    let has_kernel = kernels.into_iter().any(|file| is_kernel(&file.file_name().to_string_lossy()));
    match (has_qemu, has_kernel) {
        (false, _) => Some("qemu-system-x86_64 is not installed (package qemu-system-x86)"),
        (_, false) => Some("there is no Debian kernel in /boot (package linux-image-amd64)"),
        _ => None,
    }
}

/// Runs the oracle of the router in the machine.
pub fn like_the_kernel() {
    let cases = setting("TOLLWAY_ORACLE_CASES").unwrap_or(CASES);
    let mut command = Command::new(RUN);
    command.arg(std::env::current_exe().unwrap()).arg("the_router_forwards_like_the_kernel");
    // The first two have the engine xdp, and the others tc.
    if std::env::var_os("TOLLWAY_ORACLE_FROM").is_none() {
        command.env("TOLLWAY_ORACLE_FROM", "18");
    }
    command.env("TOLLWAY_ORACLE_CASES", cases.to_string()).env("TOLLWAY_ORACLE_KIND", "machine");
    // A virtual machine that lacks something is a defect: the test must not leave anything out
    // there.
    let status = command.env("CI", "1").status().unwrap();
    assert!(status.success(), "the oracle in the virtual machine failed: {status}");
}
