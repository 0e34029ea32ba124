//! Tests a router with a configuration file, which follows the kernel's neighbours. While it is
//! behind, it sends no packets to a neighbour's old address.

use std::fmt::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::flow::{self, Flow};
use super::{REPORTED, TRIES};
use crate::closed::{self, Router};
use crate::namespaces::{Process, sh, until};
use crate::running::Net;

const MOVES: u32 = 60_000;
const MOVE: &str = "ip neigh replace 10.0.2.2 lladdr 02:00:00:00:77:77 dev rb nud permanent";
const BACK: &str = "ip neigh del 10.0.2.2 dev rb";

/// A flow through a router with a configuration file, and a batch file for `ip` that moves other
/// neighbours again and again.
struct Bench {
    router: Router,
    flow: Flow,
    batch: tempfile::NamedTempFile,
    _net: Net,
}

impl Bench {
    fn new(rules: &str) -> Self {
        let net = Net::new();
        let mut config = closed::config("");
        if rules.is_empty() {
            config = config.replace("filter = \"rules.nft\"\n", "");
        }
        let router = Router::start_with(&config, rules);
        flow::hurry();
        let flow = Flow::start((&net.a, "10.0.1.2"), (&net.b, "10.0.2.2"));
        let mut lines = String::new();
        for number in 0..MOVES {
            let (host, mac) = (100 + number % 100, number / 100 % 256);
            let _ = writeln!(
                lines,
                "neigh replace 10.0.2.{host} lladdr 02:00:00:00:66:{mac:02x} dev rb nud permanent"
            );
        }
        let batch = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(batch.path(), lines).unwrap();
        Self { router, flow, batch, _net: net }
    }

    /// Waits until the flow goes on.
    fn flows(&self) {
        until("the flow to go on", || {
            let before = self.flow.packets();
            std::thread::sleep(Duration::from_millis(50));
            self.flow.packets() > before + 200
        });
    }

    fn moves(&self) -> Process {
        let mut command = Command::new("chrt");
        command.args(["-o", "0", "ip", "-batch"]).arg(self.batch.path()).stdin(Stdio::null());
        Process(command.spawn().unwrap())
    }

    /// Returns how long packets go to the neighbour's old address. Its change comes after many
    /// others.
    fn flooded(&self) -> Duration {
        self.flows();
        let mut others = self.moves();
        std::thread::sleep(Duration::from_millis(100));
        sh(MOVE);
        let done_ns = flow::now_ns();
        let goes_on = others.0.try_wait().unwrap().is_none();
        let leak = Duration::from_nanos(self.flow.last_ns().saturating_sub(done_ns));
        assert!(others.0.wait().unwrap().success());
        println!("behind {MOVES} neighbours, which go on: {goes_on}: packets for {leak:?}");
        sh(BACK);
        leak
    }

    /// Does the same with changes made while the router is stopped.
    fn stopped(&self) -> Duration {
        self.flows();
        let signal = |signal| sh(&format!("kill -{signal} {}", self.router.pid()));
        signal("STOP");
        assert!(self.moves().0.wait().unwrap().success());
        sh(MOVE);
        let done_ns = flow::now_ns();
        signal("CONT");
        let leak = Duration::from_nanos(self.flow.last_ns().saturating_sub(done_ns));
        println!("after a pause with {MOVES} neighbours unread: packets for {leak:?}");
        sh(BACK);
        leak
    }
}

/// Without rules, the kernel forwards until the router has caught up. With rules, nothing is
/// forwarded.
pub fn behind() {
    for rules in [
        "",
        "table inet f {\n chain fw {\n type filter hook forward priority 0; policy accept;\n }\n}\n",
    ] {
        let bench = Bench::new(rules);
        assert!(
            (0..TRIES).any(|_| bench.flooded() <= REPORTED && bench.flooded() <= REPORTED),
            "{rules}"
        );
        assert!(
            (0..TRIES).any(|_| bench.stopped() <= REPORTED && bench.stopped() <= REPORTED),
            "{rules}"
        );
        bench.flows();
        sh("ip link delete ra");
        sh("ip link delete rb");
    }
}
