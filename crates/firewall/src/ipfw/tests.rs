//! Tests rule files, what the rules do with packets, and messages about mistakes.

mod hostile;
mod naive;
mod nat;
pub(crate) mod random;

use super::read;
use crate::ir::{Action, Hook, Reject, Ruleset, Step};
use crate::mistake::report;
use crate::program;
use crate::testkit::eval::{self, Packet, RuleVerdict};
use crate::testkit::link;
use etherparse::{IpFragOffset, PacketBuilder};
use tollway_dataplane::epoch::Epochs;

const CORPUS: [(&str, &str); 5] = [
    ("open", include_str!("tests/corpus/open.rules")),
    ("client", include_str!("tests/corpus/client.sh")),
    ("simple", include_str!("tests/corpus/simple.rules")),
    ("campus", include_str!("tests/corpus/campus.rules")),
    ("listed", include_str!("tests/corpus/listed.rules")),
];

fn corpus(name: &str) -> Ruleset {
    let (_, text) = CORPUS.iter().find(|(own, _)| *own == name).expect("a file");
    good(text)
}

fn good(text: &str) -> Ruleset {
    let rules = read(text, "test.rules").unwrap_or_else(|wrong| panic!("{}", report(&wrong)));
    assert_eq!(rules.check(), Ok(()), "{text}");
    rules
}

/// The verdict of a packet in both passes.
fn verdict(rules: &Ruleset, frame: &[u8], input: &str, output: &str) -> RuleVerdict {
    counted(rules, frame, input, output).0
}

fn counted(rules: &Ruleset, frame: &[u8], input: &str, output: &str) -> (RuleVerdict, eval::State) {
    let (input, output) = (link(input), link(output));
    let mut state = eval::State::new(rules);
    let mut packet = Packet::new(frame, 14, &input);
    for hook in [Hook::Ingress, Hook::Prerouting, Hook::Forward, Hook::Egress] {
        if hook == Hook::Forward {
            packet.output = Some(&output);
        }
        let verdict = eval::run(rules, &mut state, hook, &mut packet, 0);
        if verdict != RuleVerdict::Accept {
            return (verdict, state);
        }
    }
    (RuleVerdict::Accept, state)
}

/// TCP from one address to another, with SYN unless there is ACK.
fn tcp(source: [u8; 4], destination: [u8; 4], port: u16, ack: bool) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2([2, 0, 0, 0, 7, 1], [2, 0, 0, 0, 0, 1])
        .ipv4(source, destination, 64)
        .tcp(4000, port, 7, 512);
    let builder = if ack { builder.ack(9) } else { builder.syn() };
    let mut frame = Vec::new();
    builder.write(&mut frame, &[1, 2, 3, 4]).expect("a frame");
    frame
}

fn udp(source: [u8; 4], from: u16, destination: [u8; 4], to: u16) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2([2, 0, 0, 0, 7, 1], [2, 0, 0, 0, 0, 1])
        .ipv4(source, destination, 64)
        .udp(from, to);
    let mut frame = Vec::new();
    builder.write(&mut frame, &[1, 2, 3, 4]).expect("a frame");
    frame
}

fn udp6(source: u128, destination: u128, to: u16) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2([2, 0, 0, 0, 7, 1], [2, 0, 0, 0, 0, 1])
        .ipv6(source.to_be_bytes(), destination.to_be_bytes(), 64)
        .udp(4000, to);
    let mut frame = Vec::new();
    builder.write(&mut frame, &[1, 2, 3, 4]).expect("a frame");
    frame
}

fn fragment(mut frame: Vec<u8>, units: u16) -> Vec<u8> {
    let offset = IpFragOffset::try_new(units).expect("an offset").value();
    frame[20..22].copy_from_slice(&offset.to_be_bytes());
    frame
}

const A: [u8; 4] = [198, 51, 100, 7];
const B: [u8; 4] = [192, 0, 2, 80];

#[test]
fn the_corpus_is_read_and_compiles() {
    let links = ["lo0", "wan0", "lan0", "dorm0"].map(link);
    for (name, text) in CORPUS {
        let rules = good(text);
        assert!(program::compile(&rules, &links, &Epochs::new()).is_ok(), "{name}");
    }
}

