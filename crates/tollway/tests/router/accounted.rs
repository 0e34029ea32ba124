//! Tests that `tollway show connections` shows what has really passed, by which path and why, and which connections are
//! the largest.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::connections::{self, json, only};
use super::namespaces::{Host, ready, sh, until};
use super::running::{KernelRouter, Net};
use super::tracked::{ASSURED_MS, by_engine, firewall, talk};
use super::tracked_tcp::set_mark;

const STREAMS: &str = "10.0.2.2:5001";
/// The most packets of a host beside a stream, and bytes of each at most; bytes of a header of Ethernet.
const OTHERS: u64 = 10;
const MOST: u64 = 65_536;
const ETHERNET: u64 = 14;

/// What a client and its server have sent: packets and bytes from the IP header on, in both directions.
#[derive(Default)]
struct Sent([u64; 4]);

impl Sent {
    /// Adds a talk of so many questions, which are numbers; an answer repeats its question and names the client.
    fn add(&mut self, (sent, answered, from): (u64, u64, String)) {
        assert_eq!(sent, answered, "an answer is lost");
        const HEADERS: u64 = 28;
        for number in 1..=sent {
            let question = HEADERS + number.to_string().len() as u64;
            let answer = question + 1 + from.len() as u64;
            for (sum, more) in self.0.iter_mut().zip([1, question, 1, answer]) {
                *sum += more;
            }
        }
    }
}

/// The numbers of an object's members.
fn numbers<const N: usize>(object: &Value, names: [&str; N]) -> [u64; N] {
    names.map(|name| object[name].as_u64().unwrap_or_else(|| panic!("{name} of {object}")))
}

/// Returns what the kernel has counted of the only connection of UDP.
fn of_kernel() -> [u64; 4] {
    let text = std::fs::read_to_string("/proc/net/nf_conntrack").unwrap();
    let line = text.lines().find(|line| line.contains(" udp ")).unwrap();
    let of = |name: &str| {
        let words = line.split_whitespace().filter_map(|word| word.strip_prefix(name));
        words.map(|word| word.parse().unwrap()).collect::<Vec<u64>>()
    };
    let (packets, bytes) = (of("packets="), of("bytes="));
    [packets[0], bytes[0], packets[1], bytes[1]]
}

/// Tollway adds to the kernel's counts what it has forwarded, so that nothing is missing, and says what it does and why.
pub fn accounted() {
    by_engine(|net, router| {
        sh("sysctl -qw net.netfilter.nf_conntrack_acct=1");
        firewall();
        router.sync();
        let udp = || only(router, "--protocol udp");
        let mut sent = Sent::default();
        sent.add(talk(&net.a, ASSURED_MS));
        until("packets of the connection by Tollway", || {
            sent.add(talk(&net.a, 300));
            let one = udp();
            let both = [&one["original_entry"], &one["reply_entry"]];
            both.iter().all(|entry| entry["packets"].as_u64().is_some_and(|count| count > 50))
        });
        let one = udp();
        let names = ["packets", "bytes", "reply_packets", "reply_bytes"];
        assert_eq!(numbers(&one["counts"], names), sent.0, "what has really passed: {one}");
        let entries = [&one["original_entry"], &one["reply_entry"]];
        let [original, reply] = entries.map(|entry| numbers(entry, ["packets", "bytes"]));
        let fast = [original, reply].concat();
        let kernel = of_kernel();
        let sums: Vec<_> = kernel.iter().zip(&fast).map(|(kernel, fast)| kernel + fast).collect();
        assert_eq!(sums, sent.0, "{kernel:?} of the kernel, {fast:?} of the programs");
        assert_eq!((&one["path"], &one["reason"]), (&"fast".into(), &"".into()));
        assert_eq!((&entries[0]["device"], &entries[0]["output"]), (&"ra".into(), &"rb".into()));
        assert_eq!((&entries[1]["device"], &entries[1]["output"]), (&"rb".into(), &"ra".into()));

        assert_eq!(json(router, "--path fast --device rb --family ipv4").len(), 1);
        assert!(json(router, "--path kernel --protocol udp").is_empty());
        assert!(json(router, "--device lo").is_empty());
        totals(router, [original, reply]);
        goes_on(net, router, &mut sent);
        rates(net, router);
        reasons(net, router);
        sh("sysctl -qw net.netfilter.nf_conntrack_acct=0");
    });
}

/// The totals and the metrics have both directions of the connection, and what has been forwarded of them: packets and
/// bytes.
fn totals(router: &KernelRouter, [original, reply]: [[u64; 2]; 2]) {
    until("a count of the table", || {
        let totals = connections::totals(router);
        let [forwarded, entered, answers, room] = numbers(
            &totals,
            ["directions_forwarded", "directions_entered", "answers", "table_room"],
        );
        assert!(entered >= 2 && answers >= 2 && room >= 1024, "{totals}");
        forwarded == 2
    });
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollway"));
    command.args(["show", "metrics", "--socket"]).arg(router.path("control.sock"));
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let of_kernel =
        "tollway_path_packets_total{port=\"ra\",path=\"kernel\",reason=\"connection\"} ";
    for (port, [packets, bytes]) in [("ra", original), ("rb", reply)] {
        for (name, count) in [("packets", packets), ("bytes", bytes)] {
            let line = format!("tollway_connection_{name}_total{{port=\"{port}\"}} {count}");
            assert!(text.lines().any(|one| one == line), "{line}: {text}");
        }
    }
    for line in [
        "tollway_connection_directions{treatment=\"forwarded\",reason=\"\"} 2",
        "tollway_conntrack_events_total{event=\"invalid\"} ",
        of_kernel,
    ] {
        assert!(text.lines().any(|one| one.starts_with(line)), "{line}: {text}");
    }
}

