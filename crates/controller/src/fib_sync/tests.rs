//! Compares lookup chains and routes in tables with a plain model of the kernel, before and after random
//! changes.

mod naive;
mod random;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::IpAddr;

use tollway_dataplane::id::{LinkId, NextHopId, VrfId};
use tollway_dataplane::next_hops::Action;
use tollway_dataplane::tables::Tables;
use tollway_dataplane::verdict::{DropReason, PuntReason};

use super::{ActiveTables, EgressLink, EgressLinks, FibSync, FibSyncError};
use crate::event::Event;
use crate::kernel::Family;
use crate::lookup_chains::LookupChains;
use crate::rib::{Ignoring, Rib};
use naive::{Answer, Packet};
use random::{KernelState, LINKS};

/// Tables without other readers.
struct Bench(RefCell<Tables>);

impl ActiveTables for Bench {
    fn change<T>(&self, job: impl FnOnce(&mut Tables) -> T) -> T {
        job(&mut self.0.borrow_mut())
    }
}

/// Known neighbours: gateways of routes, and some of the connected hosts.
fn hosts() -> Vec<IpAddr> {
    let mut hosts: Vec<IpAddr> = vec!["fe80::7".parse().unwrap()];
    for family in [Family::V4, Family::V6] {
        let lasts = (0..8).chain(99..103);
        hosts.extend(lasts.map(|last| random::address(family, last)));
    }
    hosts
}

fn egress_links() -> EgressLinks {
    let links = LINKS.into_iter().enumerate();
    let egress_link = |(at, index)| {
        (index, EgressLink { link: LinkId(at as u16), v4: true, v6: index != 2, is_layer3: false })
    };
    EgressLinks {
        links: links.map(egress_link).collect(),
        kernel_groups4: false,
        kernel_groups6: false,
    }
}

fn fib_sync(kernel_state: &KernelState, rib: &mut Rib) -> (FibSync, Bench) {
    let has = |family, table| rib.has(table, family);
    let lookup_chains = LookupChains::of(&kernel_state.naive.kernel, LINKS, has);
    let mut tables = Tables::new();
    for _ in &lookup_chains.lookup_chains {
        tables.add_vrf().unwrap();
    }
    for (at, _) in LINKS.iter().enumerate() {
        tables.add_port([2, 0, 0, 0, 0, at as u8], VrfId(0), 1500).unwrap();
    }
    let fib_sync =
        FibSync::build(rib, lookup_chains, kernel_state.naive.egress_links.clone(), &mut tables)
            .unwrap();
    for link in 0..LINKS.len() as u16 {
        for host in hosts() {
            tables.publish_neigh(LinkId(link), host, [2, 0, 0, 0, 1, 1]).unwrap();
        }
    }
    (fib_sync, Bench(RefCell::new(tables)))
}

/// The answer of the tables, by lookup chains and policies.
fn resolve(fib_sync: &FibSync, tables: &Tables, packet: &Packet) -> NextHopId {
    let ingress = &fib_sync.lookup_chains().links[&packet.iif];
    if ingress.policy.is_empty() {
        return tables.resolve(VrfId(ingress.lookup_chain as u16), packet.dst);
    }
    let family = if packet.dst.is_ipv4() { Family::V4 } else { Family::V6 };
    let mut lines = ingress.policy.iter().filter(|line| {
        line.family.is_none_or(|of| of == family)
            && line.src.is_none_or(|src| src.contains(&packet.src))
            && line.dst.is_none_or(|dst| dst.contains(&packet.dst))
            && line.mark.is_none_or(|(value, mask)| (packet.mark ^ value) & mask == 0)
    });
    let found = lines.find_map(|line| {
        let next = tables.resolve(VrfId(line.lookup_chain as u16), packet.dst);
        (next != NextHopId::NO_ROUTE).then_some(next)
    });
    found.unwrap_or(NextHopId::NO_ROUTE)
}

