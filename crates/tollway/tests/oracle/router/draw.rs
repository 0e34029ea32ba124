//! Random router configurations.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::config::{self, Config, Group, Kind, Line, TABLES};
use super::net::far_mac;
use super::sysctl;
use super::{routes, selectors};
use crate::constants::Constants;
use crate::dice::Dice;
use crate::net::{self, DEVICES};
use crate::rules::{self, Chain, Language, Rules, Table};

/// The device types that the running kernel can create.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceTypes {
    pub vlan: bool,
    pub vrf: bool,
}

/// A link of the router.
#[derive(Clone, Debug)]
pub struct Link {
    pub name: String,
    pub device: usize,
    /// The tags of its frames, outermost first: protocol and VLAN.
    pub tags: Vec<u8>,
    /// The link's number; its addresses contain it.
    pub number: u8,
    /// The table of its VRF.
    pub table: Option<u32>,
}

impl Link {
    pub fn net4(&self) -> Ipv4Net {
        Ipv4Net::new(Ipv4Addr::new(10, self.number + 1, 0, 0), 16).unwrap()
    }

    pub fn net6(&self) -> Ipv6Net {
        Ipv6Net::new(Ipv6Addr::new(0xfd00, u16::from(self.number) + 1, 0, 0, 0, 0, 0, 0), 64)
            .unwrap()
    }

    /// A host's IPv4 address on the link; host 1 is the router.
    pub fn host4(&self, host: u16) -> Ipv4Addr {
        (u32::from(self.net4().addr()) + u32::from(host)).into()
    }

    pub fn host6(&self, host: u16) -> Ipv6Addr {
        (u128::from(self.net6().addr()) + u128::from(host)).into()
    }

    /// A host's link-local address.
    pub fn local6(&self, host: u16) -> Ipv6Addr {
        Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0x20 + u16::from(self.number), host)
    }
}

/// Hosts that routes use as gateways; the last one never answers.
pub const PEERS: [u16; 5] = [2, 3, 4, 5, 0xf1];

/// A router, and the values that its packets are made of.
#[derive(Clone, Debug)]
pub struct Drawn {
    pub config: Config,
    pub links: Vec<Link>,
    pub to4: Vec<Ipv4Net>,
    pub to6: Vec<Ipv6Net>,
    pub constants: Constants,
}

/// Draws a random router with `ports` ports.
pub fn draw(dice: &mut Dice, device_types: DeviceTypes, ports: usize) -> Drawn {
    let mut draw = Draw::new(dice, device_types);
    draw.devices();
    draw.sysctls();
    draw.addresses();
    draw.neighbours();
    routes::draw(&mut draw);
    selectors::draw(&mut draw);
    draw.failures();
    let (constants, rules) = draw.rules();
    let Draw { lines, links, to4, to6, .. } = draw;
    Drawn { config: Config { ports, lines, rules }, links, to4, to6, constants }
}

/// A router under construction.
pub struct Draw<'a> {
    pub dice: &'a mut Dice,
    /// Whether the router has what Tollway leaves to the kernel as a whole.
    pub odd: bool,
    device_types: DeviceTypes,
    pub lines: Vec<Line>,
    pub links: Vec<Link>,
    /// VRF devices.
    pub vrfs: Vec<String>,
    /// Tables with routes, beside the main one.
    pub tables: Vec<u32>,
    pub to4: Vec<Ipv4Net>,
    pub to6: Vec<Ipv6Net>,
}

impl<'a> Draw<'a> {
    fn new(dice: &'a mut Dice, device_types: DeviceTypes) -> Self {
        let link = |device: usize| Link {
            name: DEVICES[device].to_owned(),
            device,
            tags: Vec::new(),
            number: device as u8,
            table: None,
        };
        let links: Vec<_> = (0..DEVICES.len()).map(link).collect();
        let odd = dice.one_in(4);
        Self {
            dice,
            odd,
            device_types,
            lines: Vec::new(),
            links,
            vrfs: Vec::new(),
            tables: TABLES.to_vec(),
            to4: Vec::new(),
            to6: Vec::new(),
        }
    }

    pub fn line(&mut self, kind: Kind, text: String) {
        self.lines.push(Line { kind, text, group: None });
    }

    pub fn route(&mut self, kind: Kind, text: String, group: Group) {
        let group = (!group.hops.is_empty()).then_some(group);
        self.lines.push(Line { kind, text, group });
    }

    pub fn link(&mut self) -> Link {
        self.dice.pick(&self.links)
    }

    /// Draws a host of a link from [`PEERS`]; the silent one is rare.
    pub fn peer(&mut self) -> u16 {
        let far = self.dice.one_in(12);
        PEERS[if far { PEERS.len() - 1 } else { self.dice.below(PEERS.len() - 1) }]
    }

    fn devices(&mut self) {
        for device in DEVICES {
            if self.dice.one_in(3) {
                let mtu = self.dice.pick(&[1400, 1400, 1280, 1280, 2000, 1300, 1492, 600]);
                self.line(Kind::Link, format!("link set {device} mtu {mtu}"));
            }
        }
        if self.device_types.vlan && !self.dice.one_in(3) {
            (0..1 + self.dice.below(3)).for_each(|_| self.vlan());
        }
        if self.device_types.vrf && self.dice.one_in(2) {
            (0..1 + self.dice.below(2)).for_each(|number| self.vrf(number));
        }
    }

