//! All that is known of the kernel: what it has told, and what it was asked for.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tollway_dataplane::stages::filter::Filter;

use super::coverage::{
    self, Coverage, Facts, Firewall, Glance, PerFamily, Probes, RouteTally, Spread,
};
use super::event::Event;
use super::exceptions::Exceptions;
use super::kernel::{Family, Ifindex, Kernel, Netdev, RouteKind, Rule, RuleAction};
use super::own::Own;
use super::ports::Port;
use super::rib::{Ignoring, Rib};
use super::rules::Reading;
use super::seed;
use super::shape::{self, Habits, Shape};
use super::sysctl::Sysctls;
use super::take::Effect;
use super::views::Views;
use crate::model::ExpressMode;
use crate::ports::sys;

/// Sysctls are read so often, since the kernel does not tell of all of them ...
const SYSCTLS_EVERY: Duration = Duration::from_millis(80);
/// ... and what else it does not tell of is looked at, which costs less ...
const GLANCE_EVERY: Duration = Duration::from_millis(50);
/// ... but that takes no more than one part in so many of the time.
const LOOK_SHARE: u32 = 250;
/// All that hangs on devices is asked for so often.
const PROBES_EVERY: Duration = Duration::from_secs(1);
/// Asking other namespaces takes one part in so many of the time, if none of what matters changes.
const NAMESPACES_SHARE: u32 = 100;
/// A protocol of routes that the kernel makes itself (`RTPROT_KERNEL`).
const BY_KERNEL: u8 = 2;

/// What is known of the firewall's rules.
#[derive(Clone, Debug)]
pub(super) enum Rules {
    /// Nothing, and why.
    Unread(String),
    /// The rules, and why they can not be compiled, if so.
    Read(Arc<Reading>, Option<String>),
}

/// All that is known.
pub(super) struct Known {
    pub(super) ports: Vec<Port>,
    pub(super) kernel: Kernel,
    pub(super) rib: Rib,
    rules: Rules,
    /// What the rules mean for packets.
    firewall: Firewall,
    /// The largest packet that there is room for.
    pub(super) most_mtu: u32,
    own: Own,
    routes: RouteTally,
    /// How many events had been taken when routes were counted.
    tallied: u64,
    sysctls: Sysctls,
    probes: Probes,
    glance: Option<Glance>,
    habits: Habits,
    /// There were routes with several next hops when a shape was asked for last.
    groups: PerFamily<bool>,
    /// The seed of the kernel's hash could not be set.
    seed_refused: bool,
    express: (ExpressMode, u32),
    of_sysctls: Looks,
    of_glance: Looks,
    pub(super) exceptions: Exceptions,
    probes_at: Instant,
    /// When other namespaces are to be asked with the rest.
    namespaces_at: Instant,
    /// Something has changed, and what is asked for is of before.
    unasked: bool,
    /// Something has changed that shapes follow from.
    pub(super) stale: bool,
    /// A port's device has changed.
    linked: bool,
    /// A device has come, gone or another name.
    renamed: bool,
    /// Events taken.
    pub(super) changes: u64,
}

impl Known {
    pub(super) fn new(express: (ExpressMode, u32)) -> Self {
        let now = Instant::now();
        let rules = Rules::Unread("they have not been read yet".to_owned());
        Self {
            ports: Vec::new(),
            kernel: Kernel::default(),
            rib: Rib::new(),
            firewall: firewall(&rules),
            rules,
            most_mtu: u32::MAX,
            own: Own::default(),
            routes: RouteTally::default(),
            tallied: 0,
            sysctls: Sysctls::default(),
            probes: Probes::default(),
            glance: None,
            habits: Habits::default(),
            groups: PerFamily::default(),
            seed_refused: false,
            express,
            of_sysctls: Looks::new(SYSCTLS_EVERY),
            of_glance: Looks::new(GLANCE_EVERY),
            exceptions: Exceptions::open(),
            probes_at: now,
            namespaces_at: now,
            unasked: true,
            stale: true,
            linked: true,
            renamed: false,
            changes: 0,
        }
    }

