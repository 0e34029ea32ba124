use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use proptest::prelude::*;

use super::{Rpf, SourceCheck, SourceLookup};
use crate::dispatch::Path;
use crate::id::{LinkId, VrfId};
use crate::prefix::{Prefix, RoutePrefix};
use crate::stages::filter::{Filter, Op, Point, Rule, Rules};
use crate::stages::rule::{PolicyAction, PolicyRule};
use crate::tables::{Tables, TablesError};
use crate::testkit::dice::Dice;
use crate::testkit::linux::{
    LINKS, Linux, OutcomeKind, Route, Type, bits, kinds, mac, random_address, random_prefix,
};
use crate::testkit::packet::{Packet, ip};
use crate::testkit::path_bench::PathBench;
use crate::verdict::{DropReason, PuntReason};

/// The configuration of a device.
#[derive(Clone, Copy, Debug, Default)]
struct Device {
    rp_filter: u8,
    accept_local: bool,
    log_martians: bool,
    has_addresses: bool,
    vrf: Option<u32>,
}

/// A model of the kernel's router.
#[derive(Clone, Debug)]
struct Kernel {
    linux: Linux,
    devices: Vec<Device>,
    /// The rules for packets from each device; none if there are only the default rules.
    rules: Vec<Option<Vec<PolicyRule>>>,
    /// `fib_has_custom_rules` or `fib_has_custom_local_routes`.
    custom: bool,
    addresses: BTreeSet<Ipv4Addr>,
    broadcasts: BTreeSet<Ipv4Addr>,
}

impl Kernel {
    fn random(dice: &mut Dice) -> Self {
        let count = 1 + dice.below(3) as u16;
        let mut linux = Linux::random(dice, count);
        let mut pick = |kind: Type| -> BTreeSet<Ipv4Addr> {
            let mut chosen = BTreeSet::new();
            for _ in 0..dice.below(4) {
                let IpAddr::V4(address) = random_address(dice, true) else { continue };
                let prefix = Prefix::v4(address.to_bits(), 32);
                let is_there = |route: &Route| (route.table, route.prefix) == (0, prefix);
                if linux.routes.iter().any(|route| is_there(route) && route.kind == Type::Local) {
                    continue;
                }
                linux.routes.retain(|route| !is_there(route));
                let kind = kind.clone();
                linux.routes.push(Route { table: 0, prefix, is_ipv4: true, kind });
                chosen.insert(address);
            }
            chosen
        };
        let addresses = pick(Type::Local);
        let broadcasts = pick(Type::Broadcast);
        let ruled = dice.one_in(2);
        let rules = (0..LINKS).map(|_| ruled.then(|| random_rules(dice, count))).collect();
        let is_others = |route: &&Route| {
            let own = |address: &Ipv4Addr| bits((*address).into()) == route.prefix.bits();
            let is_own = route.prefix.len() == 32 && addresses.iter().any(own);
            route.is_ipv4 && route.kind == Type::Local && !(is_own && route.table == 0)
        };
        let custom = ruled || dice.one_in(4) || linux.routes.iter().any(|route| is_others(&route));
        let vrf = dice.one_in(3).then_some(77);
        let devices = (0..LINKS).map(|_| Device {
            rp_filter: dice.below(3) as u8,
            accept_local: dice.one_in(3),
            log_martians: dice.one_in(3),
            has_addresses: !dice.one_in(3),
            vrf: vrf.filter(|_| dice.one_in(2)),
        });
        let devices = devices.collect();
        Self { linux, devices, rules, custom, addresses, broadcasts }
    }

    /// `fib_lookup` for a packet from a device.
    fn lookup(&self, from: u8, src: IpAddr, dst: IpAddr) -> Result<Option<&Type>, PolicyAction> {
        match &self.rules[usize::from(from)] {
            Some(rules) => self.linux.by_rules(rules, (src, dst), 0),
            None => Ok(self.linux.search(0, bits(dst), dst.is_ipv4())),
        }
    }

    /// The rules of a device for IPv4, of which the shortest prefix covers everything, and for IPv6, to
    /// which those with a prefix do not apply.
    fn rules_of(&self, device: u8) -> Option<[Vec<PolicyRule>; 2]> {
        let part = |prefix: Option<RoutePrefix>| {
            prefix.filter(|prefix| !matches!(prefix, RoutePrefix::V4(all) if all.is_empty()))
        };
        let rules = self.rules[usize::from(device)].as_ref()?;
        let v4 =
            |&rule: &PolicyRule| PolicyRule { src: part(rule.src), dst: part(rule.dst), ..rule };
        let is_v6 = |rule: &&PolicyRule| rule.src.is_none() && rule.dst.is_none();
        Some([rules.iter().map(v4).collect(), rules.iter().filter(is_v6).copied().collect()])
    }

