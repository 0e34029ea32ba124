//! Random conditions of nft rules.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::constants::Constants;
use crate::dice::Dice;
use crate::net::{self, DEVICES};

/// The conditions of one rule. They must not contradict each other, or nft refuses the rule.
pub struct Condition<'a> {
    pub dice: &'a mut Dice,
    constants: &'a Constants,
    family: &'static str,
    hooks: &'a [&'static str],
    objects: &'a mut Vec<String>,
    /// The IP version of the rule's packets, if a condition or the family determines it.
    version: Option<u8>,
    /// The transport protocol, likewise.
    protocol: Option<&'static str>,
}

impl<'a> Condition<'a> {
    pub fn new(
        constants: &'a Constants,
        dice: &'a mut Dice,
        family: &'static str,
        hooks: &'a [&'static str],
        objects: &'a mut Vec<String>,
    ) -> Self {
        let version = match family {
            "ip" => Some(4),
            "ip6" => Some(6),
            _ => None,
        };
        Self { dice, constants, family, hooks, objects, version, protocol: None }
    }

    /// Whether the rule can match packets of an IP version.
    pub fn may_be(&self, version: u8) -> bool {
        self.version.is_none_or(|own| own == version)
    }

    /// Whether the rule's family or a condition limits it to this IP version.
    pub fn needs(&self, version: u8) -> bool {
        self.version == Some(version)
    }

    /// Whether a condition names a transport protocol.
    pub fn names_transport(words: &str) -> bool {
        const NAMES: [&str; 8] =
            ["tcp", "udp", "sctp", "icmp", "th ", "l4proto", "protocol", "nexthdr"];
        NAMES.iter().any(|name| words.contains(name))
    }

    /// Draws a condition.
    pub fn draw(&mut self) -> String {
        let kind = self.dice.below(13);
        match kind {
            0..3 if self.may_be(4) => self.four(),
            3..6 if self.may_be(6) => self.six(),
            6..10 if self.protocol.is_none() => self.transport(),
            _ => self.accompanying(),
        }
    }

    fn set_version(&mut self, version: u8) {
        self.version = Some(version);
    }

    fn not(&mut self) -> &'static str {
        if self.dice.one_in(4) { "!= " } else { "" }
    }

    fn four(&mut self) -> String {
        self.set_version(4);
        let not = self.not();
        match self.dice.below(15) {
            0..5 => self.addresses(false),
            5 if self.protocol.is_none() => {
                self.protocol = Some("named");
                format!("ip protocol {not}{}", self.dice.pick(&["tcp", "udp", "icmp", "47"]))
            }
            6 => format!("ip ttl {}", self.number(&[1, 2, 3, 63, 64, 255])),
            7 => format!("ip length {}", self.length(0)),
            8 => format!("ip dscp {not}{}", self.dscp()),
            9 => format!("ip ecn {not}{}", self.dice.below(4)),
            10 => {
                let mask = self.dice.pick(&["0x1fff", "0x2000", "0x4000", "0x3fff", "0x8000"]);
                format!("ip frag-off & {mask} {} 0", self.dice.pick(&["==", "!="]))
            }
            11 => format!("ip hdrlength {}", self.number(&[5, 6, 8])),
            12 => format!("ip id {}", self.number(&[10, 100, 150])),
            13 if self.has_ethernet() => self.addresses_and_cards(),
            _ => self.addresses_and_ports(false),
        }
    }

    fn six(&mut self) -> String {
        self.set_version(6);
        let not = self.not();
        match self.dice.below(17) {
            0..5 => self.addresses(true),
            14 | 15 if self.protocol.is_none() => {
                let name = self.dice.pick(&["tcp", "udp"]);
                self.protocol = Some(name);
                let side = self.dice.pick(&["sport", "dport"]);
                // nft lists only the second half of this.
                format!("ip6 nexthdr {name} {name} {side} {not}{}", self.ports())
            }
            5 if self.protocol.is_none() => {
                self.protocol = Some("named");
                let next = self.dice.pick(&["tcp", "udp", "ipv6-icmp", "0", "43", "44", "60"]);
                format!("ip6 nexthdr {not}{next}")
            }
            6 => format!("ip6 hoplimit {}", self.number(&[1, 2, 3, 63, 64, 255])),
            7 => format!("ip6 length {}", self.length(40)),
            8 => format!("ip6 dscp {not}{}", self.dscp()),
            9 => format!("ip6 ecn {not}{}", self.dice.below(4)),
            10 => format!("frag frag-off {}", self.number(&[0, 1, 2, 185])),
            11 => format!("frag more-fragments {}", self.dice.below(2)),
            12 => "exthdr frag exists".to_owned(),
            13 => format!("ip6 flowlabel {}", self.number(&[10, 100, 150])),
            _ => self.addresses_and_ports(true),
        }
    }

    /// Whether packets still have the Ethernet header with which they arrived, and rules read it as
    /// such.
    fn has_ethernet(&self) -> bool {
        self.hooks.iter().all(|hook| matches!(*hook, "prerouting" | "forward"))
    }

    /// Draws a condition on the source address together with the network card that sent it.
    fn addresses_and_cards(&mut self) -> String {
        let not = self.not();
        let element = |card: usize, address: u32| {
            format!("0a:00:00:00:00:{card:02x} . {}", Ipv4Addr::from(address))
        };
        let (one, other) = (self.constants.any4(self.dice), self.constants.any4(self.dice));
        let cards = [1, 2].map(|_| 1 + self.dice.below(DEVICES.len()));
        let set = format!("{{ {}, {} }}", element(cards[0], one), element(cards[1] + 16, other));
        let set =
            if self.dice.one_in(2) { set } else { format!("{{ {} }}", element(cards[0], other)) };
        format!("ether saddr . ip saddr {not}{set}")
    }

    fn transport(&mut self) -> String {
        let not = self.not();
        let mut names = vec!["tcp", "tcp", "udp", "udp", "th", "sctp", "l4", "l4"];
        if self.may_be(4) {
            names.extend(["icmp", "icmp"]);
        }
        if self.may_be(6) {
            names.extend(["icmpv6", "icmpv6"]);
        }
        let name = self.dice.pick(&names);
        self.protocol = Some(name);
        match name {
            "l4" => {
                let some = "{ tcp, udp }";
                let protocol = self.dice.pick(&["tcp", "udp", "sctp", "0-16", some]);
                format!("meta l4proto {not}{protocol}")
            }
            "icmp" => {
                self.set_version(4);
                match self.dice.below(4) {
                    0 => format!("icmp code {}", self.number(&[0, 1, 4])),
                    1 => format!("icmp id {}", self.number(&[0, 1, 2])),
                    _ => {
                        let some = "{ echo-request, echo-reply }";
                        let kinds = ["echo-request", "echo-reply", "redirect", "3-8", some];
                        format!("icmp type {not}{}", self.dice.pick(&kinds))
                    }
                }
            }
            "icmpv6" => {
                self.set_version(6);
                match self.dice.below(4) {
                    0 => format!("icmpv6 code {}", self.number(&[0, 1, 4])),
                    1 => format!("icmpv6 id {}", self.number(&[0, 1, 2])),
                    _ => {
                        let some = "{ echo-request, packet-too-big }";
                        let kinds = ["echo-request", "echo-reply", "packet-too-big", "1-3", some];
                        format!("icmpv6 type {not}{}", self.dice.pick(&kinds))
                    }
                }
            }
            "tcp" if self.dice.one_in(2) => self.tcp(),
            "udp" if self.dice.one_in(5) => format!("udp length {}", self.length(20)),
            "th" if self.dice.one_in(3) => format!("@th,16,16 {}", self.ports()),
            _ => format!("{name} {} {not}{}", self.dice.pick(&["sport", "dport"]), self.ports()),
        }
    }

    fn tcp(&mut self) -> String {
        match self.dice.below(7) {
            0 => "tcp flags syn".to_owned(),
            1 => "tcp flags & (syn | ack) == syn".to_owned(),
            2 => "tcp flags & (fin | syn | rst | ack) != syn".to_owned(),
            3 => "tcp flags != ack".to_owned(),
            4 => "tcp flags { syn, syn | ack, rst }".to_owned(),
            5 => format!("tcp doff {}", self.number(&[4, 5, 6])),
            _ => format!("tcp flags & (syn|fin) == (syn|fin) tcp dport {}", self.ports()),
        }
    }

    /// Draws a condition on data outside the packet's own headers, or outside any header.
    fn accompanying(&mut self) -> String {
        let not = self.not();
        let at_device = self.hooks.iter().any(|hook| matches!(*hook, "ingress" | "egress"));
        match self.dice.below(10) {
            0..3 => format!("iifname {not}{}", self.device()),
            3 | 4 => format!("oifname {not}{}", self.device()),
            5 => format!("meta mark {}", self.number(&[0, 1, 2, 5])),
            6 => {
                let operator = self.dice.pick(&["==", "!="]);
                format!("meta mark & {} {operator} {}", self.dice.below(8), self.dice.below(4))
            }
            7 if !at_device => format!("meta length {}", self.length(20)),
            8 if self.version.is_none() && self.family == "inet" => {
                let version = self.dice.pick(&[4, 6]);
                self.set_version(version);
                format!("meta nfproto ipv{version}")
            }
            8 if self.version.is_none() => {
                let version = self.dice.pick(&[4, 6]);
                self.set_version(version);
                format!("meta protocol {}", if version == 4 { "ip" } else { "ip6" })
            }
            9 if !self.hooks.contains(&"egress") => {
                let from = self.dice.below(DEVICES.len()) + 1;
                format!("ether saddr {not}{}", net::text([0x0a, 0, 0, 0, 0, from as u8]))
            }
            _ => format!("iifname {}", self.device()),
        }
    }

    fn device(&mut self) -> String {
        let own = DEVICES.map(str::to_owned);
        let others = ["lan*", "wan*", "d*", "ppp0", "lan", "{ lan0, wan0 }", "{ lan1, dmz0, x }"];
        let others =
            others.map(
                |name| if name.starts_with('{') { name.to_owned() } else { format!("\"{name}\"") },
            );
        self.dice.pick(&[&own[..], &others].concat())
    }

    fn dscp(&mut self) -> String {
        let some = "{ cs1, ef, 8-20 }".to_owned();
        let one = self.dice.below(64).to_string();
        self.dice.pick(&["0-31".to_owned(), "ef".to_owned(), some, one])
    }

    /// Draws a comparison with one of these numbers, or with a number next to it.
    fn number(&mut self, of: &[u32]) -> String {
        let number = self.dice.pick(of);
        match self.dice.below(6) {
            0 => format!("!= {number}"),
            1 => format!("<= {number}"),
            2 => format!("> {number}"),
            3 if number != 255 => format!("{number}-{}", number + 1),
            _ => number.to_string(),
        }
    }

    fn length(&mut self, less: u16) -> String {
        let length = u32::from(self.dice.pick(&self.constants.lengths) - less);
        let known = [length, 40 - u32::from(less), 68 - u32::from(less), 1000];
        self.number(&known)
    }

    fn ports(&mut self) -> String {
        let one = self.constants.near_port(self.dice);
        let other = self.constants.near_port(self.dice);
        let (low, high) = (one.min(other), one.max(other));
        match self.dice.below(6) {
            0 => format!("{low}-{high}"),
            1 if low < high => format!("{{ {low}, {high} }}"),
            2 if high < 60_000 => format!("{{ {low}-{high}, 60000-65535 }}"),
            3 => {
                let name = format!("ports{}", self.objects.len());
                let elements = format!("{{ {low}-{high}, 65535 }}");
                let elements = if high == u16::MAX { format!("{{ {low} }}") } else { elements };
                self.objects.push(format!(
                    "set {name} {{ type inet_service; flags interval; elements = {elements} }}"
                ));
                format!("@{name}")
            }
            _ => one.to_string(),
        }
    }

    fn address(&mut self, six: bool) -> String {
        let bits = if six { 128 } else { 32 };
        let len = match (self.dice.below(4), six) {
            (0, false) => self.dice.pick(&[8, 16, 23, 24, 29, 30, 31]),
            (0, true) => self.dice.pick(&[16, 32, 63, 64, 65, 120, 127]),
            _ => bits,
        };
        let shift = bits - len;
        let text = if six {
            let address = self.constants.any6(self.dice) >> shift << shift;
            Ipv6Addr::from(address).to_string()
        } else {
            let address = self.constants.any4(self.dice) >> shift << shift;
            Ipv4Addr::from(address).to_string()
        };
        if shift == 0 { text } else { format!("{text}/{len}") }
    }

    /// Draws two addresses, the lower one first.
    fn span(&mut self, six: bool) -> (String, String) {
        if six {
            let (one, other) = (self.constants.any6(self.dice), self.constants.any6(self.dice));
            let text = |address: u128| Ipv6Addr::from(address).to_string();
            (text(one.min(other)), text(one.max(other)))
        } else {
            let (one, other) = (self.constants.any4(self.dice), self.constants.any4(self.dice));
            let text = |address: u32| Ipv4Addr::from(address).to_string();
            (text(one.min(other)), text(one.max(other)))
        }
    }

    fn addresses(&mut self, six: bool) -> String {
        let (ip, kind) = if six { ("ip6", "ipv6_addr") } else { ("ip", "ipv4_addr") };
        let field = self.dice.pick(&["saddr", "daddr", "daddr"]);
        let not = self.not();
        let value = match self.dice.below(6) {
            0 => {
                let (low, high) = self.span(six);
                if low == high { low } else { format!("{low}-{high}") }
            }
            1 | 2 => {
                let (low, high) = self.span(six);
                let set = if low == high { low } else { format!("{low}, {high}") };
                if self.dice.one_in(2) {
                    format!("{{ {set} }}")
                } else {
                    let name = format!("addresses{}", self.objects.len());
                    self.objects
                        .push(format!("set {name} {{ type {kind}; elements = {{ {set} }} }}"));
                    format!("@{name}")
                }
            }
            3 => {
                let name = format!("networks{}", self.objects.len());
                let (one, other) = (self.address(six), self.address(six));
                self.objects.push(format!(
                    "set {name} {{ type {kind}; flags interval; auto-merge; elements = {{ {one}, {other} }} }}"
                ));
                format!("@{name}")
            }
            _ => self.address(six),
        };
        format!("{ip} {field} {not}{value}")
    }

    /// Draws a lookup of several concatenated fields in one set.
    fn addresses_and_ports(&mut self, six: bool) -> String {
        if self.protocol.is_some() {
            return self.addresses(six);
        }
        let name = self.dice.pick(&["tcp", "udp"]);
        self.protocol = Some(name);
        let (ip, kind) = if six { ("ip6", "ipv6_addr") } else { ("ip", "ipv4_addr") };
        let not = self.not();
        let mut elements = Vec::new();
        for at in 0..3_u16 {
            let port = self.constants.near_port(self.dice).saturating_add(at);
            let address = if at == 0 { self.address(six) } else { self.span(six).0 };
            let ports = if at == 1 { format!("{port}-65535") } else { port.to_string() };
            let element = format!("{address} . {ports}");
            if !elements.contains(&element) {
                elements.push(element);
            }
        }
        // nft refuses elements that overlap.
        elements.truncate(1 + self.dice.below(2));
        if elements.len() == 2 && self.dice.one_in(2) {
            elements.truncate(1);
        }
        let (low, high) = self.span(six);
        let place = format!("{} . {name} dport", self.dice.pick(&["saddr", "daddr"]));
        if low != high && self.dice.one_in(2) {
            let set = format!(
                "set pairs{} {{ type {kind} . inet_service; flags interval; elements = {{ {low}-{high} . {} }} }}",
                self.objects.len(),
                self.constants.near_port(self.dice)
            );
            let named = format!("@pairs{}", self.objects.len());
            self.objects.push(set);
            return format!("{ip} {place} {not}{named}");
        }
        format!("{ip} {place} {not}{{ {} }}", elements[0])
    }
}
