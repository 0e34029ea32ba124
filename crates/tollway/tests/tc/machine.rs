//! Tests in a virtual machine, whose kernel has VLAN devices, and no tcx (Linux 6.1), or is a newer one of Debian's
//! (`make machines`).

use std::process::{Command, ExitCode};

use super::{beside, changes, connections, layer3, others, streams};

/// The script that starts the virtual machine.
const RUN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/qemu/run.sh");
/// The tests in the machine. Each has namespaces of its own.
const PARTS: [(&str, fn()); 9] = [
    ("streams", streams::plain),
    ("connections", connections::tc),
    ("vlans", streams::vlans),
    ("tunnels", streams::tunnels),
    ("bonds", streams::bonds),
    ("layer-3 devices", layer3::tunnels),
    ("devices", changes::devices),
    ("a stop", changes::stop),
    ("a kill", changes::kill),
];

/// With tcx, and without it.
const NEWER: [(&str, fn()); 5] = [
    ("connections by XDP", connections::xdp),
    ("programs of others", others::tcx),
    ("streams from a card", beside::streams),
    ("VLANs at a card", beside::vlans),
    ("programs at a card", beside::ends),
];
const OLDER: [(&str, fn()); 1] = [("filters of others", others::filters_first)];

/// The tests that suit the kernel.
fn parts() -> impl Iterator<Item = (&'static str, fn())> {
    // Any device will do: the loopback device is always there.
    let has_tcx = tollway_xdp::tcx(1).unwrap().is_some();
    PARTS.into_iter().chain(if has_tcx { NEWER.to_vec() } else { OLDER.to_vec() })
}

/// Returns why no virtual machine can run here.
pub fn missing() -> Option<&'static str> {
    let has_qemu = Command::new("qemu-system-x86_64").arg("--version").output().is_ok();
    let files = std::fs::read_dir("/boot").into_iter().flatten().flatten();
    let is_kernel = |name: &str| name.starts_with("vmlinuz-") && name.ends_with("-amd64");
    let has_kernel = files.into_iter().any(|file| is_kernel(&file.file_name().to_string_lossy()));
    (!has_qemu || !has_kernel).then_some("no emulator, or no kernel of Debian's (scripts/setup.sh)")
}

/// Runs on the host: starts the machine, and asserts that its tests pass.
pub fn host() {
    let mut command = Command::new(RUN);
    command.arg(std::env::current_exe().unwrap()).args(["--role", "machine"]);
    let status = command.env("CI", "1").status().unwrap();
    assert!(status.success(), "in the virtual machine: {status}");
}

/// Runs in the machine: all tests, or one.
pub fn inside(part: Option<&str>) -> ExitCode {
    if let Some(part) = part {
        parts().find(|(name, _)| *name == part).unwrap().1();
        return ExitCode::SUCCESS;
    }
    let mut failed = 0;
    for (name, _) in parts() {
        let mut command = Command::new("unshare");
        command.args(["-nm", "--"]).arg(std::env::current_exe().unwrap());
        let status = command.args(["--role", "machine", name]).status().unwrap();
        println!("{name} in the virtual machine: {status}");
        failed += u8::from(!status.success());
    }
    ExitCode::from(failed)
}