    /// `fib_validate_source`, line by line; `rules` are those of the device that `iif` refers to.
    fn validate(
        &self,
        src: Ipv4Addr,
        dst: IpAddr,
        device: u8,
        rules: u8,
    ) -> Result<(), DropReason> {
        let Device { rp_filter, accept_local, has_addresses, .. } =
            self.devices[usize::from(device)];
        if rp_filter == 0 && !self.custom {
            let is_refused = !accept_local && self.addresses.contains(&src);
            return if is_refused { Err(DropReason::IpLocalSource) } else { Ok(()) };
        }
        let last_resort = if rp_filter == 0 { Ok(()) } else { Err(DropReason::IpRpfilter) };
        let links = match self.lookup(rules, dst, src.into()) {
            Err(_) => return last_resort,
            Ok(None | Some(Type::Blackhole | Type::Unreachable | Type::Prohibit)) => {
                return last_resort;
            }
            Ok(Some(Type::Throw)) => unreachable!("no route"),
            Ok(Some(Type::Broadcast)) => return Err(DropReason::IpInvalidSource),
            Ok(Some(Type::Local)) if !accept_local => return Err(DropReason::IpLocalSource),
            Ok(Some(Type::Local | Type::Kernel)) => &[][..],
            Ok(Some(Type::KernelExit(link))) => std::slice::from_ref(link),
            Ok(Some(Type::Unicast(links))) => links,
        };
        // `fib_info_nh_uses_dev`: links of one VRF are not one device.
        if links.contains(&device) {
            return Ok(());
        }
        match (has_addresses, rp_filter) {
            (false, _) => last_resort,
            (true, 1) => Err(DropReason::IpRpfilter),
            _ => Ok(()),
        }
    }

    /// Says whether the tables leave the decision to the kernel, since `fib_validate_source` reads more
    /// than they contain.
    fn is_unsure(&self, src: Ipv4Addr, dst: IpAddr, device: u8, rules: u8) -> bool {
        let Device { rp_filter, accept_local, has_addresses, .. } =
            self.devices[usize::from(device)];
        if rp_filter == 0 && !self.custom {
            return self.broadcasts.contains(&src);
        }
        match self.lookup(rules, dst, src.into()) {
            Ok(Some(Type::Kernel)) | Err(PolicyAction::Punt) => true,
            Ok(Some(Type::Local | Type::Broadcast)) => accept_local,
            // A next hop on the device may be dead.
            Ok(Some(Type::Unicast(links))) => {
                rp_filter > 0 && !has_addresses && links.len() > 1 && !links.contains(&device)
            }
            _ => false,
        }
    }

    fn compiled(&self, by_input: bool) -> Tables {
        let mut tables = self.linux.compiled();
        let list = |set: &BTreeSet<Ipv4Addr>| set.iter().copied().collect::<Vec<_>>();
        tables.set_own_addresses(&list(&self.addresses));
        tables.set_broadcast_addresses(&list(&self.broadcasts));
        for (index, (device, rules)) in self.devices.iter().zip(&self.rules).enumerate() {
            let link = LinkId(index as u16);
            let rpf = match (device.rp_filter, device.has_addresses) {
                (0, _) if self.custom => Rpf::Kind,
                (0, _) => Rpf::Off,
                (_, false) => Rpf::Unnumbered,
                (2, _) => Rpf::Loose,
                _ => Rpf::Strict,
            };
            let (own, martians_to_kernel) = (!device.accept_local, device.log_martians);
            tables.set_source(link, SourceCheck { own, rpf, martians_to_kernel }).unwrap();
            let lookup = SourceLookup { mark: false, by_input, vrf_device: device.vrf };
            tables.set_source_lookup(link, lookup).unwrap();
            tables.set_policy(link, rules.clone().unwrap_or_default()).unwrap();
        }
        tables
    }
}

fn random_rules(dice: &mut Dice, tables: u16) -> Vec<PolicyRule> {
    let prefix = |dice: &mut Dice| Some(RoutePrefix::V4(random_prefix(dice, true)));
    let rule = |dice: &mut Dice| PolicyRule {
        src: if dice.one_in(2) { prefix(dice) } else { None },
        dst: if dice.one_in(3) { prefix(dice) } else { None },
        mark: None,
        action: match dice.below(8) {
            0 => PolicyAction::Unreachable,
            1 => PolicyAction::Punt,
            _ => PolicyAction::View(VrfId(dice.below(tables.into()) as u16)),
        },
    };
    (0..=dice.below(4)).map(|_| rule(dice)).collect()
}

fn path_bench(tables: &Tables) -> PathBench<'_> {
    PathBench::over(tables, Path::detect(), 2048)
}