    /// Takes what the kernel has told.
    pub(super) fn take(&mut self, event: Event) {
        let Some(event) = self.own.without(event) else { return };
        self.changes += 1;
        let habits = self.habits;
        self.renamed |= renames(&self.kernel, &event);
        let may_move = matches!(&event, Event::Link(index, netdev)
            if is_stacked(self.kernel.netdevs.get(index)) || is_stacked(netdev.as_deref()));
        let effect = self.kernel.take(&event);
        self.rib.take(&event);
        self.exceptions.take(&event);
        match &event {
            Event::Link(..) => {
                self.probe_again();
                self.of_sysctls.at = self.probes_at;
            }
            Event::Whole(_) => self.ask_again(),
            Event::Tc(_) => self.probe_again(),
            Event::Sysctl(..) => self.of_sysctls.at = Instant::now(),
            Event::Rule(..) => self.habits.rules = true,
            Event::Route(key, route, _) => {
                let by_hand = route.kind == RouteKind::Local && route.protocol != BY_KERNEL;
                self.habits.local_routes |= by_hand && key.family() == Family::V4;
            }
            _ => {}
        }
        let spreads = seed::spreads(&event, &self.kernel);
        for family in [Family::V4, Family::V6] {
            if *spreads.of(family) {
                *self.habits.groups.of_mut(family) = true;
                self.stale |= !*self.groups.of(family);
            }
        }
        if self.habits.groups != habits.groups {
            self.of_sysctls.at = Instant::now();
        }
        if matches!(event, Event::Whole(_)) {
            self.habits.rules |= has_custom_rules(&self.kernel.rules);
        }
        if let Event::Link(index, None) = &event {
            self.ports.iter_mut().for_each(|port| port.lose(*index));
        }
        self.linked |= match &event {
            Event::Link(index, netdev) => self.ports.iter().any(|port| {
                let named = netdev.as_ref().is_some_and(|netdev| netdev.name == port.name);
                named || port.device.is_none() || port.device == Some(*index)
            }),
            Event::Whole(_) => true,
            _ => false,
        };
        if may_move || self.linked {
            self.namespaces_at = self.probes_at;
        }
        self.stale |= effect == Effect::Topology || habits != self.habits;
    }

    /// Says if a device has come, gone or another name since this was asked last.
    pub(super) fn take_renamed(&mut self) -> bool {
        std::mem::take(&mut self.renamed)
    }

    /// Says if a port's device has changed since this was asked last.
    pub(super) fn take_linked(&mut self) -> bool {
        std::mem::take(&mut self.linked)
    }

    /// Notes that the rules can not be compiled; false where that is known, or there are none.
    pub(super) fn refuse_rules(&mut self, why: &str) -> bool {
        let Rules::Read(_, refused @ None) = &mut self.rules else { return false };
        tracing::warn!("{why}; what the rules are about is the kernel's");
        *refused = Some(why.to_owned());
        self.firewall = firewall(&self.rules);
        self.stale = true;
        true
    }

    /// What is known of the firewall's rules.
    pub(super) const fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Notes what is known of the firewall's rules from now on.
    pub(super) fn set_rules(&mut self, rules: Rules) {
        (self.firewall, self.rules) = (firewall(&rules), rules);
        self.stale = true;
    }

    /// Has the rules know the elements that a filter's sets have by now; what the rules mean stays the same.
    pub(super) fn take_live_sets(&mut self, filter: &Filter) {
        if let Rules::Read(reading, _) = &mut self.rules {
            Arc::make_mut(&mut Arc::make_mut(reading).rules).take_live_sets(filter);
        }
    }

    /// Has what shapes follow from made anew.
    pub(super) fn doubt(&mut self) {
        self.stale = true;
    }

    /// Has everything asked for anew.
    pub(super) fn ask_again(&mut self) {
        self.probe_again();
        (self.of_sysctls.at, self.namespaces_at) = (self.probes_at, self.probes_at);
    }

    /// Has what hangs on devices asked for anew.
    fn probe_again(&mut self) {
        self.probes_at = Instant::now();
        self.unasked = true;
    }

    /// When something is to be asked for.
    pub(super) fn due(&self) -> Instant {
        self.of_sysctls.at.min(self.probes_at).min(self.of_glance.at).min(self.exceptions.at)
    }

