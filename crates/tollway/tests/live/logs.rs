//! Tests a log that cannot be written, or that no process reads.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::namespaces::{Host, PATIENCE, Process, sh, until};
use super::running::{CONFIG, command, two_hosts};

/// The router logs a link that goes down and up, and still forwards.
pub fn untaken() {
    let (a, _b) = two_hosts();
    let full = || Stdio::from(File::options().write(true).open("/dev/full").unwrap());
    let mut router = Router::start("tollway", full(), full());
    router.loses_and_regains(&a);
    assert_eq!(router.stop(), Some(1), "it reports that its summary went nowhere");

    let (mut reader, writer) = UnixStream::pair().unwrap();
    fill(&writer);
    let mut router = Router::start("tollway", Stdio::from(OwnedFd::from(writer)), Stdio::null());
    router.loses_and_regains(&a);
    // Now the test reads the log.
    reader.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut log = Vec::new();
    let mut part = [0; 4096];
    while !String::from_utf8_lossy(&log).contains("ra is back") {
        let len = reader.read(&mut part).unwrap();
        log.extend(part[..len].iter().filter(|byte| **byte != 0));
    }
    assert_eq!(router.stop(), Some(0));

    // A file that has reached its maximum size.
    let file = tempfile::tempfile().unwrap();
    let mut router = Router::start("prlimit --fsize=50 tollway", Stdio::from(file), Stdio::null());
    router.loses_and_regains(&a);
    assert_eq!(router.stop(), Some(0));
}

/// Fills a socket's buffer.
fn fill(mut socket: &UnixStream) {
    socket.set_nonblocking(true).unwrap();
    while socket.write(&[0; 4096]).is_ok() {}
    while socket.write(&[0]).is_ok() {}
    socket.set_nonblocking(false).unwrap();
}

/// A router whose output is not read, and that answers queries.
struct Router {
    process: Process,
    dir: TempDir,
}

impl Router {
    fn start(program: &str, stderr: Stdio, stdout: Stdio) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut command = command(program, &dir, CONFIG);
        Self { process: Process(command.stderr(stderr).stdout(stdout).spawn().unwrap()), dir }
    }

    fn shows(&self) -> Option<String> {
        let mut show = Command::new(env!("CARGO_BIN_EXE_tollway"));
        let output = show.args(["show", "ports", "--socket=control.sock"]);
        let output = output.current_dir(self.dir.path()).output().unwrap();
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn loses_and_regains(&mut self, host: &Host) {
        let is_down = |shown: String| shown.contains("the interface is down");
        until("the router to answer", || self.shows().is_some_and(|shown| !is_down(shown)));
        host.pings(3, "10.0.2.2");
        sh("ip link set ra down");
        until("the loss to be noticed", || self.shows().is_some_and(is_down));
        sh("ip link set ra up");
        until("the return to be noticed", || self.shows().is_some_and(|shown| !is_down(shown)));
        host.pings(3, "10.0.2.2");
    }

    fn stop(&mut self) -> Option<i32> {
        sh(&format!("kill -TERM {}", self.process.0.id()));
        let mut status = None;
        until("the router to stop", || {
            status = self.process.0.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap().code()
    }
}
