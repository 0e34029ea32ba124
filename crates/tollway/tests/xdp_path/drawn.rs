//! Compares the programs with the user path over drawn routes that change while packets arrive.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tollway_dataplane::id::{LinkId, NextHopId, VrfId};
use tollway_dataplane::prefix::RoutePrefix;
use tollway_dataplane::stages::rule::{PolicyAction, PolicyRule};
use tollway_dataplane::stages::source_check::{Rpf, SourceCheck};

use crate::compared::Compared;
use crate::testkit::dice::Dice;
use crate::testkit::packet::{Packet, ip};
use crate::testkit::wires::{LinkVariant, PORTS, Special};

/// The numbers of drawn tables, changes between two bursts, and frames of a burst.
const TABLES: u64 = 12;
const CHANGES: usize = 60;
const FRAMES: usize = 200;

/// Parts of addresses: few, so that prefixes nest and lie side by side.
const BYTES: [u8; 9] = [0, 1, 2, 10, 100, 127, 128, 254, 255];

fn drawn4(dice: &mut Dice) -> IpAddr {
    let first = dice.pick(&[10, 20, 21, 100, 192]);
    Ipv4Addr::new(first, dice.pick(&BYTES), dice.pick(&BYTES), dice.pick(&BYTES)).into()
}

/// Long runs of zeros and ones make nodes far below each other, whose entries leap.
fn drawn6(dice: &mut Dice) -> IpAddr {
    let mut bytes = [0; 16];
    (bytes[0], bytes[1]) = (0x20, dice.pick(&[0, 1]));
    for _ in 0..dice.below(5) {
        bytes[2 + dice.below(14)] = dice.pick(&BYTES);
    }
    Ipv6Addr::from(bytes).into()
}

fn drawn(dice: &mut Dice, is_ipv4: bool) -> IpAddr {
    if is_ipv4 { drawn4(dice) } else { drawn6(dice) }
}

/// An address that differs from another in its last bits.
fn beside(dice: &mut Dice, address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let noise = dice.roll() as u32 >> dice.below(32);
            Ipv4Addr::from_bits(v4.to_bits() ^ noise).into()
        }
        IpAddr::V6(v6) => {
            let noise = dice.wide() >> dice.below(128);
            Ipv6Addr::from_bits(v6.to_bits() ^ noise).into()
        }
    }
}

/// Draws a length: any, often that of a default or host route, or one at a node's edge.
fn drawn_len(dice: &mut Dice, is_ipv4: bool) -> u8 {
    let most = if is_ipv4 { 32 } else { 128 };
    match dice.below(8) {
        0 => most,
        1 => dice.pick(&[0, 7, 8, 9]),
        2 => dice.pick(&[23, 24, 25, 31]),
        3 => dice.pick(&[55, 56, 63, 64, 65, 71, 72, 120, 127]).min(most),
        _ => dice.below(usize::from(most) + 1) as u8,
    }
}

struct Scene {
    compared: Compared,
    dice: Dice,
    /// What routes lead to, IPv4 and IPv6.
    next_hops: [Vec<NextHopId>; 2],
    routes: Vec<(VrfId, IpAddr, u8)>,
}

impl Scene {
    fn new(seed: u64) -> Self {
        let compared = Compared::new();
        let lookup = |to| compared.tables.lookup(VrfId(0), to);
        let hosts = |host: fn(LinkVariant, u8) -> IpAddr, special: fn(Special) -> IpAddr| {
            let ports = (0..PORTS).flat_map(|port| LinkVariant::ALL.map(|out| (port, out)));
            let hosts = ports.map(|(port, out)| host(out, port));
            hosts.chain(Special::ALL.map(special)).map(lookup).collect()
        };
        let next_hops =
            [hosts(LinkVariant::host4, Special::host4), hosts(LinkVariant::host6, Special::host6)];
        let mut scene = Self { compared, dice: Dice(seed), next_hops, routes: Vec::new() };
        scene.draw_links();
        scene
    }

    /// Draws the links' checks, and the router's addresses.
    fn draw_links(&mut self) {
        let locals: Vec<_> = (0..6).map(|at| drawn(&mut self.dice, at % 2 == 0)).collect();
        self.compared.set_locals(&locals);
        for address in locals {
            let local = self.compared.tables.local().unwrap();
            self.compared.tables.insert(VrfId(0), RoutePrefix::host(address), local).unwrap();
        }
        let has_vrfs = self.dice.one_in(3);
        for port in 0..PORTS {
            for variant in LinkVariant::ALL {
                let vrf = u32::from(variant.vrf().0);
                let device = (has_vrfs && vrf > 0).then_some(100 + vrf);
                self.compared.set_vrf_device(variant.link(port).0, device);
                let rpfs = [Rpf::Off, Rpf::Off, Rpf::Off, Rpf::Kind, Rpf::Loose, Rpf::Strict];
                let rpf = self.dice.pick(&rpfs);
                let (own, martians_to_kernel) = (self.dice.one_in(2), self.dice.one_in(3));
                let check = SourceCheck { own, rpf, martians_to_kernel };
                self.compared.set_source(variant.link(port).0, check);
            }
        }
        let (v4, v6) = (self.dice.one_in(2), self.dice.one_in(2));
        self.compared.tables.set_redirects(LinkId(0), v4, v6).unwrap();
    }