    /// Takes what has come of path MTUs that hold for forwarded packets, and asks for what is due of them.
    pub(super) fn hear_path_mtus(&mut self) {
        let netdevs = &self.kernel.netdevs;
        let vrfs = || {
            let vrfs = netdevs.iter().filter(|(_, netdev)| netdev.vrf_table.is_some());
            vrfs.map(|(index, _)| *index).collect()
        };
        if let Some(held) = self.exceptions.look(vrfs) {
            self.changes += 1;
            self.rib.hold(held);
        }
    }

    /// Asks for what is due; false where something has changed of which the kernel does not answer.
    pub(super) fn ask(&mut self) -> bool {
        let now = Instant::now();
        if self.of_sysctls.at <= now {
            let began = sys::thread_time();
            let mut sysctls = Sysctls::read(self.asked());
            let mut spread = Spread { groups: self.habits.groups, ..self.spread() };
            seed::settle(&mut sysctls, &mut spread);
            self.seed_refused = spread.seed_refused;
            self.of_sysctls.done(began);
            if sysctls != self.sysctls {
                self.sysctls = sysctls;
                self.stale = true;
            }
        }
        if self.of_glance.at <= now {
            let began = sys::thread_time();
            let glance = Some(Glance::take(self.probed(), &self.probes));
            self.of_glance.done(began);
            if glance != self.glance {
                self.glance = glance;
                self.probes_at = now;
            }
        }
        if self.probes_at <= now {
            self.probes_at = now + PROBES_EVERY;
            let elsewhere = (self.namespaces_at > now).then(|| self.probes.elsewhere.clone());
            let asks_all = elsewhere.is_none();
            match Probes::read(&self.kernel.netdevs, self.probed(), elsewhere) {
                Ok(probes) => {
                    self.stale |= probes != self.probes;
                    (self.probes, self.unasked) = (probes, false);
                    if asks_all {
                        self.namespaces_at = now + now.elapsed() * NAMESPACES_SHARE;
                    }
                }
                Err(error) => tracing::warn!("the kernel can not be asked: {error}; asking again"),
            }
        }
        !self.unasked
    }

    const fn spread(&self) -> Spread {
        Spread { groups: self.groups, seed_refused: self.seed_refused }
    }

    /// The devices whose sysctls count: those of links and VRFs, and those that are up without a carrier,
    /// whose routes may not count.
    fn asked(&self) -> impl Iterator<Item = &str> {
        const UP: u32 = 1;
        const LOWER_UP: u32 = 1 << 16;
        let probed = self.probed();
        self.kernel.netdevs.iter().filter_map(move |(index, netdev)| {
            let counts = probed.contains(index)
                || netdev.vrf_table.is_some()
                || netdev.flags & (UP | LOWER_UP) == UP;
            counts.then_some(netdev.name.as_str())
        })
    }

    /// The devices that are asked about: those of ports, and VLAN devices.
    fn probed(&self) -> BTreeSet<Ifindex> {
        let vlans = self.kernel.netdevs.iter().filter(|(_, netdev)| netdev.vlan.is_some());
        let ports = self.ports.iter().filter_map(|port| port.device);
        ports.chain(vlans.map(|(index, _)| *index)).collect()
    }

    /// Counts the routes, for what is said of roads; takes some 100 ms for a million.
    pub(super) fn tally(&mut self) {
        if self.tallied == self.changes {
            return;
        }
        let tally = RouteTally::of(&self.rib, &self.kernel.nexthops);
        self.tallied = self.changes;
        self.stale |= tally != self.routes;
        self.routes = tally;
    }

