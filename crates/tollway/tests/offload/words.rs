//! Tests what `tollway check` reports.

use std::process::Command;

use serde_json::Value;

use crate::namespaces::{ifindex, sh};
use crate::scene::{router, sysctl};
use crate::socket::Wire;

/// Runs `tollway check`. Returns the exit code, stdout and stderr.
pub fn check(words: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollway"));
    let output = command.args(["check", "--engine", "xdp"]).args(words).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// `tollway check` reports the packets of a device that is not a port, even if only one route leads
/// there.
pub fn traffic() {
    router();
    // Checksums may be unfinished, so all traffic of rb takes the kernel path.
    sh("ethtool -K rb-end tx on");
    sh("ip link add out0 type veth peer name out0-end");
    sh("ip link set out0-end up");
    sh("ip link set out0 up");
    sh("ip route add default dev out0");
    let json = || -> Value {
        let (code, output, error) = check(&["ra", "rb", "--json"]);
        assert_eq!((code, error.as_str()), (Some(3), ""));
        let json: Value = serde_json::from_str(&output).unwrap();
        json["traffic"].clone()
    };
    let count = |json: &Value, way: &str, what: &str| json[way][what].as_u64().unwrap();
    let before = json();
    assert_eq!(before["others"][0]["device"], "out0");
    let sent = |json: &Value| json["others"][0]["sent"].as_u64().unwrap();
    // 100 packets to each: out of the tunnel's stand-in, out of ra and rb, and into rb.
    let flood = |via: &str| {
        let mut wire = Wire::open(ifindex(via).cast_signed()).unwrap();
        let frame = [[2; 12].as_slice(), &[8, 0], &[0; 60]].concat();
        (0..100).for_each(|_| wire.send(&frame).unwrap());
    };
    ["out0", "ra", "rb", "rb-end"].iter().for_each(|device| flood(device));
    // The kernel's own packets (neighbour solicitations) count, too.
    let about = |after: u64, before: u64| (100..130).contains(&(after - before));
    let after = json();
    assert!(about(sent(&after), sent(&before)), "{before} {after}");
    let grown = |way: &str, what: &str| count(&after, way, what) - count(&before, way, what);
    assert!((100..130).contains(&grown("sent", "kernel")), "out of rb: {before} {after}");
    assert!((200..260).contains(&grown("sent", "packets")), "by both: {before} {after}");
    assert!((100..130).contains(&grown("received", "kernel")), "into rb: {before} {after}");

    // The kernel may send a packet of its own between the two commands.
    let same = (0..20).find_map(|_| {
        let (_, output, _) = check(&["ra", "rb"]);
        let sent = format!("and sent {}, ", sent(&json()));
        output.contains(&sent).then_some((output, sent))
    });
    let (output, sent) = same.expect("check counts what out0 has sent");
    let other =
        "\nout0 is not a port, and its packets take the kernel path: so far it has received ";
    assert!(output.contains(other), "{output}");
    assert!(output.contains(&sent), "{output}");
    assert!(output.contains(" that ports have received so far, "), "{output}");
}

pub fn command() {
    router();
    let (code, output, error) = check(&["ra", "rb"]);
    assert_eq!((code, error.as_str()), (Some(0), ""));
    assert!(output.starts_with("ra\n  all  fast\n\nrb\n  all  fast\n\n"), "{output}");
    assert!(
        output.contains("IPv4 is fast both ways on 2 of 2 links, IPv6 on 2 of 2. "),
        "{output}"
    );
    let last = "\nAll that the kernel forwards between them would be fast.\n";
    assert!(output.ends_with(last), "{output}");

    sysctl("ipv4/conf/rb/forwarding", "0");
    sysctl("ipv4/conf/rb/accept_redirects", "0");
    sh("tc qdisc add dev ra root tbf rate 10mbit burst 10k latency 10ms");
    let (_, output, _) = check(&["ra", "rb"]);
    let queue = "ra has a configured queueing discipline, tbf (tc qdisc show dev ra)";
    assert!(
        output.contains(&format!("ra\n  in   fast\n  out  kernel path: {queue}\n")),
        "{output}"
    );
    let off = "the kernel does not forward it: net.ipv4.conf.rb.forwarding = 0";
    assert!(output.contains(&format!("  IPv4 in       kernel path: {off}\n")), "{output}");

    let (code, json, _) = check(&["ra", "rb", "--json"]);
    assert_eq!(code, Some(3), "part of it");
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["links"][0]["leaves"]["ipv6"][0]["reason"], "qdisc");
    assert_eq!(json["links"][0]["ipv4_fast"], false);
    assert_eq!(json["links"][1]["arrives"]["ipv4"][0]["why"], off);

    sh("ethtool -K ra-end tx on");
    sh("ethtool -K rb-end tx on");
    let (code, output, _) = check(&["ra", "rb"]);
    assert_eq!(code, Some(4), "{output}");
    let last = "\nNothing that the kernel forwards between them would be fast (exit status 4).\n";
    assert!(output.ends_with(last), "{output}");

    let (code, output, error) = check(&["ra", "rx"]);
    assert_eq!((code, output.as_str()), (Some(2), ""));
    assert!(error.starts_with("error: there is no network device rx; there are "), "{error}");
    assert!(error.contains("ra-end, ra, rb-end and rb"), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");

    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("router.toml");
    let (code, _, error) = check(&[&file.display().to_string()]);
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("router.toml"), "a file that is not there is no device: {error}");
}
