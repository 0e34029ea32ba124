//! Sets of ipset that rules of iptables look up.

use std::time::{Duration, Instant};

use super::listed::kernels;
use super::namespaces::sh;
use super::rules::Consumer;

/// How long a change may take on a busy machine. The leak tests measure it.
const SOON: Duration = Duration::from_secs(15);

/// Waits until the active elements are those of the kernel.
fn wait_until_equal(consumer: &mut Consumer, change: &str) {
    let since = Instant::now();
    while !consumer.is_like_another() {
        assert!(since.elapsed() < SOON, "{change}: {:?}", consumer.counts);
        consumer.take(Duration::from_millis(10));
    }
}

/// The elements of sets come and go, without a notification and without a reading.
pub fn follow() {
    for create in [
        "ipset create bad hash:ip",
        "ipset create late hash:ip timeout 1000 comment",
        "ipset create nets hash:net",
        "ipset create short hash:ip netmask 24",
        "ipset create range bitmap:ip range 10.9.0.0/16",
        "ipset create six hash:net family inet6",
        "ipset create unused hash:ip",
        "ipset create spare hash:ip",
        "ipset add bad 192.0.2.1",
        "ipset add nets 10.0.0.0/8",
        "ipset add nets 10.1.0.0/16",
    ] {
        sh(create);
    }
    for rule in [
        "-A FORWARD -m set --match-set bad src -j DROP",
        "-A FORWARD -p udp -m set ! --match-set late dst -m comment --comment why -j DROP",
        "-A FORWARD -m set --match-set nets dst -j DROP",
        "-A FORWARD -m set --match-set short src -j DROP",
        "-A FORWARD -m set --match-set range src -j ACCEPT",
        "-t raw -A PREROUTING -m set --match-set bad src -j DROP",
    ] {
        sh(&format!("iptables-nft {rule}"));
    }
    sh("ip6tables-nft -A FORWARD -m set --match-set six src -j DROP");
    let mut consumer = Consumer::new();
    consumer.sync();
    assert_eq!(consumer.counts.behind, 1, "until the sets are listed again");
    assert_eq!(kernels(consumer.rules()), [], "all are decided here");
    let lookups = consumer.rules().sets.iter().filter(|set| set.name.contains(" ipset "));
    assert_eq!(lookups.count(), 7);
    let before = consumer.counts;
    for change in [
        "ipset add bad 192.0.2.2",
        "ipset del bad 192.0.2.1",
        "ipset add late 192.0.2.7 timeout 500 comment why",
        "ipset add nets 10.1.2.0/24",
        "ipset del nets 10.0.0.0/8",
        "ipset add short 198.51.100.77",
        "ipset add range 10.9.1.0-10.9.1.200",
        "ipset add six 2001:db8::/32",
        "ipset add unused 192.0.2.1",
        "ipset flush bad",
        // Its timeout removes it.
        "ipset add late 192.0.2.8 timeout 1",
    ] {
        sh(change);
        wait_until_equal(&mut consumer, change);
    }
    // Its end must not come between a list and that of another consumer.
    let has = |consumer: &Consumer, set: &str, address: [u8; 4]| {
        let found = consumer.filter.live_sets().iter().find(|one| one.name() == set);
        found.unwrap().covers(u32::from_be_bytes(address).into())
    };
    let since = Instant::now();
    while has(&consumer, "ip filter ipset late", [192, 0, 2, 8]) {
        assert!(since.elapsed() < SOON, "it has a timeout: {:?}", consumer.counts);
        consumer.take(Duration::from_millis(10));
    }
    for number in 1..50 {
        sh(&format!("ipset add bad 192.0.2.{number}"));
        assert!(consumer.list_ipsets());
        assert!(consumer.is_like_another(), "a list after the request has it");
    }
    sh("ipset add spare 203.0.113.9");
    sh("ipset swap spare bad");
    wait_until_equal(&mut consumer, "swap");
    assert!(has(&consumer, "ip raw ipset bad", [203, 0, 113, 9]));
    assert!(has(&consumer, "ip filter ipset nets", [10, 1, 2, 9]));
    assert!(!has(&consumer, "ip filter ipset nets", [10, 2, 2, 9]), "that prefix is gone");
    assert!(has(&consumer, "ip filter ipset short", [198, 51, 100, 1]));
    let counts = consumer.counts;
    assert_eq!((counts.read, counts.changed), (before.read, before.changed), "no reading");
    assert!(counts.elements >= before.elements + 10, "{counts:?}");

    // Source and destination are looked up in the same live set.
    sh("iptables-nft -A FORWARD -m set --match-set bad dst -j DROP");
    consumer.sync();
    sh("ipset add bad 192.0.2.77");
    wait_until_equal(&mut consumer, "in two ways");
    assert_eq!(consumer.counts.changed, before.changed + 1, "{:?}", consumer.counts);
}

