//! Rules about connections, as nft and iptables load them: kernel path for packets, decided for flows.

use tollway_firewall::ir::{Action, Ruleset, Step};

use super::listed::kernels;
use super::namespaces::sh;
use super::rules::{Consumer, nft};

/// What keeps flows on the kernel path, by rule.
fn of_flows(consumer: &Consumer) -> Vec<(String, String)> {
    let all = kernels(consumer.connections());
    all.into_iter().filter(|(rule, _)| !rule.starts_with('(')).collect()
}

/// Rules of one chain at hook forward.
fn load(rules: &[&str]) {
    nft(&format!(
        "flush ruleset\ntable inet t {{\n set s {{ type ipv4_addr; elements = {{ 1.2.3.4 }} }}\n\
         map m {{ type mark : verdict; elements = {{ 1 : accept }} }}\n\
         chain c {{\n type filter hook forward priority 0;\n{}\n }}\n}}\n",
        rules.join("\n")
    ));
}

/// Flows meet what packets must leave to the kernel.
pub fn decided() {
    let rules = [
        "ct state established,related accept",
        "ct state invalid counter drop",
        "ct state vmap { established : accept, related : accept, invalid : drop }",
        "ct state != { established, new } drop",
        "ct state ! established ct direction original drop",
        "ct status & (dnat|snat) == dnat accept",
        "ct mark & 0xff == 3 ip saddr @s accept",
        "ct mark vmap @m",
        "ct mark . ip saddr { 1 . 1.2.3.4 } accept",
        "ct zone 5 accept",
        "ct original ip saddr @s accept",
        "ct reply ip6 daddr 2001:db8::/32 accept",
        "tcp dport 5 ct original proto-dst { 80, 443-445 } accept",
        "ct protocol tcp ct l3proto ipv4 accept",
        "ct mark set meta mark and 0xf",
        "meta mark set ct mark and 0xff",
        "ct mark set ip saddr map { 1.2.3.4 : 5, 2.3.4.5 : 6 }",
    ];
    load(&rules);
    let mut consumer = Consumer::new();
    consumer.check();
    assert_eq!(of_flows(&consumer), []);
    let packets = kernels(consumer.rules());
    let packets = packets.iter().filter(|(rule, _)| !rule.starts_with('('));
    assert_eq!(packets.count(), rules.len());
    assert_eq!(consumer.rules().counters, consumer.connections().counters);
}

/// What differs from packet to packet, or is not known.
pub fn undecided() {
    load(&[
        "ct expiration 30s accept",
        "ct bytes > 100000 accept",
        "ct original packets > 10 accept",
        "ct original zone 5 accept",
        "ct label 1 accept",
        "ct count over 20 drop",
        "notrack",
    ]);
    let mut consumer = Consumer::new();
    consumer.check();
    let why: Vec<_> = of_flows(&consumer).into_iter().map(|(_, why)| why).collect();
    assert_eq!(
        why,
        [
            "ct expiration looks at connection tracking",
            "ct bytes looks at connection tracking",
            "ct packets looks at connection tracking",
            "ct zone looks at connection tracking",
            "ct label looks at connection tracking",
            "ct count is connection tracking's",
            "notrack acts on packets that connection tracking has not seen, and other packets may come here",
        ]
    );
    nft(
        "flush ruleset\ntable ip t { chain n { type nat hook postrouting priority 100; masquerade\n }\n\
         chain f { type filter hook forward priority 0; tcp dport 22 drop\n }\n}\n",
    );
    consumer.check();
    assert_eq!(of_flows(&consumer), []);
    let masquerades = consumer.connections().chains.iter().filter(|chain| chain.base.is_some());
    assert_eq!(masquerades.count(), 1, "only the first packet meets it");
}

/// The steps of the rules in a chain.
fn steps<'a>(rules: &'a Ruleset, chain: &str) -> Vec<&'a [Step]> {
    let mut chains = rules.chains.iter().filter(|one| one.name == chain);
    chains.next().unwrap().rules.iter().map(|rule| &rule.steps[..]).collect()
}

/// Modules of iptables.
pub fn modules() {
    for rule in [
        "-A FORWARD -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT",
        "-A FORWARD -m conntrack ! --ctstate INVALID -j ACCEPT",
        "-A FORWARD -m conntrack --ctstate NEW,DNAT -j ACCEPT",
        "-A FORWARD -p tcp -m conntrack --ctstatus ASSURED --ctdir REPLY -m comment --comment x -j ACCEPT",
        "-A FORWARD -m conntrack --ctproto 6 -j ACCEPT",
        "-A FORWARD -m state ! --state NEW -j ACCEPT",
        "-A FORWARD -m connmark ! --mark 0x5/0xf -j ACCEPT",
        "-t mangle -A FORWARD -j CONNMARK --set-xmark 5/0xf",
        "-t mangle -A FORWARD -j CONNMARK --save-mark",
        "-t mangle -A FORWARD -j CONNMARK --restore-mark --mask 0xff",
        "-t nat -A POSTROUTING -o eth0 -j MASQUERADE",
    ] {
        sh(&format!("iptables-nft {rule}"));
    }
    sh("ip6tables-nft -A FORWARD -m conntrack --ctstate ESTABLISHED -j ACCEPT");
    let mut consumer = Consumer::new();
    consumer.check();
    assert_eq!(of_flows(&consumer), []);
    let forward = steps(consumer.connections(), "ip filter FORWARD");
    assert_eq!(forward.iter().filter(|steps| matches!(steps[0], Step::Any(_))).count(), 6);
    let marks = steps(consumer.connections(), "ip mangle FORWARD");
    assert!(
        marks.iter().all(|one| matches!(one, [_, Step::Do(Action::UpdateMark(_))])),
        "{marks:?}"
    );
    let why: Vec<_> = kernels(consumer.rules()).into_iter().map(|(_, why)| why).collect();
    for (module, count) in [("conntrack", 7), ("connmark", 1), ("CONNMARK", 3)] {
        let expected = format!("xt {module} is a module of iptables");
        assert_eq!(why.iter().filter(|why| **why == expected).count(), count, "{module}: {why:?}");
    }
    sh("iptables-nft -F FORWARD");
    sh("iptables-nft -A FORWARD -i eth0 ! -o eth+ -m conntrack --ctstate NEW -j ACCEPT");
    sh("iptables-nft -A FORWARD ! -i eth0 -o eth1 -j ACCEPT");
    consumer.check();
    assert_eq!(of_flows(&consumer), []);
    let forward = steps(consumer.connections(), "ip filter FORWARD");
    assert_eq!(forward.iter().map(|steps| steps.len()).collect::<Vec<_>>(), [5, 4]);
    sh("iptables-nft -F FORWARD");
    let tuples = "--ctorigsrc 10.0.0.0/8 ! --ctrepldst 192.0.2.7 --ctorigdstport 80:90";
    sh(&format!("iptables-nft -A FORWARD -m conntrack --ctstate NEW {tuples} -j ACCEPT"));
    sh("ip6tables-nft -A FORWARD -p tcp -m conntrack --ctorigdst 2001:db8::/32 -j DROP");
    consumer.check();
    assert_eq!(of_flows(&consumer), []);
    sh("iptables-nft -F FORWARD");
    sh("iptables-nft -A FORWARD -m conntrack --ctexpire 10:20 -j ACCEPT");
    consumer.check();
    let why: Vec<_> = of_flows(&consumer).into_iter().map(|(_, why)| why).collect();
    assert_eq!(why, ["xt conntrack is a module of iptables"]);
}
