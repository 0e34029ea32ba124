//! Tests upper devices on a port that take its frames first, from another network namespace.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use tollway_commands::control::{Client, ShowRequest};

use super::namespaces::{Host, Process, sh, until};
use super::running::{KernelRouter, Net};

const ROUNDS: usize = 3;
/// Long enough for two polls, one second apart.
const WHILE: Duration = Duration::from_millis(2200);

/// Says whether the router reports that an upper device takes frames first.
fn is_reported(client: &mut Client) -> bool {
    let offload: Value = client.show(&ShowRequest::Offload).unwrap();
    offload["links"].to_string().contains("\"upper\"")
}

pub fn moved() {
    let net = Net::new();
    let router = KernelRouter::start("ra rb");
    let third = Host::new();
    let pid = third.0.0.id().to_string();
    let mut client = router.client();
    for _ in 0..ROUNDS {
        router.forwards(&net.a, "10.0.2.2");
        sh("ip link add link ra name c0 type macvlan mode bridge");
        router.sync();
        assert!(is_reported(&mut client));
        let mut moves = Command::new("ip");
        moves.args(["link", "set", "c0", "netns", &pid]);
        let mut moves = Process(moves.spawn().unwrap());
        let (start, mut queries) = (Instant::now(), 0);
        while moves.0.try_wait().unwrap().is_none() || start.elapsed() < WHILE {
            assert!(is_reported(&mut client), "after {:?}", start.elapsed());
            queries += 1;
        }
        assert!(queries > 10);
        assert!(third.sh("ip link show dev c0").contains("c0@"));
        router.passes_to_kernel(&net.a, "10.0.2.2");
        third.sh("ip link del c0");
        router.sync();
        assert!(!is_reported(&mut client));
    }
    // A device that was never here, in a namespace that Tollway knows.
    sh(&format!("ip link add link ra netns {pid} name c1 type macvlan mode bridge"));
    until("the query of each second", || is_reported(&mut client));
    router.passes_to_kernel(&net.a, "10.0.2.2");
}
