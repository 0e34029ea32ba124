//! Changes the kernel's configuration with `ip`, on veth pairs.

use std::io::Write;
use std::process::{Child, Command, Stdio};

use crate::namespaces::{Process, sh};

/// Creates veth pairs with addresses: the devices `a0` to `a3`, and `b0` to `b3` at their other ends.
pub fn veth_pairs() {
    sh("ip link set lo up");
    for n in 0..4 {
        sh(&format!("ip link add a{n} type veth peer name b{n}"));
        for device in ["a", "b"] {
            sh(&format!("sysctl -qw net.ipv6.conf.{device}{n}.accept_dad=0"));
            sh(&format!("sysctl -qw net.ipv6.conf.{device}{n}.router_solicitations=0"));
            sh(&format!("ip link set {device}{n} up"));
        }
        sh(&format!("ip address add 10.0.{n}.1/24 dev a{n}"));
        sh(&format!("ip address add fd00:{n}::1/64 dev a{n} nodad"));
    }
}

/// An `ip` process that runs each line as it is written, and ignores errors.
pub struct Ip(Process);

impl Ip {
    pub fn new() -> Self {
        Self::of("ip")
    }

    /// The same with `bridge`.
    pub fn bridge() -> Self {
        Self::of("bridge")
    }

    fn of(program: &str) -> Self {
        let mut ip = Command::new(program);
        ip.args(["-force", "-batch", "-"]).stdin(Stdio::piped());
        ip.stdout(Stdio::null()).stderr(Stdio::null());
        Self(Process(ip.spawn().unwrap()))
    }

    pub fn run(&mut self, lines: &str) {
        let Child { stdin, .. } = &mut self.0.0;
        stdin.as_mut().unwrap().write_all(lines.as_bytes()).unwrap();
    }

    /// Waits until `ip` has run all lines.
    pub fn finish(mut self) {
        drop(self.0.0.stdin.take());
        // `ip` exits with 1 if the kernel refuses a line, and with other codes if it cannot parse
        // one.
        assert!(matches!(self.0.0.wait().unwrap().code(), Some(0 | 1)));
    }
}

/// Runs some lines, each of which must succeed.
pub fn batch(lines: &str) {
    let mut ip = Command::new("ip");
    let mut ip = ip.args(["-batch", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    ip.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    assert!(ip.wait().unwrap().success());
}
