//! Rules that nft lists incompletely, and rules of all kinds that it lists completely.

use tollway_firewall::ir::{Field, LinkPattern, Match, Ruleset, Step, Verdict};
use tollway_firewall::offload::{Offload, offload};

use super::namespaces::sh;
use super::raw;
use super::rules::{Consumer, nft};

/// Everything that the router itself evaluates, in the many ways in which nft lists it.
const TABLES: &str = "
table ip6 f {
    chain c {
        type filter hook forward priority 0; policy drop;
        ip6 dscp 10 drop
        ip6 dscp > 5 drop
        ip6 dscp { af11, af12 } drop
        ip6 dscp vmap { af11 : drop }
        ip6 saddr fd00::/16 drop
        ip6 saddr fd00::/15 drop
        ip6 flowlabel 5 drop
        ip6 hoplimit 3-7 drop
        frag more-fragments 1 drop
        frag frag-off != 5 drop
        exthdr frag exists drop
        ip6 nexthdr icmpv6 drop
        ip6 nexthdr { tcp, udp } th dport 80 drop
        icmpv6 type { echo-request, echo-reply } drop
        icmpv6 id 5 drop
        reject with icmpv6 addr-unreachable
    }
}
table inet f {
    counter hits { packets 0 bytes 0; }
    set pairs { type ether_addr . ipv4_addr; }
    set bad { type ipv4_addr; flags interval; elements = { 192.0.2.0/24 } }
    map kinds { type ipv4_addr : verdict; elements = { 192.0.2.7 : continue, 192.0.2.8 : jump d } }
    chain d {
        ip daddr 10.0.0.1 accept
        return
    }
    chain c {
        type filter hook forward priority 0; policy drop;
        icmp type echo-request accept
        icmpv6 type echo-request accept
        udp dport 53 ip saddr vmap @kinds ip saddr 192.0.2.7 drop
        ip saddr 10.0.0.0/12 tcp dport 10-20 accept
        ip saddr 10.0.0.0/8 tcp dport != 10-20 accept
        ip saddr @bad drop
        ip saddr != @bad counter jump d
        tcp dport { 22, 80 } counter name hits drop
        tcp dport > 500 drop
        tcp sport < 500 goto d
        udp length 8 drop
        ether saddr . ip saddr @pairs drop
        meta length 60-100 drop
        meta length > 60 drop
        meta length { 5-9, 20 } drop
        meta mark 5-9 drop
        meta mark { 5-9, 20 } drop
        meta mark and 0xff == 5 meta mark set 9 drop
        meta mark set meta mark or 0x10
        meta mark set ip saddr map { 192.0.2.1 : 5 }
        ip ttl < 5 tcp flags syn / syn,ack drop
        tcp flags & (syn|ack) == syn reject with tcp reset
        tcp flags syn drop
        tcp flags ! syn drop
        tcp flags { syn, ack } drop
        iifname \"eth*\" oifname \"x\" drop
        iifname { \"a\", \"b\" } ip daddr != { 192.0.2.1, 198.51.100.0/24 } drop
        iif \"lo\" drop
        iif { \"own0\", \"own1\" } drop
        oif { \"own0\", \"own2\", \"own3\" } drop
        iif . tcp dport { \"own0\" . 22, \"own1\" . 80 } drop
        iif vmap { \"own0\" : accept, \"own1\" : drop }
        tcp sport . tcp dport { 1 . 2 } drop
        ip protocol udp drop
        meta nfproto ipv4 drop
        meta l4proto { tcp, udp } th dport 53 drop
        ether saddr 00:11:22:33:44:55 drop
        ether type ip drop
        icmp id 5 drop
        icmp code 3 drop
        ip frag-off & 0x1fff != 0 drop
        ip saddr 192.0.2.1-192.0.2.9 drop
        ip saddr 192.0.2.0-192.0.2.3 drop
        ip6 saddr . tcp dport vmap { fd00::1 . 5 : drop }
        tcp doff 5 drop
        @th,4,4 5 drop
        @nh,4,4 5 drop
        ip length > 200 drop
        ip hdrlength 5-6 drop
        ip version 4 drop
        ip dscp { af11, af12 } drop
        ip dscp . tcp dport { af11 . 5 } drop
        ip dscp > 5 drop
        ip ecn 1-2 drop
        vlan id 5 drop
        continue
        reject
    }
    chain p {
        type filter hook prerouting priority -150;
        ip dscp set af11
        ip6 dscp set 5
        notrack
    }
}
table netdev n {
    chain c {
        type filter hook ingress device \"own0\" priority 0;
        ip saddr 192.0.2.1 drop
        vlan id 5 drop
        vlan pcp 3 drop
        vlan id 5 ip saddr 192.0.2.1 drop
        meta protocol ip drop
        tcp dport 5 drop
        ether daddr 00:11:22:33:44:55 ip6 saddr fd00::1 drop
    }
}
";

/// The rules that only the kernel evaluates, with their text and the reason.
pub fn kernels(rules: &Ruleset) -> Vec<(String, String)> {
    let covered = offload(rules).into_iter().filter_map(|one| match one.offload {
        Offload::Kernel(why) => Some((one.rule.text.clone(), why)),
        _ => None,
    });
    covered.collect()
}

fn veth() {
    sh("ip link add own0 type veth peer name own1");
    sh("ip link add own2 type veth peer name own3");
}

pub fn whole() {
    veth();
    nft(TABLES);
    let mut consumer = Consumer::new();
    consumer.sync();
    let kernels = kernels(consumer.rules());
    let named: Vec<_> = kernels.iter().filter(|(text, _)| !text.starts_with('(')).collect();
    let expected = [
        ("ip dscp >> 2", "is not known here"),
        ("vlan id 5", "a link has taken the tag off"),
        ("ip dscp set", "rules test the DSCP"),
        ("ip6 dscp set", "rules test the DSCP"),
        // The rule reads the ethertype where a VLAN tag may be.
        ("ether daddr", "nft does not list it as the kernel has it"),
    ];
    let is_so = |((text, why), (begins, part)): (&&(String, String), &(&str, &str))| {
        text.starts_with(begins) && why.contains(part)
    };
    let all = named.len() == expected.len() && named.iter().zip(&expected).all(is_so);
    assert!(all, "{named:#?}");
}

/// The steps of a rule of a chain.
fn steps<'r>(rules: &'r Ruleset, chain: &str, number: usize) -> &'r [Step] {
    let chain = rules.chains.iter().find(|one| one.name == chain).unwrap();
    let own: Vec<_> = chain.rules.iter().filter(|rule| !rule.is_added()).collect();
    &own[number].steps
}

pub fn apart() {
    let mut consumer = Consumer::new();
    // nft leaves out something that the rest of its listing does not imply.
    nft("table ip6 f { chain c { type filter hook forward priority 0; policy drop;
        ip6 nexthdr tcp tcp dport 80 accept
        ip6 nexthdr icmpv6 icmpv6 type echo-request accept
    }\n}\n");
    consumer.sync();
    assert!(!sh("nft list ruleset").contains("nexthdr tcp"), "nft leaves it out");
    for (number, protocol, field, value) in
        [(0, 6, Field::DestinationPort, 80), (1, 58, Field::IcmpType, 128)]
    {
        let wanted = [
            Step::Match(Match::is(field, value)),
            Step::Match(Match::is(Field::NextHeader6, protocol)),
            Step::Verdict(Verdict::Accept),
        ];
        assert_eq!(steps(consumer.rules(), "ip6 f c", number), wanted);
    }

    // nft's list lacks what nft cannot read.
    nft("table ip t { chain c { type filter hook forward priority 0; tcp dport 5 drop; }; }");
    let vxlan = [
        raw::protocol(17),
        raw::payload(2, 2, &4789_u16.to_be_bytes()),
        raw::within_vxlan([10, 0, 0, 1]),
        raw::drop(),
    ];
    raw::add_rule(2, "t", "c", &vxlan);
    nft("add rule ip t c tcp dport 6 drop");
    consumer.check();
    let (rules, listed) = (consumer.rules(), sh("nft list table ip t"));
    let chain = rules.chains.iter().find(|chain| chain.name == "ip t c").unwrap();
    let own: Vec<_> = chain.rules.iter().filter(|rule| rule.place.handle.is_some()).collect();
    assert_eq!(own.len(), 3, "{listed}");
    if !listed.contains("vxlan") {
        assert!(matches!(&own[1].steps[..], [Step::Unsupported(_)]), "{:?}", own[1]);
        let left = kernels(rules);
        let left = left.iter().find(|(text, _)| text == "(a rule that nft does not list)");
        assert_eq!(left.unwrap().1, "the kernel has it, and nft does not list it");
    }

    // Conditions that no listed rule implies: for example, the Ethernet header without the kind of
    // device.
    nft("table inet r { chain c { type filter hook forward priority 0; }; }");
    raw::add_rule(1, "r", "c", &[raw::protocol(1), raw::payload(2, 0, &[8]), raw::drop()]);
    consumer.check();
    assert_eq!(
        steps(consumer.rules(), "inet r c", 0),
        [
            Step::Match(Match::is(Field::Protocol, 1)),
            Step::Match(Match::is(Field::IcmpType, 8)),
            Step::Verdict(Verdict::Drop),
        ],
        "of either version of IP"
    );
}

/// A comment is not part of a ruleset.
pub fn comments() {
    veth();
    let comment = "x\n\t\ttype filter hook ingress device lo priority 0; policy accept;";
    nft(&format!(
        "table netdev n {{ chain c {{ type filter hook ingress device own0 priority 0; policy drop; \
         comment \"{comment}\"; ip saddr 192.0.2.1 accept comment \"{comment}\"\n}}\n}}\n\
         table inet t {{ chain c {{ type filter hook forward priority 0; comment \"x\n\tflags dormant\"; \
         drop comment \"x\n\tflags dormant\"\n}}\n}}\n"
    ));
    let mut consumer = Consumer::new();
    consumer.sync();
    let base = |name: &str| {
        let chain = consumer.rules().chains.iter().find(|chain| chain.name == name);
        chain.unwrap().base.clone()
    };
    assert_eq!(base("netdev n c").unwrap().devices, [LinkPattern::Name("own0".into())]);
    assert!(base("inet t c").is_some(), "the table is not dormant");
    assert!(kernels(consumer.rules()).is_empty(), "{:?}", kernels(consumer.rules()));
}

/// Modules of iptables, which Tollway reads from the kernel's data.
pub fn modules() {
    let mut consumer = Consumer::new();
    sh("iptables-nft -A FORWARD -m comment --comment first -j ACCEPT");
    sh("iptables-nft -I FORWARD -p tcp -m multiport --dports 22,80,1000:2000 -j DROP");
    sh("iptables-nft -I FORWARD -p udp -m multiport ! --sports 53 -m comment --comment x -j DROP");
    sh("iptables-nft -I FORWARD -p udp -m multiport --ports 53 -j DROP");
    consumer.check();
    let kernels = kernels(consumer.rules());
    let why = kernels.iter().map(|(_, why)| why.as_str());
    let why: Vec<_> = why.filter(|why| !why.contains("later fragments")).collect();
    let cut_off = "the kernel drops packets that end before their ports";
    assert_eq!(why, [cut_off, "xt multiport is a module of iptables", cut_off, cut_off]);
    let rules = consumer.rules();
    let ports = |number: usize| match &steps(rules, "ip filter FORWARD", number)[1] {
        Step::Match(one) => one.clone(),
        other => panic!("{other:?}"),
    };
    let range = tollway_firewall::ir::Range::new;
    let sources = Match::in_ranges(Field::SourcePort, [range(53, 53)]).negated();
    assert_eq!(ports(1), sources);
    let ranges = [range(22, 22), range(80, 80), range(1000, 2000)];
    assert_eq!(ports(2), Match::in_ranges(Field::DestinationPort, ranges));
    assert_eq!(steps(rules, "ip filter FORWARD", 3).len(), 2, "counted and accepted");
}
