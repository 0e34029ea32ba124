//! The kernel's devices and neighbours, and the changes for the tables.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;

use tollway_dataplane::id::LinkId;
use tollway_dataplane::next_hops::HEADER_ROOM;
use tollway_dataplane::router::Control;
use tollway_dataplane::tables::Tables;

use super::event::{Event, Ifindex, Key, NeighEntry, Netdev};
use super::watch::{Bound, Watch};
use crate::ports::Facts;
use tollway_model::PortIndex;
use tollway_net::Mac;

/// A change for the tables: a neighbour's address; none removes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) link: LinkId,
    pub(super) address: IpAddr,
    pub(super) mac: Option<[u8; 6]>,
}

/// Devices and neighbours, and which of them belong to the router's links.
#[derive(Debug, Default)]
pub(super) struct State {
    watch: Watch,
    bound: Bound,
    netdevs: BTreeMap<Ifindex, Netdev>,
    neighs: HashMap<Key, NeighEntry>,
    facts: HashMap<PortIndex, Facts>,
    /// Changes for the tables.
    pub(super) changes: Vec<Change>,
    /// Ports whose devices have other properties than before.
    pub(super) moved: Vec<(PortIndex, Facts)>,
    /// Neighbours that have just become stale.
    pub(super) aged: Vec<Key>,
}

/// The state before a switch to other tables.
#[derive(Debug)]
pub(super) struct BeforeSwitch {
    watch: Watch,
    /// The content of the tables.
    contents: Vec<Change>,
    /// What the tables could not take yet.
    changes: Vec<Change>,
}

impl State {
    pub(super) fn new(watch: Watch) -> Self {
        Self { watch, ..Self::default() }
    }

    /// Applies an event.
    pub(super) fn apply(&mut self, event: Event) {
        match event {
            Event::Neigh(key, known) => self.apply_neigh(key, known),
            Event::Link(index, Some(netdev)) => {
                if self.netdevs.get(&index) != Some(&netdev) {
                    self.netdevs.insert(index, netdev);
                    self.bind();
                }
            }
            Event::Link(index, None) => {
                if self.netdevs.remove(&index).is_some() {
                    self.bind();
                    self.neighs.retain(|key, _| key.0 != index);
                }
            }
        }
    }

    fn apply_neigh(&mut self, key: Key, known: Option<NeighEntry>) {
        let before = match known {
            Some(known) => self.neighs.insert(key, known),
            None => self.neighs.remove(&key),
        };
        let is_stale = |known: Option<NeighEntry>| known.is_some_and(|known| known.stale);
        if is_stale(known) && !is_stale(before) && self.bound.links.contains_key(&key.0) {
            self.aged.push(key);
        }
        let mac = known.map(|known| known.mac);
        if let Some(link) = self.bound.links.get(&key.0)
            && mac != before.map(|before| before.mac)
        {
            self.changes.push(Change { link: *link, address: key.1, mac });
        }
    }

    /// Assigns devices to all links again, and adds changes for the neighbours of links whose device
    /// changed.
    fn bind(&mut self) {
        let bound = self.watch.bind(&self.netdevs, &self.bound.ports);
        let before = std::mem::replace(&mut self.bound, bound);
        let lost = self.neighbours_beyond(&before, &self.bound);
        let lost = lost.into_iter().map(|change| Change { mac: None, ..change });
        let found = self.neighbours_beyond(&self.bound, &before);
        self.changes.extend(lost.chain(found));
        for (port, index) in &self.bound.ports {
            let Some(netdev) = self.netdevs.get(index) else { continue };
            let mtu = u16::try_from(netdev.mtu).unwrap_or(u16::MAX);
            let facts = Facts { mac: netdev.mac.map(Mac), mtu: Some(mtu) };
            if self.facts.insert(*port, facts) != Some(facts) {
                self.moved.push((*port, facts));
            }
        }
    }

    /// The neighbours of links whose device differs from that in `other`.
    fn neighbours_beyond(&self, bound: &Bound, other: &Bound) -> Vec<Change> {
        let differs = |(index, link): &(&Ifindex, &LinkId)| other.links.get(index) != Some(link);
        let links = bound.links.iter().filter(differs);
        let neighs = links.flat_map(|(index, link)| {
            let here = self.neighs.iter().filter(|(key, _)| key.0 == *index);
            here.map(|(key, known)| Change { link: *link, address: key.1, mac: Some(known.mac) })
        });
        neighs.collect()
    }