#[test]
fn client() {
    let rules = corpus("client");
    let inside = [192, 168, 4, 17];
    let verdict_of = |frame: &[u8]| verdict(&rules, frame, "wan0", "lan0");
    assert_eq!(verdict_of(&tcp(A, inside, 25, false)), RuleVerdict::Accept);
    assert_eq!(verdict_of(&tcp(A, inside, 22, false)), RuleVerdict::Drop);
    assert_eq!(verdict_of(&tcp(A, inside, 22, true)), RuleVerdict::Accept);
    assert_eq!(verdict_of(&tcp(inside, A, 22, false)), RuleVerdict::Accept);
    assert_eq!(verdict_of(&udp(A, 53, inside, 4000)), RuleVerdict::Accept);
    assert_eq!(verdict_of(&udp(A, 54, inside, 53)), RuleVerdict::Drop);
    assert_eq!(verdict_of(&fragment(udp(A, 54, inside, 53), 3)), RuleVerdict::Accept);
}

#[test]
fn simple() {
    let rules = corpus("simple");
    let inbound = |frame: &[u8]| verdict(&rules, frame, "wan0", "lan0");
    assert_eq!(inbound(&tcp(A, B, 80, false)), RuleVerdict::Accept);
    assert_eq!(inbound(&tcp(A, B, 22, false)), RuleVerdict::Drop);
    assert_eq!(inbound(&tcp(A, B, 22, true)), RuleVerdict::Accept);
    assert_eq!(inbound(&tcp([192, 0, 2, 9], B, 80, false)), RuleVerdict::Drop, "spoofed");
    assert_eq!(inbound(&tcp([10, 1, 1, 1], B, 80, false)), RuleVerdict::Drop, "private");
    assert_eq!(inbound(&tcp([241, 1, 1, 1], B, 80, false)), RuleVerdict::Drop, "reserved");
    let outbound = |frame: &[u8]| verdict(&rules, frame, "lan0", "wan0");
    assert_eq!(outbound(&tcp(B, A, 22, false)), RuleVerdict::Accept);
    assert_eq!(
        outbound(&tcp(B, [10, 9, 9, 9], 22, false)),
        RuleVerdict::Drop,
        "a private destination"
    );
    assert_eq!(outbound(&udp(B, 999, A, 53)), RuleVerdict::Accept);
    assert_eq!(outbound(&udp(B, 999, A, 54)), RuleVerdict::Drop);
}

#[test]
fn campus() {
    let rules = corpus("campus");
    let inbound = |frame: &[u8]| verdict(&rules, frame, "wan3", "dorm0");
    let server = [198, 51, 100, 80];
    let other = [198, 51, 100, 70];
    let low = [198, 51, 100, 7];
    assert_eq!(inbound(&tcp([8, 8, 8, 8], server, 443, false)), RuleVerdict::Accept);
    assert_eq!(inbound(&tcp([8, 8, 8, 8], server, 22, false)), RuleVerdict::Drop);
    assert_eq!(
        inbound(&tcp([8, 8, 8, 8], other, 6001, false)),
        RuleVerdict::Reject(Reject::TcpReset)
    );
    assert_eq!(
        inbound(&tcp([8, 8, 8, 8], other, 6001, true)),
        RuleVerdict::Accept,
        "the longest prefix"
    );
    assert_eq!(inbound(&tcp([8, 8, 8, 8], low, 6001, true)), RuleVerdict::Drop, "value 1");
    assert_eq!(inbound(&tcp(low, server, 80, false)), RuleVerdict::Reject(Reject::Icmp(13)));
    assert_eq!(
        inbound(&tcp([10, 8, 8, 8], server, 80, false)),
        RuleVerdict::Drop,
        "by the called rules"
    );
    let net = 0x2001_0db8_0051_u128 << 80;
    assert_eq!(inbound(&udp6(7, net | 9, 53)), RuleVerdict::Accept);
    let outbound = |frame: &[u8]| verdict(&rules, frame, "dorm1", "wan0");
    assert_eq!(outbound(&tcp(low, [8, 8, 8, 8], 80, false)), RuleVerdict::Accept);
    assert_eq!(outbound(&tcp(low, [8, 8, 8, 8], 25, false)), RuleVerdict::Drop);
    assert_eq!(outbound(&udp6(net | 9, 7, 80)), RuleVerdict::Accept);
    assert_eq!(outbound(&udp6(net | 9, 7, 53)), RuleVerdict::Drop, "not that server, in IPv6 too");
    assert_eq!(outbound(&udp(low, 4000, [198, 51, 100, 53], 53)), RuleVerdict::Accept);
    assert_eq!(
        verdict(&rules, &tcp(low, server, 80, false), "lab0", "wan0"),
        RuleVerdict::Reject(Reject::Icmp(1))
    );
}

