//! Tables that follow the kernel, and their answers.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use tollway_controller::event::Event;
use tollway_controller::fib_sync::{
    ActiveTables, EgressLink, EgressLinks, FibSync, FibSyncError, SyncCounts,
};
use tollway_controller::kernel::{Family, Ifindex, Kernel};
use tollway_controller::lookup_chains::LookupChains;
use tollway_controller::netlink::{Settings, Source};
use tollway_controller::rib::{Ignoring, Rib};
use tollway_dataplane::id::{LinkId, NextHopId, VrfId};
use tollway_dataplane::next_hops::Action;
use tollway_dataplane::tables::Tables;
use tollway_dataplane::verdict::{DropReason, PuntReason};

use crate::namespaces::PATIENCE;

/// Devices that are the router's links.
pub const LINKS: [&str; 3] = ["a0", "a1", "a2"];

pub struct Bench(RefCell<Tables>);

impl ActiveTables for Bench {
    fn change<T>(&self, job: impl FnOnce(&mut Tables) -> T) -> T {
        job(&mut self.0.borrow_mut())
    }
}

/// What happens to a packet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Answer {
    NoRoute,
    Local,
    Blackhole,
    Unreachable,
    Prohibit,
    /// The kernel decides.
    Kernel,
    /// The packet goes to one of these: device and next hop, or no next hop on a connected route.
    By(BTreeSet<(String, Option<IpAddr>)>),
}

/// A packet to look up.
#[derive(Clone, Debug)]
pub struct Packet {
    pub iif: &'static str,
    pub src: IpAddr,
    pub dst: IpAddr,
    pub mark: u32,
}

/// Tables that follow the kernel.
pub struct Router {
    pub source: Source,
    pub kernel: Kernel,
    pub rib: Rib,
    pub fib_sync: FibSync,
    bench: Bench,
    complete: bool,
    /// Number of times that the tables were built.
    pub filled: usize,
    pub followed: SyncCounts,
}

impl Router {
    /// Reads the kernel's first list to its end, and builds the tables.
    pub fn new(ignoring: &[&str]) -> Self {
        let mut source = Source::open(Settings::default()).unwrap();
        let (mut kernel, mut rib, mut complete) = (Kernel::default(), Rib::new(), false);
        let start = Instant::now();
        while !complete {
            assert!(start.elapsed() < PATIENCE, "waited in vain for the first list");
            let mut take = |event: Event| {
                kernel.apply(&event);
                rib.apply(&event);
                complete |= event == Event::Complete;
            };
            source.read(&mut take).unwrap();
        }
        let devices: HashSet<_> = ignoring.iter().map(|name| index(&kernel, name)).collect();
        rib.set_ignoring(Ignoring { v4: devices.clone(), v6: devices });
        let (fib_sync, bench) = fib_sync(&kernel, &mut rib);
        let followed = SyncCounts::default();
        Self { source, kernel, rib, fib_sync, bench, complete, filled: 1, followed }
    }

    fn read(&mut self) -> bool {
        let Self { source, kernel, rib, complete, .. } = self;
        let mut received = false;
        let mut take = |event: Event| {
            kernel.apply(&event);
            rib.apply(&event);
            *complete |= event == Event::Complete;
            received = true;
        };
        source.read(&mut take).unwrap() || received
    }