    /// Every neighbour of the router's links.
    fn all(&self) -> impl Iterator<Item = Change> {
        self.neighs.iter().filter_map(|((index, address), known)| {
            let link = *self.bound.links.get(index)?;
            Some(Change { link, address: *address, mac: Some(known.mac) })
        })
    }

    /// Switches to other links, and adds their neighbours to new tables. Returns how many could not be added yet, and
    /// the earlier state.
    pub(super) fn rebind(
        &mut self,
        watch: Watch,
        tables: &mut Tables,
        is_static: impl Fn(LinkId, IpAddr) -> bool,
    ) -> (usize, BeforeSwitch) {
        let contents = self.all().collect();
        let watch = std::mem::replace(&mut self.watch, watch);
        let changes = std::mem::take(&mut self.changes);
        let before = BeforeSwitch { watch, contents, changes };
        self.bound = self.watch.bind(&self.netdevs, &self.bound.ports);
        let wanted = self.all().filter(|change| !is_static(change.link, change.address));
        // They are tried again.
        self.changes = wanted.filter(|change| !change.apply(tables)).collect();
        (self.changes.len(), before)
    }

    /// Switches back to the earlier links, whose tables have stayed active, with changes for them since then.
    pub(super) fn go_back(&mut self, before: BeforeSwitch) {
        self.watch = before.watch;
        self.bound = self.watch.bind(&self.netdevs, &self.bound.ports);
        let now: HashSet<_> = self.all().map(|change| (change.link, change.address)).collect();
        let gone =
            before.contents.into_iter().filter(|old| !now.contains(&(old.link, old.address)));
        let gone = gone.map(|change| Change { mac: None, ..change });
        self.changes = before.changes.into_iter().chain(gone).collect();
        let all: Vec<_> = self.all().collect();
        self.changes.extend(all);
    }

    /// The router's stale neighbours.
    pub(super) fn stale(&self) -> Vec<Key> {
        let ours = self.neighs.iter().filter(|(key, _)| self.bound.links.contains_key(&key.0));
        ours.filter(|(_, known)| known.stale).map(|(key, _)| *key).collect()
    }

    /// The kernel's keys of neighbours of the router's links.
    pub(super) fn keys(&self, neighs: &[(LinkId, IpAddr)]) -> Vec<Key> {
        let device = |link| self.bound.links.iter().find(|(_, bound)| **bound == link);
        let key = |(link, address): &_| device(*link).map(|(index, _)| (*index, *address));
        neighs.iter().filter_map(key).collect()
    }

    pub(super) fn netdevs(&self) -> impl Iterator<Item = Ifindex> {
        self.netdevs.keys().copied()
    }

    pub(super) fn neighs(&self) -> impl Iterator<Item = Key> {
        self.neighs.keys().copied()
    }
}

impl Change {
    /// Applies the change to tables; false if it has to be retried.
    fn apply(&self, tables: &mut Tables) -> bool {
        if !self.is_of_ethernet(tables) {
            return true;
        }
        match self.mac {
            Some(mac) => tables.publish_neigh(self.link, self.address, mac).is_ok(),
            None => tables.withdraw_neigh(self.link, self.address),
        }
    }

    /// Whether tables send packets to another address than this change says, by any of the neighbour's next hops: some
    /// may have changed, and others not.
    fn is_missed(&self, tables: &Tables) -> bool {
        let sends_elsewhere = |id| {
            let next = tables.next_hop(id);
            let header = &next.header[HEADER_ROOM - usize::from(next.header_len)..];
            next.action.has_neighbour() && self.mac.is_none_or(|mac| !header.starts_with(&mac))
        };
        self.is_of_ethernet(tables)
            && tables.next_hops_to(self.link, self.address).any(sends_elsewhere)
    }

    /// Whether tables have the link, and its neighbours have addresses: those on layer-3 devices have none.
    fn is_of_ethernet(&self, tables: &Tables) -> bool {
        tables.routes.links.get(self.link).is_some_and(|link| !link.is_layer3())
    }
}

/// Changes that tables could not take, to be tried again.
#[derive(Debug, Default)]
pub(super) struct Failed {
    pub(super) changes: Vec<Change>,
    /// Whether packets go to an address that a neighbour no longer has.
    pub(super) is_wrong: bool,
}

/// Applies changes to a router's tables, except for neighbours whose address is configured.
pub(super) fn apply(control: &mut Control, changes: &[Change], failed: &mut Failed) {
    let Control { tables, host, .. } = control;
    for change in changes {
        if !host.has_static(change.link, change.address) && !change.apply(tables) {
            failed.changes.push(*change);
            failed.is_wrong |= change.is_missed(tables);
        }
    }
}

