//! The known state of the kernel: from its notifications and from queries.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tollway_dataplane::stages::filter::Filter;

use super::effect::Effect;
use super::event::Event;
use super::exceptions::Exceptions;
use super::kernel::{Family, Ifindex, Kernel, Netdev, RouteKind, Rule, RuleAction};
use super::lookup_chains::LookupChains;
use super::offload::{
    self, Facts, Firewall, Offload, PerFamily, Probes, QuickPoll, RouteTally, Spread,
};
use super::own_devices::OwnDevices;
use super::plan::{self, Plan, StickyFlags};
use super::ports::Port;
use super::rib::{Ignoring, Rib};
use super::seed;
use super::sysctl::Sysctls;
use tollway_linux::kept_files::KeptFiles;
use tollway_linux::pace::{self, POLL};
use tollway_linux::sys;
use tollway_model::XdpPathMode;
use tollway_rules::Reading;

/// Each of the two polls, of sysctls and of other state, takes at most `1 / POLL_SHARE` of the time: at 80 ms, 640 us.
const POLL_SHARE: u32 = 125;
/// Everything attached to devices is queried this often.
const PROBES_EVERY: Duration = POLL.saturating_mul(12);
/// Queries of other namespaces take `1 / NAMESPACES_SHARE` of the time, unless something relevant
/// changes.
const NAMESPACES_SHARE: u32 = 100;
/// The protocol of routes that the kernel adds by itself (`RTPROT_KERNEL`).
const BY_KERNEL: u8 = 2;

/// What is known of the firewall's rules.
#[derive(Clone, Debug)]
pub(super) enum Rules {
    /// They are unknown, for this reason.
    Unread(String),
    /// The rules, and why they cannot be compiled, if so.
    Read(Arc<Reading>, Option<String>),
}

/// The known state of the kernel.
pub(super) struct KernelState {
    pub(super) ports: Vec<Port>,
    pub(super) kernel: Kernel,
    pub(super) rib: Rib,
    rules: Rules,
    /// The effect of the rules on packets.
    firewall: Firewall,
    /// The largest packet that a buffer holds, in bytes.
    pub(super) most_mtu: u32,
    own_devices: OwnDevices,
    routes: RouteTally,
    /// The number of events received when the routes were last counted.
    tallied: u64,
    sysctls: Sysctls,
    sysctl_files: KeptFiles,
    probes: Probes,
    quick_poll: Option<QuickPoll>,
    sticky_flags: StickyFlags,
    /// Whether the last plan had routes with several next hops.
    groups: PerFamily<bool>,
    /// Setting the seed of the kernel's hash failed.
    seed_refused: bool,
    xdp_path: (XdpPathMode, u32),
    sysctl_schedule: PollSchedule,
    quick_poll_schedule: PollSchedule,
    pub(super) exceptions: Exceptions,
    probes_at: Instant,
    /// When to query other namespaces together with the rest.
    namespaces_at: Instant,
    /// Whether something has changed since the last query.
    needs_query: bool,
    /// Whether something has changed that the plan depends on.
    pub(super) stale: bool,
    /// Whether a port's device has changed.
    linked: bool,
    /// Whether a device has come, gone or got another name.
    renamed: bool,
    /// The number of events received.
    pub(super) changes: u64,
}

impl KernelState {
    pub(super) fn new(xdp_path: (XdpPathMode, u32)) -> Self {
        let now = Instant::now();
        let rules = Rules::Unread("they have not been read yet".to_owned());
        Self {
            ports: Vec::new(),
            kernel: Kernel::default(),
            rib: Rib::new(),
            firewall: firewall(&rules),
            rules,
            most_mtu: u32::MAX,
            own_devices: OwnDevices::default(),
            routes: RouteTally::default(),
            tallied: 0,
            sysctls: Sysctls::default(),
            sysctl_files: KeptFiles::default(),
            probes: Probes::default(),
            quick_poll: None,
            sticky_flags: StickyFlags::default(),
            groups: PerFamily::default(),
            seed_refused: false,
            xdp_path,
            sysctl_schedule: PollSchedule::begin(),
            quick_poll_schedule: PollSchedule::begin(),
            exceptions: Exceptions::open(),
            probes_at: now,
            namespaces_at: now,
            needs_query: true,
            stale: true,
            linked: true,
            renamed: false,
            changes: 0,
        }
    }

