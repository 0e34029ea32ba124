//! Random rules: compares front end and evaluator with the model of the kernel, and the classifier with the
//! evaluator.

use super::kernel::{Chain, Match, Numbers, Rule, Skb, Target, Verdict, do_table};
use super::{link, read_valid};
use crate::ir::{Action, CounterId, Family, Hook, Ruleset, Step};
use crate::program::tests::{Frames, compare_one};
use crate::testkit::dice::Dice;
use crate::testkit::eval::{self, Packet, RuleVerdict, State};

/// Tables with their built-in chains, in the order in which packets meet them.
const TABLES: [(&str, &[&str]); 2] =
    [("mangle", &["PREROUTING", "FORWARD"]), ("filter", &["FORWARD"])];

/// Number of user chains of each table; each leads only to later ones.
const CALLED: usize = 3;

const ADDRESSES: [u32; 6] =
    [0x0a00_0000, 0x0a00_0100, 0x0b00_0000, 0xc000_0200, 0xc000_02fe, 0x0100_0000];
const PORTS: [u32; 9] = [0, 1, 22, 53, 80, 1024, 8080, 8081, 65_535];
const LINKS: [&str; 5] = ["wan0", "wan+", "lan0", "lan+", "wan1"];

struct Draw<'d> {
    dice: &'d mut Dice,
    six: bool,
}

impl Draw<'_> {
    /// All tables; a comment identifies each rule's counter.
    fn tables(&mut self, most: usize) -> Vec<Vec<Chain>> {
        let tables = TABLES.iter().map(|(_, bases)| {
            let mut chains: Vec<_> = bases
                .iter()
                .map(|name| Chain {
                    name: (*name).to_owned(),
                    drops: Some(self.dice.one_in(3)),
                    rules: Vec::new(),
                })
                .collect();
            chains.extend(
                (0..CALLED)
                    .map(|number| Chain { name: format!("user{number}"), ..Chain::default() }),
            );
            for _ in 0..most {
                let chain = self.dice.below(chains.len());
                // Before the route the kernel knows no egress link; matching on it there is not an error.
                let rule = self.rule(chain, bases.len(), chains.len());
                chains[chain].rules.push(rule);
            }
            chains
        });
        tables.collect()
    }

    fn rule(&mut self, chain: usize, bases: usize, chains: usize) -> Rule {
        let some = |draw: &mut Self, times| draw.dice.one_in(times);
        let mut rule = Rule {
            source: some(self, 3).then(|| self.address()),
            destination: some(self, 4).then(|| self.address()),
            input: some(self, 6).then(|| self.link()),
            output: (some(self, 6) && bases == 1).then(|| self.link()),
            protocol: None,
            fragment: (some(self, 10) && !self.six).then(|| self.dice.one_in(2)),
            matches: Vec::new(),
            target: self.target(chain, bases, chains),
        };
        let icmp = if self.six { 58 } else { 1 };
        if some(self, 4) {
            rule.matches.push(self.field());
        }
        match self.dice.below(8) {
            0 => rule.protocol = Some((self.dice.pick(&[6, 17, icmp, 132]), some(self, 3))),
            1..4 => {
                rule.protocol = Some((6, false));
                let (source, destination) = self.ports();
                let flags = some(self, 2).then(|| {
                    let mask = self.dice.roll() as u8 & 0x1f;
                    (mask, self.dice.roll() as u8 & mask, self.dice.one_in(2))
                });
                rule.matches.push(Match::Tcp { source, destination, flags });
            }
            4 => {
                rule.protocol = Some((17, false));
                let (source, destination) = self.ports();
                rule.matches.push(Match::Udp { source, destination });
            }
            5 => {
                rule.protocol = Some((icmp, false));
                let kind = self.dice.pick(&[0, 4, 8, 31, 255]);
                let code = some(self, 2).then(|| self.dice.pick(&[0, 1, 22, 80]));
                let code = code.filter(|_| kind != 255);
                rule.matches.push(Match::Icmp { kind, code, negate: some(self, 3) });
            }
            6 => {
                rule.protocol = Some((self.dice.pick(&[6, 17, 132]), false));
                let of = self.dice.pick(&[(true, false), (false, true), (true, true)]);
                let ports = (0..1 + self.dice.below(3)).map(|_| self.range(&PORTS)).collect();
                rule.matches.push(Match::Multiport { of, ports, negate: some(self, 3) });
            }
            _ => {}
        }
        if some(self, 5) {
            rule.matches.push(self.field());
        }
        rule
    }

    fn target(&mut self, chain: usize, bases: usize, chains: usize) -> Target {
        let behind = (chain + 1).max(bases)..chains;
        let to = behind.start + self.dice.below(behind.len().max(1));
        match self.dice.below(14) {
            0..3 if !behind.is_empty() => Target::Jump(to),
            3 if !behind.is_empty() => Target::Goto(to),
            4 | 5 => Target::Drop,
            6 | 7 => Target::Accept,
            8 => Target::Return,
            9 | 10 => {
                let mask = self.dice.pick(&[u32::MAX, 0xf, 0]);
                Target::Mark(self.dice.below(4) as u32, mask)
            }
            11 => Target::Dscp(self.dice.below(4) as u8),
            12 if bases == 1 => Target::Reject,
            _ => Target::Nothing,
        }
    }

    fn field(&mut self) -> Match {
        let negate = self.dice.one_in(3);
        match self.dice.below(4) {
            0 => {
                let mask = self.dice.pick(&[u32::MAX, 3, 1]);
                Match::Mark { mark: self.dice.below(4) as u32 & mask, mask, negate }
            }
            1 => {
                let (first, last) = self.range(&[20, 28, 40, 41, 47, 60, 68]);
                Match::Length((first, last, negate))
            }
            2 => {
                let ttl = self.dice.pick(&[1, 63, 64, 254]);
                match self.dice.below(3) {
                    0 => Match::Ttl((ttl, ttl, negate)),
                    1 => Match::Ttl((0, ttl - 1, false)),
                    _ => Match::Ttl((ttl + 1, 255, false)),
                }
            }
            _ => {
                let dscp = self.dice.below(4) as u32;
                Match::Dscp((dscp, dscp, negate))
            }
        }
    }

    fn address(&mut self) -> (u32, u32, bool) {
        let low = self.dice.below(3) as u32;
        let address = self.dice.pick(&ADDRESSES) ^ low;
        (address, self.dice.pick(&[32, 32, 31, 24, 8, 1, 0]), self.dice.one_in(4))
    }

    fn link(&mut self) -> (&'static str, bool) {
        (self.dice.pick(&LINKS), self.dice.one_in(3))
    }

    fn ports(&mut self) -> (Option<Numbers>, Option<Numbers>) {
        let one = |draw: &mut Self| {
            let (first, last) = draw.range(&PORTS);
            draw.dice.one_in(2).then(|| (first, last, draw.dice.one_in(3)))
        };
        (one(self), one(self))
    }

    fn range(&mut self, of: &[u32]) -> (u32, u32) {
        let (one, other) = (self.dice.pick(of), self.dice.pick(of));
        if self.dice.one_in(2) { (one, one) } else { (one.min(other), one.max(other)) }
    }
}

