//! Random rules in nft's language.

use super::super::script::load;
use tollway_firewall::ir::Ruleset;
use tollway_firewall::program::tests::million;
use tollway_firewall::testkit::dice::Dice;

/// What all rulesets contain beside their rules. Each chain leads only to later ones.
const OBJECTS: &str = "
  counter hits { }
  limit slow { rate 20000/second burst 5 packets }
  set nets { type ipv4_addr; flags interval; auto-merge; elements = { 10.0.0.0/23, 192.0.2.128/25, 11.0.0.0-11.0.0.7 } }
  set hosts { type ipv4_addr; elements = { 10.0.0.1, 10.0.1.0, 192.0.2.254, 223.255.255.0 } }
  set nets6 { type ipv6_addr; flags interval; elements = { 2001:db8::a00:0/104, 2001:db8::c000:200/127 } }
  set services { type inet_service; flags interval; elements = { 0-22, 80, 1024-8080 } }
  set pairs { type ipv4_addr . inet_service; elements = { 10.0.0.1 . 53, 192.0.2.0 . 80, 11.0.0.0 . 8080 } }
  set spans { type ipv4_addr . inet_service; flags interval; elements = { 10.0.0.0/15 . 0-80, 192.0.2.0/24 . 1024-65535 } }
  set cards { type ifname; elements = { \"wan0\", \"lan0\" } }
  map marks { type inet_service : mark; elements = { 22 : 1, 53 : 2, 80 : 3 } }
  map places { type ipv4_addr : mark; flags interval; elements = { 10.0.0.0/16 : 4, 192.0.2.0/24 : 5 } }
  map ways { type inet_service : verdict; elements = { 1 : drop, 22 : accept, 80 : return } }
  map lanes { type ipv4_addr . inet_service : verdict; elements = { 10.0.0.0 . 53 : drop, 192.0.2.0 . 22 : accept } }
";

const FOUR: &[&str] = &[
    "ip saddr 10.0.0.0/8",
    "ip saddr != 10.0.0.0/24",
    "ip daddr 192.0.2.0-192.0.2.254",
    "ip daddr { 10.0.0.0, 10.0.1.0/31, 192.0.2.0/24 }",
    "ip saddr @nets",
    "ip daddr != @nets",
    "ip saddr @hosts",
    "ip ttl 63-64",
    "ip ttl > 63",
    "ip dscp 0-2",
    "ip dscp != cs0",
    "ip ecn 1",
    "ip length 40-60",
    "ip length != 40",
    "ip id 7",
    "ip hdrlength 5",
    "ip frag-off & 0x1fff != 0",
    "ip frag-off & 0x2000 == 0x2000",
    "meta mark set ip saddr map @places",
];

const SIX: &[&str] = &[
    "ip6 saddr 2001:db8::/96",
    "ip6 daddr != 2001:db8::c000:200/120",
    "ip6 saddr @nets6",
    "ip6 daddr { 2001:db8::a00:0, 2001:db8::b00:0-2001:db8::b00:9 }",
    "ip6 hoplimit 64-65",
    "ip6 dscp 0-1",
    "ip6 length > 24",
    "ip6 nexthdr { 6, 17, 44 }",
    "exthdr frag exists",
    "frag frag-off 0",
    "frag more-fragments 1",
];

const TRANSPORT: &[&str] = &[
    "tcp dport 22",
    "tcp dport != 80",
    "tcp sport 1024-8080",
    "tcp dport { 0-22, 8080 }",
    "tcp dport @services",
    "tcp flags syn",
    "tcp flags & (syn | ack) == syn",
    "tcp flags & (fin | syn | rst | ack) != syn",
    "tcp doff 5",
    "udp dport 53",
    "udp sport != @services",
    "udp length 8-24",
    "sctp dport 80",
    "th dport 80",
    "@th,16,16 1-80",
    "meta l4proto { tcp, udp }",
    "meta l4proto != 6",
    "tcp dport vmap @ways",
    "udp dport vmap { 53 : accept, 80-1024 : drop }",
    "meta mark set tcp dport map @marks",
];

/// With IPv4 addresses before ports.
const TOGETHER: &[&str] = &[
    "ip saddr . tcp dport @pairs",
    "ip daddr . udp dport != @pairs",
    "ip daddr . tcp sport @spans",
    "ip saddr . udp dport @spans",
    "ip daddr . tcp dport vmap @lanes",
    "icmp type { echo-request, echo-reply }",
    "icmp code 1-4",
];

const ANY: &[&str] = &[
    "iifname \"wan0\"",
    "iifname \"wan*\"",
    "iifname != \"wan1\"",
    "iifname @cards",
    "meta length 40-60",
    "meta mark 1-3",
    "meta mark & 6 == 4",
    "meta mark != 0",
    "meta nfproto ipv4",
    "ether saddr 02:00:00:00:07:01",
    "limit rate 20000/second burst 5 packets",
    "limit name \"slow\"",
    "limit rate over 900000 bytes/second burst 400 bytes",
];

const ROUTED: &[&str] = &["oifname \"lan0\"", "oifname \"wan*\"", "oifname != @cards"];

const ACTIONS: &[&str] = &[
    "counter name \"hits\"",
    "meta mark set 5",
    "meta mark set meta mark | 2",
    "meta mark set meta mark & 0xf1 ^ 3",
    "log group 3",
    "log prefix \"seen\"",
    "notrack",
];

struct Draw<'d> {
    dice: &'d mut Dice,
    /// Whether there are many rules, each for few packets.
    many: bool,
}

impl Draw<'_> {
    fn rule(&mut self, hook: &str, targets: &[&str]) -> String {
        let mut words = Vec::new();
        let least = usize::from(self.many);
        let mut kinds = vec![ANY];
        if hook == "forward" || hook == "postrouting" {
            kinds.push(ROUTED);
        }
        let version = self.dice.pick(&[4, 4, 6, 0]);
        for _ in 0..least + self.dice.below(2) {
            let kind = match version {
                4 => FOUR,
                6 => SIX,
                _ => self.dice.pick(&kinds),
            };
            words.push(self.dice.pick(kind));
        }
        match self.dice.below(4) {
            0 if version != 6 && hook != "ingress" => words.push(self.dice.pick(TOGETHER)),
            0 | 1 => words.push(self.dice.pick(TRANSPORT)),
            2 => {
                let kind = self.dice.pick(&kinds);
                words.push(self.dice.pick(kind));
            }
            _ => {}
        }
        // A map's verdict ends the rule.
        if words.iter().any(|word| word.contains("vmap")) {
            words.sort_by_key(|word| word.contains("vmap"));
            return self.plain(words, hook).join(" ");
        }
        words.push("counter");
        if self.dice.one_in(3) {
            words.push(self.dice.pick(ACTIONS));
        }
        match version {
            4 if self.dice.one_in(6) => words.push("ip dscp set 3"),
            6 if self.dice.one_in(6) => words.push("ip6 dscp set ef"),
            _ => {}
        }
        let mut words = self.plain(words, hook);
        words.extend(self.verdict(hook, targets));
        words.join(" ")
    }

    /// Without words that are not valid at the hook.
    fn plain(&self, mut words: Vec<&'static str>, hook: &str) -> Vec<String> {
        const ELSEWHERE: [&str; 4] = ["meta length", "@", "name", "notrack"];
        if hook == "ingress" {
            words.retain(|word| !ELSEWHERE.iter().any(|other| word.contains(other)));
        }
        if hook != "prerouting" {
            words.retain(|word| *word != "notrack");
        }
        words.into_iter().map(str::to_owned).collect()
    }

    fn verdict(&mut self, hook: &str, targets: &[&str]) -> Option<String> {
        let one = match self.dice.below(12) {
            0 | 1 => "drop",
            2 => "accept",
            3 => "return",
            4 if matches!(hook, "forward" | "prerouting") => "reject",
            5 if matches!(hook, "forward" | "prerouting") => "reject with icmpx admin-prohibited",
            6..8 if !targets.is_empty() => {
                return Some(format!("jump {}", self.dice.pick(targets)));
            }
            8 if !targets.is_empty() => return Some(format!("goto {}", self.dice.pick(targets))),
            _ => return None,
        };
        Some(one.to_owned())
    }

    fn text(&mut self, count: usize) -> String {
        // nft requires a chain before the rules that jump to it.
        const CHAINS: [(&str, &str, &str); 7] = [
            ("u2", "", ""),
            ("u1", "", ""),
            ("u0", "", ""),
            ("before", "prerouting", "type filter hook prerouting priority -200;"),
            ("early", "forward", "type filter hook forward priority 0;"),
            ("late", "forward", "type filter hook forward priority 7;"),
            ("behind", "postrouting", "type filter hook postrouting priority 0;"),
        ];
        let mut text = format!("table inet t {{{OBJECTS}");
        for (at, (name, hook, base)) in CHAINS.iter().enumerate() {
            text += &format!("  chain {name} {{ {base}\n");
            let share = [6, 6, 6, 5, 3, 5, 6][at];
            let targets: Vec<_> = CHAINS[..at.min(3)].iter().map(|chain| chain.0).collect();
            for _ in 0..count.div_ceil(share) {
                text += &format!("    {}\n", self.rule(hook, &targets));
            }
            text += "  }\n";
        }
        text += "}\ntable netdev d {\n  chain in { type filter hook ingress device \"wan0\" priority 0;\n";
        for _ in 0..count.div_ceil(8) {
            text += &format!("    {}\n", self.rule("ingress", &[]));
        }
        text + "  }\n}\n"
    }
}