    /// The shape that follows, and which traffic takes which road, if anything has changed since this
    /// was asked last.
    pub(super) fn shape(&mut self) -> Option<(Shape, Coverage)> {
        if !std::mem::take(&mut self.stale) {
            return None;
        }
        self.ports.iter_mut().for_each(|port| port.find(&self.kernel));
        self.rib.set_ignoring(self.ignoring());
        if self.habits.groups != PerFamily::default() {
            self.groups = seed::groups(&self.rib);
        }
        let ports: Vec<Ifindex> = self.ports.iter().filter_map(|port| port.device).collect();
        let rooms = self.ports.iter().filter_map(|port| Some((port.device?, port.room?))).collect();
        let coverage = Coverage::of(&Facts {
            ports: &ports,
            kernel: &self.kernel,
            sysctls: &self.sysctls,
            probes: &self.probes,
            routes: &self.routes,
            firewall: &self.firewall,
            most_mtu: self.most_mtu,
            rooms: &rooms,
            spread: self.spread(),
        });
        let links = coverage.links.iter().map(|link| link.ifindex);
        let views = Views::of(&self.kernel, links, |family, table| self.rib.has(table, family));
        let shape = Shape::of(&shape::Facts {
            ports: &self.ports,
            kernel: &self.kernel,
            sysctls: &self.sysctls,
            coverage: &coverage,
            views: &views,
            habits: self.habits,
            express: self.express,
        });
        Some((shape, coverage))
    }

    /// Devices whose routes do not count while they have no carrier.
    fn ignoring(&self) -> Ignoring {
        let mut ignoring = Ignoring::default();
        for (index, netdev) in &self.kernel.netdevs {
            let sysctls = self.sysctls.link(&netdev.name);
            if sysctls.ignore_linkdown4 {
                ignoring.v4.insert(*index);
            }
            if sysctls.ignore_linkdown6 {
                ignoring.v6.insert(*index);
            }
        }
        ignoring
    }
}

/// Looks at something that come again and again.
#[derive(Debug)]
struct Looks {
    every: Duration,
    at: Instant,
    /// What the last one has taken of a processor.
    took: Duration,
}

impl Looks {
    fn new(every: Duration) -> Self {
        Self { every, at: Instant::now(), took: Duration::ZERO }
    }

    /// One is over, before which this thread had taken so much of processors.
    fn done(&mut self, began: Duration) {
        let took = sys::thread_time().saturating_sub(began);
        let before = std::mem::replace(&mut self.took, took);
        // Interrupts meanwhile are counted as well: one that took long once is no reason.
        self.at = Instant::now() + self.every.max(took.min(before) * LOOK_SHARE);
    }
}

/// What the rules mean for packets.
fn firewall(rules: &Rules) -> Firewall {
    let (reading, refused) = match rules {
        Rules::Unread(why) => return Firewall::Unread(why.clone()),
        Rules::Read(reading, refused) => (&**reading, refused),
    };
    match (Firewall::from(reading), refused) {
        (Firewall::Read(rules), Some(why)) => {
            let whole = PerFamily::each(|_| vec![why.clone()]);
            Firewall::Read(coverage::Rules { whole, compiled: 0, ..rules })
        }
        (firewall, _) => firewall,
    }
}

/// Whether an event is of a device that comes, goes, or gets another name.
fn renames(kernel: &Kernel, event: &Event) -> bool {
    match event {
        Event::Link(index, netdev) => {
            let had = kernel.netdevs.get(index).map(|had| &had.name);
            had != netdev.as_ref().map(|netdev| &netdev.name)
        }
        Event::Whole(whole) => {
            let names = |kernel: &Kernel| {
                kernel
                    .netdevs
                    .iter()
                    .map(|(index, had)| (*index, had.name.clone()))
                    .collect::<Vec<_>>()
            };
            names(kernel) != names(whole)
        }
        _ => false,
    }
}

/// Whether a device may take frames of another, and not as the end of a cable.
fn is_stacked(netdev: Option<&Netdev>) -> bool {
    netdev.is_some_and(|netdev| netdev.lower.is_some() && netdev.kind.as_deref() != Some("veth"))
}

/// Whether there are other IPv4 rules than the first three.
fn has_custom_rules(rules: &[Rule]) -> bool {
    let first = [(0, 255), (32766, 254), (32767, 253)];
    let is_plain = |rule: &Rule| {
        let selects = rule.src.is_some() || rule.dst.is_some() || rule.iif.is_some();
        !selects && rule.mark.is_none() && rule.odd.is_none()
    };
    let of_v4 = rules.iter().filter(|rule| rule.family == Family::V4);
    of_v4.clone().count() != first.len()
        || !of_v4.zip(first).all(|(rule, (priority, table))| {
            is_plain(rule) && rule.priority == priority && rule.action == RuleAction::Table(table)
        })
}
