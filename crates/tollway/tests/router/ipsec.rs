//! Tests IPsec policies, which the kernel reports on a netlink family of their own.

use std::time::{Duration, Instant};

use tollway_commands::control::ShowRequest;

use super::namespaces::{PATIENCE, sh};
use super::running::{KernelRouter, Net};

/// Number of times that each policy changes.
const ROUNDS: usize = 5;

/// Returns the time from a command until the router reports a reason, or no longer does.
fn time(router: &KernelRouter, line: &str, reason: &str, wanted: bool) -> Duration {
    let mut client = router.client();
    let word = format!("\"{reason}\"");
    let mut is_reported = || {
        let offload: serde_json::Value = client.show(&ShowRequest::Offload).unwrap();
        offload["general"].to_string().contains(&word)
    };
    assert_eq!(is_reported(), !wanted, "before {line}");
    sh(line);
    let start = Instant::now();
    while is_reported() != wanted {
        assert!(start.elapsed() < PATIENCE, "{line}");
    }
    start.elapsed()
}

pub fn policies() {
    let net = Net::new();
    let router = KernelRouter::start("ra rb");
    router.forwards(&net.a, "10.0.2.2");
    let block = "src 10.0.1.0/24 dst 10.0.2.0/24 dir fwd action block";
    let out = "src 2001:db8::/32 dst 2001:db9::/32 dir out";
    let changes = [
        (format!("policy add {block}"), "xfrm", true),
        ("policy flush".to_owned(), "xfrm", false),
        (format!("policy add {out}"), "xfrm", true),
        ("policy del src 2001:db8::/32 dst 2001:db9::/32 dir out".to_owned(), "xfrm", false),
        ("policy setdefault fwd block".to_owned(), "xfrm_blocks", true),
        ("policy setdefault fwd accept".to_owned(), "xfrm_blocks", false),
    ];
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        for (line, reason, wanted) in &changes {
            times.push(time(&router, &format!("ip xfrm {line}"), reason, *wanted));
        }
    }
    times.sort_unstable();
    let median = times[times.len() / 2];
    println!("an IPsec policy: reported after {median:?} (median), {:?} at most", times.last());
    // With one poll per second, the median would be half a second.
    assert!(median < Duration::from_millis(200), "{times:?}");

    sh(&format!("ip xfrm policy add {block}"));
    router.stops(&net.a, "10.0.2.2");
    sh("ip xfrm policy flush");
    router.forwards(&net.a, "10.0.2.2");
    assert_eq!(router.status().bypassed, None);
    assert_eq!(router.status().rebuilds, 0, "no policy costs new tables");
}
