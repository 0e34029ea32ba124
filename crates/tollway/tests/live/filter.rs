//! The firewall of a running router: rules from a file, reloads, and queries on the control socket.

use std::process::Stdio;

use serde_json::Value;

use super::control::{json, show, tollway};
use super::{CONFIG, CaptureReader, Host, Process, Router, two_hosts};

fn config(file: &str) -> String {
    format!("filter = \"{file}\"\n{CONFIG}")
}

/// Reloads configuration and rules with `tollway reload`. Returns its output, or its error.
fn reload(router: &Router) -> Result<String, String> {
    let output = tollway(router.dir.path(), &["reload", "--socket", "control.sock"]);
    let text = |bytes| String::from_utf8(bytes).unwrap();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

/// A reload reports errors in the rules and changes nothing.
pub(super) fn refused() {
    let _hosts = two_hosts();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("rules"), "add 100 allow ip from any to any\n").unwrap();
    let mut router = Router::start_in(dir, &config("rules"));
    let before = json(&router, "filter");
    assert_eq!(before["on"], true);
    for (rules, words) in [
        (
            "\n\nlet everything by\n",
            "rules:3: \"let everything by\" begins no rules that are known",
        ),
        ("# none\n", "rules: the file has no rules"),
    ] {
        std::fs::write(router.path("rules"), rules).unwrap();
        let error = reload(&router).unwrap_err();
        assert!(error.contains(words), "{error}");
        assert!(error.contains("the old configuration stays active"), "{error}");
        assert_eq!(json(&router, "filter"), before);
    }
    std::fs::remove_file(router.path("rules")).unwrap();
    let error = reload(&router).unwrap_err();
    assert!(error.contains("rules: the rules cannot be read: no such file"), "{error}");
    assert_eq!(json(&router, "filter"), before);
    std::fs::write(router.path("router.toml"), CONFIG).unwrap();
    let report = reload(&router).unwrap();
    assert!(report.contains("the configuration is active"), "{report}");
    assert_eq!(show(&router, "filter"), "no rules: every packet goes on\n");
    router.stop();
}

/// Returns the packet count of a rule, which is found by its text.
fn packets(router: &Router, text: &str) -> u64 {
    let shown = json(router, "filter");
    let chains = shown["chains"].as_array().unwrap().iter();
    let mut rules = chains.flat_map(|chain| chain["rules"].as_array().unwrap());
    let rule = rules.find(|rule| rule["text"].as_str().unwrap().contains(text));
    rule.and_then(|rule| rule["packets"].as_u64()).unwrap_or_else(|| panic!("{text}: {shown}"))
}

/// Sends five pings, of which all or none must be answered. Says whether they were.
fn pings(from: &Host, to: &str) -> bool {
    // Sends all at once, then waits for one second.
    let line = format!("ping -n -q -c 5 -l 5 -i 1 -W 1 {to}");
    let output = from.command(&line).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains(" 0% packet loss") || text.contains(" 100% packet loss"), "{text}");
    text.contains(" 0% packet loss")
}

/// Rules count and drop, change while the router runs, and go on counting.
pub(super) fn drops() {
    let (a, _b) = two_hosts();
    let rules =
        |drop: &str| format!("*filter\n:FORWARD ACCEPT [0:0]\n-A FORWARD -p icmp\n{drop}COMMIT\n");
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("rules"), rules("")).unwrap();
    let mut router = Router::start_in(dir, &config("rules"));
    assert!(pings(&a, "10.0.2.2"));
    assert_eq!(packets(&router, "-p icmp"), 10, "there and back");
    std::fs::write(router.path("rules"), rules("-A FORWARD -d 10.0.2.2/32 -j DROP\n")).unwrap();
    let report = reload(&router).unwrap();
    assert!(report.contains(" firewall rules; compiled in "), "{report}");
    assert!(!pings(&a, "10.0.2.2"), "the rule is active when the reload has ended");
    assert_eq!(packets(&router, "-p icmp"), 15, "it goes on counting");
    assert_eq!(packets(&router, "-j DROP"), 5, "a new rule begins at none");
    std::fs::write(router.path("rules"), rules("")).unwrap();
    reload(&router).unwrap();
    assert!(pings(&a, "10.0.2.2"));
    assert_eq!(packets(&router, "-p icmp"), 25);
    let drops: Value = json(&router, "drops");
    assert_eq!(drops["drops"]["netfilter_drop"], 5);
    router.stop();
}

/// Returns rules that log some pings to a capture, and others to the log. After each reload, rules
/// at the same position are different ones.
fn logging(turn: usize) -> String {
    let others = "    ip saddr 192.0.2.1 log prefix \"other \"\n".repeat(turn % 3);
    format!(
        "table inet t {{\n  chain c {{\n    type filter hook forward priority 0; policy accept;\n{others}\
         icmp type echo-request ip length 128 log prefix \"noted \"\n{others}\
         icmp type echo-request ip length 84 log group 3\n  }}\n}}\n"
    )
}

/// Asserts that the numbers are those of `count` pings, each of them once.
fn assert_all(mut numbers: Vec<u16>, count: u16, what: &str) {
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=count).collect::<Vec<_>>(), "{what}");
}