    fn vlan(&mut self) {
        let parent = self.link();
        if parent.tags.len() > 4 {
            return;
        }
        let vid = self.dice.pick(&[1_u16, 10, 11, 100, 4094]);
        let is_outer = self.dice.one_in(4);
        let (protocol, kind) = if is_outer { ("802.1ad", 0x88a8_u16) } else { ("802.1Q", 0x8100) };
        let name = format!("{}.{vid}", parent.name);
        if self.links.iter().any(|link| link.name == name) {
            return;
        }
        let tag = [kind.to_be_bytes(), vid.to_be_bytes()].concat();
        let number = self.links.len() as u8;
        let odd = if self.dice.one_in(12) { " reorder_hdr off" } else { "" };
        let add = format!(
            "link add link {} name {name} type vlan protocol {protocol} id {vid}{odd}",
            parent.name
        );
        self.line(Kind::Link, add);
        if self.dice.one_in(6) {
            self.line(
                Kind::Link,
                format!("link set {name} mtu {}", self.dice.clone().pick(&[1280, 1400, 1496])),
            );
        }
        self.line(Kind::Link, format!("link set {name} up"));
        let tags = [&parent.tags[..], &tag].concat();
        self.links.push(Link { name, device: parent.device, tags, number, table: None });
    }

    fn vrf(&mut self, number: usize) {
        let (name, table) = (format!("vrf{number}"), 110 + number as u32);
        self.line(Kind::Link, format!("link add {name} type vrf table {table}"));
        self.line(Kind::Link, format!("link set {name} up"));
        self.vrfs.push(name.clone());
        for at in 0..self.links.len() {
            if self.dice.one_in(3) && self.links[at].table.is_none() {
                self.links[at].table = Some(table);
                let member = self.links[at].name.clone();
                self.line(Kind::Link, format!("link set {member} master {name}"));
            }
        }
        self.tables.extend([table; 4]);
        if self.dice.one_in(2) {
            for kind in [Kind::Four, Kind::Six] {
                let all = format!(
                    "route add unreachable default table {table} metric 4278198272 proto {}",
                    config::PROTOCOL
                );
                self.line(kind, all);
            }
        }
    }

    fn sysctls(&mut self) {
        for (name, _, others, times, is_odd) in sysctl::DRAWN {
            if *is_odd && !self.odd {
                continue;
            }
            let made = self.links.iter().filter(|link| !link.tags.is_empty());
            let made: Vec<_> = made.map(|link| &link.name).chain(&self.vrfs).collect();
            let made = made.into_iter().filter(|_| name.contains('*'));
            let made: Vec<_> = made.map(|device| name.replace('*', device)).collect();
            for name in sysctl::names(name).into_iter().chain(made) {
                if self.dice.one_in(*times) {
                    let value = self.dice.pick(others);
                    self.line(Kind::Sysctl, format!("{name}={value}"));
                }
            }
        }
    }

    fn addresses(&mut self) {
        for (n, vrf) in self.vrfs.clone().into_iter().enumerate() {
            if self.dice.one_in(2) {
                self.line(Kind::Four, format!("address add 172.21.{n}.1/32 dev {vrf}"));
                self.to4.push(format!("172.21.{n}.0/30").parse().unwrap());
            }
        }
        for link in self.links.clone() {
            let (name, n) = (&link.name, link.number);
            if !self.dice.one_in(16) {
                self.line(Kind::Four, format!("address add {}/16 dev {name}", link.host4(1)));
                self.to4.push(link.net4());
            }
            if !self.dice.one_in(12) {
                self.line(Kind::Six, format!("address add {}/64 dev {name} nodad", link.host6(1)));
                self.to6.push(link.net6());
            }
            if !link.tags.is_empty() {
                self.line(Kind::Six, format!("address add {}/64 dev {name} nodad", link.local6(1)));
            }
            if self.dice.one_in(4) {
                let further = [
                    format!("{}/16", link.host4(9)),
                    format!("192.168.{n}.1/24"),
                    format!("172.16.{n}.1/32"),
                    format!("172.17.{n}.1 peer 172.17.{n}.2/32"),
                    format!("172.18.{n}.0/31"),
                    format!("172.19.{n}.1/24 noprefixroute"),
                    format!("172.20.{n}.1/24 metric 50"),
                ];
                let further = self.dice.pick(&further);
                self.line(Kind::Four, format!("address add {further} dev {name}"));
                self.to4.push(format!("172.{}.{n}.0/24", 16 + self.dice.below(5)).parse().unwrap());
                self.to4.push(format!("192.168.{n}.0/30").parse().unwrap());
            }
            if self.dice.one_in(8) {
                let further = self
                    .dice
                    .pick(&[format!("fd01:{n}::1/128"), format!("fd01:{n}::1/120 noprefixroute")]);
                self.line(Kind::Six, format!("address add {further} dev {name} nodad"));
                self.to6.push(format!("fd01:{n}::/126").parse().unwrap());
            }
        }
    }

