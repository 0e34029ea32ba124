//! What a router shows of its workers and queues.

use std::process::Command;

use serde_json::Value;

use super::namespaces::until;
use super::router::{Net, config};
use super::running::Router;

const WORKERS: u32 = 2;

/// What a command prints about a router.
fn output(router: &Router, words: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollway"));
    command.args(words.split(' ')).args(["--socket", "control.sock"]);
    let output = command.current_dir(router.dir.path()).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && error.is_empty(), "{words}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

fn json(router: &Router, what: &str) -> Value {
    serde_json::from_str(&output(router, &format!("show {what} --json"))).unwrap()
}

fn list<'a>(answer: &'a Value, name: &str) -> &'a [Value] {
    answer[name].as_array().unwrap()
}

/// The sum of a member over the items that `which` selects.
fn sum(items: &[Value], member: &str, which: impl Fn(&Value) -> bool) -> u64 {
    let items = items.iter().filter(|item| which(item));
    items.map(|item| item.pointer(member).unwrap().as_u64().unwrap()).sum()
}

/// Says whether the counts of the workers and of the queues are those of the ports.
fn adds_up(workers: &Value, ports: &Value) -> bool {
    let (states, queues) = (list(workers, "workers"), list(workers, "queues"));
    let totals = ["received", "sent", "dropped", "punted", "delivered"]
        .iter()
        .all(|name| ports["totals"][name] == sum(states, &format!("/counts/{name}"), |_| true));
    let of_ports = list(ports, "ports").iter().all(|port| {
        let of = |member| sum(queues, member, |queue| queue["port"] == port["name"]);
        port["rx"]["packets"] == of("/received") && port["missed"] == of("/missed")
    });
    let of_workers = states.iter().all(|state| {
        let received = sum(queues, "/received", |queue| queue["worker"] == state["worker"]);
        state["counts"]["received"] == received
    });
    totals && of_ports && of_workers
}

/// Each worker receives packets, and every packet is counted for its worker and its queue.
pub fn shown() {
    let net = Net::new(1500, WORKERS);
    let config = format!("xdp = \"off\"\n{}", config("copy", 1500, true));
    let mut router = Router::start_of(WORKERS, &config);
    let mut port = 7000;
    until("both workers to receive packets", || {
        port += 1;
        net.talk([&format!("10.0.2.2:{port}"), &format!("[fd00:2::2]:{port}")]);
        let workers = json(&router, "workers");
        let received = |state: &Value| state["counts"]["received"].as_u64().unwrap();
        list(&workers, "workers").iter().all(|state| received(state) > 0)
    });
    until("the last packets to be counted", || {
        adds_up(&json(&router, "workers"), &json(&router, "ports"))
    });
    let workers = json(&router, "workers");
    println!("{workers:#}");
    assert_eq!(list(&workers, "workers").len(), WORKERS as usize);
    let queues = list(&workers, "queues");
    assert!(queues.len() >= 2 * WORKERS as usize, "{queues:?}");
    for queue in queues {
        let number = queue["queue"].as_u64().unwrap();
        assert_eq!(queue["worker"], number % u64::from(WORKERS), "{queue}");
    }
    for state in list(&workers, "workers") {
        let counts = &state["counts"];
        let (received, bursts) = (&counts["received"], &counts["bursts"]);
        let fill = counts["packets_per_burst"].as_f64().unwrap();
        let mean = received.as_f64().unwrap() / bursts.as_f64().unwrap();
        assert!((1.0..=64.0).contains(&fill) && (fill - mean).abs() < 0.01, "{state}");
        assert!(counts["busy_ns"].as_u64() > Some(0) && counts["asleep_ns"].as_u64() > Some(0));
    }
    until("a full second to be measured, without load", || {
        let load = |state: &Value| state["counts"]["load_percent"].as_f64();
        let workers = json(&router, "workers");
        list(&workers, "workers").iter().all(|state| load(state).is_some_and(|load| load < 50.0))
    });
    let text = output(&router, "show workers");
    println!("{text}");
    assert!(text.contains("packets/burst") && text.contains("missed"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let screen = output(&router, "top --once --interval 0.2 --size 80x24");
    println!("{screen}");
    let rows = screen.lines().skip_while(|line| !line.starts_with("worker")).skip(1);
    let numbers: Vec<_> = rows.take(2).filter_map(|row| row.split_whitespace().next()).collect();
    assert_eq!(numbers, ["0", "1"], "{screen}");
    router.stop();
}