#[test]
fn output_of_ipfw_show_is_read_with_its_counts() {
    let rules = corpus("listed");
    let counts: Vec<_> =
        rules.counters.iter().map(|counter| (counter.packets, counter.bytes)).collect();
    assert_eq!(counts[..4], [(12, 3456), (0, 0), (77, 92_004), (1, 40)]);
    assert_eq!(
        verdict(&rules, &udp(A, 1, B, 2), "wan0", "lan0"),
        RuleVerdict::Accept,
        "the last rule"
    );
    let frame = tcp(A, B, 113, false);
    assert_eq!(verdict(&rules, &frame, "wan0", "lan0"), RuleVerdict::Reject(Reject::TcpReset));
}

#[test]
fn rules_keep_their_place_and_words() {
    let rules = good(
        "# first\n  add 7 allow log tcp from any to any 22 // by hand\nadd deny ip6 from any to any\n",
    );
    let all: Vec<_> = rules.chains.iter().flat_map(|chain| &chain.rules).collect();
    let first = all.iter().find(|rule| rule.place.line == 2).expect("the first");
    assert_eq!(first.place.handle, Some(7));
    assert_eq!(first.place.file.as_deref(), Some("test.rules"));
    assert_eq!(first.text, "7 allow log tcp from any to any 22 // by hand");
    let logs =
        |step: &Step| matches!(step, Step::Do(Action::Log(log)) if log.prefix == "ipfw: 7 Accept");
    assert!(first.steps.iter().any(logs), "{first:?}");
    let second = all.iter().find(|rule| rule.place.line == 3).expect("the second");
    assert_eq!(
        (second.place.handle, &second.text[..]),
        (Some(107), "107 deny ip6 from any to any")
    );
    let last = all.iter().find(|rule| rule.place.handle == Some(65_535)).expect("the last");
    assert_eq!(last.text, "65535 deny ip from any to any");
}