/// Rules that [`super::kernel`] does not know, for hook forward.
const MORE: [&str; 9] = [
    "-m limit --limit 5000/sec --limit-burst 7 -j LOG --log-prefix \"seen \"",
    "-m limit --limit 9000/sec --limit-burst 3 -j ACCEPT",
    "-m mark ! --mark 0x0 -j NFLOG --nflog-group 3",
    "-m mac --mac-source 02:00:00:00:07:01 -m length --length 40:44 -j DROP",
    "-p udp -m udp --dport 53 -m mac ! --mac-source 02:00:00:00:07:00 -j RETURN",
    "-m tos --tos 0x04/0xff -j LOG",
    "-p tcp -m tcp --dport 80 -j REJECT --reject-with tcp-reset",
    "-m pkttype --pkt-type unicast -m length --length 60:65535 -j RETURN",
    "-i wan0 -o lan0 -m mark --mark 0x1/0x3",
];

/// A random ruleset of IPv4 or IPv6 with all features.
pub(crate) fn drawn(dice: &mut Dice, count: usize) -> Ruleset {
    let six = dice.one_in(3);
    let tables = Draw { dice, six }.tables(count);
    let mut text = "*raw\n:PREROUTING ACCEPT [0:0]\n\
        -A PREROUTING -p udp -m udp --dport 53 -j CT --notrack\n\
        -A PREROUTING -i wan1 -p 132 -j DROP\nCOMMIT\n"
        .to_owned();
    for line in save(&tables, six).lines() {
        text += line;
        text += "\n";
        if line.starts_with("-A FORWARD") && dice.one_in(4) {
            text += &format!("-A FORWARD {}\n", dice.pick(&MORE));
        }
    }
    read_valid(&text, if six { Family::Ip6 } else { Family::Ip })
}

