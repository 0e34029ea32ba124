//! Random rules in nft's text.

use std::net::{Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use crate::constants::Constants;
use crate::dice::Dice;
use crate::matches::Condition;
use crate::net::DEVICES;

/// A language of rules, and the interface that loads them into the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Language {
    /// nft's.
    Nft,
    /// The language of iptables (`six`: of ip6tables). It loads the rules through its own kernel
    /// interface or (`nft`) through nf_tables.
    Iptables { six: bool, nft: bool },
}

/// A ruleset in pieces, each of which the test can remove.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    pub language: Language,
    pub tables: Vec<Table>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    /// Family and name in nft, or iptables' name.
    pub name: String,
    /// Sets, maps, counters and limits.
    pub objects: Vec<String>,
    pub chains: Vec<Chain>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chain {
    pub name: String,
    /// Of a base chain: nft's line with hook and policy, or iptables' policy.
    pub base: Option<String>,
    pub rules: Vec<String>,
}

impl Rules {
    /// The ruleset as its language writes it.
    pub fn text(&self) -> String {
        match self.language {
            Language::Nft => self.nft(),
            Language::Iptables { .. } => crate::iptables::text(self),
        }
    }

    fn nft(&self) -> String {
        let mut text = String::new();
        for table in &self.tables {
            text += &format!("table {} {{\n", table.name);
            for object in &table.objects {
                text += &format!("  {object}\n");
            }
            for chain in &table.chains {
                text += &format!("  chain {} {{\n", chain.name);
                for line in chain.base.iter().chain(&chain.rules) {
                    text += &format!("    {line}\n");
                }
                text += "  }\n";
            }
            text += "}\n";
        }
        text
    }

    /// Whether nft's listing contains the whole ruleset.
    pub fn is_listed_whole(&self) -> bool {
        let text = self.text();
        !["tcp tcp", "udp udp"].iter().any(|words| text.contains(&format!("ip6 nexthdr {words}")))
    }

    /// Whether the order of packets matters, because they use up a limit.
    pub fn is_scarce(&self) -> bool {
        let text = self.text();
        text.contains("/day")
    }

    /// Replaces limits that packets use up by limits that nothing uses up. At hooks postrouting and
    /// egress the router's own messages use up limits, too, but only in the kernel.
    pub fn make_plenty(&mut self) {
        for table in &mut self.tables {
            let rules = table.chains.iter_mut().flat_map(|chain| &mut chain.rules);
            for text in rules.chain(&mut table.objects) {
                *text = text.replace(SCARCE, PLENTY).replace(SCARCE_BYTES, PLENTY);
                *text = text.replace(crate::iptables::SCARCE, crate::iptables::PLENTY);
            }
        }
    }

    /// The number of all rules.
    pub fn count(&self) -> usize {
        let chains = self.tables.iter().flat_map(|table| &table.chains);
        chains.map(|chain| chain.rules.len()).sum()
    }
}

/// Draws a random ruleset of nft. `constants` record whether it tracks connections.
pub fn draw(constants: &mut Constants, dice: &mut Dice) -> Rules {
    constants.tracked = dice.one_in(14);
    let mut tables = Vec::new();
    for number in 0..1 + dice.below(2) {
        let family = dice.pick(&["ip", "ip6", "inet", "inet", "inet", "netdev"]);
        let mut draw = Draw { constants, dice, family, hooks: Vec::new(), objects: Vec::new() };
        tables.push(draw.table(number));
    }
    let mut rules = Rules { language: Language::Nft, tables };
    if rules.text().contains("hook postrouting") || rules.text().contains("hook egress") {
        rules.make_plenty();
    }
    rules
}

/// A limit that a case's packets use up; it does not recover while a case runs.
const SCARCE: &str = "1/day burst 5 packets";
const SCARCE_BYTES: &str = "1 bytes/day burst 3000 bytes";
/// A limit that no case uses up.
const PLENTY: &str = "1000/second burst 1000000 packets";

struct Draw<'a> {
    constants: &'a Constants,
    dice: &'a mut Dice,
    family: &'static str,
    /// Hooks of the table's base chains.
    hooks: Vec<&'static str>,
    objects: Vec<String>,
}

