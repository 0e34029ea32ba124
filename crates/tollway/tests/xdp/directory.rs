//! The directory of pins in a BPF file system that everybody may write to, as `mount -t bpf` makes
//! it.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use super::namespaces::sh;

const HOME: &str = "/sys/fs/bpf/tollway";

/// Runs `tollway detach`. Returns whether it succeeded, and its errors.
fn detach() -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_tollway")).arg("detach").output().unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn as_nobody(line: &str) {
    sh(&format!("setpriv --reuid=65534 --regid=65534 --clear-groups {line}"));
}

/// A user makes the directory first, with links to files of root.
pub fn intruders() {
    let victim = tempfile::tempdir().unwrap();
    let file = victim.path().join("precious");
    std::fs::write(&file, "").unwrap();
    sh("mount -t bpf bpf /sys/fs/bpf");
    let namespace = std::fs::metadata("/proc/self/ns/net").unwrap().ino();
    let target = victim.path().display();

    as_nobody(&format!("mkdir {HOME}"));
    for name in ["load-7".to_owned(), format!("1000-{namespace}"), "1000-1".to_owned()] {
        as_nobody(&format!("ln -s {target} {HOME}/{name}"));
    }
    let (done, error) = detach();
    assert!(file.exists(), "{error}");
    assert!(
        !done && error.contains("/sys/fs/bpf/tollway cannot be used: it belongs to the user 65534"),
        "{error}"
    );
    assert!(error.contains("rm -r /sys/fs/bpf/tollway"), "{error}");
    sh(&format!("rm -r {HOME}"));

    as_nobody(&format!("ln -s {target} {HOME}"));
    let (done, error) = detach();
    assert!(file.exists() && !done && error.contains("it is not a directory"), "{error}");
    sh(&format!("rm {HOME}"));

    // A directory that another version made for root becomes private to root.
    sh(&format!("mkdir -m 0755 {HOME}"));
    let (done, error) = detach();
    assert!(done, "{error}");
    let mode = Path::new(HOME).metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o700);
}
