//! Random rules as `iptables-save` and `ip6tables-save` write them.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::constants::Constants;
use crate::dice::Dice;
use crate::net::DEVICES;
use crate::rules::{Chain, Language, Rules, Table};

/// Tables and their built-in chains.
pub const TABLES: [(&str, &[&str]); 3] = [
    ("raw", &["PREROUTING", "OUTPUT"]),
    ("mangle", &["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"]),
    ("filter", &["INPUT", "FORWARD", "OUTPUT"]),
];

/// Number of user chains in each table. Each jumps only to those with a higher number.
const CALLED: usize = 3;

/// The text of a ruleset.
pub fn text(rules: &Rules) -> String {
    let mut text = String::new();
    for table in &rules.tables {
        text += &format!("*{}\n", table.name);
        for chain in &table.chains {
            let policy = chain.base.as_deref().unwrap_or("-");
            text += &format!(":{} {policy} [0:0]\n", chain.name);
        }
        for chain in &table.chains {
            for rule in &chain.rules {
                text += &format!("-A {} {rule}\n", chain.name);
            }
        }
        text += "COMMIT\n";
    }
    text
}

/// Draws a random ruleset.
pub fn draw(constants: &mut Constants, dice: &mut Dice) -> Rules {
    let (six, nft) = (dice.one_in(2), dice.one_in(3));
    let mut tables = Vec::new();
    for (name, hooks) in TABLES {
        if dice.one_in(4) {
            continue;
        }
        tables.push(Draw { constants, dice, six, table: name, chain: "" }.table(hooks));
    }
    let mut rules = Rules { language: Language::Iptables { six, nft }, tables };
    if rules.text().contains("-A POSTROUTING") {
        rules.make_plenty();
    }
    rules
}

/// A limit that one packet uses up; it does not recover while a case runs. (With more in a day the
/// kernel's credits overflow.)
pub const SCARCE: &str = "-m limit --limit 1/day --limit-burst 1";
/// A limit that no case uses up.
pub const PLENTY: &str = "-m limit --limit 1000/sec --limit-burst 10000";

struct Draw<'a> {
    constants: &'a Constants,
    dice: &'a mut Dice,
    six: bool,
    table: &'static str,
    chain: &'static str,
}