/// Number of chains in a table that rules jump to. Each jumps only to those with a higher number.
const CALLED: usize = 3;

impl Draw<'_> {
    fn table(&mut self, number: usize) -> Table {
        let bases: Vec<_> = (0..1 + self.dice.below(3)).map(|_| self.base()).collect();
        let most = self.dice.pick(&[1, 2, 4, 8, 20]);
        let mut chains = Vec::new();
        for at in 0..CALLED {
            let rules = (0..self.dice.below(most + 1)).map(|_| self.rule(at + 1)).collect();
            chains.push(Chain { name: format!("c{at}"), base: None, rules });
        }
        for (at, base) in bases.into_iter().enumerate() {
            let rules = (0..self.dice.below(most + 1)).map(|_| self.rule(0)).collect();
            chains.push(Chain { name: format!("base{at}"), base: Some(base), rules });
        }
        // A rule names only chains that come before its own.
        chains[..CALLED].reverse();
        Table {
            name: format!("{} t{number}", self.family),
            objects: std::mem::take(&mut self.objects),
            chains,
        }
    }

    fn base(&mut self) -> String {
        let hook = match self.family {
            "netdev" => self.dice.pick(&["ingress", "ingress", "egress"]),
            "inet" if self.dice.one_in(8) => "ingress",
            _ => self.dice.pick(&["prerouting", "forward", "forward", "forward", "postrouting"]),
        };
        self.hooks.push(hook);
        let device = match hook {
            "ingress" | "egress" => format!(" device {}", self.dice.pick(&DEVICES)),
            _ => String::new(),
        };
        let priority = self.dice.pick(&[-300, -150, 0, 0, 0, 10, 100]);
        let policy = self.dice.pick(&["accept", "accept", "accept", "drop"]);
        format!("type filter hook {hook}{device} priority {priority}; policy {policy};")
    }

    /// Draws a rule that may jump to the chains from `chains` on.
    fn rule(&mut self, chains: usize) -> String {
        let mut words = Vec::new();
        let mut condition =
            Condition::new(self.constants, self.dice, self.family, &self.hooks, &mut self.objects);
        for _ in 0..condition.dice.pick(&[0, 1, 1, 1, 2, 2, 3]) {
            words.push(condition.draw());
        }
        let is_four = condition.may_be(4) && condition.needs(4);
        let is_six = condition.may_be(6) && condition.needs(6);
        let any = self.dice.below(12);
        if any < 5 {
            words.push("counter".to_owned());
        }
        match self.dice.below(22) {
            0 => words.push(self.mark()),
            16 | 17 => words.push(self.mark_by_map(is_four, &words)),
            18 => words.push(self.limit()),
            19 => words.push(self.named("counter", "", "counter name")),
            20 if self.is_routed() => words.push("notrack".to_owned()),
            21 if self.family == "netdev" && self.dice.one_in(4) => {
                words.push(format!("dup to {}", self.dice.pick(&DEVICES)));
            }
            1 if is_four => words.push(format!("ip dscp set {}", self.dice.below(64))),
            1 if is_six => words.push(format!("ip6 dscp set {}", self.dice.below(64))),
            2 => words.push(format!("limit rate {PLENTY}")),
            3 => words.push(format!("limit rate over {PLENTY}")),
            4 => words.push("log prefix \"seen\"".to_owned()),
            _ => {}
        }
        if self.dice.one_in(12) {
            words.push("counter".to_owned());
        }
        let verdict = self.verdict(chains, &words);
        words.push(verdict);
        words.retain(|word| !word.is_empty());
        if words.is_empty() { "counter".to_owned() } else { words.join(" ") }
    }

    fn mark(&mut self) -> String {
        let number = self.dice.below(8);
        match self.dice.below(4) {
            0 => format!("meta mark set meta mark | {number}"),
            1 => format!("meta mark set meta mark & {number}"),
            2 => format!("meta mark set meta mark ^ {number}"),
            _ => format!("meta mark set {number}"),
        }
    }

    /// Whether all hooks are those of packets that the router routes.
    fn is_routed(&self) -> bool {
        !self.hooks.iter().any(|hook| matches!(*hook, "ingress" | "egress"))
    }

    fn limit(&mut self) -> String {
        let over = self.dice.pick(&["", "over "]);
        match self.dice.below(4) {
            0 => format!("limit rate {over}{SCARCE_BYTES}"),
            1 => {
                let rate = self.dice.pick(&[SCARCE, SCARCE_BYTES]);
                self.named("limit", &format!("rate {over}{rate}"), "limit name")
            }
            _ => format!("limit rate {over}{SCARCE}"),
        }
    }

    /// Draws a statement that names an object of the table: an existing one, or a new one.
    fn named(&mut self, kind: &str, what: &str, statement: &str) -> String {
        let own: Vec<_> = self
            .objects
            .iter()
            .filter(|object| object.starts_with(&format!("{kind} ")) && object.contains(what))
            .filter_map(|object| object.split(' ').nth(1).map(str::to_owned))
            .collect();
        let name = if own.is_empty() || self.dice.one_in(2) {
            let name = format!("{kind}{}", self.objects.len());
            self.objects.push(format!("{kind} {name} {{ {what} }}"));
            name
        } else {
            self.dice.pick(&own)
        };
        format!("{statement} \"{name}\"")
    }

    /// Draws a mark that packets get from a map.
    fn mark_by_map(&mut self, is_four: bool, words: &[String]) -> String {
        let free = !words.iter().any(|word| Condition::names_transport(word));
        let place = match self.dice.below(5) {
            0 | 1 if free => self.dice.pick(&["tcp dport", "udp dport", "th sport"]),
            2 if is_four => "ip saddr",
            3 if is_four && free => "ip daddr . tcp dport",
            _ => "iifname",
        };
        let elements = self.elements(place, |dice| dice.below(8).to_string());
        if place == "iifname" || self.dice.one_in(2) {
            return format!("meta mark set {place} map {{ {elements} }}");
        }
        let kind = match place {
            "ip saddr" => "ipv4_addr",
            "ip daddr . tcp dport" => "ipv4_addr . inet_service",
            _ => "inet_service",
        };
        let name = format!("marks{}", self.objects.len());
        self.objects
            .push(format!("map {name} {{ type {kind} : mark; elements = {{ {elements} }} }}"));
        format!("meta mark set {place} map @{name}")
    }

    /// Draws elements of a map, each key once. The keys are values that packets have in `place`.
    fn elements(&mut self, place: &str, mut datum: impl FnMut(&mut Dice) -> String) -> String {
        let mut keys = Vec::new();
        for _ in 0..1 + self.dice.below(4) {
            let parts = place.split(" . ").map(|part| match part {
                "iifname" | "oifname" => format!("\"{}\"", self.dice.pick(&DEVICES)),
                "meta l4proto" => self.dice.pick(&["tcp", "udp", "47"]).to_owned(),
                "meta nfproto" => self.dice.pick(&["ipv4", "ipv6"]).to_owned(),
                part if part.starts_with("ip6 ") => {
                    Ipv6Addr::from(self.constants.any6(self.dice)).to_string()
                }
                part if part.starts_with("ip ") => {
                    Ipv4Addr::from(self.constants.any4(self.dice)).to_string()
                }
                _ => self.constants.near_port(self.dice).to_string(),
            });
            let key = parts.collect::<Vec<_>>().join(" . ");
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        let elements = keys.into_iter().map(|key| format!("{key} : {}", datum(self.dice)));
        elements.collect::<Vec<_>>().join(", ")
    }

    /// Draws a verdict map, by concatenated fields or by the IP version.
    fn joined_verdicts(&mut self, target: usize, words: &[String]) -> String {
        let free = !words.iter().any(|word| Condition::names_transport(word));
        let mut places = vec!["iifname . oifname"];
        if self.family == "inet" && self.is_routed() && !words.iter().any(|it| it.contains("ip")) {
            places.push("meta nfproto");
        }
        if free && self.family == "ip" {
            places.extend(["ip saddr . tcp dport", "ip daddr . udp dport", "iifname . tcp dport"]);
        }
        if free && self.family == "ip6" {
            places.extend(["ip6 saddr . tcp dport", "ip6 daddr . udp sport"]);
        }
        if free {
            places.extend(["meta l4proto . th dport", "iifname . udp dport"]);
        }
        let place = self.dice.pick(&places);
        let elements = self.elements(place, |dice| {
            let verdict = dice.pick(&["accept", "drop", "continue", "return", "jump", "goto"]);
            match verdict {
                "jump" | "goto" => format!("{verdict} c{target}"),
                _ => verdict.to_owned(),
            }
        });
        format!("{place} vmap {{ {elements} }}")
    }

    fn verdict(&mut self, chains: usize, words: &[String]) -> String {
        // A rule that drops or accepts everything leaves nothing for the rules behind it.
        let narrow = words.iter().any(|word| !word.starts_with("counter"));
        let target = chains + self.dice.below(CALLED.saturating_sub(chains).max(1));
        match self.dice.below(22) {
            0..4 if narrow => "drop".to_owned(),
            4..7 if narrow => "accept".to_owned(),
            7..11 if target < CALLED => format!("jump c{target}"),
            11 if target < CALLED => format!("goto c{target}"),
            12 if narrow => "return".to_owned(),
            13 => "continue".to_owned(),
            14 | 15 if narrow => self.reject(words),
            16 if target < CALLED => {
                let verdicts = self.verdicts(target, words);
                self.behind(verdicts)
            }
            18 | 19 if target < CALLED => {
                let verdicts = self.joined_verdicts(target, words);
                self.behind(verdicts)
            }
            20 if narrow && self.hooks.iter().all(|hook| *hook == "ingress") => {
                let is_rare = self.family == "netdev" && self.dice.one_in(3);
                if is_rare { format!("fwd to {}", self.dice.pick(&DEVICES)) } else { String::new() }
            }
            17 if self.constants.tracked && self.family != "netdev" => {
                self.dice.pick(&["ct state established accept", "ct state invalid drop"]).to_owned()
            }
            _ => String::new(),
        }
    }

    /// Draws the rest of a rule, for packets that a verdict map lets continue.
    fn behind(&mut self, verdicts: String) -> String {
        match verdicts.is_empty() {
            true => verdicts,
            false => format!(
                "{verdicts} {}",
                self.dice.pick(&["", "", "drop", "accept", "counter drop"])
            ),
        }
    }

    /// Draws a `reject` where nft permits one.
    fn reject(&mut self, words: &[String]) -> String {
        let allowed = ["prerouting", "forward", "ingress"];
        if self.hooks.iter().any(|hook| !allowed.contains(hook)) {
            return "drop".to_owned();
        }
        let is_tcp = words.iter().any(|word| word.contains("tcp "));
        let text = match (self.family, self.dice.below(3)) {
            (_, 0) if is_tcp => "reject with tcp reset",
            ("ip", 1) => "reject with icmp admin-prohibited",
            ("ip6", 1) => "reject with icmpv6 addr-unreachable",
            ("inet", 1) => "reject with icmpx host-unreachable",
            _ => "reject",
        };
        text.to_owned()
    }

    /// Draws a verdict map.
    fn verdicts(&mut self, target: usize, words: &[String]) -> String {
        let mut ports = self.constants.ports.clone();
        ports.sort_unstable();
        ports.dedup();
        let verdicts = ["accept", "drop", "continue", "return", "jump", "goto"];
        let mut data = || match self.dice.pick(&verdicts) {
            verdict @ ("jump" | "goto") => format!("{verdict} c{target}"),
            verdict => verdict.to_owned(),
        };
        let elements: Vec<_> = ports.iter().map(|port| format!("{port} : {}", data())).collect();
        let free = !words.iter().any(|word| Condition::names_transport(word));
        let field = match self.dice.pick(&["th dport", "tcp dport", "udp dport", "iifname"]) {
            field @ ("tcp dport" | "udp dport") if free => field,
            "iifname" => {
                let first = format!("lan0 : goto c{target}, \"wan0\" : continue");
                return format!("iifname vmap {{ {first} }}");
            }
            _ if words.iter().any(|word| Condition::names_transport(word)) => return String::new(),
            _ => "th dport",
        };
        format!("{field} vmap {{ {} }}", elements.join(", "))
    }
}
