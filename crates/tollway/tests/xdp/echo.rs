//! Echo requests between hosts, and how they change the counts of ports.

use tollway_dataplane::id::PortId;
use tollway_xdp::counts::PassReason;
use tollway_xdp::{PortCounts, XdpPrograms};

use super::namespaces::{Host, unanswered};

/// The IPv4 and IPv6 address of host B.
pub const BOTH: [&str; 2] = ["10.0.2.2", "fd00:2::2"];

pub fn counts(programs: &XdpPrograms, port: PortId) -> PortCounts {
    programs.counts().port(port).unwrap()
}

/// Sends ten echo requests at once. Returns ping's output; ping waits one second for the last
/// reply.
fn pings_at_once(host: &Host, target: &str) -> String {
    let mut ping = host.command(&format!("ping -n -c 10 -l 10 -i 1 -W 5 {target}"));
    String::from_utf8(ping.output().unwrap().stdout).unwrap()
}

/// Asserts that a host behind this many routers answered all ten requests.
#[track_caller]
fn assert_answered(output: &str, routers: u8) {
    let ttl = format!("ttl={}", 64 - routers);
    assert!(unanswered(output, 10).is_empty() && output.contains(&ttl), "{output}");
}

/// Sends ten echo requests. Asserts that a host behind one router answers all of them.
#[track_caller]
pub fn pings(host: &Host, target: &str) {
    assert_answered(&pings_at_once(host, target), 1);
}

/// Sends ten echo requests to each target while the worker writes heartbeats, and asserts that all
/// are answered. Returns how the ports' counts changed. A late worker leaves packets to the kernel.
/// On a busy machine that happens now and then, so this tries ten times.
#[track_caller]
pub fn pings_with_heartbeats(
    programs: &XdpPrograms,
    ports: &[PortId],
    (host, targets, routers): (&Host, &[&str], u8),
) -> Vec<PortCounts> {
    let all = || ports.iter().map(|port| counts(programs, *port)).collect::<Vec<_>>();
    for _ in 0..10 {
        let before = all();
        let output: Vec<_> = targets.iter().map(|target| pings_at_once(host, target)).collect();
        let grown: Vec<_> = all().into_iter().zip(before).map(since).collect();
        if grown.iter().all(|port| port.passed(PassReason::Stale) == 0) {
            output.iter().for_each(|output| assert_answered(output, routers));
            return grown;
        }
    }
    panic!("ten times, a heartbeat was late: this machine is too busy for the test");
}

fn since((mut now, before): (PortCounts, PortCounts)) -> PortCounts {
    now.xdp_rx_packets -= before.xdp_rx_packets;
    now.xdp_rx_bytes -= before.xdp_rx_bytes;
    now.xdp_tx_packets -= before.xdp_tx_packets;
    now.xdp_tx_bytes -= before.xdp_tx_bytes;
    now.to_user -= before.to_user;
    now.pass.iter_mut().zip(before.pass).for_each(|(now, before)| *now -= before);
    now
}