/// A random ruleset as the front end reads it from nft's listing, without what nft rejects.
fn drawn(dice: &mut Dice, count: usize) -> Ruleset {
    let mut text = Draw { dice, many: count > 20 }.text(count);
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("drawn.nft");
    loop {
        std::fs::write(&path, &text).expect("a file");
        let mistakes = match load(&path) {
            Ok(rules) => {
                assert_eq!(rules.check(), Ok(()), "{text}");
                return rules;
            }
            Err(mistakes) => mistakes,
        };
        let wrong: Vec<_> = mistakes.iter().map(|mistake| mistake.line).collect();
        let is_rule =
            |line: &usize| text.lines().nth(line - 1).is_some_and(|it| it.starts_with("    "));
        assert!(wrong.iter().all(|line| *line > 0 && is_rule(line)), "{mistakes:?}\n{text}");
        let lines = text.lines().enumerate().filter(|(at, _)| !wrong.contains(&(at + 1)));
        text = lines.map(|(_, line)| line.to_owned() + "\n").collect();
    }
}

#[test]
fn a_million_packets_meet_6_nft_rules_as_they_are_evaluated() {
    million::compare("nft", drawn, 6);
}

#[test]
fn a_million_packets_meet_40_nft_rules_as_they_are_evaluated() {
    million::compare("nft", drawn, 40);
}

#[test]
fn a_million_packets_meet_160_nft_rules_as_they_are_evaluated() {
    million::compare("nft", drawn, 160);
}
