//! Tests what the rules do with packets.

use super::{forward, read_valid, verdict};
use crate::ir::{Action, Direction, Family, Hook, Log, Reject, Step};
use crate::testkit::eval::{self, Packet, RuleVerdict, State};
use crate::testkit::link;
use tollway_dataplane::stages::filter::{Connection, ConnectionState, FlowConnection, Tuple};

/// An IPv4 packet in a frame; `fragment` is the field with flags and offset.
pub(super) fn four(protocol: u8, fragment: u16, body: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 7, 8, 0, 0x45, 0];
    frame.extend_from_slice(&(20 + body.len() as u16).to_be_bytes());
    frame.extend_from_slice(&[0, 9]);
    frame.extend_from_slice(&fragment.to_be_bytes());
    frame.extend_from_slice(&[64, protocol, 0, 0, 10, 0, 0, 1, 192, 0, 2, 7]);
    frame.extend_from_slice(body);
    frame
}

/// An IPv6 packet in a frame, from 2001:db8::1 to 2001:db8::2.
fn six(next: u8, body: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 7, 0x86, 0xdd, 0x60, 0, 0, 0];
    frame.extend_from_slice(&(body.len() as u16).to_be_bytes());
    frame.extend_from_slice(&[next, 64]);
    for last in [1, 2] {
        frame.extend_from_slice(&[0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
    }
    frame.extend_from_slice(body);
    frame
}

/// A TCP header from port 4000, SYN alone.
fn header(port: u16) -> Vec<u8> {
    let mut tcp = vec![0; 20];
    tcp[..2].copy_from_slice(&4000_u16.to_be_bytes());
    tcp[2..4].copy_from_slice(&port.to_be_bytes());
    tcp[12] = 0x50;
    tcp[13] = 2;
    tcp
}

/// A SYN to a port.
pub(super) fn tcp(source: [u8; 4], destination: [u8; 4], port: u16) -> Vec<u8> {
    let mut frame = four(6, 0x4000, &header(port));
    frame[26..30].copy_from_slice(&source);
    frame[30..34].copy_from_slice(&destination);
    frame
}

const DROP: RuleVerdict = RuleVerdict::Drop;
const ACCEPT: RuleVerdict = RuleVerdict::Accept;

/// The verdict of a packet by rules in the chain FORWARD, which accepts.
fn of(rules: &[&str], family: Family, frame: &[u8]) -> RuleVerdict {
    let rules = read_valid(&forward(rules), family);
    verdict(&rules, &mut State::new(&rules), frame, 0).0
}

fn of4(rule: &str, frame: &[u8]) -> RuleVerdict {
    of(&[rule], Family::Ip, frame)
}

fn of6(rule: &str, frame: &[u8]) -> RuleVerdict {
    of(&[rule], Family::Ip6, frame)
}

fn punts(verdict: &RuleVerdict) -> bool {
    matches!(verdict, RuleVerdict::Unsupported(_))
}

#[test]
fn ipv4_rules_match_what_they_name() {
    let syn = tcp([10, 0, 0, 1], [192, 0, 2, 7], 80);
    for (rule, drops) in [
        ("", true),
        ("-s 10.0.0.0/8", true),
        ("! -s 10.0.0.0/8", false),
        ("-s 10.0.0.1/255.0.0.255", true),
        ("-s 10.0.0.2/255.0.0.255", false),
        ("-d 192.0.2.7 -i wan0 -o lan0", true),
        ("-d 192.0.2.8", false),
        ("-i wan+", true),
        ("-i wan", false),
        ("-i wan1+", false),
        ("! -i wan+", false),
        ("-o lan0", true),
        ("! -o lan0", false),
        ("! -o lan1", true),
        ("-i +", true),
        ("! -i +", false),
        ("-p tcp", true),
        ("-p 6", true),
        ("-p all", true),
        ("! -p udp", true),
        ("! -p tcp", false),
        ("-f", false),
        ("! -f", true),
        ("-p tcp -m tcp --sport 4000 --dport 80", true),
        ("-p tcp --dport 79:81", true),
        ("-p tcp --dport :79", false),
        ("-p tcp --dport 80:", true),
        ("-p tcp ! --dport 80", false),
        ("-p tcp ! --dport 81", true),
        ("-p tcp --syn", true),
        ("-p tcp ! --syn", false),
        ("-p tcp --tcp-flags ALL SYN", true),
        ("-p tcp --tcp-flags SYN,ACK ACK", false),
        ("-p tcp -m multiport --dports 22,79:81", true),
        ("-p tcp -m multiport ! --dports 22,79:81", false),
        ("-p tcp -m multiport --sports 22,79:81", false),
        ("-p tcp -m multiport --ports 22,80", true),
        ("-p tcp -m multiport ! --ports 22,4000", false),
        ("-p tcp -m multiport ! --ports 22,23", true),
        ("-m iprange --src-range 10.0.0.1-10.0.0.3", true),
        ("-m iprange ! --dst-range 192.0.2.0-192.0.2.7", false),
        ("-m mark --mark 0x0/0xff", true),
        ("-m mark ! --mark 0", false),
        ("-m dscp --dscp 0x00", true),
        ("-m dscp ! --dscp-class BE", false),
        ("-m tos --tos 0x00/0xff", true),
        ("-m length --length 40", true),
        ("-m length --length 41:", false),
        ("-m length ! --length 0:39", true),
        ("-m ttl --ttl-eq 63", true),
        ("-m ttl ! --ttl-eq 64", true),
        ("-m ttl --ttl-lt 63", false),
        ("-m ttl --ttl-lt 0", false),
        ("-m ttl --ttl-gt 62", true),
        ("-m ttl --ttl-gt 255", false),
        ("-m mac --mac-source 02:00:00:00:00:07", true),
        ("-m mac ! --mac-source 02:00:00:00:00:07", false),
        ("-m pkttype --pkt-type unicast", true),
        ("-m pkttype --pkt-type broadcast", false),
        ("-m pkttype ! --pkt-type multicast", true),
        ("-m comment --comment \"-j ACCEPT \\\" it\"", true),
        ("-m limit --limit 1/day", true),
        ("-m limit --limit 1/day --limit-burst 0", false),
        ("-m limit --limit 1/day -m ttl --ttl-eq 1", false),
    ] {
        let rule = format!("{rule} -j DROP");
        assert_eq!(of4(&rule, &syn), if drops { DROP } else { ACCEPT }, "{rule}");
    }
}

#[test]
fn icmp_is_taken_by_type_and_code() {
    let unreachable = four(1, 0, &[3, 1, 0, 0, 0, 0, 0, 0]);
    for (types, drops) in [
        ("--icmp-type any", true),
        ("! --icmp-type any", false),
        ("--icmp-type 255", true),
        ("--icmp-type 3", true),
        ("--icmp-type 3/1", true),
        ("--icmp-type 3/2", false),
        ("! --icmp-type 3/2", true),
        ("! --icmp-type 3/1", false),
        ("! --icmp-type 8", true),
        ("--icmp-type host-unreachable", true),
        ("--icmp-type destination-unreachable", true),
        ("--icmp-type 4", false),
    ] {
        let rule = format!("-p icmp -m icmp {types} -j DROP");
        assert_eq!(of4(&rule, &unreachable), if drops { DROP } else { ACCEPT }, "{rule}");
        let later = four(1, 2, &[3, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(of4(&rule, &later), ACCEPT, "a later fragment: {rule}");
        let short = four(1, 0, &[3, 1, 0, 0, 0, 0, 0]);
        assert_eq!(of4(&rule, &short), DROP, "truncated: {rule}");
    }
    let big = six(58, &[2, 0, 0, 0, 0, 0, 5, 0]);
    assert_eq!(of6("-p icmpv6 --icmpv6-type packet-too-big -j DROP", &big), DROP);
    assert_eq!(of6("-p icmpv6 ! --icmpv6-type 2/0 -j DROP", &big), ACCEPT);
    assert_eq!(of6("-p icmpv6 --icmpv6-type 255 -j DROP", &big), ACCEPT, "not any of IPv6");
}

#[test]
fn truncated_headers_are_dropped_by_matches_that_read_them() {
    let accepts = "-p tcp -m tcp --dport 80 -j ACCEPT";
    assert_eq!(of4(accepts, &four(6, 0, &header(22))), ACCEPT);
    assert_eq!(of4(accepts, &four(6, 0, &header(22)[..19])), DROP);
    assert_eq!(of4(accepts, &four(6, 0x2000, &header(22)[..8])), DROP, "a first fragment");
    assert_eq!(of4(accepts, &four(6, 1, &header(22))), DROP, "one that rewrites flags");
    assert_eq!(of4(accepts, &four(6, 2, &header(22)[..8])), ACCEPT);
    assert_eq!(of4(accepts, &four(17, 0, &header(22)[..4])), ACCEPT, "another protocol");
    assert_eq!(of4("-p tcp -j ACCEPT", &four(6, 0, &[])), ACCEPT, "nobody looks");
    let aside = "-s 10.9.0.0/16 -p tcp --dport 80 -j ACCEPT";
    assert_eq!(of4(aside, &four(6, 0, &[])), ACCEPT, "addresses are checked first");
    let behind = "-p tcp -m length --length 1000: -m tcp --dport 80";
    assert_eq!(of4(behind, &four(6, 0, &[])), ACCEPT, "matches are checked in order");
    let before = "-p tcp -m tcp --dport 80 -m length --length 1000:";
    assert_eq!(of4(before, &four(6, 0, &[])), DROP);
    assert_eq!(of4("-p udp --dport 5", &four(17, 0, &[0; 7])), DROP);
    assert_eq!(of4("-p udp --dport 5", &four(17, 1, &[0; 7])), ACCEPT, "that is TCP's");
    assert_eq!(of4("-p udp -m multiport --dports 5", &four(17, 0, &[0; 4])), ACCEPT);
    assert_eq!(of4("-p udp -m multiport --dports 5", &four(17, 0, &[0; 3])), DROP);
    assert_eq!(of4("-p sctp --dport 5", &four(132, 0, &[0; 11])), DROP);
    assert_eq!(of4("-p esp -m esp --espspi 5", &four(50, 0, &[0; 7])), DROP);
    assert_eq!(of4("-p ah -m ah --ahspi 5", &four(51, 0, &[0; 11])), DROP);
    assert_eq!(of6("-p tcp --dport 80", &six(6, &header(80)[..19])), DROP);
}

#[test]
fn ports_are_never_a_later_fragments() {
    for rule in ["--dport 80", "! --dport 81", "! --tcp-flags ALL ACK", ""] {
        let rule = format!("-p tcp -m tcp {rule} -j DROP");
        assert_eq!(of4(&rule, &four(6, 0, &header(80))), DROP, "{rule}");
        assert_eq!(of4(&rule, &four(6, 0x2003, &header(80))), ACCEPT, "{rule}");
    }
    assert_eq!(of4("-f -j DROP", &four(6, 0x2003, &header(80))), DROP);
    assert_eq!(of4("-f -j DROP", &four(6, 0x2000, &header(80))), ACCEPT, "a first fragment");
    assert_eq!(of4("-p tcp -j DROP", &four(6, 0x2003, &header(80))), DROP);
}

#[test]
fn spis_are_read_at_their_place() {
    let esp = four(50, 0, &[0, 0, 1, 0, 0, 0, 0, 9]);
    assert_eq!(of4("-p esp -m esp --espspi 256:300 -j DROP", &esp), DROP);
    assert_eq!(of4("-p esp -m esp ! --espspi 256 -j DROP", &esp), ACCEPT);
    let ah = four(51, 0, &[6, 4, 0, 0, 0, 0, 1, 0, 0, 0, 0, 9]);
    assert_eq!(of4("-p ah -m ah --ahspi 256 -j DROP", &ah), DROP);
}

#[test]
fn ipv6_protocols_are_behind_extension_headers() {
    let rule = "-p tcp --dport 80 -j DROP";
    let options = |next: u8, body: &[u8]| [&[next, 0, 0, 0, 0, 0, 0, 0], body].concat();
    assert_eq!(of6(rule, &six(6, &header(80))), DROP);
    assert_eq!(of6(rule, &six(60, &options(6, &header(80)))), DROP);
    assert_eq!(of6(rule, &six(60, &options(17, &header(80)))), ACCEPT);
    assert_eq!(of6("-p 60 -j DROP", &six(60, &options(6, &header(80)))), ACCEPT);
    assert_eq!(of6("! -p tcp -j DROP", &six(60, &options(6, &header(80)))), ACCEPT);
    let fragment = |offset: u8, next: u8| {
        six(44, &[&[next, 0, 0, offset, 0, 0, 0, 7], &header(80)[..]].concat())
    };
    assert_eq!(of6(rule, &fragment(0, 6)), DROP);
    assert_eq!(of6(rule, &fragment(8, 6)), ACCEPT, "offset 1 is not dropped in IPv6");
    assert_eq!(of6("-p tcp -j DROP", &fragment(8, 6)), DROP);
    assert_eq!(of6("-p udp -j ACCEPT", &fragment(8, 60)), DROP, "broken, for -p");
    assert_eq!(of6("-j ACCEPT", &fragment(8, 60)), ACCEPT, "nobody looks");
    assert_eq!(of6("-p udp -j ACCEPT", &six(60, &[6])), DROP, "broken");
    let auth = |next: u8| [&[next, 4][..], &[0; 22], &header(80)].concat();
    assert_eq!(of6(rule, &six(51, &auth(6))), DROP, "behind an authentication header");
    assert_eq!(of6(rule, &six(51, &auth(17))), ACCEPT);
    assert_eq!(of6("-p ah -j DROP", &six(51, &auth(6))), ACCEPT);
    assert_eq!(of6("-p udp", &six(51, &[6])), DROP, "broken");
    assert_eq!(of6("-s ::1 -p udp", &six(51, &[6, 4])), ACCEPT);
    for name in ["frag --fragfirst", "rt --rt-type 0", "hbh", "dst ! --dst-len 4", "ah"] {
        let rule = format!("-m {name} -j DROP");
        assert_eq!(of6(&rule, &six(6, &header(80))), ACCEPT, "{rule}");
        assert!(punts(&of6(&rule, &fragment(0, 6))), "{rule}");
    }
}

#[test]
fn unsupported_rules_take_the_kernel_path_where_the_rest_matches() {
    let http = four(6, 0, &header(80));
    for (rule, takes_kernel_path) in [
        ("-p tcp -m addrtype --dst-type LOCAL -m tcp --dport 80 -j DROP", true),
        ("-p tcp -m addrtype --dst-type LOCAL -m tcp --dport 81 -j DROP", false),
        ("-p tcp -m tcp --dport 81 -m recent --set -j DROP", false),
        ("-p tcp -m recent --set -m tcp --dport 81 -j DROP", true),
        ("-m addrtype --dst-type LOCAL -m limit --limit 5/sec -m ttl --ttl-eq 1", true),
        ("-p tcp --tcp-option 8 --dport 81", false),
        ("-p tcp --tcp-option 8 --dport 80", true),
        ("-m set --match-set a src -j DROP", true),
        ("-m nonsense --foo 5 ! --bar 6 7 -j DROP", true),
        ("-s 10.0.0.9 -j NFQUEUE --queue-num 3", false),
        ("-j NFQUEUE --queue-num 3", true),
        ("-j OUTLANDISH --with 5", true),
    ] {
        let verdict = of4(rule, &http);
        assert_eq!(punts(&verdict), takes_kernel_path, "{rule}: {verdict:?}");
    }
    let short = four(6, 0, &header(80)[..9]);
    let verdict = of4("-p tcp -m addrtype --dst-type LOCAL -m tcp --dport 81 -j DROP", &short);
    assert!(punts(&verdict), "dropped only if the unknown match holds: {verdict:?}");
    let nft = format!(
        "# Generated by iptables-nft-save v1.8.9 (nf_tables) on X\n{}",
        forward(&["-p tcp --dport 81 -j DROP",])
    );
    let rules = read_valid(&nft, Family::Ip);
    assert!(punts(&verdict_of(&rules, &short)), "nf_tables drops it or not");
}

fn verdict_of(rules: &crate::ir::Ruleset, frame: &[u8]) -> RuleVerdict {
    verdict(rules, &mut State::new(rules), frame, 0).0
}

#[test]
fn rules_of_forwarded_packets_about_connections_need_tracking() {
    let http = four(6, 0x4000, &header(80));
    let of = |text: &str| {
        let rules = read_valid(text, Family::Ip);
        (verdict_of(&rules, &http), rules.tracking.is_some())
    };
    // Without a connection, nothing holds.
    let state = forward(&["-s 10.9.9.9 -m state --state NEW -j DROP", "-j CONNMARK --set-mark 5"]);
    assert_eq!(of(&state), (ACCEPT, true));
    let input = "*filter\n:INPUT DROP [0:0]\n-A INPUT -m state --state NEW -j DROP\nCOMMIT\n";
    assert_eq!(of(input), (ACCEPT, false));
    let nat = "*nat\n:POSTROUTING ACCEPT [0:0]\n-A POSTROUTING -o lan0 -j MASQUERADE\nCOMMIT\n";
    assert_eq!(of(nat), (ACCEPT, true));
    let plain = "*nat\n:POSTROUTING ACCEPT [0:0]\n-A POSTROUTING -j ACCEPT\nCOMMIT\n";
    assert_eq!(of(plain), (ACCEPT, true));
    let raw = "*raw\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -j CT --notrack\nCOMMIT\n";
    assert_eq!(of(raw), (ACCEPT, false));
    assert!(punts(&of(&forward(&["-m conntrack --ctexpire 5 -j DROP"])).0));
}

#[test]
fn what_a_rule_tests_of_connections_is_what_xtables_tests() {
    let connection = Connection {
        state: ConnectionState::Established,
        direction: Direction::Reply,
        status: 0xe,
        mark: 0x15,
        zone: 0,
        original: Tuple {
            source: 0x0a00_0001,
            destination: 0x0a00_0002,
            source_port: 7,
            destination_port: 80,
        },
        reply: Tuple {
            source: 0x0a00_0002,
            destination: 0x0a00_0001,
            source_port: 80,
            destination_port: 7,
        },
    };
    let tracked = FlowConnection::Tracked(connection);
    let (invalid, untracked) = (FlowConnection::Invalid, FlowConnection::Untracked);
    for (words, of_tracked, of_invalid, of_untracked) in [
        ("-m state --state RELATED,ESTABLISHED", true, false, false),
        ("-m conntrack --ctstate INVALID", false, true, false),
        ("-m conntrack ! --ctstate NEW,UNTRACKED", true, true, false),
        ("-m conntrack --ctstate INVALID,ESTABLISHED --ctdir ORIGINAL", false, true, false),
        ("-m conntrack --ctdir REPLY --ctproto tcp", true, false, false),
        ("-m conntrack ! --ctproto 6", false, false, false),
        ("-m conntrack --ctstatus ASSURED,EXPECTED", true, false, false),
        ("-m conntrack ! --ctstatus ASSURED", false, false, false),
        ("-m conntrack --ctstatus NONE", false, false, false),
        ("-m conntrack --ctorigsrc 10.0.0.0/24 --ctorigdstport 80:90", true, false, false),
        ("-m conntrack ! --ctreplsrc 10.0.0.2/32", false, false, false),
        (
            "-m conntrack --ctrepldst 10.0.0.1 --ctreplsrcport 80 --ctrepldstport 7",
            true,
            false,
            false,
        ),
        ("-m conntrack --ctstate DNAT,UNTRACKED", false, false, true),
        ("-m connmark --mark 0x5/0xf", true, false, false),
        ("-m connmark ! --mark 0x5/0xf", false, false, false),
    ] {
        let rules = read_valid(&forward(&[&format!("{words} -j DROP")]), Family::Ip);
        assert!(rules.tracking.is_some(), "{words}");
        for (connection, holds) in
            [(tracked, of_tracked), (invalid, of_invalid), (untracked, of_untracked)]
        {
            let frame = four(6, 0x4000, &header(80));
            let (input, output) = (link("wan0"), link("lan0"));
            let mut packet = Packet::new(&frame, 14, &input);
            packet.connection = Some(connection);
            packet.output = Some(&output);
            let found = eval::run(&rules, &mut State::new(&rules), Hook::Forward, &mut packet, 0);
            assert_eq!(found == RuleVerdict::Drop, holds, "{words} for {connection:?}");
        }
    }
}

#[test]
fn targets_do_what_they_say() {
    let http = four(6, 0x4000, &header(80));
    let mangle = |rules: &str| {
        let lines: String =
            rules.split(';').map(|rule| format!("-A PREROUTING {rule}\n")).collect();
        let text = format!("*mangle\n:PREROUTING ACCEPT [0:0]\n{lines}COMMIT\n");
        let rules = read_valid(&text, Family::Ip);
        verdict(&rules, &mut State::new(&rules), &http, 0)
    };
    for (rules, mark) in [
        ("-j MARK --set-mark 5", 5),
        ("-j MARK --set-xmark 0xff/0xff;-j MARK --set-mark 0x1/0x3", 0xfd),
        ("-j MARK --set-xmark 0xff/0xff;-j MARK --set-xmark 0x5/0x1", 0xfb),
        ("-j MARK --or-mark 0x30;-j MARK --and-mark 0x1f", 0x10),
        ("-j MARK --or-mark 0x30;-j MARK --xor-mark 0x11", 0x21),
        ("-j MARK --set-mark 7;-m mark --mark 0x3/0x3 -j RETURN;-j MARK --set-mark 9", 7),
    ] {
        assert_eq!(mangle(rules).1, mark, "{rules}");
    }
    assert_eq!(mangle("-j DSCP --set-dscp 0x2e").2[15], 0xb8);
    assert_eq!(mangle("-j DSCP --set-dscp-class AF21").2[15], 0x48);
    assert_eq!(mangle("-j TOS --set-tos 0x10/0xff").2[15], 0x10);
    assert_eq!(mangle("-j TOS --set-tos 0x10/0xfc").2[15], 0x10);
    assert!(punts(&mangle("-j TOS --set-tos 0x10/0x10").0));
    assert!(punts(&mangle("-j TOS --set-tos 0x11/0xff").0));
    assert!(punts(&mangle("-j CT --zone 5 --notrack").0));
    for (rule, family, reject) in [
        ("-j REJECT", Family::Ip, Reject::Icmp(3)),
        ("-j REJECT --reject-with icmp-admin-prohibited", Family::Ip, Reject::Icmp(13)),
        ("-j REJECT --reject-with host-unreach", Family::Ip, Reject::Icmp(1)),
        ("-p tcp -j REJECT --reject-with tcp-reset", Family::Ip, Reject::TcpReset),
        ("-j REJECT", Family::Ip6, Reject::Icmp6(4)),
        ("-j REJECT --reject-with icmp6-policy-fail", Family::Ip6, Reject::Icmp6(5)),
    ] {
        let frame = if family == Family::Ip6 { six(6, &header(80)) } else { http.clone() };
        assert_eq!(of(&[rule], family, &frame), RuleVerdict::Reject(reject), "{rule}");
    }
}

#[test]
fn logs_have_prefix_and_group() {
    for (rule, prefix, group) in [
        ("-j LOG --log-prefix \"a b: \" --log-level 4 --log-uid", "a b: ", None),
        ("-j NFLOG --nflog-group 7 --nflog-prefix x --nflog-threshold 5", "x", Some(7)),
        ("-j NFLOG", "", Some(0)),
    ] {
        let rules = read_valid(&forward(&[rule]), Family::Ip);
        let log = Log { prefix: prefix.into(), group };
        let steps = rules.chains.iter().flat_map(|chain| &chain.rules).flat_map(|rule| &rule.steps);
        assert!(
            steps.into_iter().any(|step| *step == Step::Do(Action::Log(log.clone()))),
            "{rule}"
        );
    }
}

#[test]
fn chains_jump_to_each_other() {
    let http = four(6, 0x4000, &header(80));
    let of = |rules: &[&str]| of(rules, Family::Ip, &http);
    assert_eq!(of(&["-j a", "-A a -p tcp -j RETURN", "-A a -j DROP", "-j ACCEPT"]), ACCEPT);
    assert_eq!(of(&["-j a", "-A a -j b", "-A b -j RETURN", "-A a -j DROP"]), DROP);
    assert_eq!(of(&["-j a", "-A a -g b", "-A b -j RETURN", "-A a -j DROP"]), ACCEPT);
    assert_eq!(of(&["-g a", "-A a -j RETURN", "-j DROP"]), ACCEPT, "the policy");
    assert_eq!(of(&["-j RETURN", "-j DROP"]), ACCEPT, "the policy");
}

#[test]
fn policies_count_and_counts_go_on() {
    let text = "*filter\n:FORWARD DROP [7:420]\n:a - [0:0]\n\
                [3:99] -A FORWARD -p tcp -m tcp --dport 80 -j RETURN\n\
                [0:0] -A FORWARD -p udp -g a\n[5:5] -A FORWARD -p icmp\nCOMMIT\n";
    let rules = read_valid(text, Family::Ip);
    let mut state = State::new(&rules);
    for frame in
        [four(6, 0, &header(80)), four(17, 0, &[0; 8]), four(1, 0, &[8, 0]), four(47, 0, &[])]
    {
        assert_eq!(verdict(&rules, &mut state, &frame, 0).0, DROP);
    }
    // The policy; each rule.
    assert_eq!(state.counts, [(11, 420 + 40 + 28 + 22 + 20), (4, 139), (1, 28), (6, 27)]);
}

#[test]
fn limits_let_a_burst_by_and_then_their_rate() {
    let text = forward(&["-m limit --limit 2/sec --limit-burst 3 -j ACCEPT", "-j DROP"]);
    let rules = read_valid(&text, Family::Ip);
    let mut state = State::new(&rules);
    let frame = four(6, 0, &header(80));
    let mut passed = |at_ms: u64| {
        (0..9)
            .filter(|_| verdict(&rules, &mut state, &frame, at_ms * 1_000_000).0 == ACCEPT)
            .count()
    };
    assert_eq!([passed(0), passed(499), passed(500), passed(60_000)], [3, 0, 1, 3]);
}

#[test]
fn a_limit_is_not_used_up_by_what_is_dropped_beside_it() {
    let rule = "-p tcp -m limit --limit 1/day --limit-burst 1 -m tcp --dport 80 -j DROP";
    let rules = read_valid(&forward(&[rule]), Family::Ip);
    let mut state = State::new(&rules);
    let (short, whole) = (four(6, 0, &[0; 9]), four(6, 0, &header(80)));
    assert!(punts(&verdict(&rules, &mut state, &short, 0).0));
    assert_eq!(verdict(&rules, &mut state, &whole, 0).0, DROP);
    assert_eq!(verdict(&rules, &mut state, &whole, 0).0, ACCEPT);
}

#[test]
fn before_the_route_no_packet_leaves_by_a_link() {
    let http = four(6, 0x4000, &header(80));
    let of = |jumps: &str, rule: &str| {
        let text = format!(
            "*mangle\n:PREROUTING ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n:a - [0:0]\n{jumps}\n\
             -A a {rule} -j DROP\nCOMMIT\n"
        );
        verdict_of(&read_valid(&text, Family::Ip), &http)
    };
    assert_eq!(of("-A PREROUTING -j a", "-o lan0"), ACCEPT);
    assert_eq!(of("-A PREROUTING -j a", "! -o lan0"), DROP);
    assert_eq!(of("-A FORWARD -j a", "! -o lan0"), ACCEPT);
    assert!(punts(&of("-A PREROUTING -j a\n-A FORWARD -j a", "! -o lan0")));
}

#[test]
fn a_changed_mark_is_checked_again() {
    let rule = |port: u16| format!("-p tcp -m mark --mark 0x1 -m tcp --dport {port} -j ACCEPT");
    let rules = [&rule(80), "-j MARK --set-xmark 0x1/0xffffffff", &rule(81)];
    assert_eq!(of(&rules, Family::Ip, &four(6, 0, &header(80)[..9])), DROP);
}
