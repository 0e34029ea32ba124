//! Random files and random packets: the naive interpreter, the evaluator and the classifier agree.

use tollway_dataplane::epoch::Epochs;

use super::naive::{Naive, Passing};
use crate::ipfw::list::List;
use crate::ir::{Hook, Ruleset};
use crate::mistake::{Ledger, report};
use crate::program::tests::{Conversations, compare_one, compare_states, links, plain};
use crate::testkit::dice::Dice;
use crate::testkit::eval::{self, Packet, RuleVerdict};
use crate::{ipfw, program};

const ADDRESSES: &[&str] = &[
    "any",
    "any",
    "10.0.0.0/8",
    "10.0.1.0",
    "10.0.0.0/15,192.0.2.0/24",
    "192.0.2.254,11.0.0.0/8,10.0.0.1",
    "10.0.0.0:255.0.255.254",
    "192.0.2.0/24{0,1,250-255}",
    "table(nets)",
    "table(nets,7)",
    "table(nets,0)",
    "table(gone)",
    "2001:db8::/96",
    "2001:db8::c000:200/127,2001:db8::a00:0/104",
];

const PORTS: &[&str] = &["", "", "22", "53,80", "0-1024", "8080-65535,ssh", "not 80", "http"];

const PROTOCOLS: &[&str] = &[
    "ip",
    "ip",
    "tcp",
    "tcp",
    "udp",
    "icmp",
    "icmp6",
    "ip4",
    "ip6",
    "132",
    "not tcp",
    "{ tcp or udp }",
    "{ not ip6 or 58 }",
    "sctp",
];

const OPTIONS: &[&str] = &[
    "in",
    "out",
    "not in",
    "via wan0",
    "via wan*",
    "not via lan0",
    "recv wan1",
    "xmit lan0",
    "not xmit wan1",
    "out xmit table(ifs)",
    "recv table(ifs,2)",
    "frag",
    "not frag",
    "frag mf",
    "frag !mf,offset",
    "not frag !df,!mf",
    "not frag !offset",
    "frag !rf,mf",
    "established",
    "not established",
    "setup",
    "not setup",
    "tcpflags syn,!rst",
    "not tcpflags !fin",
    "icmptypes 0,4,8",
    "not icmptypes 0",
    "icmp6types 0,1",
    "not icmp6types 0",
    "iplen 20-44,60",
    "not iplen 40-60",
    "ipttl 1,64-255",
    "not ipttl 63",
    "ipid 7",
    "not ipid 0-6",
    "iptos lowdelay,!mincost",
    "not iptos throughput",
    "ipprecedence 0",
    "dscp cs0,3",
    "not dscp 1,2",
    "tcpdatalen 0-4",
    "tcpdatalen 20,24-65535",
    "not tcpdatalen 8-28",
    "tcpseq 0",
    "not tcpack 0",
    "tcpwin 0-5",
    "proto 17",
    "not proto 1",
    "src-port 22,80",
    "not dst-port 1-80",
    "src-ip 10.0.0.0/8",
    "not dst-ip 192.0.2.0/24",
    "dst-ip6 2001:db8::/98",
    "not dst-ip 10.0.0.0:255.0.255.0,192.0.2.0/25,11.0.0.0:255.0.0.1",
    "lookup dst-port ports",
    "not lookup dscp ports",
    "lookup src-ip nets",
    "{ dst-port 22 or frag or src-ip 10.0.0.0/8 }",
    "{ not established or iplen 40 or in }",
    "ipversion 4",
];

const LAYER2: &[&str] = &[
    "layer2",
    "not layer2",
    "mac any 02:00:00:00:07:01",
    "not mac any 02:00:00:00:07:00/47",
    "mac-type ipv4",
];

const ACTIONS: &[&str] = &[
    "allow",
    "allow",
    "deny",
    "deny",
    "count",
    "count",
    "count",
    "reject",
    "reset",
    "unreach port",
    "unreach6 no-route",
    "reset6",
    "unreach filter-prohib",
    "return",
    "setdscp 3",
    "setdscp ef",
];