/// Sends bursts of random packets and compares each result with the kernel model.
fn agree(seed: u64, by_input: bool) -> Result<(), TestCaseError> {
    let mut dice = Dice(seed);
    let mut kernel = Kernel::random(&mut dice);
    if !by_input {
        // The same rules for packets from any device.
        let first = kernel.rules[0].clone();
        kernel.rules.fill(first);
    }
    let tables = kernel.compiled(by_input);
    let mut path_bench = path_bench(&tables);
    for port in 0..LINKS {
        let packets: Vec<_> = (0..1 + dice.below(64))
            .map(|_| [(); 2].map(|()| random_address(&mut dice, true)))
            .collect();
        let mut frame = |[src, dst]: &[IpAddr; 2]| {
            Packet::between(*src, *dst).ttl(dice.pick(&[1, 64])).to(mac(port)).build()
        };
        let frames: Vec<_> = packets.iter().map(&mut frame).collect();
        for ([src, dst], outcome) in packets.into_iter().zip(path_bench.burst(port, &frames)) {
            let IpAddr::V4(source) = src else { continue };
            check(&kernel, by_input, (port, source, dst), OutcomeKind::of(&outcome))?;
        }
    }
    Ok(())
}

fn check(
    kernel: &Kernel,
    by_input: bool,
    (port, src, dst): (u8, Ipv4Addr, IpAddr),
    kind: OutcomeKind,
) -> Result<(), TestCaseError> {
    let links = match kernel.lookup(port, src.into(), dst) {
        Ok(Some(Type::Unicast(links))) => links,
        Ok(found) => {
            prop_assert!(kinds(found).contains(&kind), "{src} {dst}: {kind:?}");
            return Ok(());
        }
        Err(action) => {
            prop_assert_eq!(kind, OutcomeKind::of_action(action), "{} {}", src, dst);
            return Ok(());
        }
    };
    let martian = OutcomeKind::Punt(PuntReason::Martian);
    let logs = kernel.devices[usize::from(port)].log_martians;
    let is_checked = kernel.custom || kernel.devices[usize::from(port)].rp_filter > 0;
    // The kernel may have chosen any of several next hops; this choice selects the rules
    // for the route back.
    let fits = |link: &u8| {
        let rules = if by_input { *link } else { port };
        let [own, others] = [port, rules].map(|device| kernel.rules_of(device));
        let has_vrf =
            [port, *link].iter().any(|one| kernel.devices[usize::from(*one)].vrf.is_some());
        let is_unsure = own != others || by_input && has_vrf;
        if is_checked && is_unsure || kernel.is_unsure(src, dst, port, rules) {
            return kind == OutcomeKind::Punt(PuntReason::KernelSource);
        }
        match kernel.validate(src, dst, port, rules) {
            Ok(()) => {
                kind == OutcomeKind::By((*link).into())
                    || kind == OutcomeKind::Punt(PuntReason::TtlExpired)
            }
            Err(_) if logs => kind == martian,
            Err(DropReason::IpLocalSource) if !kernel.addresses.contains(&src) => {
                kind == OutcomeKind::Drop(DropReason::IpInvalidSource)
            }
            Err(reason) => kind == OutcomeKind::Drop(reason),
        }
    };
    prop_assert!(links.iter().any(fits), "{src} {dst} by {port}: {kind:?} in {kernel:?}");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        cases: if cfg!(miri) { 1 } else { 200 },
        ..Default::default()
    })]

    #[test]
    fn sources_are_checked_as_by_the_kernel(seed: u64) {
        agree(seed, false)?;
    }

    #[test]
    fn rules_on_the_device_leave_the_way_back_to_the_kernel(seed: u64) {
        agree(seed, true)?;
    }
}

/// A router with one network on each of two links.
fn two_links() -> Tables {
    let unicast = |net: u8, link: u8| Route {
        table: 0,
        prefix: Prefix::v4(u32::from_be_bytes([10, net, 0, 0]), 16),
        is_ipv4: true,
        kind: Type::Unicast(vec![link]),
    };
    Linux { routes: vec![unicast(0, 0), unicast(1, 1)], next: vec![None] }.compiled()
}

fn kind(tables: &Tables, port: u8, src: &str, dst: &str) -> OutcomeKind {
    OutcomeKind::of(&path_bench(tables).send(port, &Packet::udp(src, dst).to(mac(port)).build()))
}

