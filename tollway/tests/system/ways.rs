//! Who forwards: the kernel alone, and Tollway in its ways.

use std::process::Command;

use crate::namespaces::{Host, until};
use crate::router::{Net, config};
use crate::running::Router;

/// How Tollway forwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Path,
    Express,
}

pub const TOLLWAY: [Way; 2] = [Way::Path, Way::Express];

impl Way {
    /// Tollway with its ports and more.
    fn start(self, ports: &str) -> Router {
        let express = match self {
            Self::Path => "off",
            Self::Express => "on",
        };
        Router::start(&format!("express = \"{express}\"\n{ports}"))
    }
}

/// The two ports; the MTU of the second.
pub fn ports(mtu: u16) -> String {
    let both = config("auto", 1500, false);
    let (a, b) = both.split_at(both.find("[ports.b]").unwrap());
    format!("{a}{}", b.replace("mtu = 1500", &format!("mtu = {mtu}")))
}

/// What is seen by the kernel alone must be seen by Tollway; that it was there is seen, too.
pub fn alike(net: &Net, ports: &str, see: impl Fn(&Net) -> Vec<String>) {
    // New links drop what comes too early.
    for target in ["10.0.2.2", "fd00:2::2"] {
        until("an answer", || told(&net.a, &format!("ping -n -c 1 -W 1 {target}")).contains(" 0%"));
    }
    let by_kernel = see(net);
    for way in TOLLWAY {
        let mut router = way.start(ports);
        assert_eq!(see(net), by_kernel, "{way:?}, and before by the kernel");
        // In the lane as well as before.
        assert_eq!(see(net), by_kernel, "{way:?} again, and before by the kernel");
        let taken = lane(&router);
        assert_eq!(taken.contains("is on"), way == Way::Express, "{taken}");
        let told = router.stop();
        assert!(!told.contains("\nreceived 0"), "Tollway had none: {told}");
    }
}

/// What the router says of its lane.
pub fn lane(router: &Router) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_tollway"))
        .args(["show", "express", "--socket"])
        .arg(router.path("control.sock"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command there, which may fail; all it printed.
pub fn told(host: &Host, line: &str) -> String {
    let output = host.command(&format!("timeout 20 {line}")).output().unwrap();
    let told = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&told).into_owned()
}
