//! The firewall of a running router: rules from a file, read again, and asked for by the control socket.

use serde_json::Value;

use super::control::{json, show, tollway};
use super::{CONFIG, Host, Router, two_hosts};

fn config(file: &str) -> String {
    format!("filter = \"{file}\"\n{CONFIG}")
}

/// Reads configuration and rules again by the control socket; what it said, good or bad.
fn reload(router: &Router) -> Result<String, String> {
    let output = tollway(router.dir.path(), &["reload", "--socket", "control.sock"]);
    let text = |bytes| String::from_utf8(bytes).unwrap();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

/// Mistakes of the rules are told at a reload, and nothing changes.
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
        let told = reload(&router).unwrap_err();
        assert!(told.contains(words), "{told}");
        assert!(told.contains("what was in force stays in force"), "{told}");
        assert_eq!(json(&router, "filter"), before);
    }
    std::fs::remove_file(router.path("rules")).unwrap();
    let told = reload(&router).unwrap_err();
    assert!(told.contains("rules: the rules cannot be read: no such file"), "{told}");
    assert_eq!(json(&router, "filter"), before);
    std::fs::write(router.path("router.toml"), CONFIG).unwrap();
    let told = reload(&router).unwrap();
    assert!(told.contains("the configuration is in force"), "{told}");
    assert_eq!(show(&router, "filter"), "no rules: every packet goes on\n");
    router.stop();
}

/// What a rule has counted, by its text.
fn packets(router: &Router, text: &str) -> u64 {
    let told = json(router, "filter");
    let chains = told["chains"].as_array().unwrap().iter();
    let mut rules = chains.flat_map(|chain| chain["rules"].as_array().unwrap());
    let rule = rules.find(|rule| rule["text"].as_str().unwrap().contains(text));
    rule.and_then(|rule| rule["packets"].as_u64()).unwrap_or_else(|| panic!("{text}: {told}"))
}

fn pings(from: &Host, to: &str) -> bool {
    let mut ping = from.command("ping");
    let output = ping.args(["-n", "-q", "-c", "5", "-i", "0.01", "-W", "1", to]).output().unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(told.contains(" 0% packet loss") || told.contains(" 100% packet loss"), "{told}");
    told.contains(" 0% packet loss")
}

/// Rules count and drop, are changed while the router runs, and go on counting.
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
    let told = reload(&router).unwrap();
    assert!(told.contains(" firewall rules; compiled in "), "{told}");
    assert!(!pings(&a, "10.0.2.2"), "the rule is in force when the reload has ended");
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