#[test]
fn martians_that_other_stages_drop_are_reported_too() {
    let mut tables = two_links();
    for (src, dst, reason) in [
        ("127.0.0.1", "10.1.0.9", DropReason::IpInvalidSource),
        ("224.0.0.1", "10.1.0.9", DropReason::IpInvalidSource),
        ("10.0.0.9", "127.0.0.1", DropReason::IpInvalidDest),
    ] {
        let check = |martians_to_kernel| SourceCheck { martians_to_kernel, ..Default::default() };
        tables.set_source(LinkId(0), check(true)).unwrap();
        assert_eq!(
            kind(&tables, 0, src, dst),
            OutcomeKind::Punt(PuntReason::Martian),
            "{src} {dst}"
        );
        assert_eq!(kind(&tables, 1, src, dst), OutcomeKind::Drop(reason), "another link");
        tables.set_source(LinkId(0), check(false)).unwrap();
        assert_eq!(kind(&tables, 0, src, dst), OutcomeKind::Drop(reason));
    }
}

#[test]
fn nothing_is_checked_where_nothing_is_configured() {
    let mut tables = two_links();
    assert!(tables.sources.is_none());
    let version = tables.version();
    let check = SourceCheck { own: true, rpf: Rpf::Strict, martians_to_kernel: false };
    tables.set_source(LinkId(0), check).unwrap();
    assert_ne!(tables.version(), version, "a change");
    assert!(tables.checks_source_route(LinkId(0)) && !tables.checks_source_route(LinkId(1)));
    assert_eq!(kind(&tables, 0, "10.1.0.7", "10.1.0.9"), OutcomeKind::Drop(DropReason::IpRpfilter));
    tables.set_own_addresses(&[Ipv4Addr::new(10, 0, 0, 1)]);
    tables.set_source(LinkId(0), SourceCheck::default()).unwrap();
    tables.set_own_addresses(&[]);
    assert!(tables.sources.is_none());
    assert_eq!(tables.set_source(LinkId(99), check), Err(TablesError::Unknown));
}

/// `src_valid_mark`.
#[test]
fn the_way_back_has_the_mark_where_that_is_configured() {
    let mut tables = two_links();
    let empty = tables.add_vrf().unwrap();
    let rule =
        |mark, vrf| PolicyRule { src: None, dst: None, mark, action: PolicyAction::View(vrf) };
    // Marked packets have their routes in the main table, others in an empty one.
    tables.set_policy(LinkId(0), vec![rule(Some((1, 1)), VrfId(0)), rule(None, empty)]).unwrap();
    let check = SourceCheck { own: false, rpf: Rpf::Loose, martians_to_kernel: false };
    tables.set_source(LinkId(0), check).unwrap();
    tables.filter = Some(Arc::new(marks_all()));
    let sent = |tables: &Tables| {
        let mut path_bench = path_bench(tables);
        path_bench.filter.renew(tables.filter.as_deref(), 0);
        let packet = Packet::udp("10.0.0.7", "10.1.0.9").to(mac(0)).build();
        OutcomeKind::of(&path_bench.send(0, &packet))
    };
    assert_eq!(sent(&tables), OutcomeKind::Drop(DropReason::IpRpfilter));
    let lookup = SourceLookup { mark: true, ..Default::default() };
    tables.set_source_lookup(LinkId(0), lookup).unwrap();
    assert_eq!(sent(&tables), OutcomeKind::By(1));
}

fn marks_all() -> Filter {
    let ops = vec![Op::Mark { keep: 0, flip: 1 }, Op::Accept];
    let rules = Rules { rules: vec![Rule { ops, next: 1, ..Rule::default() }], end: 0 };
    let mut filter = Filter::new(0, Vec::new());
    filter.set(Point::Prerouting, 4, &rules).unwrap();
    filter
}

#[test]
fn many_addresses_are_all_known_and_no_other_is() {
    let mut tables = two_links();
    let check = SourceCheck { own: true, ..SourceCheck::default() };
    tables.set_source(LinkId(0), check).unwrap();
    let own: Vec<_> = (0..2000_u32).map(|n| Ipv4Addr::from_bits(0x0a00_0000 + n * 7)).collect();
    tables.set_own_addresses(&own);
    let mut path_bench = path_bench(&tables);
    for first in (0..14_000_u32).step_by(64) {
        let sources: Vec<_> =
            (first..first + 64).map(|n| Ipv4Addr::from_bits(0x0a00_0000 + n)).collect();
        let frame =
            |src: &Ipv4Addr| Packet::between((*src).into(), ip("10.1.0.9")).to(mac(0)).build();
        let frames: Vec<_> = sources.iter().map(frame).collect();
        for (src, outcome) in sources.iter().zip(path_bench.burst(0, &frames)) {
            let expected = match own.binary_search(src) {
                Ok(_) => OutcomeKind::Drop(DropReason::IpLocalSource),
                Err(_) => OutcomeKind::By(1),
            };
            assert_eq!(OutcomeKind::of(&outcome), expected, "{src}");
        }
        if cfg!(miri) {
            return;
        }
    }
}

/// Rules with the same meaning in different form are the same.
#[test]
fn rules_for_all_are_alike_whatever_they_name() {
    agree(3_131_251_210_791_080_339, true).unwrap();
}