/// Each packet that rules log is written once, even while a reload replaces the rules.
pub(super) fn logs() {
    const TAKEN: u16 = 600;
    const LOGGED: u16 = 20;
    let (a, _b) = two_hosts();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("rules"), logging(0)).unwrap();
    let config = format!("filter_log = \"log.pcap\"\n{}", config("rules"));
    let mut router = Router::start_in(dir, &config);
    let ping = |words: &str| {
        let mut ping = a.command(&format!("ping -n -q -W 5 {words} 10.0.2.2"));
        Process(ping.stdout(Stdio::null()).spawn().unwrap())
    };
    let mut pings =
        [ping(&format!("-c {TAKEN} -i 0.005")), ping(&format!("-c {LOGGED} -i 0.15 -s 100"))];
    let mut reloads = 0;
    while pings.iter_mut().any(|ping| ping.0.try_wait().unwrap().is_none()) {
        reloads += 1;
        std::fs::write(router.path("rules"), logging(reloads)).unwrap();
        reload(&router).unwrap();
    }
    assert!(reloads > 5, "{reloads}");
    router.stop();
    let log = router.read("stderr");
    let number = |line: &str| line.split_once(" SEQ=")?.1.split(' ').next()?.parse().ok();
    let lines = log.lines().filter(|line| line.contains("noted "));
    assert_all(lines.filter_map(number).collect(), LOGGED, &log);
    assert!(!log.contains("not logged"), "{log}");
    let mut capture = CaptureReader::open(&router.path("log.pcap")).unwrap();
    let mut numbers = Vec::new();
    while let Some(frame) = capture.next_frame().unwrap() {
        numbers.push(u16::from_be_bytes([frame.bytes[40], frame.bytes[41]]));
    }
    assert_all(numbers, TAKEN, &format!("the capture, after {reloads} reloads"));
}

/// A set changes without a reload. After a reload it has the elements of the file.
pub(super) fn sets() {
    let rules = |more: &str| {
        format!(
            "table inet t {{\n  set bad {{ type ipv4_addr; flags dynamic; elements = {{ 10.9.9.9 }} }}\n  \
             chain c {{\n    type filter hook forward priority 0; policy accept;\n    \
             ip saddr @bad counter drop\n    {more}\n  }}\n}}\n"
        )
    };
    let (a, _b) = two_hosts();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("rules"), rules("")).unwrap();
    let mut router = Router::start_in(dir, &config("rules"));
    let set = |words: &str| {
        let words = format!("set bad {words} --socket control.sock");
        let words: Vec<_> = words.split(' ').collect();
        let output = tollway(router.dir.path(), &words);
        assert!(output.status.success(), "{output:?}");
    };
    let elements = || json(&router, "filter")["sets"][0]["elements"].clone();
    assert!(pings(&a, "10.0.2.2"));
    for (turn, more) in ["counter", "counter", "", "meta mark set 1"].into_iter().enumerate() {
        set("add 10.0.1.2 192.0.2.0/24");
        set("delete 10.9.9.9");
        assert_eq!(elements(), 2);
        assert!(!pings(&a, "10.0.2.2"), "turn {turn}: what comes into a set is active");
        std::fs::write(router.path("rules"), rules(more)).unwrap();
        reload(&router).unwrap();
        assert_eq!(elements(), 1, "turn {turn}: as in the file, though the file is the same");
        assert!(pings(&a, "10.0.2.2"), "turn {turn}");
    }
    assert_eq!(packets(&router, "ip saddr @bad"), 20, "what it dropped goes on being counted");
    router.stop();
}

/// Rules about connections let out what one side begins, and in what belongs to it: answers and errors.
pub(super) fn connections() {
    const RULES: &str = "table inet t {
  chain forward {
    type filter hook forward priority 0; policy drop;
    ct state established,related counter accept
    iifname \"a\" ct state new accept
  }
}
";
    let (a, b) = two_hosts();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("rules"), RULES).unwrap();
    let mut router = Router::start_in(dir, &config("rules"));
    for (own, other) in [("10.0.1.2", "10.0.2.2"), ("fd00:1::2", "fd00:2::2")] {
        assert!(!pings(&b, own), "nobody has asked for it");
        assert!(pings(&a, other));
    }
    let shown = json(&router, "connections");
    let mut listed: Vec<_> = shown["connections"].as_array().unwrap().iter().map(ends).collect();
    listed.sort();
    // What is dropped leaves none.
    assert_eq!(
        listed,
        ["icmp 10.0.1.2 10.0.2.2 5 5 user", "icmpv6 fd00:1::2 fd00:2::2 5 5 user"],
        "{shown}"
    );
    // Nobody listens there: the answer is an error, which is related.
    let mut refused = a.command("timeout 20 bash -c");
    refused.arg("exec 3<>/dev/udp/10.0.2.2/9; echo x >&3; cat <&3");
    let output = refused.output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("Connection refused"), "{error}");
    std::fs::write(router.path("rules"), RULES.replace("counter ", "")).unwrap();
    reload(&router).unwrap();
    let shown = json(&router, "connections");
    assert_eq!(shown["connections"].as_array().unwrap().len(), 3, "other rules keep them: {shown}");
    router.stop();
}

/// Returns a connection's protocol, ends, counts and path.
fn ends(connection: &Value) -> String {
    let words = [
        &connection["protocol"],
        &connection["original"]["source"],
        &connection["original"]["destination"],
        &connection["counts"]["packets"],
        &connection["counts"]["reply_packets"],
        &connection["path"],
    ];
    words.map(|word| word.as_str().map_or_else(|| word.to_string(), str::to_owned)).join(" ")
}