/// The last change of each neighbour, in their order.
pub(super) fn latest(changes: Vec<Change>) -> Vec<Change> {
    let key = |change: &Change| (change.link, change.address);
    let last: HashMap<_, _> = changes.iter().map(key).zip(0..).collect();
    let numbered = changes.into_iter().zip(0..);
    numbered.filter(|(change, at)| last[&key(change)] == *at).map(|(change, _)| change).collect()
}

#[cfg(test)]
mod tests {
    use tollway_dataplane::host::Host;
    use tollway_dataplane::next_hops::Action;
    use tollway_dataplane::router::Router;

    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

    fn device(name: &str, mtu: u32) -> Option<Netdev> {
        Some(Netdev { name: name.to_owned(), mac: Some(MAC), mtu, up: true, vlan: None })
    }

    fn state() -> State {
        let text = "[ports.a]\nkind = \"af_packet\"\ndevice = \"ra\"\n";
        let model = tollway_model::config::parse(text, "t.toml").unwrap().model;
        State::new(Watch::of(&model, |_| true))
    }

    fn taken_changes(state: &mut State) -> Vec<(u8, bool)> {
        let mut changes: Vec<_> = std::mem::take(&mut state.changes)
            .into_iter()
            .map(|change| match change.address {
                IpAddr::V4(v4) => (v4.octets()[3], change.mac.is_some()),
                IpAddr::V6(_) => (0, false),
            })
            .collect();
        changes.sort_unstable();
        changes
    }

    #[test]
    fn neighbours_come_and_go_with_their_devices() {
        let mut state = state();
        let key = |index, last| (index, IpAddr::from([10, 0, 0, last]));
        let known = |stale| Some(NeighEntry { mac: MAC, stale });
        state.apply(Event::Neigh(key(2, 1), known(false)));
        state.apply(Event::Neigh(key(3, 2), known(true)));
        assert_eq!(taken_changes(&mut state), []);
        state.apply(Event::Link(2, device("ra", 1500)));
        state.apply(Event::Link(3, device("rb", 1500)));
        assert_eq!(taken_changes(&mut state), [(1, true)]);
        assert_eq!(state.stale(), []);
        state.apply(Event::Neigh(key(2, 1), known(true)));
        assert_eq!(taken_changes(&mut state), [], "the address is the same");
        state.apply(Event::Neigh(key(2, 1), known(true)));
        state.apply(Event::Neigh(key(9, 1), known(true)));
        assert_eq!(state.aged, [key(2, 1)], "once, and of the router's links");
        state.apply(Event::Neigh(key(9, 1), None));
        assert_eq!(state.stale(), [key(2, 1)]);
        state.apply(Event::Neigh(key(2, 4), known(false)));
        state.apply(Event::Neigh(key(2, 4), None));
        state.apply(Event::Neigh(key(2, 4), None));
        assert_eq!(taken_changes(&mut state), [(4, false), (4, true)]);
        state.apply(Event::Link(2, None));
        assert_eq!(taken_changes(&mut state), [(1, false)]);
        // Another device of that name, which was there before.
        state.apply(Event::Link(3, device("ra", 1500)));
        assert_eq!(taken_changes(&mut state), [(2, true)]);
        assert_eq!(state.neighs().count(), 1);
    }

    #[test]
    fn tables_that_stay_active_are_followed_on() {
        let mut state = state();
        let key = |index, last| (index, IpAddr::from([10, 0, 0, last]));
        let known = Some(NeighEntry { mac: MAC, stale: false });
        state.apply(Event::Link(2, device("ra", 1500)));
        state.apply(Event::Link(3, device("rb", 1500)));
        state.apply(Event::Neigh(key(2, 1), known));
        state.apply(Event::Neigh(key(2, 2), known));
        assert_eq!(taken_changes(&mut state), [(1, true), (2, true)]);
        // Links that are all on the other device.
        let text = "[ports.a]\nkind = \"af_packet\"\ndevice = \"rb\"\n";
        let model = tollway_model::config::parse(text, "t.toml").unwrap().model;
        state.bound.ports.clear();
        let (failed, before) =
            state.rebind(Watch::of(&model, |_| true), &mut Tables::default(), |_, _| false);
        assert_eq!(failed, 0);
        state.apply(Event::Neigh(key(2, 1), None));
        state.apply(Event::Neigh(key(2, 3), known));
        assert_eq!(taken_changes(&mut state), []);
        state.apply(Event::Neigh(key(3, 9), known));
        state.bound.ports.clear();
        state.go_back(before);
        assert_eq!(
            taken_changes(&mut state),
            [(1, false), (2, true), (3, true)],
            "9 is another device's"
        );
    }