/// Rules about a packet to `B` port 80, and whether it passes.
const VERDICTS: &[(&str, bool)] = &[
    ("", false),
    ("add allow ip from any to any", true),
    ("add allow all from any to any out", false),
    ("add allow ip from any to any in\nadd 5 deny ip from any to any", false),
    ("add allow tcp from any to any 80", true),
    ("add allow tcp from any 4000 to any http", true),
    ("add allow tcp from any 4000-4001,9 to 192.0.2.80", true),
    ("add allow tcp from any to any not 80", false),
    ("add allow udp from any to any", false),
    ("add allow not udp from any to any", true),
    ("add allow 6 from 198.51.100.0/24 to { 10.0.0.1 or 192.0.2.64/27 }", true),
    ("add allow ip from any to 192.0.2.0/24{1,79-81}", true),
    ("add allow ip from any to 192.0.2.0/24{1-79}", false),
    ("add allow ip from any to not 192.0.2.0/24", false),
    ("add allow ip from any to 192.0.0.80:255.255.0.255", true),
    ("add allow ip6 from any to any", false),
    ("add allow ip from any to not 2001:db8::/32", true),
    ("add allow in\nadd allow out", true),
    ("add allow { in or xmit table(ifs) }", false),
    ("add allow { in or xmit lan0 }", true),
    ("add allow { in or xmit lan1 }", false),
    ("add allow ip from any to any recv wan*", true),
    ("add allow ip from any to any recv wan", false),
    (
        "add 10 skipto 30 ip from any to any\nadd 20 deny ip from any to any\nadd 25 allow ip from any to any\nadd 31 allow ip from any to any",
        true,
    ),
    ("add 10 skipto 65535 ip from any to any\nadd 20 allow ip from any to any", false),
    (
        "add 10 skipto 5 ip from any to any\nadd 10 deny ip from any to any\nadd 20 allow ip from any to any",
        true,
    ),
    ("add 10 return ip from any to any\nadd 20 allow ip from any to any", true),
    (
        "add 10 call 50 ip from any to any\nadd 10 deny ip from any to any\nadd 20 allow ip from any to any\nadd 50 return ip from any to any",
        true,
    ),
    (
        "add 10 call 50 ip from any to any\nadd 20 allow ip from any to any\nadd 50 deny tcp from any to any",
        false,
    ),
    ("add 20 deny ip from any to any\nadd 10 allow ip from any to any", true),
    ("add deny ip from any to any\nflush\nadd allow ip from any to any", true),
    ("add 7 deny ip from any to any\ndelete 7\nadd allow ip from any to any", true),
    ("add set 3 deny ip from any to any\nset disable 3\nadd allow ip from any to any", true),
    (
        "add set 3 deny ip from any to any\nset disable 3 enable 3\nadd allow ip from any to any",
        false,
    ),
    (
        "add setdscp af11 ip from any to any in\nadd allow ip from any to any dscp af11 out\nadd allow ip from any to any in",
        true,
    ),
    ("add allow tcp from any to any setup", true),
    ("add allow tcp from any to any established", false),
    ("add allow tcp from any to any tcpflags syn,!ack tcpdatalen 4 tcpseq 7 tcpwin 512", true),
    ("add allow tcp from any to any tcpdatalen 5-9", false),
    ("add allow ip from any to any ipttl 64 in\nadd allow ip from any to any ipttl 63 out", true),
    ("add allow ip from any to any iplen 44", true),
    ("add allow ip from any to any not layer2", false),
    ("add allow ip from any to any layer2\nadd allow ip from any to any not layer2", true),
    (
        "add allow ip from any to any mac 02:00:00:00:00:01 any\nadd allow ip from any to any not layer2",
        true,
    ),
    (
        "add allow ip from any to any mac 02:00:00:00:00:01&ff:ff:00:00:00:00 02:00:00:00:08:00/40 layer2\nadd allow ip from any to any not layer2",
        false,
    ),
    ("add allow ip from any to any mac-type 0x0800\nadd allow not layer2", true),
    (
        "pipe 1 config bw 10Mbit/s delay 5ms queue 50\nadd set 9 pipe 1 ip from any to any\nset disable 9\nadd allow ip from any to any",
        true,
    ),
    ("add allow ip from any to any \\\n  in // and\nadd allow out", true),
    ("add allow tcp from any to any \\{ dst-port 80 or dst-port 81 \\}", true),
    (
        "table ports create type number\ntable ports add 80 1\nadd allow tcp from any to any lookup dst-port ports",
        true,
    ),
    ("table x add 192.0.2.0/24 9 192.0.2.80 8\nadd allow ip from any to table(x,8)", true),
    ("table x add 192.0.2.0/24 9 192.0.2.80 8\nadd allow ip from any to table(x,9)", false),
    (
        "table x add 192.0.2.80\nadd deny ip from any to table(x)\ntable x delete 192.0.2.80\nadd allow ip from any to any",
        true,
    ),
];

#[test]
fn verdicts() {
    let frame = tcp(A, B, 80, false);
    for (text, passes) in VERDICTS {
        let expected = if *passes { RuleVerdict::Accept } else { RuleVerdict::Drop };
        let rules = good(text);
        assert_eq!(verdict(&rules, &frame, "wan0", "lan0"), expected, "{text}");
    }
}

#[test]
fn short_headers_are_denied_before_any_rule() {
    let rules = good("add allow ip from any to any");
    let mut frame = tcp(A, B, 80, false);
    frame[16..18].copy_from_slice(&39_u16.to_be_bytes());
    let (verdict, state) = counted(&rules, &frame, "wan0", "lan0");
    assert_eq!(verdict, RuleVerdict::Drop);
    assert_eq!(state.counts[2..], [(1, 39), (0, 0)]);
    let overlapping = fragment(tcp(A, B, 80, false), 1);
    assert_eq!(counted(&rules, &overlapping, "wan0", "lan0").0, RuleVerdict::Drop);
    let later = fragment(tcp(A, B, 80, false), 2);
    assert_eq!(counted(&rules, &later, "wan0", "lan0").0, RuleVerdict::Accept);
}