    fn neighbours(&mut self) {
        const STATES: [&str; 8] = [
            "permanent",
            "permanent",
            "permanent",
            "permanent",
            "stale",
            "stale",
            "reachable",
            "noarp",
        ];
        for link in self.links.clone() {
            for host in PEERS {
                let all: [(Kind, IpAddr, usize); 3] = [
                    (Kind::Four, link.host4(host).into(), 4),
                    (Kind::Six, link.host6(host).into(), 4),
                    (Kind::Six, link.local6(host).into(), 3),
                ];
                for (kind, address, missing) in all {
                    if self.dice.one_in(missing) || host == PEERS[4] && !self.dice.one_in(8) {
                        continue;
                    }
                    let mac = net::text(far_mac(link.device, address));
                    let state = self.dice.pick(&STATES);
                    let name = &link.name;
                    self.line(
                        kind,
                        format!("neigh replace {address} lladdr {mac} dev {name} nud {state}"),
                    );
                }
            }
        }
    }

    /// Draws failures that happen once everything is active.
    fn failures(&mut self) {
        if self.dice.one_in(14) {
            let link = self.link();
            self.line(Kind::Last, format!("link set {} down", link.name));
        }
        if self.dice.one_in(20) {
            let link = self.link();
            let (mut gone, host) = (IpNet::from(link.net4()), link.host4(1));
            gone = IpNet::new(host.into(), gone.prefix_len()).unwrap();
            self.line(Kind::Last, format!("address delete {gone} dev {}", link.name));
        }
        if self.dice.one_in(20) {
            let id = self.dice.pick(&[1, 2, 101, 102]);
            self.line(Kind::Last, format!("nexthop delete id {id}"));
        }
    }

    /// Draws firewall rules for some routers, and the constants that the rules are made of.
    fn rules(&mut self) -> (Constants, Option<Rules>) {
        let mut constants = Constants::new(self.dice);
        for device in 0..DEVICES.len() {
            for address in &mut constants.four[device] {
                *address = pick4(&self.to4, self.dice);
            }
            for address in &mut constants.six[device] {
                *address = pick6(&self.to6, self.dice);
            }
        }
        let sizes: [std::ops::Range<u16>; 4] = [540..580, 1190..1250, 1340..1380, 1420..1460];
        constants.lengths = sizes.map(|sizes| sizes.start + self.dice.below(40) as u16).to_vec();
        let wants_marks = self.lines.iter().any(|line| line.text.contains("fwmark"));
        let mut rules = Rules { language: Language::Nft, tables: Vec::new() };
        if self.dice.one_in(3) {
            rules = rules::draw(&mut constants, self.dice);
            // The packets' order decides which of them use up a limit, and the two routers may
            // differ in it.
            rules.make_plenty();
        }
        if wants_marks {
            rules.tables.push(self.marks());
        }
        (constants, (!rules.tables.is_empty()).then_some(rules))
    }

    /// Draws nft rules that mark packets, for policy rules that select a table by mark.
    fn marks(&mut self) -> Table {
        let mut marks = Vec::new();
        for _ in 0..1 + self.dice.below(3) {
            let device = self.dice.pick(&DEVICES);
            let which = [
                format!("iifname \"{device}\""),
                "ip protocol tcp".to_owned(),
                "ip6 nexthdr udp".to_owned(),
                "ip dscp 0-31".to_owned(),
            ];
            let which = self.dice.pick(&which);
            marks.push(format!("{which} meta mark set {}", self.dice.pick(&[1, 2, 3])));
        }
        let base = "type filter hook prerouting priority -150; policy accept;".to_owned();
        let chain = Chain { name: "marks".to_owned(), base: Some(base), rules: marks };
        Table { name: "inet marks".to_owned(), objects: Vec::new(), chains: vec![chain] }
    }
}

/// Draws an address in one of the networks, or anywhere.
pub fn pick4(of: &[Ipv4Net], dice: &mut Dice) -> u32 {
    let Some(net) = (!of.is_empty()).then(|| dice.pick(of)) else { return 0x1400_0001 };
    let bits = u32::from(net.hostmask());
    let host = match dice.below(6) {
        0 => 0,
        1 => bits,
        2 => 1,
        3 => dice.below(6) as u32,
        _ => dice.roll() as u32 & 0x3ff,
    };
    u32::from(net.network()) | host & bits
}

/// The same for IPv6.
pub fn pick6(of: &[Ipv6Net], dice: &mut Dice) -> u128 {
    let Some(net) = (!of.is_empty()).then(|| dice.pick(of)) else { return 0x2001_0db8 << 96 };
    let bits = u128::from(net.hostmask());
    let host = match dice.below(6) {
        0 => 0,
        1 => bits,
        2 => 1,
        3 => dice.below(6) as u128,
        _ => u128::from(dice.roll() & 0x3) << 64 | u128::from(dice.roll() & 0x3ff),
    };
    u128::from(net.network()) | host & bits
}