    /// Receives a notification of the kernel, and applies it.
    pub(super) fn receive(&mut self, event: Event) {
        let Some(event) = self.own_devices.without(event) else { return };
        self.changes += 1;
        let sticky_flags = self.sticky_flags;
        self.renamed |= renames(&self.kernel, &event);
        let may_move = matches!(&event, Event::Link(index, netdev)
            if is_stacked(self.kernel.netdevs.get(index)) || is_stacked(netdev.as_deref()));
        let effect = self.kernel.apply(&event);
        self.rib.apply(&event);
        self.exceptions.on_event(&event);
        match &event {
            Event::Link(..) => {
                self.probe_again();
                self.sysctl_schedule.at = self.probes_at;
            }
            Event::Whole(_) => self.query_again(),
            Event::Tc(_) => self.probe_again(),
            Event::Sysctl(..) => self.sysctl_schedule.at = Instant::now(),
            Event::Rule(..) => self.sticky_flags.rules = true,
            Event::Route(key, route, _) => {
                let by_hand = route.kind == RouteKind::Local && route.protocol != BY_KERNEL;
                self.sticky_flags.local_routes |= by_hand && key.family() == Family::V4;
            }
            _ => {}
        }
        let spreads = seed::adds_multipath(&event, &self.kernel);
        for family in [Family::V4, Family::V6] {
            if *spreads.of(family) {
                *self.sticky_flags.groups.of_mut(family) = true;
                self.stale |= !*self.groups.of(family);
            }
        }
        if self.sticky_flags.groups != sticky_flags.groups {
            self.sysctl_schedule.at = Instant::now();
        }
        if matches!(event, Event::Whole(_)) {
            self.sticky_flags.rules |= has_custom_rules(&self.kernel.rules);
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
        self.stale |= effect == Effect::Topology || sticky_flags != self.sticky_flags;
    }

    /// Returns whether a device has come, gone or got another name since the last call.
    pub(super) fn take_renamed(&mut self) -> bool {
        std::mem::take(&mut self.renamed)
    }

    /// Returns whether a port's device has changed since the last call.
    pub(super) fn take_linked(&mut self) -> bool {
        std::mem::take(&mut self.linked)
    }

    /// Records that the rules cannot be compiled; false if that is already known, or there are no rules.
    pub(super) fn refuse_rules(&mut self, why: &str) -> bool {
        let Rules::Read(_, refused @ None) = &mut self.rules else { return false };
        tracing::warn!("{why}; packets that the rules concern take the kernel path");
        *refused = Some(why.to_owned());
        self.firewall = firewall(&self.rules);
        self.stale = true;
        true
    }

    /// What is known of the firewall's rules.
    pub(super) const fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Replaces what is known of the firewall's rules.
    pub(super) fn set_rules(&mut self, rules: Rules) {
        (self.firewall, self.rules) = (firewall(&rules), rules);
        self.stale = true;
    }

    /// Gives the rules' sets the elements that a filter's sets have now; the rules' effect stays the same.
    pub(super) fn take_live_sets(&mut self, filter: &Filter) {
        if let Rules::Read(reading, _) = &mut self.rules {
            let reading = Arc::make_mut(reading);
            let is_one = Arc::ptr_eq(&reading.rules, &reading.connections);
            Arc::make_mut(&mut reading.rules).take_live_sets(filter);
            if is_one {
                reading.connections = Arc::clone(&reading.rules);
            } else {
                Arc::make_mut(&mut reading.connections).take_live_sets(filter);
            }
        }
    }

    /// Requests a rebuild of the plan.
    pub(super) fn doubt(&mut self) {
        self.stale = true;
    }

    /// Requests that everything be queried again.
    pub(super) fn query_again(&mut self) {
        self.probe_again();
        (self.sysctl_schedule.at, self.namespaces_at) = (self.probes_at, self.probes_at);
    }

    /// Requests that everything attached to devices be queried again.
    fn probe_again(&mut self) {
        self.probes_at = Instant::now();
        self.needs_query = true;
    }

    /// When the next query is due.
    pub(super) fn due(&self) -> Instant {
        self.sysctl_schedule
            .at
            .min(self.probes_at)
            .min(self.quick_poll_schedule.at)
            .min(self.exceptions.at)
    }

    /// Processes messages about path MTUs that hold for forwarded packets, and sends the queries that are due.
    pub(super) fn update_path_mtus(&mut self) {
        let netdevs = &self.kernel.netdevs;
        let vrfs = || {
            let vrfs = netdevs.iter().filter(|(_, netdev)| netdev.vrf_table.is_some());
            vrfs.map(|(index, _)| *index).collect()
        };
        if let Some(dests) = self.exceptions.look(vrfs) {
            self.changes += 1;
            self.rib.set_kernel_path_dests(dests);
        }
    }

    /// Makes the queries that are due; false if something has changed and the kernel does not answer.
    pub(super) fn query(&mut self) -> bool {
        let now = Instant::now();
        if self.sysctl_schedule.at <= now {
            let began = sys::thread_time();
            let mut files = std::mem::take(&mut self.sysctl_files);
            let mut sysctls = Sysctls::read(&mut files, self.sysctl_devices());
            self.sysctl_files = files;
            let mut spread = Spread { groups: self.sticky_flags.groups, ..self.spread() };
            seed::replace_secret_seed(&mut sysctls, &mut spread);
            self.seed_refused = spread.seed_refused;
            self.sysctl_schedule.done(began);
            if sysctls != self.sysctls {
                self.sysctls = sysctls;
                self.stale = true;
            }
        }
        if self.quick_poll_schedule.at <= now {
            let began = sys::thread_time();
            let quick_poll = Some(QuickPoll::query(self.probed(), &self.probes));
            self.quick_poll_schedule.done(began);
            if quick_poll != self.quick_poll {
                self.quick_poll = quick_poll;
                self.probes_at = now;
            }
        }
        if self.probes_at <= now {
            self.probes_at = pace::next(PROBES_EVERY);
            let foreign_uppers =
                (self.namespaces_at > now).then(|| self.probes.foreign_uppers.clone());
            let queries_all = foreign_uppers.is_none();
            match Probes::read(&self.kernel.netdevs, self.probed(), foreign_uppers) {
                Ok(probes) => {
                    self.stale |= probes != self.probes;
                    (self.probes, self.needs_query) = (probes, false);
                    if queries_all {
                        self.namespaces_at = now + now.elapsed() * NAMESPACES_SHARE;
                    }
                }
                Err(error) => tracing::warn!("the kernel cannot be queried: {error}; trying again"),
            }
        }
        !self.needs_query
    }

    const fn spread(&self) -> Spread {
        Spread { groups: self.groups, seed_refused: self.seed_refused }
    }

    /// The devices whose sysctls matter: those of links and VRFs, and those that are up without a carrier,
    /// because the kernel may ignore their routes.
    fn sysctl_devices(&self) -> impl Iterator<Item = &str> {
        let probed = self.probed();
        self.kernel.netdevs.iter().filter_map(move |(index, netdev)| {
            has_relevant_sysctls(*index, netdev, &probed).then_some(netdev.name.as_str())
        })
    }

    /// Says whether the sysctls of a device matter, or those of the namespace for `None`.
    pub(super) fn reads_sysctls_of(&self, device: Option<Ifindex>) -> bool {
        device.is_none_or(|index| {
            let netdev = self.kernel.netdevs.get(&index);
            netdev.is_some_and(|netdev| has_relevant_sysctls(index, netdev, &self.probed()))
        })
    }

    /// The devices to probe: those of ports, their bridges, and VLAN devices.
    fn probed(&self) -> BTreeSet<Ifindex> {
        let vlans = self.kernel.netdevs.iter().filter(|(_, netdev)| netdev.vlan.is_some());
        let ports = self.ports.iter().filter_map(|port| port.device);
        let bridges = ports.clone().filter_map(|device| Some(self.kernel.bridge_of(device)?.0));
        ports.chain(bridges).chain(vlans.map(|(index, _)| *index)).collect()
    }

    /// Counts the routes for the offload report; takes some 100 ms for a million.
    pub(super) fn tally(&mut self) {
        if self.tallied == self.changes {
            return;
        }
        let tally = RouteTally::of(&self.rib, &self.kernel.nexthops);
        self.tallied = self.changes;
        self.stale |= tally != self.routes;
        self.routes = tally;
    }

    /// The plan and the offload, if anything has changed since the last call.
    pub(super) fn plan(&mut self) -> Option<(Plan, Offload)> {
        if !std::mem::take(&mut self.stale) {
            return None;
        }
        self.ports.iter_mut().for_each(|port| port.find(&self.kernel));
        self.rib.set_ignoring(self.ignoring());
        if self.sticky_flags.groups != PerFamily::default() {
            self.groups = seed::multipath_families(&self.rib);
        }
        let ports: Vec<_> =
            self.ports.iter().filter_map(|port| Some((port.device?, port.choice.engine))).collect();
        let rooms = self.ports.iter().filter_map(|port| Some((port.device?, port.room?))).collect();
        let offload = Offload::of(&Facts {
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
        let links = offload.links.iter().map(|link| link.ifindex);
        let lookup_chains =
            LookupChains::of(&self.kernel, links, |family, table| self.rib.has(table, family));
        let plan = Plan::of(&plan::Facts {
            ports: &self.ports,
            kernel: &self.kernel,
            sysctls: &self.sysctls,
            offload: &offload,
            lookup_chains: &lookup_chains,
            sticky_flags: self.sticky_flags,
            xdp_path: self.xdp_path,
        });
        Some((plan, offload))
    }

    /// Devices whose routes the kernel ignores while they have no carrier.
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

/// Says whether the sysctls of a device matter; see [`KernelState::sysctl_devices`].
fn has_relevant_sysctls(index: Ifindex, netdev: &Netdev, probed: &BTreeSet<Ifindex>) -> bool {
    const UP: u32 = 1;
    const LOWER_UP: u32 = 1 << 16;
    let has_no_carrier = netdev.flags & (UP | LOWER_UP) == UP;
    probed.contains(&index) || netdev.vrf_table.is_some() || has_no_carrier
}

/// The schedule of a repeated poll.
#[derive(Debug)]
struct PollSchedule {
    at: Instant,
    /// The processor time that the last poll took.
    took: Duration,
}

impl PollSchedule {
    fn begin() -> Self {
        Self { at: Instant::now(), took: Duration::ZERO }
    }

    /// Schedules the next poll; `began` is this thread's processor time before the last one.
    fn done(&mut self, began: Duration) {
        let took = sys::thread_time().saturating_sub(began);
        let before = std::mem::replace(&mut self.took, took);
        // The time includes interrupts, so a single long poll is no reason to slow down.
        let share = took.min(before) * POLL_SHARE;
        self.at = if share > POLL { Instant::now() + share } else { pace::next(POLL) };
    }
}

/// The effect of the rules on packets.
fn firewall(rules: &Rules) -> Firewall {
    let (reading, refused) = match rules {
        Rules::Unread(why) => return Firewall::Unread(why.clone()),
        Rules::Read(reading, refused) => (&**reading, refused),
    };
    match (Firewall::from(reading), refused) {
        (Firewall::Read(rules), Some(why)) => {
            let whole = PerFamily::each(|_| vec![why.clone()]);
            Firewall::Read(offload::Rules { whole, compiled: 0, ..rules })
        }
        (firewall, _) => firewall,
    }
}

/// Whether an event says that a device comes, goes, or gets another name.
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

/// Whether a device may receive another device's frames, except as the end of a cable.
fn is_stacked(netdev: Option<&Netdev>) -> bool {
    netdev.is_some_and(|netdev| netdev.lower.is_some() && netdev.kind.as_deref() != Some("veth"))
}

/// Whether there are IPv4 rules other than the first three, the kernel's defaults.
fn has_custom_rules(rules: &[Rule]) -> bool {
    let first = [(0, 255), (32766, 254), (32767, 253)];
    let is_plain = |rule: &Rule| {
        let selects = rule.src.is_some() || rule.dst.is_some() || rule.iif.is_some();
        !selects && rule.mark.is_none() && rule.unsupported.is_none()
    };
    let of_v4 = rules.iter().filter(|rule| rule.family == Family::V4);
    of_v4.clone().count() != first.len()
        || !of_v4.zip(first).all(|(rule, (priority, table))| {
            is_plain(rule) && rule.priority == priority && rule.action == RuleAction::Table(table)
        })
}