#[test]
fn counters_are_shared_by_the_passes() {
    let rules = good("add count ip from any to any\nadd allow ip from any to any");
    let (verdict, state) = counted(&rules, &tcp(A, B, 80, false), "wan0", "lan0");
    assert_eq!(verdict, RuleVerdict::Accept);
    assert_eq!(state.counts, [(2, 88), (2, 88), (0, 0), (0, 0), (0, 0)]);
}

/// Lines with a mistake, the column that the message names, and words of the message.
const MISTAKES: &[(&str, usize, &str)] = &[
    ("add allow tcp from any to any keep-state limit src-addr 4", 42, "keeps a state already"),
    ("add allow tcp from any to any keep-state :any", 42, "no name"),
    ("add allow tcp from any to any keep-state :a/b", 42, "no name"),
    ("add allow tcp from any to any not keep-state", 35, "inverted"),
    ("add allow tcp from any to any { in or keep-state }", 39, "inverted"),
    ("add allow tcp from any to any limit 4", 37, "nothing to count by"),
    ("add allow tcp from any to any limit src-addr 0", 46, "lets nothing by"),
    ("add allow tcp from any to any limit src-addr tablearg", 46, "out of a table"),
    ("add allow tcp from any to any defer-action", 31, "the rule keeps none"),
    ("add check-state tcp from any to any", 17, "for all packets"),
    ("add check-state log", 17, "logs nothing"),
    ("add return ip from any to any keep-state", 1, "returns"),
    ("add check-state\nadd 900 call 1000 ip from any to any", 1, "call"),
    ("add divert natd ip from any to any via wan0", 5, "passes packets to programs"),
    ("add nat 1 ip from any to any", 1, "no nat instance 1"),
    ("add nat global ip from any to any", 1, "no nat instance"),
    ("add nat tablearg ip from any to any", 9, "out of a table"),
    ("add nat 0 ip from any to any", 9, "no number of a nat instance"),
    ("add nptv6 x ip from any to any", 5, "translates IPv6"),
    (
        "nat 1 config ip 192.0.2.1\nadd 5 count ip from any to any layer2\nadd nat 1 ip from any to any",
        1,
        "layer 2",
    ),
    ("add prob 0.5 deny ip from any to any", 5, "at random"),
    ("add skipto tablearg ip from any to any", 12, "out of a table"),
    ("add fwd 127.0.0.1 tcp from any to any 80", 9, "proxy"),
    ("add fwd 192.0.2.1,3128 tcp from any to any 80", 9, "port"),
    ("add allow ip from me to any", 19, "own addresses"),
    ("add allow ip from www.example.org to any", 19, "no address"),
    ("add allow ip from 192.0.2.0/33 to any", 19, "no address"),
    ("add allow ip from any", 19, "to is missing"),
    ("add allow ip to any", 14, "from is missing"),
    ("add allow tpc from any to any", 11, "no protocol"),
    ("add allow tcp from any to any 99999", 31, "no list of ports"),
    ("add alow tcp from any to any", 5, "no action"),
    ("add 65535 deny ip from any to any", 5, "no number of a rule"),
    ("add 70000 deny ip from any to any", 5, "no number of a rule"),
    ("add pipe 1 ip from any to any", 1, "pipes"),
    ("add allow ip from any to any via wan?", 34, "pattern"),
    ("add allow ip from any to any via 192.0.2.1", 34, "by its address"),
    ("add allow ip from any to any tcpflags syn,foo", 39, "\"foo\""),
    ("add allow ip from { 192.0.2.1 or 192.0.2.2 to any", 19, "not closed"),
    ("add allow { in or out xmit wan0 }", 11, "not closed"),
    ("add allow ip from not any to any", 23, "matches no packet"),
    ("add allow ip from any to any verrevpath in", 30, "routes"),
    ("add allow ip from any to any uid root", 30, "sockets"),
    ("add allow tag 4 ip from any to any", 11, "other rules"),
    ("add allow ip from any to any tagged 4", 30, "other rules"),
    ("add allow ip from any to any bogus", 30, "no option"),
    ("oif=\"wan0\"", 1, "no line"),
    ("ipfw add allow ip from $net to any", 24, "variables"),
    ("table x create type flow:src-ip", 21, "type"),
    ("table x add nonsense", 13, "an address"),
    ("add 10 call 10 ip from any to any", 1, "loop"),
    ("table x create type iface\nadd allow ip from table(x) to any", 1, "not of the type"),
    ("set swap 3 4", 5, "no command for sets"),
    ("nat 1 config", 5, "no address"),
    ("nat 0 config if wan0", 5, "no number of a nat instance"),
    ("nat 1 config ip fd00::1", 17, "no address of IPv4"),
    ("nat 1 config ip 0.0.0.0", 17, "no address to translate to"),
    ("nat 1 config if wan0 punch_fw 1:2", 22, "no option"),
    ("nat 1 config if wan0 proxy_only", 22, "proxies"),
    ("nat 1 config if wan0 port_range 9-5", 33, "no range"),
    ("nat 1 config if wan0 redirect_addr 10.0.0.1", 36, "missing"),
    ("nat 1 config if wan0 redirect_addr 10.0.0.1 lan", 45, "no address"),
    ("nat 1 config if wan0 redirect_port sctp 10.0.0.1 5", 36, "SCTP"),
    ("nat 1 config if wan0 redirect_port gre 10.0.0.1:5 5", 36, "no protocol with ports"),
    ("nat 1 config if wan0 redirect_port tcp 10.0.0.1 5", 40, "no port"),
    ("nat 1 config if wan0 redirect_port tcp 10.0.0.1:5-7 5", 53, "1 public ports"),
    ("nat 1 config if wan0 redirect_port tcp 10.0.0.1:5,10.0.0.2:5-6 5-6", 40, "single port"),
    ("nat 1 config if wan0 redirect_port tcp 10.0.0.1:5-7 5-7 192.0.2.9:1-2", 57, "remote ports"),
    ("nat 1 config if wan0 redirect_port tcp 10.0.0.1:70000 5", 40, "no port"),
    ("nat 1 config if wan0 redirect_proto tcp 10.0.0.1", 37, "has ports"),
    ("nat 1 confg if wan0", 7, "no command for nat"),
];

