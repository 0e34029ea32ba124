//! The differences that an audit finds.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::time::{Duration, Instant};

use ipnet::IpNet;

use super::object::{MOST, Object};
use crate::event::Event;
use crate::kernel::{
    BridgePort, BridgeSettings, Family, Ifindex, Kernel, Netdev, RouteKey, TableId,
};

/// How long an audit waits for a notification that explains a difference: a list may be ahead of it.
const GRACE: Duration = Duration::from_secs(1);
/// The most differences that are logged one by one.
const MOST_LOGGED: usize = 20;

/// An object that can change, as an audit distinguishes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum AuditedObject {
    Small(Object),
    /// The routes to a destination of a table.
    Routes(TableId, IpNet),
}

/// The findings of an audit so far.
#[derive(Debug, Default)]
pub(super) struct Findings {
    suspects: BTreeSet<AuditedObject>,
    /// Objects with a notification since the audit began: the list may have been ahead of it.
    notified: HashSet<AuditedObject>,
    /// Whether an audit is running.
    open: bool,
    /// When suspects become certain.
    due: Option<Instant>,
}

impl Findings {
    /// Begins an audit.
    pub(super) fn open(&mut self) {
        self.forget();
        self.open = true;
    }

    /// Receives a notification of a change.
    pub(super) fn receive(&mut self, event: &Event) {
        if self.open
            && let Some(object) = Object::of(event)
        {
            let object = AuditedObject::of(object);
            self.suspects.remove(&object);
            self.notified.insert(object);
        }
    }

    /// Records that the known routes to a destination were wrong.
    pub(super) fn suspect_routes(&mut self, table: TableId, dst: IpNet) {
        self.suspect(AuditedObject::Routes(table, dst));
    }

    fn suspect(&mut self, object: AuditedObject) {
        if self.open && !self.notified.contains(&object) {
            self.suspects.insert(object);
        }
    }

    /// Says whether there were too many notifications.
    pub(super) fn is_full(&self) -> bool {
        self.notified.len() > MOST
    }

    /// Compares everything apart from routes.
    pub(super) fn compare(&mut self, known: &Kernel, fresh: &Kernel) {
        let netdevs = |kernel: &Kernel| -> BTreeMap<_, _> {
            kernel.netdevs.iter().map(|(index, netdev)| (*index, notified(netdev))).collect()
        };
        self.compare_maps(netdevs(known).iter(), netdevs(fresh).iter(), |id| Object::Link(*id));
        let ports = [notified_ports(known), notified_ports(fresh)];
        self.compare_maps(ports[0].iter(), ports[1].iter(), |id| Object::BridgePort(*id));
        self.compare_maps(known.nexthops.iter(), fresh.nexthops.iter(), |id| Object::Nexthop(*id));
        let addresses = |kernel: &Kernel| -> BTreeMap<_, _> {
            let all = kernel.addresses.iter();
            all.map(|own| ((own.ifindex, own.address, own.peer), *own)).collect()
        };
        self.compare_maps(
            addresses(known).iter(),
            addresses(fresh).iter(),
            |(index, address, peer)| Object::Address(*index, *address, *peer),
        );
        for family in [Family::V4, Family::V6] {
            let rules = |kernel: &Kernel| -> Vec<_> {
                kernel.rules.iter().filter(|rule| rule.family == family).cloned().collect()
            };
            if rules(known) != rules(fresh) {
                self.suspect(AuditedObject::Small(Object::Rules(family)));
            }
        }
    }

    fn compare_maps<'a, K: Ord + 'a, V: PartialEq + 'a>(
        &mut self,
        known: impl Iterator<Item = (&'a K, &'a V)>,
        fresh: impl Iterator<Item = (&'a K, &'a V)>,
        object: impl Fn(&K) -> Object,
    ) {
        let mut known: BTreeMap<_, _> = known.collect();
        for (key, value) in fresh {
            if known.remove(key) != Some(value) {
                self.suspect(AuditedObject::Small(object(key)));
            }
        }
        known.into_keys().for_each(|key| self.suspect(AuditedObject::Small(object(key))));
    }

    /// Concludes the audit's lists; for a moment, a notification may still explain a difference.
    pub(super) fn close(&mut self, now: Instant) {
        self.due = Some(now + GRACE);
    }

    pub(super) const fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Drops all findings.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// The names of the suspects that are logged one by one.
    pub(super) fn names(&self, known: &Kernel) -> Vec<String> {
        let first = self.suspects.iter().take(MOST_LOGGED);
        first.map(|object| Named { object, known }.to_string()).collect()
    }

    /// Logs the differences; returns their number.
    pub(super) fn log(&mut self, known: &Kernel) -> usize {
        for name in self.names(known) {
            tracing::error!("an audit found and corrected a difference from the kernel: {name}");
        }
        let count = self.suspects.len();
        if count > MOST_LOGGED {
            tracing::error!("the audit corrected {} more differences", count - MOST_LOGGED);
        }
        self.forget();
        count
    }
}

/// The properties of a device that change only with a notification. There is none of programs attached by a
/// link of bpf(2), such as Tollway's own, nor of the settings of a bridge that is down
/// (`netdev_state_change`). The notification that the bridge is up has them.
fn notified(netdev: &Netdev) -> Netdev {
    let bridge = netdev.bridge.filter(|_| netdev.is_up()).map(BridgeSettings::notified);
    Netdev { xdp: None, bridge, ..netdev.clone() }
}

/// The ports of bridges. As with a bridge, the kernel does not notify of all settings of a port that is down,
/// so these are left out.
fn notified_ports(kernel: &Kernel) -> BTreeMap<Ifindex, Option<BridgePort>> {
    let is_up = |index| kernel.netdevs.get(index).is_some_and(Netdev::is_up);
    let ports = kernel.bridge_ports.iter();
    ports.map(|(index, port)| (*index, Some(*port).filter(|_| is_up(index)))).collect()
}

impl AuditedObject {
    const fn of(object: Object) -> Self {
        match object {
            Object::Route(RouteKey { table, dst, .. }) => Self::Routes(table, dst),
            small => Self::Small(small),
        }
    }
}

/// The name of a suspected object, for the log.
struct Named<'a> {
    object: &'a AuditedObject,
    known: &'a Kernel,
}

impl Named<'_> {
    fn device(&self, index: Ifindex) -> String {
        let netdev = self.known.netdevs.get(&index);
        netdev.map_or_else(|| format!("number {index}"), |netdev| netdev.name.clone())
    }
}

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (table, dst) = match self.object {
            AuditedObject::Small(Object::Link(index)) => {
                return write!(f, "device {}", self.device(*index));
            }
            AuditedObject::Small(Object::BridgePort(index)) => {
                return write!(f, "bridge port {}", self.device(*index));
            }
            AuditedObject::Small(Object::Address(index, address, _)) => {
                return write!(f, "address {address} of device {}", self.device(*index));
            }
            AuditedObject::Small(Object::Nexthop(id)) => return write!(f, "next-hop object {id}"),
            AuditedObject::Small(Object::Rules(Family::V4)) => {
                return write!(f, "the list of IPv4 rules");
            }
            AuditedObject::Small(Object::Rules(Family::V6)) => {
                return write!(f, "the list of IPv6 rules");
            }
            AuditedObject::Small(Object::Route(RouteKey { table, dst, .. }))
            | AuditedObject::Routes(table, dst) => (table, dst),
        };
        match table {
            254 => write!(f, "route {dst} of table main"),
            255 => write!(f, "route {dst} of table local"),
            number => write!(f, "route {dst} of table {number}"),
        }
    }
}
