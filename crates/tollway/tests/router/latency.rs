//! Measures how long a change takes until it is active.

use std::io::Write;
use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tollway_commands::control::{Client, ShowRequest};

use super::namespaces::{PATIENCE, Process};
use super::running::{KernelRouter, Net};

/// Number of changes of each kind.
const CHANGES: usize = 200;

/// An `ip -batch` process that reads commands from its standard input.
struct Ip(Process);

impl Ip {
    fn start() -> Self {
        let mut command = Command::new("ip");
        command.args(["-force", "-batch", "-"]).stdin(Stdio::piped());
        Self(Process(command.spawn().unwrap()))
    }

    /// Sends a command. The kernel applies it a moment later.
    fn send(&mut self, line: &str) {
        let stdin = self.0.0.stdin.as_mut().unwrap();
        stdin.write_all(format!("{line}\n").as_bytes()).unwrap();
    }
}

/// Returns the route to an address in the active tables.
fn route(client: &mut Client, address: IpAddr) -> Value {
    let found: Value = client.show(&ShowRequest::Route { address, vrf: None }).unwrap();
    found["route"].clone()
}

/// Returns the time from a command until a condition holds.
fn time(ip: &mut Ip, line: &str, mut holds: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    ip.send(line);
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "{line}");
    }
    start.elapsed()
}

fn report(what: &str, mut times: Vec<Duration>) -> bool {
    times.sort_unstable();
    let [median, p90, p99] = [50, 90, 99].map(|percent| times[times.len() * percent / 100]);
    println!("{what}: active after {median:?} (median), {p90:?} (p90), {p99:?} (p99)");
    p99 <= Duration::from_millis(5)
}

pub fn changes() {
    let _net = Net::new();
    let router = KernelRouter::start("ra rb");
    let (mut ip, mut client) = (Ip::start(), router.client());
    let mut round = || {
        let (mut routes, mut neighs, mut addresses) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..CHANGES {
            let address: IpAddr = format!("172.16.{number}.1").parse().unwrap();
            let add = format!("route add 172.16.{number}.0/24 via 10.0.2.2");
            routes.push(time(&mut ip, &add, || route(&mut client, address)["kind"] == "unicast"));
            let del = format!("route del 172.16.{number}.0/24");
            routes.push(time(&mut ip, &del, || route(&mut client, address).is_null()));

            let neigh: IpAddr = format!("10.0.2.{}", 10 + number).parse().unwrap();
            let mac = format!("02:00:00:00:07:{number:02x}");
            let add = format!("neigh replace {neigh} lladdr {mac} dev rb nud permanent");
            let known = |route: Value| route["nexthops"][0]["mac"] == mac;
            neighs.push(time(&mut ip, &add, || known(route(&mut client, neigh))));
            let del = format!("neigh del {neigh} dev rb");
            neighs.push(time(&mut ip, &del, || !known(route(&mut client, neigh))));

            let own: IpAddr = format!("10.7.{number}.1").parse().unwrap();
            let add = format!("address add {own}/24 dev rb");
            addresses.push(time(&mut ip, &add, || route(&mut client, own)["kind"] == "local"));
            let del = format!("address del {own}/24 dev rb");
            addresses.push(time(&mut ip, &del, || route(&mut client, own).is_null()));
        }
        let routes = report("a route", routes);
        let neighs = report("a neighbour", neighs);
        report("an address", addresses) && routes && neighs
    };
    // A busy machine may be slow in some rounds.
    assert!((0..5).any(|_| round()));
    assert_eq!(router.status().rebuilds, 0);
}