#[test]
fn mistakes_say_where_and_what() {
    for (text, column, words) in MISTAKES {
        let wrong = read(text, "bad.rules").expect_err(text);
        assert_eq!(wrong.len(), 1, "{text}\n{}", report(&wrong));
        let wrong = &wrong[0];
        let last = text.lines().count();
        assert_eq!((wrong.line, wrong.column), (last, *column), "{text}\n{wrong}");
        assert!(wrong.what.contains(words), "{text}\n{wrong}");
        assert!(!wrong.remedy.is_empty(), "{text}");
    }
}

#[test]
fn names_of_states_must_not_lead_in_a_loop() {
    let loops = "add 1 check-state :b\nadd 2 count ip from any to any keep-state :a\n\
        add 3 count ip from any to any keep-state :b\nadd 4 check-state :a\nadd 5 check-state :b\n";
    let wrong = read(loops, "bad.rules").expect_err("a loop");
    assert_eq!((wrong.len(), wrong[0].line), (1, 2), "{}", report(&wrong));
    assert!(wrong[0].what.contains("in a loop"), "{}", report(&wrong));
    good(&loops.replace("count", "allow"));
    good(&loops.replace(":b", ":a"));
}

#[test]
fn all_mistakes_of_a_file_are_reported() {
    let text = "add allow ip from any to any\nadd alow ip from any to any\n\nadd pipe 1 ip from any to any\nadd deny ip from me to any\n";
    let wrong = read(text, "bad.rules").expect_err("three");
    assert_eq!(wrong.iter().map(|one| one.line).collect::<Vec<_>>(), [2, 4, 5]);
    assert!(wrong[0].to_string().starts_with("bad.rules:2: \"alow\" is no action; "));
}