impl Draw<'_> {
    fn table(&mut self, hooks: &[&'static str]) -> Table {
        let most = self.dice.pick(&[1, 3, 6, 14]);
        let mut chains = Vec::new();
        for hook in hooks {
            self.chain = hook;
            let policy = if self.dice.one_in(4) { "DROP" } else { "ACCEPT" };
            let on_path = matches!(*hook, "PREROUTING" | "FORWARD" | "POSTROUTING");
            let count = if on_path { self.dice.below(most + 1) } else { 0 };
            let rules = (0..count).map(|_| self.rule(0)).collect();
            let base = Some(if on_path { policy } else { "ACCEPT" }.to_owned());
            chains.push(Chain { name: (*hook).to_owned(), base, rules });
        }
        // Any hook of the table may reach the rules of these chains.
        self.chain = "user";
        for at in 0..CALLED {
            let rules = (0..self.dice.below(most + 1)).map(|_| self.rule(at + 1)).collect();
            chains.push(Chain { name: format!("u{at}"), base: None, rules });
        }
        Table { name: self.table.to_owned(), objects: Vec::new(), chains }
    }

    fn rule(&mut self, chains: usize) -> String {
        let mut words = Vec::new();
        for option in ["-s", "-d"] {
            if self.dice.one_in(3) {
                let not = self.not();
                words.push(format!("{not}{option} {}", self.address()));
            }
        }
        let devices = ["lan0", "lan1", "wan0", "dmz0", "lan+", "wan+", "ppp0"];
        if self.dice.one_in(5) && self.chain != "POSTROUTING" && self.chain != "user" {
            words.push(format!("{}-i {}", self.not(), self.dice.pick(&devices)));
        }
        if self.dice.one_in(6) && matches!(self.chain, "FORWARD" | "POSTROUTING") {
            words.push(format!("{}-o {}", self.not(), self.dice.pick(&devices)));
        }
        let is_tcp = self.transport(&mut words);
        for _ in 0..self.dice.pick(&[0, 0, 1, 1, 2]) {
            words.push(self.field());
        }
        words.push(self.target(chains, is_tcp, !words.is_empty()));
        words.retain(|word| !word.is_empty());
        words.join(" ")
    }

    fn not(&mut self) -> &'static str {
        if self.dice.one_in(4) { "! " } else { "" }
    }

    /// Draws a protocol and conditions on its header. Returns whether it is TCP.
    fn transport(&mut self, words: &mut Vec<String>) -> bool {
        let (icmp, option) = if self.six { ("ipv6-icmp", "icmpv6") } else { ("icmp", "icmp") };
        match self.dice.below(12) {
            0 | 1 => {
                let protocol = self.dice.pick(&["tcp", "udp", "132", "47", icmp]);
                words.push(format!("{}-p {protocol}", self.not()));
            }
            2..5 => {
                let not = self.not();
                let option = match self.dice.below(4) {
                    0 => format!("{not}--tcp-flags FIN,SYN,RST,ACK SYN"),
                    1 => format!(
                        "{not}--tcp-flags SYN,ACK {}",
                        self.dice.pick(&["SYN", "NONE", "ACK"])
                    ),
                    _ => self.ports(),
                };
                words.push(format!("-p tcp -m tcp {option}"));
                return true;
            }
            5 | 6 => words.push(format!("-p udp -m udp {}", self.ports())),
            7 => {
                let protocol = self.dice.pick(&["tcp", "udp", "132"]);
                let (one, other) = (self.port(), self.port());
                let option = self.dice.pick(&["--sports", "--dports", "--ports"]);
                let not = self.not();
                words.push(format!("-p {protocol} -m multiport {not}{option} {one},{other},1:2"));
                return protocol == "tcp";
            }
            8 => {
                let kinds =
                    if self.six { ["128", "129", "1/0", "2"] } else { ["8", "0", "3/1", "5"] };
                let module = if self.six { "icmp6" } else { "icmp" };
                let not = self.not();
                let kind = self.dice.pick(&kinds);
                words.push(format!("-p {icmp} -m {module} {not}--{option}-type {kind}"));
            }
            9 if !self.six => words.push(format!("{}-f", self.not())),
            _ => {}
        }
        false
    }

    fn port(&mut self) -> u16 {
        self.constants.near_port(self.dice)
    }

    fn ports(&mut self) -> String {
        let (one, other) = (self.port(), self.port());
        let not = self.not();
        let option = self.dice.pick(&["--sport", "--dport"]);
        let (low, high) = (one.min(other), one.max(other));
        if self.dice.one_in(3) {
            format!("{not}{option} {low}:{high}")
        } else {
            format!("{not}{option} {one}")
        }
    }

    fn address(&mut self) -> String {
        let full = self.dice.one_in(2);
        if self.six {
            let len = if full { 128 } else { self.dice.pick(&[16, 32, 63, 64, 127]) };
            let address = self.constants.any6(self.dice) >> (128 - len) << (128 - len);
            format!("{}/{len}", Ipv6Addr::from(address))
        } else {
            let len = if full { 32 } else { self.dice.pick(&[8, 16, 22, 24, 31]) };
            let address = self.constants.any4(self.dice) >> (32 - len) << (32 - len);
            format!("{}/{len}", Ipv4Addr::from(address))
        }
    }

    fn field(&mut self) -> String {
        let not = self.not();
        let (ttl, limit) = if self.six { ("hl", "hl") } else { ("ttl", "ttl") };
        match self.dice.below(8) {
            0 => format!(
                "-m mark {not}--mark {:#x}/{:#x}",
                self.dice.below(4),
                self.dice.below(8) | 3
            ),
            1 | 2 => {
                let length = self.dice.pick(&self.constants.lengths);
                format!("-m length {not}--length {}:{}", length - 20, length)
            }
            3 => {
                let bound = self.dice.pick(&["eq 64", "lt 3", "gt 63", "eq 1"]);
                format!("-m {ttl} --{limit}-{bound}")
            }
            4 => format!("-m dscp {not}--dscp {:#04x}", self.dice.below(64)),
            5 => format!("-m comment --comment \"about {}\"", self.dice.pick(&DEVICES)),
            6 if self.dice.one_in(2) => SCARCE.to_owned(),
            6 => PLENTY.to_owned(),
            _ => {
                let length = self.dice.pick(&self.constants.lengths);
                format!("-m length {not}--length {length}")
            }
        }
    }

    fn target(&mut self, chains: usize, is_tcp: bool, narrow: bool) -> String {
        let to = chains + self.dice.below(CALLED.saturating_sub(chains).max(1));
        match self.dice.below(18) {
            0..3 if narrow => "-j DROP".to_owned(),
            3..5 if narrow => "-j ACCEPT".to_owned(),
            5..9 if to < CALLED => format!("-j u{to}"),
            9 if to < CALLED => format!("-g u{to}"),
            10 if narrow => "-j RETURN".to_owned(),
            11 | 12 if self.table == "mangle" => {
                format!(
                    "-j MARK --set-xmark {:#x}/{:#x}",
                    self.dice.below(8),
                    self.dice.below(8) | 4
                )
            }
            13 if self.table == "mangle" => {
                format!("-j DSCP --set-dscp {:#04x}", self.dice.below(64))
            }
            11..14 if self.table == "filter" && narrow => self.reject(is_tcp),
            14 => "-j LOG --log-prefix \"seen \"".to_owned(),
            15 if narrow && self.dice.one_in(8) => "-m recent --set --name x --rsource".to_owned(),
            _ => String::new(),
        }
    }

    fn reject(&mut self, is_tcp: bool) -> String {
        let six = ["icmp6-port-unreachable", "icmp6-adm-prohibited"];
        let four = ["icmp-port-unreachable", "icmp-host-unreachable", "icmp-admin-prohibited"];
        let with = match self.dice.below(3) {
            0 if is_tcp => "tcp-reset",
            _ if self.six => self.dice.pick(&six),
            _ => self.dice.pick(&four),
        };
        format!("-j REJECT --reject-with {with}")
    }
}