fn answer(tables: &Tables, next: NextHopId, packet: &Packet, in_group: bool) -> Answer {
    if next == NextHopId::NO_ROUTE {
        return Answer::NoRoute;
    }
    if next.is_group() {
        let members = tables.routes.groups.members(next.0 & !NextHopId::GROUP);
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
        Action::Punt(PuntReason::KernelRoute | PuntReason::KernelRule | PuntReason::KernelExit) => {
            Answer::Kernel
        }
        Action::Forward => {
            let is_ipv4 = record.header[22..] == [8, 0];
            assert_eq!(is_ipv4, packet.dst.is_ipv4(), "{record:?}");
            let mtu = if record.mtu == 1500 { 0 } else { record.mtu.into() };
            Answer::By(device, record.neigh.unwrap(), mtu)
        }
        Action::Glean => {
            assert!(in_group || !hosts().contains(&packet.dst), "{packet:?}: no host route");
            Answer::By(device, packet.dst, 0)
        }
        other => panic!("{packet:?} leads to {other:?}"),
    }
}

fn compare(kernel_state: &mut KernelState, fib_sync: &FibSync, bench: &Bench, what: &str) -> usize {
    let mut fast = 0;
    for _ in 0..60 {
        let packet = kernel_state.packet();
        let (expected, unsure) = kernel_state.naive.look_up(&packet);
        let tables = bench.0.borrow();
        let found = answer(&tables, resolve(fib_sync, &tables, &packet), &packet, false);
        let left_to_kernel = found == Answer::Kernel || found == Answer::Local;
        if found != expected && !(unsure && left_to_kernel) {
            let describe = kernel_state.naive.describe(&packet);
            panic!(
                "{what}: {packet:?}: {found:?}, not {expected:?}\n{:?}\n{describe}",
                fib_sync.lookup_chains()
            );
        }
        fast += usize::from(!left_to_kernel);
    }
    fast
}

#[test]
fn tables_answer_as_rules_and_routes_do() {
    let mut fast = 0;
    for seed in 0..400 {
        let mut kernel_state = KernelState::new(seed);
        kernel_state.naive.egress_links = egress_links();
        kernel_state.naive.egress_links.kernel_groups4 = seed % 16 == 0;
        let ignored = [1, 2, 3, 4].into_iter().filter(|at| seed >> at & 1 == 1);
        let ignored: std::collections::HashSet<u32> = ignored.collect();
        let ignoring = Ignoring { v4: ignored.clone(), v6: ignored };
        kernel_state.naive.ignoring = ignoring.clone();
        let mut rib = Rib::new();
        rib.apply(&Event::Whole(Box::new(kernel_state.naive.kernel.clone())));
        rib.set_ignoring(ignoring);
        for _ in 0..60 {
            kernel_state.step().iter().for_each(|event| rib.apply(event));
        }
        let (mut now, mut bench) = fib_sync(&kernel_state, &mut rib);
        fast += compare(&mut kernel_state, &now, &bench, &format!("seed {seed}, fresh"));
        for step in 0..40 {
            let lost = step % 8 == 7;
            for _ in 0..step % 4 {
                let events = kernel_state.step();
                events.iter().filter(|_| !lost).for_each(|event| rib.apply(event));
            }
            if lost {
                kernel_state.list().iter().for_each(|event| rib.apply(event));
            }
            match now.sync(&mut rib, &bench) {
                Ok(_) => {}
                Err(FibSyncError::LookupChains) => (now, bench) = fib_sync(&kernel_state, &mut rib),
                Err(error) => panic!("{error}"),
            }
            fast += compare(&mut kernel_state, &now, &bench, &format!("seed {seed}, step {step}"));
        }
    }
    // The test must not be empty: most answers must not be punts.
    assert!(fast > 400 * 41 * 20, "{fast} of {}", 400 * 41 * 60);
}
