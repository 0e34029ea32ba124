//! What `tollway check` says.

use std::process::Command;

use serde_json::Value;

use crate::namespaces::sh;
use crate::scene::{router, sysctl};

/// The exit code, and what went to stdout and stderr.
fn check(words: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollway"));
    let output = command.arg("check").args(words).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

pub fn command() {
    router();
    let (code, told, error) = check(&["ra", "rb"]);
    assert_eq!((code, error.as_str()), (Some(0), ""));
    assert!(told.starts_with("ra\n  all  fast\n\nrb\n  all  fast\n\n"), "{told}");
    assert!(told.contains("IPv4 is fast both ways on 2 of 2 links, IPv6 on 2 of 2. "), "{told}");

    sysctl("ipv4/conf/rb/forwarding", "0");
    sysctl("ipv4/conf/rb/accept_redirects", "0");
    sh("tc qdisc add dev ra root tbf rate 10mbit burst 10k latency 10ms");
    let (_, told, _) = check(&["ra", "rb"]);
    let queue = "ra queues by tbf, which somebody has chosen (tc qdisc show dev ra)";
    assert!(told.contains(&format!("ra\n  in   fast\n  out  the kernel's: {queue}\n")), "{told}");
    let off = "the kernel does not forward it: net.ipv4.conf.rb.forwarding = 0";
    assert!(told.contains(&format!("  IPv4 in       the kernel's: {off}\n")), "{told}");

    let (code, json, _) = check(&["ra", "rb", "--json"]);
    assert_eq!(code, Some(0));
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["links"][0]["leaves"]["ipv6"][0]["reason"], "qdisc");
    assert_eq!(json["links"][0]["ipv4_fast"], false);
    assert_eq!(json["links"][1]["arrives"]["ipv4"][0]["why"], off);

    let (code, told, error) = check(&["ra", "rx"]);
    assert_eq!((code, told.as_str()), (Some(2), ""));
    assert!(error.starts_with("error: there is no network device rx; there are "), "{error}");
    assert!(error.contains("ra-end, ra, rb-end and rb"), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");

    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("router.toml");
    let (code, _, error) = check(&[&file.display().to_string()]);
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("router.toml"), "a file that is not there is no device: {error}");
}