    #[test]
    fn only_the_last_change_of_a_neighbour_counts() {
        let change = |last: u8, mac: Option<u8>| Change {
            link: LinkId(0),
            address: IpAddr::from([10, 0, 0, last]),
            mac: mac.map(|mac| [2, 0, 0, 0, 0, mac]),
        };
        let [first, moved, gone, other] =
            [change(1, Some(1)), change(1, Some(2)), change(1, None), change(2, Some(3))];
        assert_eq!(latest(vec![first, moved, other, gone]), [other, gone]);
        assert_eq!(latest(vec![gone, other, first]), [other, first]);
        assert_eq!(latest(Vec::new()), []);
    }

    /// More changes than tables have room for while BPF programs may read the old ones.
    #[test]
    fn changes_wait_until_programs_have_passed() {
        let mut tables = Tables::default();
        let vrf = tables.add_vrf().unwrap();
        let (_, link) = tables.add_port(MAC, vrf, 1500).unwrap();
        // A reader that does not pass, as programs that run for long.
        let reader = tables.epochs.join();
        let router = Router::new(tables, Host::new());
        let address = IpAddr::from([10, 0, 0, 1]);
        let change = |mac: u32| {
            let [_, a, b, c] = mac.to_be_bytes();
            Change { link, address, mac: Some([2, 0, 0, a, b, c]) }
        };
        let mut failed = Failed::default();
        let count = (0..).take_while(|mac| {
            apply(&mut router.lock(), &[change(*mac)], &mut failed);
            failed.changes.is_empty()
        });
        let first = count.count() as u32;
        assert_eq!(failed.changes, [change(first)]);
        assert!(failed.is_wrong, "packets go to the address before");
        let gone = Change { link, address, mac: None };
        failed = Failed::default();
        apply(&mut router.lock(), &[gone], &mut failed);
        assert_eq!((failed.changes, failed.is_wrong), (vec![gone], true), "it is not forgotten");
        failed = Failed::default();
        apply(&mut router.lock(), &[change(first - 1)], &mut failed);
        assert_eq!(failed.changes, [], "the address that it has");
        reader.pass();
        apply(&mut router.lock(), &[gone], &mut failed);
        assert_eq!(failed.changes, []);
        let id = router.lock().tables.find_neigh(link, address);
        assert!(id.is_none_or(|id| router.state().next_hop(id).action != Action::Forward));
    }

    /// The memory ends between the changes of two next hops that lead to one neighbour.
    #[test]
    fn no_next_hop_of_a_neighbour_is_forgotten() {
        for odd in [false, true] {
            let mut tables = Tables::default();
            let vrf = tables.add_vrf().unwrap();
            let (_, link) = tables.add_port(MAC, vrf, 1500).unwrap();
            let address = IpAddr::from([10, 0, 0, 1]);
            let requested = tables.neigh_mtu(link, address, 1400).unwrap();
            let _reader = tables.epochs.join();
            if odd {
                tables.publish_neigh(link, IpAddr::from([10, 0, 0, 2]), MAC).unwrap();
            }
            let router = Router::new(tables, Host::new());
            let change = |number: u32| {
                let [_, a, b, c] = number.to_be_bytes();
                Change { link, address, mac: Some([2, 0, 0, a, b, c]) }
            };
            let mut failed = Failed::default();
            for number in 0.. {
                apply(&mut router.lock(), &[change(number)], &mut failed);
                if !failed.changes.is_empty() {
                    break;
                }
            }
            let wanted = failed.changes[0].mac.unwrap();
            let locked = router.lock();
            let plain = locked.tables.find_neigh(link, address).unwrap();
            let leads_there = |id| {
                let next = locked.tables.next_hop(id);
                next.header[HEADER_ROOM - usize::from(next.header_len)..].starts_with(&wanted)
            };
            assert_eq!((leads_there(plain), leads_there(requested)), (odd, false));
            assert!(failed.is_wrong, "packets of some routes go to the address before");
        }
    }

    #[test]
    fn a_changed_device_is_reported_once() {
        let mut state = state();
        for mtu in [1500, 1500, 9000] {
            state.apply(Event::Link(2, device("ra", mtu)));
        }
        state.apply(Event::Link(3, device("rb", 1500)));
        let mtus: Vec<_> = state.moved.iter().map(|(port, facts)| (port.0, facts.mtu)).collect();
        assert_eq!(mtus, [(0, Some(1500)), (0, Some(9000))]);
    }
}