const REDIRECTS: &[&str] =
    &["fwd 10.0.0.9", "fwd 2001:db8::9", "setfib 3", "count log logamount 9"];

/// A file being drawn.
struct Draw<'a> {
    dice: &'a mut Dice,
    /// Whether to include rules about layer 2.
    layer2: bool,
    /// Whether to include rules that redirect packets or log.
    redirects: bool,
    /// Whether to include rules that keep and check states.
    states: bool,
}

impl Draw<'_> {
    fn file(&mut self, rules: usize) -> String {
        let mut text =
            "table nets create\ntable nets add 10.0.0.0/8 7 10.0.0.0/24 10.0.1.0/24 7 10.0.1.0 5\n\
            table nets add 2001:db8::/32 7 2001:db8::c000:0/100 3\n\
            table ports create type number\ntable ports add 0 1 22 53 4 8080\n\
            table ifs create type iface\ntable ifs add wan1 2 lan0 3\n"
                .to_owned();
        if self.states {
            // Several names together with rules that let packets go on often make a loop.
            let is_named = self.dice.one_in(4);
            for _ in 0..rules {
                text += &self.stateful_rule(is_named);
            }
            return text;
        }
        // A called part that returns after it calls another.
        text += "add 60000 return ip4 from any to any iplen 0-60\nadd 60000 call 61000 tcp from any to any\nadd 60000 count ip from any to any\n\
            add 60100 return ip from any to any\nadd 61000 count udp from any to any\nadd 61001 return ip from any to any\n";
        for _ in 0..rules {
            let line = self.rule(rules > 20);
            text += &line;
        }
        text
    }

    /// A rule among others that keep or check states.
    fn stateful_rule(&mut self, is_named: bool) -> String {
        let line = loop {
            let line = self.rule(false);
            // Calls and states do not go together.
            if ["call", "return"].iter().all(|word| !line.contains(word)) {
                break line.trim_end().to_owned();
            }
        };
        let dice = &mut *self.dice;
        let name = if is_named && dice.one_in(4) { " :web" } else { "" };
        if dice.one_in(5) {
            let number = 1 + dice.below(5000);
            return format!(
                "add {number} check-state{}\n",
                dice.pick(&[name, name, if is_named { " :any" } else { "" }])
            );
        }
        let by = ["src-addr", "dst-addr", "src-addr dst-port", "src-port", "dst-port", "all"];
        let option = match dice.below(8) {
            0..4 => format!("keep-state{name}"),
            4 => format!("record-state{name}"),
            5 => format!("limit {} {}{name}", dice.pick(&by), 1 + dice.below(3)),
            6 => format!("set-limit {} {}{name}", dice.pick(&by), 1 + dice.below(3)),
            _ => return line + "\n",
        };
        let defers = dice.pick(&["", "", "", " defer-action"]);
        format!("{line} {option}{defers}\n")
    }

    fn rule(&mut self, among_many: bool) -> String {
        let dice = &mut *self.dice;
        // Some rules share a number.
        let number = 1 + dice.below(50) * 100 / (1 + dice.below(3));
        let action = match dice.below(10) {
            0 if dice.one_in(3) => format!("skipto {}", number.saturating_sub(dice.below(3))),
            0 | 1 => format!("skipto {}", number + dice.below(900)),
            2 if number < 60_000 => "call 60000".to_owned(),
            // If there are many rules, most should let packets go on, or packets reach none behind the first.
            4.. if among_many && !dice.one_in(6) => "count".to_owned(),
            3 if self.redirects => dice.pick(REDIRECTS).to_owned(),
            _ => dice.pick(ACTIONS).to_owned(),
        };
        let mut line = format!("add {number} {action}");
        if dice.below(5) > 0 {
            let not = |dice: &mut Dice, text: &str| match text != "any" && dice.one_in(4) {
                true => "not ".to_owned() + text,
                false => text.to_owned(),
            };
            let end = |dice: &mut Dice| {
                let one = dice.pick(ADDRESSES);
                let address = match dice.below(6) {
                    0 => format!("{{ {} or not {} }}", one, dice.pick(&ADDRESSES[2..])),
                    _ => not(dice, one),
                };
                format!("{address} {}", dice.pick(PORTS))
            };
            let protocol = dice.pick(PROTOCOLS);
            line += &format!(" {protocol} from {} to {}", end(dice), end(dice));
        } else {
            line += " ";
            line += dice.pick(OPTIONS);
        }
        for _ in 0..dice.below(3) {
            line += " ";
            line += dice.pick(OPTIONS);
        }
        if self.layer2 && dice.one_in(4) {
            line += " ";
            line += dice.pick(LAYER2);
        }
        line + "\n"
    }
}