/// Rules that Tollway cannot decide take the kernel path, and the reason names the set.
pub fn kernel_path() {
    for create in [
        "ipset create ports hash:ip,port",
        "ipset create counted hash:ip counters",
        "ipset create excepted hash:net",
        "ipset add excepted 10.0.0.0/8",
        "ipset add excepted 10.1.0.0/16 nomatch",
        "ipset create large hash:ip",
        "ipset create plain hash:ip",
    ] {
        sh(create);
    }
    let many: String =
        (0..2001).map(|at| format!("add large 10.7.{}.{}\n", at / 250, at % 250)).collect();
    let file = std::env::temp_dir().join(format!("tollway-ipset-{}", std::process::id()));
    std::fs::write(&file, many).unwrap();
    sh(&format!("ipset restore -file {}", file.display()));
    std::fs::remove_file(&file).unwrap();
    let mut consumer = Consumer::new();
    let why = |consumer: &mut Consumer, options: &str| {
        sh(&format!("iptables-nft -A FORWARD -m set {options} -j DROP"));
        consumer.sync();
        let found = kernels(consumer.rules()).into_iter().map(|(_, why)| why).collect::<Vec<_>>();
        sh("iptables-nft -F FORWARD");
        found
    };
    for (options, expected) in [
        ("--match-set ports src,dst", "xt set is a module of iptables"),
        ("--match-set ports src", "the ipset ports is of type hash:ip,port"),
        ("--match-set counted src", "the ipset counted counts packets"),
        ("--match-set excepted src", "the ipset excepted has elements with nomatch"),
        ("--match-set large src", "the ipset large is too large to be listed again and again"),
        ("--match-set counted src --packets-gt 5", "xt set is a module of iptables"),
        ("--match-set plain src --return-nomatch", "xt set is a module of iptables"),
    ] {
        assert_eq!(why(&mut consumer, options), [expected], "{options}");
    }
    assert!(!consumer.list_ipsets(), "no rule of the fast path looks up a set");
    assert_eq!(why(&mut consumer, "--match-set plain src"), [""; 0]);
    sh("iptables-nft -A INPUT -j SET --add-set plain src");
    assert_eq!(
        why(&mut consumer, "--match-set plain src"),
        ["a rule of iptables changes sets of ipset"]
    );
    // A set that grows while it is in use.
    sh("iptables-nft -F INPUT");
    sh("iptables-nft -A FORWARD -m set --match-set plain src -j DROP");
    consumer.sync();
    sh("ipset swap plain large");
    let since = Instant::now();
    while kernels(consumer.rules()).is_empty() {
        assert!(since.elapsed() < SOON, "{:?}", consumer.counts);
        consumer.take(Duration::from_millis(10));
    }
    assert!(kernels(consumer.rules())[0].1.contains("too large"));
}

/// While Tollway lists the sets again and again, no other program's commands fail (`ip_set_swap` refuses
/// a set that is being listed).
pub fn swaps() {
    const ELEMENTS: u32 = 900;
    sh("ipset create one hash:ip timeout 0");
    sh("ipset create two hash:ip timeout 0");
    for set in ["one", "two"] {
        let many: String =
            (0..ELEMENTS).map(|at| format!("add {set} 10.7.{}.{}\n", at / 250, at % 250)).collect();
        let file = std::env::temp_dir().join(format!("tollway-ipset-{}", std::process::id()));
        std::fs::write(&file, many).unwrap();
        sh(&format!("ipset restore -file {}", file.display()));
        std::fs::remove_file(&file).unwrap();
    }
    sh("iptables-nft -A FORWARD -m set --match-set one src -j DROP");
    let mut consumer = Consumer::new();
    consumer.sync();
    assert_eq!(kernels(consumer.rules()), []);
    let until = Instant::now() + Duration::from_secs(3);
    let mut swaps = 0;
    while Instant::now() < until {
        // Panics if the command fails.
        sh("ipset swap one two");
        swaps += 1;
    }
    assert!(swaps > 100, "{swaps}");
    wait_until_equal(&mut consumer, "the last one");
}
