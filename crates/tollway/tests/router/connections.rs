//! Tests that `tollway show connections` shows what the kernel has in `/proc/net/nf_conntrack`.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

use super::namespaces::{ready, sh, until};
use super::running::{KernelRouter, Net};

const SERVER: &str = "10.0.2.2:5001";
/// More connections than a page has.
const MANY: usize = 1200;

/// Returns what `tollway show connections` prints, with these further words.
pub fn show(router: &KernelRouter, words: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollway"));
    command.args(["show", "connections", "--socket"]).arg(router.path("control.sock"));
    let output = command.args(words.split_whitespace()).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && error.is_empty(), "{words}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

pub fn json(router: &KernelRouter, words: &str) -> Vec<Value> {
    let answer: Value = serde_json::from_str(&show(router, &format!("--json {words}"))).unwrap();
    assert_eq!(answer["v"], 2);
    answer["connections"].as_array().unwrap().clone()
}

/// The numbers of connections and of their directions.
pub fn totals(router: &KernelRouter) -> Value {
    serde_json::from_str(&show(router, "--totals --json")).unwrap()
}

pub fn only(router: &KernelRouter, words: &str) -> Value {
    let mut all = json(router, words);
    assert_eq!(all.len(), 1, "{words}: {all:?}");
    all.remove(0)
}

/// Returns each connection as the kernel's file has it: protocol, addresses and ports (or the query's identifier) of
/// both directions, counts and mark.
fn lines() -> BTreeSet<String> {
    let text = std::fs::read_to_string("/proc/net/nf_conntrack").unwrap();
    let names = ["src=", "dst=", "sport=", "dport=", "id=", "packets=", "bytes=", "mark="];
    let line = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        let kept = words.iter().filter(|word| names.iter().any(|name| word.starts_with(name)));
        let kept = kept.map(|word| word.split_once('=').unwrap().1.to_owned());
        let address =
            |word: String| word.parse::<std::net::IpAddr>().map_or(word, |ip| ip.to_string());
        std::iter::once(words[2].to_owned()).chain(kept.map(address)).collect::<Vec<_>>().join(" ")
    };
    text.lines().map(line).collect()
}

/// Returns a connection of Tollway's answer in the same form.
fn line(connection: &Value) -> String {
    let mut words = vec![connection["protocol"].clone()];
    for (direction, counts) in
        [("original", ["packets", "bytes"]), ("reply", ["reply_packets", "reply_bytes"])]
    {
        let tuple = &connection[direction];
        words.extend(["source", "destination"].map(|name| tuple[name].clone()));
        let ports = ["source_port", "destination_port"].map(|name| tuple[name].clone());
        words.extend(ports.into_iter().chain([tuple["icmp"]["id"].clone()]));
        words.extend(counts.map(|name| connection["counts"][name].clone()));
    }
    words.push(connection["mark"].clone());
    let words = words.iter().filter(|word| !word.is_null());
    let text = words.map(|word| word.as_str().map_or_else(|| word.to_string(), str::to_owned));
    text.collect::<Vec<_>>().join(" ")
}

/// Waits until Tollway shows what the kernel has. Returns the number of connections.
fn agree(router: &KernelRouter) -> usize {
    let mut count = 0;
    until("the kernel's connections", || {
        let before = lines();
        let shown = json(router, "");
        count = shown.len();
        // Nothing has changed while they were read.
        let shown: BTreeSet<_> = shown.iter().map(line).collect();
        count == before.len() && shown == before && before == lines()
    });
    count
}

/// Has the kernel track what it forwards, count it, translate IPv4, and mark some.
fn rules() {
    sh("sysctl -qw net.netfilter.nf_conntrack_acct=1");
    // None may end before it was compared: on a slow machine, making them takes half a minute.
    for timeout in ["udp_timeout", "icmp_timeout", "icmpv6_timeout"] {
        sh(&format!("sysctl -qw net.netfilter.nf_conntrack_{timeout}=300"));
    }
    for line in [
        "table ip nat",
        "chain ip nat post { type nat hook postrouting priority 100 ; }",
        "rule ip nat post oifname rb masquerade",
        "table inet filter",
        "chain inet filter forward { type filter hook forward priority 0 ; }",
        "rule inet filter forward ct state invalid drop",
        "rule inet filter forward udp dport 7001 ct mark set 0x11",
    ] {
        sh(&format!("nft add {line}"));
    }
}

pub fn shown() {
    let net = Net::new();
    rules();
    let _server = ready(&mut net.b.role("--serve", SERVER));
    let router = KernelRouter::start("ra rb");
    assert_eq!(show(&router, "--port 5001"), "there is no such connection\n");

    let bash = |script: &str| {
        let mut command = net.a.command("bash -c");
        command.arg(script);
        command
    };
    // Holds the connection: the server answers when it ends.
    let tcp = "exec 3<>/dev/tcp/10.0.2.2/5001; echo hello >&3; echo ready; read <&3";
    let _client = ready(&mut bash(tcp));
    assert!(bash("echo x >/dev/udp/10.0.2.2/7001").status().unwrap().success());
    net.a.pings(1, "10.0.2.2");
    net.a.pings(1, "fd00:2::2");
    assert!(agree(&router) >= 4);

    let tcp = only(&router, "--protocol tcp --state established");
    assert_eq!(tcp["original"]["source"], "10.0.1.2");
    assert_eq!(tcp["reply"]["destination"], "10.0.2.1", "masquerading");
    // Tollway forwards it if more than some milliseconds have passed between its first packets. Otherwise it has not asked,
    // has asked too early, maybe for one direction, or needs another packet.
    let words = match (tcp["path"].as_str().unwrap(), tcp["reason"].as_str().unwrap()) {
        ("fast", "" | "tcp_state" | "not_assured" | "unruled") => "fast",
        ("kernel", "not_entered") => "kernel  no packets have come lately",
        ("kernel", "tcp_state") => "kernel  its TCP state was not ESTABLISHED",
        ("kernel", "not_assured") => "kernel  it was not assured",
        ("kernel", "unruled") => "kernel  its rules are not evaluated",
        other => panic!("{other:?}: {tcp}"),
    };
    assert!(tcp["counts"]["packets"].as_u64().unwrap() >= 3, "{tcp}");
    assert_eq!(only(&router, "--port 5001")["id"], tcp["id"]);
    let udp = only(&router, "--mark 0x11 10.0.2.1");
    assert_eq!((&udp["mark"], &udp["reason"]), (&17.into(), &"not_assured".into()));
    let six = json(&router, "--source fd00:1::/64");
    assert!(!six.is_empty() && six.iter().all(|one| one["reason"] == "protocol"), "{six:?}");
    assert_eq!(show(&router, "--destination 192.0.2.1"), "there is no such connection\n");
    let text = show(&router, "--protocol tcp");
    for words in ["protocol  state ", "tcp       ESTABLISHED  10.0.1.2:", "from 10.0.2.1:", words] {
        assert!(text.contains(words), "{words}: {text}");
    }

    let script = format!(
        "for port in {{10001..{}}}; do echo x >/dev/udp/10.0.2.2/$port; done",
        10_000 + MANY
    );
    // A port without a socket answers by ICMP, which may fail a later write.
    let _ = bash(&script).status().unwrap();
    assert!(agree(&router) >= MANY);
}