    /// Installs the changes that the events have reported.
    pub fn follow(&mut self) {
        let lookup_chains = lookup_chains(&self.kernel, &self.rib);
        let done = match *self.fib_sync.lookup_chains() == lookup_chains {
            true => self.fib_sync.sync(&mut self.rib, &self.bench),
            false => Err(FibSyncError::LookupChains),
        };
        match done {
            Ok(followed) => self.followed = followed,
            Err(FibSyncError::LookupChains) => {
                (self.fib_sync, self.bench) = fib_sync(&self.kernel, &mut self.rib);
                self.filled += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Reads events until none has come for 40 ms. With `lists`, the kernel lists again what is in
    /// doubt.
    pub fn read_until_quiet(&mut self, lists: bool) {
        let (start, mut quiet) = (Instant::now(), Instant::now());
        while quiet.elapsed() < Duration::from_millis(40) {
            assert!(start.elapsed() < PATIENCE, "there is no end of it");
            if self.read() {
                quiet = Instant::now();
            } else {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        if self.rib.doubts() && lists {
            self.complete = false;
            self.source.resync();
            while !self.complete {
                assert!(start.elapsed() < PATIENCE, "waited in vain for a list");
                self.read();
            }
        }
        self.follow();
    }

    /// Reads events once and installs the changes. Says whether there were any.
    pub fn turn(&mut self) -> bool {
        let received = self.read();
        if received {
            self.follow();
        }
        received
    }

    /// Returns what the tables do with a packet.
    pub fn query(&self, packet: &Packet) -> Answer {
        let tables = self.bench.0.borrow();
        let next = self.look_up(&tables, packet);
        self.answer(&tables, next)
    }

    fn look_up(&self, tables: &Tables, packet: &Packet) -> NextHopId {
        let ingress = &self.fib_sync.lookup_chains().links[&index(&self.kernel, packet.iif)];
        let resolve = |view: usize| tables.resolve(VrfId(view as u16), packet.dst);
        if ingress.policy.is_empty() {
            return resolve(ingress.lookup_chain);
        }
        let family = if packet.dst.is_ipv4() { Family::V4 } else { Family::V6 };
        let lines = ingress.policy.iter().filter(|line| {
            line.family.is_none_or(|of| of == family)
                && line.src.is_none_or(|src| src.contains(&packet.src))
                && line.dst.is_none_or(|dst| dst.contains(&packet.dst))
                && line.mark.is_none_or(|(value, mask)| (packet.mark ^ value) & mask == 0)
        });
        let mut found = lines.map(|line| resolve(line.lookup_chain));
        found.find(|next| *next != NextHopId::NO_ROUTE).unwrap_or(NextHopId::NO_ROUTE)
    }

    fn answer(&self, tables: &Tables, next: NextHopId) -> Answer {
        if next == NextHopId::NO_ROUTE {
            return Answer::NoRoute;
        }
        if next.is_group() {
            let members = tables.routes.groups.members(next.0 & !NextHopId::GROUP);
            let members = members.iter().map(|member| self.answer(tables, member.next));
            let mut all = BTreeSet::new();
            for member in members {
                match member {
                    Answer::By(by) => all.extend(by),
                    // The group's flows take the kernel path, where the choice is the same.
                    _ => return Answer::Kernel,
                }
            }
            return Answer::By(all);
        }
        let record = tables.next_hop(next);
        let device = LINKS[usize::from(record.link.0).min(LINKS.len() - 1)].to_owned();
        match record.action {
            Action::Local => Answer::Local,
            Action::Drop(DropReason::Blackhole) => Answer::Blackhole,
            Action::Punt(PuntReason::Unreachable) => Answer::Unreachable,
            Action::Punt(PuntReason::Prohibit) => Answer::Prohibit,
            Action::Punt(_) => Answer::Kernel,
            Action::Forward | Action::Resolve => Answer::By([(device, record.neigh)].into()),
            Action::Glean => Answer::By([(device, None)].into()),
            other => panic!("leads to {other:?}"),
        }
    }
}

pub fn index(kernel: &Kernel, name: &str) -> Ifindex {
    *kernel.netdevs.iter().find(|(_, netdev)| netdev.name == name).unwrap().0
}

fn lookup_chains(kernel: &Kernel, rib: &Rib) -> LookupChains {
    LookupChains::of(kernel, LINKS.map(|name| index(kernel, name)), |family, table| {
        rib.has(table, family)
    })
}

fn fib_sync(kernel: &Kernel, rib: &mut Rib) -> (FibSync, Bench) {
    let lookup_chains = lookup_chains(kernel, rib);
    let mut tables = Tables::new();
    for _ in &lookup_chains.lookup_chains {
        tables.add_vrf().unwrap();
    }
    let links = LINKS.iter().enumerate().map(|(at, name)| {
        let (_, link) = tables.add_port([2, 0, 0, 0, 0, at as u8], VrfId(0), 1500).unwrap();
        assert_eq!(link, LinkId(at as u16));
        (index(kernel, name), EgressLink { link, v4: true, v6: true, is_layer3: false })
    });
    let links = links.collect();
    let egress_links = EgressLinks { links, kernel_groups4: false, kernel_groups6: false };
    let fib_sync = FibSync::build(rib, lookup_chains, egress_links, &mut tables).unwrap();
    (fib_sync, Bench(RefCell::new(tables)))
}