/// The tables in the format of iptables-save; comments identify the rules.
fn save(tables: &[Vec<Chain>], six: bool) -> String {
    let mut text = String::new();
    for ((name, _), chains) in TABLES.iter().zip(tables) {
        text += &format!("*{name}\n");
        for chain in chains {
            let policy = match chain.drops {
                None => "-",
                Some(true) => "DROP",
                Some(false) => "ACCEPT",
            };
            text += &format!(":{} {policy} [0:0]\n", chain.name);
        }
        for chain in chains {
            for (number, rule) in chain.rules.iter().enumerate() {
                let mark = format!("{name}/{}/{number}", chain.name);
                text += &format!("-A {} {}\n", chain.name, line(rule, chains, six, &mark));
            }
        }
        text += "COMMIT\n";
    }
    text
}

fn line(rule: &Rule, chains: &[Chain], six: bool, mark: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    let mut add = |negate: bool, text: String| {
        words.push(if negate { format!("! {text}") } else { text });
    };
    for (option, address) in [("-s", rule.source), ("-d", rule.destination)] {
        let Some((address, len, negate)) = address else { continue };
        let address = match six {
            true => format!(
                "{}/{}",
                std::net::Ipv6Addr::from(0x2001_0db8_u128 << 96 | u128::from(address)),
                96 + len
            ),
            false => format!("{}/{len}", std::net::Ipv4Addr::from(address)),
        };
        add(negate, format!("{option} {address}"));
    }
    for (option, link) in [("-i", rule.input), ("-o", rule.output)] {
        if let Some((link, negate)) = link {
            add(negate, format!("{option} {link}"));
        }
    }
    if let Some((protocol, negate)) = rule.protocol {
        add(negate, format!("-p {protocol}"));
    }
    if let Some(later) = rule.fragment {
        add(!later, "-f".to_owned());
    }
    add(false, format!("-m comment --comment {mark}"));
    let range = |(first, last, _): (u32, u32, bool)| {
        if first == last { first.to_string() } else { format!("{first}:{last}") }
    };
    for one in &rule.matches {
        match one {
            Match::Tcp { source, destination, .. } | Match::Udp { source, destination } => {
                let name = if matches!(one, Match::Tcp { .. }) { "tcp" } else { "udp" };
                add(false, format!("-m {name}"));
                for (option, ports) in [("--sport", source), ("--dport", destination)] {
                    if let Some(ports) = ports {
                        add(ports.2, format!("{option} {}", range(*ports)));
                    }
                }
                if let Match::Tcp { flags: Some((mask, set, negate)), .. } = one {
                    add(*negate, format!("--tcp-flags {} {}", flags(*mask), flags(*set)));
                }
            }
            Match::Icmp { kind, code, negate } => {
                let six = if six { ("icmp6", "--icmpv6-type") } else { ("icmp", "--icmp-type") };
                add(false, format!("-m {}", six.0));
                let code = code.map_or_else(String::new, |code| format!("/{code}"));
                add(*negate, format!("{} {kind}{code}", six.1));
            }
            Match::Multiport { of, ports, negate } => {
                let option = match of {
                    (true, true) => "--ports",
                    (true, false) => "--sports",
                    _ => "--dports",
                };
                let ports: Vec<_> = ports.iter().map(|one| range((one.0, one.1, false))).collect();
                add(false, "-m multiport".to_owned());
                add(*negate, format!("{option} {}", ports.join(",")));
            }
            Match::Mark { mark, mask, negate } => {
                add(false, "-m mark".to_owned());
                add(*negate, format!("--mark {mark:#x}/{mask:#x}"));
            }
            Match::Length(numbers) => {
                add(false, "-m length".to_owned());
                add(numbers.2, format!("--length {}", range(*numbers)));
            }
            Match::Ttl((first, last, negate)) => {
                let name = if six { "hl" } else { "ttl" };
                add(false, format!("-m {name}"));
                match (first, last) {
                    (0, last) => add(false, format!("--{name}-lt {}", last + 1)),
                    (first, 255) => add(false, format!("--{name}-gt {}", first - 1)),
                    (ttl, _) => add(*negate, format!("--{name}-eq {ttl}")),
                }
            }
            Match::Dscp((dscp, _, negate)) => {
                add(false, "-m dscp".to_owned());
                add(*negate, format!("--dscp {dscp:#04x}"));
            }
        }
    }
    match rule.target {
        Target::Nothing => {}
        Target::Accept => add(false, "-j ACCEPT".to_owned()),
        Target::Drop => add(false, "-j DROP".to_owned()),
        Target::Reject => add(false, "-j REJECT".to_owned()),
        Target::Return => add(false, "-j RETURN".to_owned()),
        Target::Jump(to) => add(false, format!("-j {}", chains[to].name)),
        Target::Goto(to) => add(false, format!("-g {}", chains[to].name)),
        Target::Mark(value, mask) => {
            add(false, format!("-j MARK --set-xmark {value:#x}/{mask:#x}"))
        }
        Target::Dscp(dscp) => add(false, format!("-j DSCP --set-dscp {dscp:#04x}")),
    }
    words.join(" ")
}

