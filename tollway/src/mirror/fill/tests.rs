//! Views and routes in tables against a plain model of the kernel, before and after random changes.

mod naive;
mod random;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::IpAddr;

use tollway_dataplane::id::{LinkId, NextHopId, VrfId};
use tollway_dataplane::tables::{Action, Tables};
use tollway_dataplane::verdict::{DropReason, PuntReason};

use super::{Fill, FillError, InForce, Way, Ways};
use crate::mirror::event::Event;
use crate::mirror::kernel::Family;
use crate::mirror::rib::{Ignoring, Rib};
use crate::mirror::views::Views;
use naive::{Answer, Packet};
use random::{LINKS, World};

/// Tables that nobody else looks into.
struct Bench(RefCell<Tables>);

impl InForce for Bench {
    fn between_bursts<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Tables) -> T + Send + 'static,
    ) -> Option<T> {
        Some(job(&mut self.0.borrow_mut()))
    }
}

/// Neighbours that are known: those that routes lead by, and some of the connected ones.
fn stations() -> Vec<IpAddr> {
    let mut stations: Vec<IpAddr> = vec!["fe80::7".parse().unwrap()];
    for family in [Family::V4, Family::V6] {
        let lasts = (0..8).chain(99..103);
        stations.extend(lasts.map(|last| random::address(family, last)));
    }
    stations
}

fn ways() -> Ways {
    let links = LINKS.into_iter().enumerate();
    let way = |(at, index)| (index, Way { link: LinkId(at as u16), v4: true, v6: index != 2 });
    Ways { links: links.map(way).collect(), kernel_groups4: false, kernel_groups6: false }
}

fn fill(world: &World, rib: &mut Rib) -> (Fill, Bench) {
    let has = |family, table| rib.has(table, family);
    let views = Views::of(&world.naive.kernel, LINKS, has);
    let mut tables = Tables::new();
    for _ in &views.views {
        tables.add_vrf().unwrap();
    }
    for (at, _) in LINKS.iter().enumerate() {
        tables.add_port([2, 0, 0, 0, 0, at as u8], VrfId(0), 1500).unwrap();
    }
    let fill = Fill::fresh(rib, views, world.naive.ways.clone(), &mut tables).unwrap();
    for link in 0..LINKS.len() as u16 {
        for station in stations() {
            tables.publish_neigh(LinkId(link), station, [2, 0, 0, 0, 1, 1]).unwrap();
        }
    }
    (fill, Bench(RefCell::new(tables)))
}

/// The answer of the tables, by what views and policies say.
fn ask(fill: &Fill, tables: &Tables, packet: &Packet) -> NextHopId {
    let ingress = &fill.views().links[&packet.iif];
    if ingress.policy.is_empty() {
        return tables.resolve(VrfId(ingress.view as u16), packet.dst);
    }
    let family = if packet.dst.is_ipv4() { Family::V4 } else { Family::V6 };
    let mut lines = ingress.policy.iter().filter(|line| {
        line.family.is_none_or(|of| of == family)
            && line.src.is_none_or(|src| src.contains(&packet.src))
            && line.dst.is_none_or(|dst| dst.contains(&packet.dst))
            && line.mark.is_none_or(|(value, mask)| (packet.mark ^ value) & mask == 0)
    });
    let found = lines.find_map(|line| {
        let next = tables.resolve(VrfId(line.view as u16), packet.dst);
        (next != NextHopId::NO_ROUTE).then_some(next)
    });
    found.unwrap_or(NextHopId::NO_ROUTE)
}

fn answer(tables: &Tables, next: NextHopId, packet: &Packet, in_group: bool) -> Answer {
    if next == NextHopId::NO_ROUTE {
        return Answer::NoRoute;
    }
    if next.is_group() {
        let members = tables.groups.members(next.0 & !NextHopId::GROUP);
        let all = members.iter().map(|member| answer(tables, member.next, packet, true));
        return Answer::Any(all.collect::<BTreeSet<_>>());
    }
    let record = tables.next_hop(next);
    let device = LINKS[usize::from(record.link.0).min(2)];
    match record.action {
        Action::Local => Answer::Local,
        Action::Drop(DropReason::Blackhole) => Answer::Blackhole,
        Action::Punt(PuntReason::Unreachable) => Answer::Unreachable,
        Action::Punt(PuntReason::Prohibit) => Answer::Prohibit,
        Action::Punt(PuntReason::KernelRoute | PuntReason::KernelRule) => Answer::Kernel,
        Action::Forward => {
            let is_ipv4 = record.header[22..] == [8, 0];
            assert_eq!(is_ipv4, packet.dst.is_ipv4(), "{record:?}");
            let mtu = if record.mtu == 1500 { 0 } else { record.mtu.into() };
            Answer::By(device, record.neigh.unwrap(), mtu)
        }
        Action::Glean => {
            assert!(in_group || !stations().contains(&packet.dst), "{packet:?}: no host route");
            Answer::By(device, packet.dst, 0)
        }
        other => panic!("{packet:?} leads to {other:?}"),
    }
}

fn compare(world: &mut World, fill: &Fill, bench: &Bench, what: &str) -> usize {
    let mut fast = 0;
    for _ in 0..60 {
        let packet = world.packet();
        let (expected, unsure) = world.naive.look_up(&packet);
        let tables = bench.0.borrow();
        let found = answer(&tables, ask(fill, &tables, &packet), &packet, false);
        let left_to_kernel = found == Answer::Kernel || found == Answer::Local;
        if found != expected && !(unsure && left_to_kernel) {
            let about = world.naive.about(&packet);
            panic!("{what}: {packet:?}: {found:?}, not {expected:?}\n{:?}\n{about}", fill.views());
        }
        fast += usize::from(!left_to_kernel);
    }
    fast
}

#[test]
fn tables_answer_as_rules_and_routes_do() {
    let mut fast = 0;
    for seed in 0..400 {
        let mut world = World::new(seed);
        world.naive.ways = ways();
        world.naive.ways.kernel_groups4 = seed % 16 == 0;
        let ignored = [1, 2, 3, 4].into_iter().filter(|at| seed >> at & 1 == 1);
        let ignored: std::collections::HashSet<u32> = ignored.collect();
        let ignoring = Ignoring { v4: ignored.clone(), v6: ignored };
        world.naive.ignoring = ignoring.clone();
        let mut rib = Rib::new();
        rib.take(&Event::Whole(Box::new(world.naive.kernel.clone())));
        rib.set_ignoring(ignoring);
        for _ in 0..60 {
            world.step().iter().for_each(|event| rib.take(event));
        }
        let (mut now, mut bench) = fill(&world, &mut rib);
        fast += compare(&mut world, &now, &bench, &format!("seed {seed}, fresh"));
        for step in 0..40 {
            let lost = step % 8 == 7;
            for _ in 0..step % 4 {
                let events = world.step();
                events.iter().filter(|_| !lost).for_each(|event| rib.take(event));
            }
            if lost {
                world.list().iter().for_each(|event| rib.take(event));
            }
            match now.follow(&mut rib, &bench) {
                Ok(_) => {}
                Err(FillError::Views) => (now, bench) = fill(&world, &mut rib),
                Err(error) => panic!("{error}"),
            }
            fast += compare(&mut world, &now, &bench, &format!("seed {seed}, step {step}"));
        }
    }
    // So that the test tests: most answers are no punts.
    assert!(fast > 400 * 41 * 20, "{fast} of {}", 400 * 41 * 60);
}
