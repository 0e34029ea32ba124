//! Tests upper devices on a port that take its frames first, from another network namespace.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use tollway::control::{Ask, Client};

use super::namespaces::{Host, Process, sh, until};
use super::running::{Mirror, Net};

const ROUNDS: usize = 3;
/// Long enough for two polls, one second apart.
const WHILE: Duration = Duration::from_millis(2200);

/// Says whether the router reports that an upper device takes frames first.
fn is_told(client: &mut Client) -> bool {
    let offload: Value = client.ask(&Ask::Offload).unwrap();
    offload["links"].to_string().contains("\"upper\"")
}

pub fn moved() {
    let net = Net::new();
    let mirror = Mirror::start("ra rb");
    let third = Host::new();
    let pid = third.0.0.id().to_string();
    let mut client = mirror.client();
    for _ in 0..ROUNDS {
        mirror.forwards(&net.a, "10.0.2.2");
        sh("ip link add link ra name c0 type macvlan mode bridge");
        mirror.sync();
        assert!(is_told(&mut client));
        let mut moves = Command::new("ip");
        moves.args(["link", "set", "c0", "netns", &pid]);
        let mut moves = Process(moves.spawn().unwrap());
        let (start, mut asked) = (Instant::now(), 0);
        while moves.0.try_wait().unwrap().is_none() || start.elapsed() < WHILE {
            assert!(is_told(&mut client), "after {:?}", start.elapsed());
            asked += 1;
        }
        assert!(asked > 10);
        assert!(third.sh("ip link show dev c0").contains("c0@"));
        mirror.leaves(&net.a, "10.0.2.2");
        third.sh("ip link del c0");
        mirror.sync();
        assert!(!is_told(&mut client));
    }
    // A device that was never here, in a namespace that Tollway knows.
    sh(&format!("ip link add link ra netns {pid} name c1 type macvlan mode bridge"));
    until("what is asked for each second", || is_told(&mut client));
    mirror.leaves(&net.a, "10.0.2.2");
}