fn flags(flags: u8) -> String {
    let names = ["FIN", "SYN", "RST", "PSH", "ACK", "URG"];
    let set: Vec<_> = names
        .iter()
        .enumerate()
        .filter(|(bit, _)| flags >> bit & 1 == 1)
        .map(|one| *one.1)
        .collect();
    if set.is_empty() { "NONE".to_owned() } else { set.join(",") }
}

/// The counter of the rule whose text contains this.
fn counter(rules: &Ruleset, mark: &str) -> Option<CounterId> {
    let all = rules.chains.iter().flat_map(|chain| &chain.rules);
    let own = all.filter(|rule| rule.text.split(' ').any(|word| word == mark));
    own.flat_map(|rule| &rule.steps).find_map(|step| match step {
        Step::Do(Action::Count(counter)) => Some(*counter),
        _ => None,
    })
}

#[test]
fn the_evaluator_does_what_the_kernel_does() {
    for seed in 0..400_u64 {
        let mut dice = Dice(seed << 20);
        let six = seed % 3 == 2;
        let most = dice.pick(&[1, 2, 4, 8, 16, 40]);
        let tables = Draw { dice: &mut dice, six }.tables(most);
        let text = save(&tables, six);
        let rules = read_valid(&text, if six { Family::Ip6 } else { Family::Ip });
        let frames = Frames::new(&rules, &mut dice);
        let mut state = State::new(&rules);
        let mut counts = std::collections::BTreeMap::<String, u64>::new();
        for _ in 0..600 {
            let frame = frames.plain(&mut dice);
            if (frame[12] == 0x86) != six {
                continue;
            }
            let (verdict, skb) = kernel(&tables, &frame, &mut counts);
            let (evaluated, mark, after) = evaluate(&rules, &mut state, &frame);
            let same = match verdict {
                Verdict::Accept => evaluated == RuleVerdict::Accept,
                Verdict::Drop => evaluated == RuleVerdict::Drop,
                Verdict::Reject => matches!(evaluated, RuleVerdict::Reject(_)),
            };
            assert!(same, "seed {seed}: {verdict:?}, {evaluated:?}\n{frame:02x?}\n{text}");
            let tos = |data: &[u8]| data[..2].to_vec();
            assert_eq!(
                (mark, tos(&after[14..])),
                (skb.mark, tos(&skb.data)),
                "{frame:02x?}\n{text}"
            );
        }
        for (mark, count) in counts {
            let counted = counter(&rules, &mark).map(|counter| state.counts[counter.0].0);
            assert_eq!(counted.unwrap_or(0), count, "seed {seed}: {mark}\n{text}");
        }
    }
}

fn kernel(
    tables: &[Vec<Chain>],
    frame: &[u8],
    counts: &mut std::collections::BTreeMap<String, u64>,
) -> (Verdict, Skb) {
    let mut skb = Skb::new(frame);
    for (number, chain, output) in [(0, 0, ""), (0, 1, "lan0"), (1, 0, "lan0")] {
        if skb.output != output {
            skb.output = output;
            skb.hop();
        }
        let verdict = do_table(&tables[number], chain, &mut skb, |chain, rule| {
            let chain = &tables[number][chain];
            if rule < chain.rules.len() {
                let mark = format!("{}/{}/{rule}", TABLES[number].0, chain.name);
                *counts.entry(mark).or_default() += 1;
            }
        });
        if verdict != Verdict::Accept {
            return (verdict, skb);
        }
    }
    (Verdict::Accept, skb)
}

fn evaluate(rules: &Ruleset, state: &mut State, frame: &[u8]) -> (RuleVerdict, u32, Vec<u8>) {
    let (input, output) = (link("wan0"), link("lan0"));
    let mut packet = Packet::new(frame, 14, &input);
    let mut verdict = eval::run(rules, state, Hook::Prerouting, &mut packet, 0);
    packet.output = Some(&output);
    if verdict == RuleVerdict::Accept {
        verdict = eval::run(rules, state, Hook::Forward, &mut packet, 0);
    }
    (verdict, packet.mark, packet.frame().to_vec())
}

#[test]
fn the_classifier_does_what_the_evaluator_does() {
    for seed in 0..60_u64 {
        let mut dice = Dice(seed << 20 | 0xf);
        let six = seed % 3 == 2;
        let most = dice.pick(&[2, 8, 16, 40, 100]);
        let tables = Draw { dice: &mut dice, six }.tables(most);
        let rules = read_valid(&save(&tables, six), if six { Family::Ip6 } else { Family::Ip });
        compare_one(&rules, seed, &mut dice, 4000);
    }
}