    /// Draws a link's policy, often none, or what the second VRF falls back to.
    fn draw_policy(&mut self) {
        let Self { compared, dice, .. } = self;
        if dice.one_in(8) {
            let other = dice.pick(&[None, Some(VrfId(0)), Some(VrfId(2))]);
            compared.tables.set_fallback(VrfId(1), other).unwrap();
            return;
        }
        let actions = [
            PolicyAction::View(VrfId(0)),
            PolicyAction::View(VrfId(1)),
            PolicyAction::View(VrfId(1)),
            PolicyAction::View(VrfId(2)),
            PolicyAction::Blackhole,
            PolicyAction::Unreachable,
            PolicyAction::Prohibit,
            PolicyAction::Punt,
        ];
        let rules = (0..dice.pick(&[0, 0, 1, 3, 20])).map(|_| {
            let is_ipv4 = dice.one_in(2);
            let mut prefix = |chance| {
                let len = [drawn_len(dice, is_ipv4), dice.below(9) as u8][dice.below(2)];
                let prefix = RoutePrefix::new(drawn(dice, is_ipv4), len);
                dice.one_in(chance).then_some(prefix)
            };
            let (src, dst) = (prefix(2), prefix(2));
            let mark = dice.one_in(4).then(|| (dice.below(2) as u32, dice.pick(&[0, 1])));
            PolicyRule { src, dst, mark, action: dice.pick(&actions) }
        });
        let mut rules: Vec<_> = rules.collect();
        if !rules.is_empty() {
            let action = PolicyAction::View(VrfId(dice.below(3) as u16));
            rules.push(PolicyRule { src: None, dst: None, mark: None, action });
        }
        let port = dice.below(PORTS.into()) as u8;
        let link = dice.pick(&LinkVariant::ALL).link(port);
        compared.set_policy(link.0, rules);
    }

    /// Inserts, replaces or removes a route, or changes a neighbour, a policy or a fallback.
    fn change(&mut self) {
        if self.dice.one_in(20) {
            self.draw_policy();
            return;
        }
        let Self { compared, dice, next_hops, routes } = self;
        let tables = &mut compared.tables;
        if dice.one_in(10) {
            let port = dice.below(PORTS.into()) as u8;
            let variant = dice.pick(&LinkVariant::ALL);
            let gateway = Ipv4Addr::new(10, 255, port, variant as u8 + 1);
            let mac = (!dice.one_in(4)).then(|| [6, 6, port, 0, 0, dice.roll() as u8]);
            tables.set_neigh(variant.link(port), gateway.into(), mac).unwrap();
            return;
        }
        if dice.one_in(3) && !routes.is_empty() {
            let (vrf, address, len) = routes.swap_remove(dice.below(routes.len()));
            // Another draw of the same prefix may have removed it.
            tables.remove(vrf, RoutePrefix::new(address, len)).unwrap();
            return;
        }
        let is_ipv4 = dice.one_in(2);
        let (vrf, len) = (VrfId(dice.below(3) as u16), drawn_len(dice, is_ipv4));
        let address = match routes.is_empty() || dice.one_in(2) {
            true => drawn(dice, is_ipv4),
            false => {
                let (_, address, _) = dice.pick(routes);
                beside(dice, address)
            }
        };
        let next = dice.pick(&next_hops[usize::from(address.is_ipv6())]);
        tables.insert(vrf, RoutePrefix::new(address, len), next).unwrap();
        routes.push((vrf, address, len));
    }

    fn frame(&mut self) -> (u8, Vec<u8>) {
        let Self { dice, routes, .. } = self;
        let port = dice.below(PORTS.into()) as u8;
        let variant = dice.pick(&LinkVariant::ALL);
        let (_, known, _) = dice.pick(routes);
        let (other, is_ipv4) = (dice.pick(routes).1, known.is_ipv4());
        let dst = beside(dice, known);
        let src = match other.is_ipv4() == is_ipv4 && dice.one_in(2) {
            true => beside(dice, other),
            false => ip(if is_ipv4 { "10.0.0.9" } else { "2001:db8::9" }),
        };
        let mut packet = Packet::between(src, dst).to(variant.mac(port)).tagged(variant.tags());
        if dice.one_in(10) {
            packet = packet.ttl(dice.pick(&[0, 1, 2]));
        }
        if dice.one_in(10) {
            packet = packet.size(dice.pick(&[100, 1280, 1281, 1500, 1501, 9000, 9001]));
        }
        if dice.one_in(10) {
            packet = packet.fragment(dice.pick(&[0, 7]), true);
        }
        (port, packet.build())
    }
}

pub fn tables() {
    for seed in 0..TABLES {
        let mut scene = Scene::new(seed);
        for _ in 0..25 {
            for _ in 0..CHANGES {
                scene.change();
            }
            let frames: Vec<_> = (0..FRAMES).map(|_| scene.frame()).collect();
            scene.compared.both(frames.iter().map(|(port, frame)| (*port, &frame[..])));
        }
        let tally = &scene.compared.tally;
        println!("{} routes: {tally:?}", scene.routes.len());
        assert!(tally.forwarded > 500 && tally.by_tc > 100, "{tally:?}");
    }
}