/// What has passed stays with the connection whatever changes, and with no other one.
fn goes_on(net: &Net, router: &KernelRouter, sent: &mut Sent) {
    let names = ["packets", "bytes", "reply_packets", "reply_bytes"];
    let has_entered = || connections::totals(router)["directions_entered"].as_u64().unwrap();
    let forwarded = |entered: u64, sent: &mut Sent| {
        until("packets by Tollway again", || {
            sent.add(talk(&net.a, 300));
            has_entered() >= entered + 2
        });
        let one = only(router, "--protocol udp");
        assert_eq!(numbers(&one["counts"], names), sent.0, "what has really passed: {one}");
    };
    let rule = || _ = sh("nft add rule inet fw forward udp dport 9 drop");
    let changes: [fn(); 2] = [|| set_mark(libc::IPPROTO_UDP, 7), rule];
    for change in changes {
        let before = has_entered();
        change();
        router.sync();
        forwarded(before, sent);
    }
    // Another connection with the same addresses and ports.
    let before = has_entered();
    sh("conntrack -F");
    // The programs ask with the next packet then; before, some leave by the entries, and belong to neither connection.
    std::thread::sleep(Duration::from_millis(200));
    *sent = Sent::default();
    sent.add(talk(&net.a, ASSURED_MS));
    forwarded(before, sent);
}

/// A connection of TCP has what it has sent when it is over, too.
pub fn ended() {
    by_engine(|net, router| {
        sh("sysctl -qw net.netfilter.nf_conntrack_acct=1");
        firewall();
        router.sync();
        let _server = ready(&mut net.b.role("--serve", STREAMS));
        let sent = |host: &Host, device: &str| {
            let text = host.sh(&format!("ip -s -j link show dev {device}"));
            let shown: Value = serde_json::from_str(&text).unwrap();
            numbers(&shown[0]["stats64"]["tx"], ["packets", "bytes"])
        };
        for _ in 0..2 {
            let before = [sent(&net.a, "ha"), sent(&net.b, "hb")];
            assert!(net.a.role("--client", STREAMS).status().unwrap().success());
            let mut all = Vec::new();
            until("the end of the connection", || {
                all = json(router, "--protocol tcp --state time_wait");
                all.len() == 1
            });
            // The connection's last packets may follow the end of the client's process.
            let after = [sent(&net.a, "ha"), sent(&net.b, "hb")];
            let shown = [["packets", "bytes"], ["reply_packets", "reply_bytes"]]
                .map(|names| numbers(&all[0]["counts"], names));
            for (shown, (before, after)) in shown.into_iter().zip(before.into_iter().zip(after)) {
                // Beside the stream, a host asks for a neighbour, or tells of itself. Whether a device counts Ethernet's headers
                // depends on the peer's program.
                let [packets, bytes] = [0, 1].map(|at| after[at] - before[at]);
                assert!(
                    (packets.saturating_sub(OTHERS)..=packets).contains(&shown[0]),
                    "{shown:?} of {packets}"
                );
                let least = bytes.saturating_sub(ETHERNET * packets + OTHERS * MOST);
                assert!((least..=bytes).contains(&shown[1]), "{shown:?} of {bytes}");
            }
            sh("conntrack -D -p tcp");
        }
        sh("sysctl -qw net.netfilter.nf_conntrack_acct=0");
    });
}

/// While the client talks, its connection is the one with the highest rate.
fn rates(net: &Net, router: &KernelRouter) {
    std::thread::scope(|scope| {
        let talks = scope.spawn(|| talk(&net.a, 1200));
        until("a rate", || {
            let all = json(router, "--sort rate --interval 0.3 --limit 1");
            assert_eq!(all.len(), 1, "{all:?}");
            let rates = &all[0]["rates"];
            let [packets, bytes] = numbers(rates, ["packets_per_s", "bytes_per_s"]);
            all[0]["protocol"] == "udp" && packets > 100 && bytes >= packets * 29
        });
        talks.join().unwrap();
    });
}

/// The rules drop its packets, or leave them to the kernel, and the list says so.
fn reasons(net: &Net, router: &KernelRouter) {
    for (rule, path, reason) in
        [("udp dport 7001 drop", "fast", "dropped"), ("ct bytes > 1 accept", "kernel", "rules")]
    {
        sh(&format!("nft insert rule inet fw forward {rule}"));
        router.sync();
        let mut shown = Value::Null;
        until(reason, || {
            talk(&net.a, 50);
            shown = only(router, "--protocol udp");
            shown["reason"] == reason
        });
        assert_eq!(shown["path"], path, "{shown}");
        assert_eq!(only(router, &format!("--reason {reason}"))["id"], shown["id"]);
        sh("nft flush table inet fw");
        sh("nft delete table inet fw");
        firewall();
    }
}