/// A random ruleset with all features: either rules about layer 2, or rules that redirect packets, which are
/// not supported there.
pub(crate) fn drawn(dice: &mut Dice, count: usize) -> Ruleset {
    let layer2 = dice.one_in(3);
    let mut text = Draw { dice, layer2, redirects: !layer2, states: false }.file(count);
    if !layer2 {
        // These come before rules that deny the packet, and the last one lets it through both passes.
        for fib in 0..3 {
            text +=
                &format!("add {} setfib {fib} ip from {} to any\n", fib + 1, dice.pick(ADDRESSES));
        }
        text +=
            "add 4 fwd 10.0.0.9 tcp from any 22 to any in\nadd 65500 allow ip from any to any\n";
    }
    read(&text, 0).1
}

fn read(text: &str, seed: u64) -> (List, Ruleset) {
    let mut ledger = Ledger::new("drawn", text);
    let list = List::read(text, &mut ledger);
    let rules = ipfw::read(text, "drawn");
    let rules = rules.unwrap_or_else(|wrong| panic!("seed {seed:#x}\n{}", report(&wrong)));
    assert_eq!(rules.check(), Ok(()), "seed {seed:#x}\n{text}");
    (list, rules)
}

/// Inverts some bytes behind the addresses, or changes the frame's type.
fn spoil(frame: &mut [u8], ether: bool, dice: &mut Dice) {
    let six = frame[12] == 0x86;
    let from = if six { 14 + 40 } else { 14 + 20 };
    for _ in 0..dice.below(4) {
        let at = from + dice.below(24);
        if let Some(byte) = frame.get_mut(at) {
            *byte = dice.pick(&[
                0,
                2,
                4,
                8,
                0x10,
                0x50,
                0x60,
                128,
                139,
                0xf0,
                dice.clone().roll() as u8,
            ]);
        }
    }
    if ether && dice.one_in(20) {
        frame[12..14].copy_from_slice(&[0x08, 0x06]);
    }
}

/// Sends packets through the naive interpreter and the evaluator, and compares. Returns how many rules matched at least one packet.
fn compare(list: &List, rules: &Ruleset, packets: &[(u64, Vec<u8>)], what: &str) -> usize {
    let links = links();
    let (mut naive, mut state) = (Naive::new(list), eval::State::new(rules));
    for (number, (now_ns, frame)) in packets.iter().enumerate() {
        let (input, output) = (&links[number % 2], &links[1 + number / 2 % 2]);
        let mut passing = Passing {
            frame: frame.clone(),
            input: &input.name,
            output: None,
            ether: false,
            via: None,
            fib: None,
        };
        let mut packet = Packet::new(frame, 14, input);
        let is_ip = frame[12] != 8 || frame[13] == 0;
        naive.states.sweep(*now_ns);
        state.states.sweep(*now_ns);
        for hook in [Hook::Ingress, Hook::Prerouting, Hook::Forward, Hook::Egress] {
            passing.ether = matches!(hook, Hook::Ingress | Hook::Egress);
            if passing.ether && rules.base_chains(hook).is_empty() || !passing.ether && !is_ip {
                continue;
            }
            if matches!(hook, Hook::Forward | Hook::Egress) {
                packet.output = Some(output);
                passing.output = Some(&output.name);
            }
            let flow = packet.flow(hook);
            let expected = naive.check(&mut passing, flow.as_ref(), *now_ns);
            let verdict = eval::run(rules, &mut state, hook, &mut packet, *now_ns);
            assert_eq!(verdict, expected, "{hook:?} of {number}\n{frame:02x?}\n{what}");
            assert_eq!(
                (packet.via, packet.fib),
                (passing.via, passing.fib),
                "{frame:02x?}\n{what}"
            );
            if verdict != RuleVerdict::Accept {
                break;
            }
        }
    }
    let counted = &state.counts[..naive.counts.len()];
    assert_eq!(counted, &naive.counts[..], "{what}");
    if !rules.state_rules.is_empty() {
        let refused = state.counts[naive.counts.len() + 2..].iter().map(|(packets, _)| *packets);
        assert_eq!(refused.collect::<Vec<_>>(), naive.refused, "{what}");
    }
    counted.iter().filter(|(packets, _)| *packets > 0).count()
}

fn run(seed: u64, files: u64, sizes: &[usize], layer2: bool, redirects: bool) {
    let (mut all, mut matched) = (0, 0);
    for number in 0..files {
        let seed = seed << 32 | number;
        let mut dice = Dice(seed);
        let size = dice.pick(sizes);
        let text = Draw { dice: &mut dice, layer2, redirects, states: false }.file(size);
        let (list, rules) = read(&text, seed);
        let packets = plain(&rules, &mut dice, 600);
        let mut packets: Vec<_> = packets.into_iter().map(|frame| (0, frame)).collect();
        let what = format!("seed {seed:#x}\n{text}");
        all += list.rules.len() + 1;
        if redirects {
            packets.iter_mut().for_each(|(_, frame)| spoil(frame, true, &mut dice));
            matched += compare(&list, &rules, &packets, &what);
            continue;
        }
        matched += compare(&list, &rules, &packets, &what);
        assert!(program::compile(&rules, &links(), &Epochs::new()).is_ok(), "{what}");
        compare_one(&rules, seed, &mut dice, 600);
    }
    assert!(matched * 10 > all, "packets matched {matched} of {all} rules");
}

#[test]
fn small_files_agree_with_the_naive_interpreter() {
    run(1, 60, &[1, 3, 8], false, false);
}

#[test]
fn larger_files_agree_with_the_naive_interpreter() {
    run(2, 20, &[30, 80, 200], false, false);
}

#[test]
fn layer_2_and_redirects_agree_with_the_naive_interpreter() {
    run(3, 150, &[2, 8, 40], true, true);
}

#[test]
fn the_classifier_agrees_on_layer_2() {
    run(4, 40, &[2, 8, 40], true, false);
}

/// Files of rules that keep states, and conversations. Names of states must not lead packets in a loop.
fn run_states(seed: u64, files: u64, sizes: &[usize], layer2: bool) {
    let (mut loops, mut all, mut matched, mut most) = (0, 0, 0, 0);
    for number in 0..files {
        let seed = seed << 32 | number;
        let mut dice = Dice(seed);
        let size = dice.pick(sizes);
        let text = Draw { dice: &mut dice, layer2, redirects: false, states: true }.file(size);
        if let Err(mistakes) = ipfw::read(&text, "drawn") {
            assert!(report(&mistakes).contains("in a loop"), "{}", report(&mistakes));
            loops += 1;
            continue;
        }
        let (list, rules) = read(&text, seed);
        let what = format!("seed {seed:#x}\n{text}");
        let mut conversations = Conversations::new(&rules, &mut dice);
        let packets: Vec<_> = (0..800)
            .map(|_| (conversations.later(&mut dice), conversations.plain(&mut dice)))
            .collect();
        all += list.rules.len() + 1;
        matched += compare(&list, &rules, &packets, &what);
        most = most.max(compare_states(&rules, seed, &mut dice, 1500));
    }
    assert!(loops * 3 < files, "{loops} of {files} files have loops");
    assert!(matched * 10 > all, "packets matched {matched} of {all} rules");
    assert!(most > 50, "{most} states");
}

#[test]
fn files_with_states_agree_with_the_naive_interpreter() {
    run_states(5, 300, &[2, 5, 10, 25], false);
}

#[test]
fn files_with_states_on_layer_2_agree_with_the_naive_interpreter() {
    run_states(6, 100, &[3, 8, 20], true);
}
