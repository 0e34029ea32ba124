//! From rules to views: which tables packets of each link are looked up in, and in which order.
//!
//! The kernel asks its rules one by one (`fib_rules_lookup`, `net/core/fib_rules.c`). For the packets of
//! one link, rules of other input devices fall away, the VRF rule names the VRF's table or nothing, and
//! what is left is a sequence of lookups. Where none of them looks at the packet, the sequence is a
//! chain of [`View`]s, each of which falls back to the next; else it is a policy, a list of selectors
//! with a view each.
//!
//! The local table stands before all others, and is small. A view has it and the table that follows in
//! one: what the local table has shadows what it covers of the other. With the rules that every system
//! has at first, there is one view and no policy.
//!
//! Limits: a `goto` that looks at packets, and rules that select by something unknown, leave the packets
//! that they may be for to the kernel.

use std::collections::{BTreeMap, HashMap};

use ipnet::IpNet;

use super::kernel::{Family, Ifindex, Kernel, Netdev, Rule, RuleAction, TableId};
use super::netlink::{NOT, VRF_ONLY};

/// The table of the host's own addresses.
pub const LOCAL: TableId = 255;
/// The table that is empty on nearly every system.
pub const DEFAULT: TableId = 253;

/// A position in [`Views::views`]; the VRF of that number stands for it.
pub type ViewIndex = usize;

/// What packets are looked up in, whatever they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Base {
    /// A table's routes.
    Table(TableId),
    /// One answer for all.
    All(Fate),
}

/// What happens to packets where no route is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fate {
    /// Dropped without a word.
    Blackhole,
    /// Refused: no way.
    Unreachable,
    /// Refused: forbidden.
    Prohibit,
    /// The kernel decides.
    Kernel,
}

/// What one FIB of a view has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Item {
    /// A table that shadows what it covers of the other.
    pub over: Option<TableId>,
    /// What there is beneath.
    pub base: Base,
}

/// Two FIBs, and where packets go on that find nothing there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct View {
    /// What IPv4 packets are looked up in.
    pub v4: Option<Item>,
    /// What IPv6 packets are looked up in.
    pub v6: Option<Item>,
    /// The view that follows.
    pub next: Option<ViewIndex>,
}

/// One line of a link's policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Line {
    /// The packets' family; none for both.
    pub family: Option<Family>,
    /// Sources that it is for.
    pub src: Option<IpNet>,
    /// Destinations that it is for.
    pub dst: Option<IpNet>,
    /// The packet's mark under the mask.
    pub mark: Option<(u32, u32)>,
    /// Where such packets are looked up; without a route there the next line follows.
    pub view: ViewIndex,
}

/// How packets of a link are looked up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ingress {
    /// In this view, if there is no policy.
    pub view: ViewIndex,
    /// By this, if it is not empty.
    pub policy: Vec<Line>,
}

/// All views, and which of them each link has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Views {
    /// The views; one at least.
    pub views: Vec<View>,
    /// What packets of each device are looked up in.
    pub links: BTreeMap<Ifindex, Ingress>,
    /// Tables that were left out because they are empty: with a route in one of them, views are others.
    pub left_out: Vec<(Family, TableId)>,
}

/// A rule as packets of one link meet it.
#[derive(Clone, Copy, Debug)]
struct Lookup {
    src: Option<IpNet>,
    dst: Option<IpNet>,
    mark: Option<(u32, u32)>,
    base: Base,
}

impl Lookup {
    const fn looks_at_packets(&self) -> bool {
        self.src.is_some() || self.dst.is_some() || self.mark.is_some()
    }

    fn is_for_local(&self) -> bool {
        !self.looks_at_packets() && self.base == Base::Table(LOCAL)
    }
}

impl Views {
    /// The views of some links; `has` says which tables have routes.
    pub fn of(
        kernel: &Kernel,
        links: impl IntoIterator<Item = Ifindex>,
        has: impl Fn(Family, TableId) -> bool,
    ) -> Self {
        let mut build =
            Builder { kernel, has: &has, views: Self::default(), known: HashMap::new() };
        for index in links {
            let ingress = build.link(index);
            build.views.links.insert(index, ingress);
        }
        if build.views.views.is_empty() {
            build.view(View { v4: None, v6: None, next: None });
        }
        build.views
    }
}

struct Builder<'a, F> {
    kernel: &'a Kernel,
    has: &'a F,
    views: Views,
    known: HashMap<View, ViewIndex>,
}

/// What a sequence of lookups comes to: selectors first, then a chain for all packets.
#[derive(Default)]
struct Sequence {
    lines: Vec<(Lookup, Item)>,
    chain: Vec<Item>,
}

impl<F: Fn(Family, TableId) -> bool> Builder<'_, F> {
    fn link(&mut self, index: Ifindex) -> Ingress {
        let v4 = self.lookups(index, Family::V4);
        let v6 = self.lookups(index, Family::V6);
        let (v4, v6) = (sequence(&v4), sequence(&v6));
        let view = self.chain(&v4.chain, &v6.chain);
        let mut policy = Vec::new();
        for (lookup, item) in v4.lines {
            let view = self.view(View { v4: Some(item), v6: None, next: None });
            policy.push(line(Some(Family::V4), &lookup, view));
        }
        for (lookup, item) in v6.lines {
            let view = self.view(View { v4: None, v6: Some(item), next: None });
            policy.push(line(Some(Family::V6), &lookup, view));
        }
        if !policy.is_empty() {
            policy.push(Line { family: None, src: None, dst: None, mark: None, view });
        }
        Ingress { view, policy }
    }

    fn chain(&mut self, v4: &[Item], v6: &[Item]) -> ViewIndex {
        let mut next = None;
        for at in (0..v4.len().max(v6.len())).rev() {
            let (v4, v6) = (v4.get(at).copied(), v6.get(at).copied());
            next = Some(self.view(View { v4, v6, next }));
        }
        next.unwrap_or_else(|| self.view(View { v4: None, v6: None, next: None }))
    }

    fn view(&mut self, view: View) -> ViewIndex {
        let views = &mut self.views.views;
        *self.known.entry(view).or_insert_with(|| {
            views.push(view);
            views.len() - 1
        })
    }

    /// What packets of a link are looked up in one after the other, up to what answers for all.
    fn lookups(&mut self, index: Ifindex, family: Family) -> Vec<Lookup> {
        let device = Device::of(self.kernel, index);
        let rules = self.kernel.rules.iter().filter(|rule| rule.family == family);
        let rules: Vec<_> = rules.collect();
        let mut lookups: Vec<Lookup> = Vec::new();
        let mut at = 0;
        while let Some(rule) = rules.get(at) {
            at += 1;
            if !device.is_for(rule) {
                continue;
            }
            // Of the packets that a rule does *not* select, nothing is known.
            let (src, dst, mark) = match is_inverted(rule) {
                true => (None, None, None),
                false => (rule.src, rule.dst, rule.mark),
            };
            let selects = src.is_some() || dst.is_some() || mark.is_some();
            let base = match (rule.action, &rule.odd) {
                (RuleAction::Nop, None) => continue,
                _ if is_by_member(self.kernel, rule) => Base::All(Fate::Kernel),
                (RuleAction::Vrf, None) => match device.vrf_table {
                    Some(table) => Base::Table(table),
                    None => continue,
                },
                (RuleAction::Goto(target), None) if !selects => {
                    at = after_goto(&rules, at, target);
                    continue;
                }
                (_, Some(_)) | (RuleAction::Goto(_), None) => Base::All(Fate::Kernel),
                (RuleAction::Table(table), None) => Base::Table(table),
                (RuleAction::Blackhole, None) => Base::All(Fate::Blackhole),
                (RuleAction::Unreachable, None) => Base::All(Fate::Unreachable),
                (RuleAction::Prohibit, None) => Base::All(Fate::Prohibit),
            };
            if self.is_left_out(family, base) {
                continue;
            }
            let lookup = Lookup { src, dst, mark, base };
            let ends = !selects && matches!(base, Base::All(_));
            let again = lookups.iter().any(|other| !other.looks_at_packets() && other.base == base);
            if !again {
                lookups.push(lookup);
            }
            if ends {
                break;
            }
        }
        lookups
    }

    fn is_left_out(&mut self, family: Family, base: Base) -> bool {
        let empty = base == Base::Table(DEFAULT) && !(self.has)(family, DEFAULT);
        if empty && !self.views.left_out.contains(&(family, DEFAULT)) {
            self.views.left_out.push((family, DEFAULT));
        }
        empty
    }
}

/// A device as rules see packets from it: for one in a VRF, IPv6 packets come from the VRF's device
/// (`vrf_ip6_rcv`), and IPv4 ones from either, as kernels go ([`is_by_member`]).
struct Device<'a> {
    name: Option<&'a str>,
    vrf: Option<&'a str>,
    vrf_table: Option<TableId>,
}

/// Whether a rule selects IPv4 packets by a device that is a VRF or in one. Up to Linux 5.17 they come
/// from the VRF device, then from its member (`l3mdev_update_flow`), and since 6.15 from both.
pub fn is_by_member(kernel: &Kernel, rule: &Rule) -> bool {
    let Some(iif) = rule.iif.as_deref().filter(|_| rule.family == Family::V4) else { return false };
    let named = kernel.named(iif).map(|(_, netdev)| netdev);
    named.is_some_and(|netdev| netdev.vrf_table.is_some() || kernel.vrf_of(netdev).is_some())
}

impl<'a> Device<'a> {
    fn of(kernel: &'a Kernel, index: Ifindex) -> Self {
        let device = kernel.netdevs.get(&index);
        let vrf = device.and_then(|device| kernel.vrf_of(device)).map(|(_, vrf)| vrf);
        let name = |netdev: &'a Netdev| netdev.name.as_str();
        Self {
            name: device.map(name),
            vrf: vrf.map(name),
            vrf_table: vrf.and_then(|vrf| vrf.vrf_table),
        }
    }

    fn is_for(&self, rule: &Rule) -> bool {
        if is_inverted(rule) {
            return true;
        }
        let by_name = rule.iif.as_deref().is_none_or(|iif| match (rule.family, self.vrf) {
            (Family::V4, Some(vrf)) => self.name == Some(iif) || vrf == iif,
            (Family::V6, Some(vrf)) => vrf == iif,
            (_, None) => self.name == Some(iif),
        });
        by_name && (self.vrf_table.is_some() || !has_word(rule, VRF_ONLY))
    }
}

fn is_inverted(rule: &Rule) -> bool {
    has_word(rule, NOT)
}

fn has_word(rule: &Rule, word: &str) -> bool {
    rule.odd.as_deref().is_some_and(|odd| odd.split(", ").any(|of| of == word))
}

/// Where rules go on behind a `goto`: at the first of that priority; if there is none, as if it were
/// not there.
fn after_goto(rules: &[&Rule], at: usize, target: u32) -> usize {
    let found = rules[at..].iter().position(|rule| rule.priority == target);
    found.map_or(at, |found| at + found)
}

fn line(family: Option<Family>, lookup: &Lookup, view: ViewIndex) -> Line {
    Line { family, src: lookup.src, dst: lookup.dst, mark: lookup.mark, view }
}

/// Puts the local table before all that follows it: where it had no route, it has none the second time
/// either, and so the main table's view is the same for links in a VRF and for others.
fn sequence(lookups: &[Lookup]) -> Sequence {
    let selects = lookups.iter().rposition(Lookup::looks_at_packets);
    let (first, rest) = lookups.split_at(selects.map_or(0, |last| last + 1));
    let (mut lines, mut chain) = (Vec::new(), Vec::new());
    let mut over = None;
    for lookup in first {
        if lookup.is_for_local() {
            over = Some(LOCAL);
        } else {
            lines.push((*lookup, Item { over, base: lookup.base }));
        }
    }
    for (at, lookup) in rest.iter().enumerate() {
        if lookup.is_for_local() && at + 1 < rest.len() {
            over = Some(LOCAL);
        } else {
            chain.push(Item { over, base: lookup.base });
        }
    }
    if let (Some(over), []) = (over, rest) {
        chain.push(Item { over: None, base: Base::Table(over) });
    }
    Sequence { lines, chain }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAIN: TableId = 254;

    fn rule(priority: u32, action: RuleAction) -> Rule {
        let (src, dst, iif, mark, odd) = Default::default();
        Rule { family: Family::V4, priority, src, dst, iif, mark, action, odd }
    }

    fn of_table(priority: u32, table: TableId) -> Rule {
        rule(priority, RuleAction::Table(table))
    }

    /// Two links, the second in a VRF with table 10.
    fn kernel(rules: impl IntoIterator<Item = Rule>) -> Kernel {
        let mut kernel = Kernel::default();
        for (index, name, master, vrf_table) in
            [(1, "one", None, None), (2, "two", Some(9), None), (9, "vrf", None, Some(10))]
        {
            let name = name.to_owned();
            kernel.netdevs.insert(index, Netdev { name, master, vrf_table, ..Netdev::default() });
        }
        kernel.rules.extend(rules);
        kernel.rules.sort_by_key(|rule| rule.priority);
        kernel
    }

    fn defaults() -> [Rule; 3] {
        [of_table(0, LOCAL), of_table(32766, MAIN), of_table(32767, DEFAULT)]
    }

    fn views(kernel: &Kernel) -> Views {
        Views::of(kernel, [1, 2], |_, table| table != DEFAULT)
    }

    fn item(over: Option<TableId>, table: TableId) -> Option<Item> {
        Some(Item { over, base: Base::Table(table) })
    }

    #[test]
    fn the_rules_of_every_system_are_one_view() {
        let views = views(&kernel(defaults()));
        assert_eq!(views.views, [View { v4: item(Some(LOCAL), MAIN), v6: None, next: None }]);
        let plain = Ingress { view: 0, policy: Vec::new() };
        assert_eq!(views.links, [(1, plain.clone()), (2, plain)].into());
        assert_eq!(views.left_out, [(Family::V4, DEFAULT)]);
    }

    #[test]
    fn a_vrf_falls_back_to_the_view_of_all_others() {
        let vrf = rule(1000, RuleAction::Vrf);
        for local_at in [0, 32765] {
            let mut rules = defaults();
            rules[0].priority = local_at;
            let views = views(&kernel(rules.into_iter().chain([vrf.clone()])));
            let over = (local_at == 0).then_some(LOCAL);
            assert_eq!(views.views.len(), 2);
            assert_eq!(views.links[&1].view, 0);
            let main = View { v4: item(Some(LOCAL), MAIN), v6: None, next: None };
            assert_eq!(views.views[0], main);
            let own = View { v4: item(over, 10), v6: None, next: Some(0) };
            assert_eq!(views.views[views.links[&2].view], own);
        }
    }

    #[test]
    fn rules_behind_the_vrf_rule_are_for_vrfs() {
        let mut unreachable = rule(2000, RuleAction::Unreachable);
        unreachable.odd = Some(VRF_ONLY.to_owned());
        let vrf = rule(1000, RuleAction::Vrf);
        let views = views(&kernel(defaults().into_iter().chain([vrf, unreachable])));
        assert_eq!(views.views[views.links[&1].view].v4, item(Some(LOCAL), MAIN));
        let own = views.views[views.links[&2].view];
        let next = own.next.map(|next| views.views[next].v4);
        let rest = Item { over: Some(LOCAL), base: Base::All(Fate::Kernel) };
        assert_eq!((own.v4, next), (item(Some(LOCAL), 10), Some(Some(rest))));
    }

    #[test]
    fn selectors_make_a_policy_that_ends_with_the_chain() {
        let mut from = of_table(100, 7);
        from.src = Some("192.0.2.0/24".parse().unwrap());
        let mut by = of_table(200, 8);
        by.iif = Some("one".to_owned());
        let views = views(&kernel(defaults().into_iter().chain([from.clone(), by])));
        let lines = |index| views.links[&index].policy.iter();
        let seen = |index| lines(index).map(|line| views.views[line.view].v4).collect::<Vec<_>>();
        let local = Some(LOCAL);
        assert_eq!(seen(1), [item(local, 7), item(local, 8)]);
        assert_eq!(seen(2), [item(local, 7), item(local, MAIN)]);
        assert!(lines(1).map(|line| line.src).eq([from.src, None]));
        let own = views.views[views.links[&1].view];
        assert_eq!(own.next.map(|next| views.views[next].v4), Some(item(local, MAIN)));
    }

    #[test]
    fn rules_by_input_device_are_the_kernels_in_a_vrf() {
        let vrf = rule(1000, RuleAction::Vrf);
        for (iif, family, seen) in [
            ("two", Family::V4, Some(Base::All(Fate::Kernel))),
            ("vrf", Family::V4, Some(Base::All(Fate::Kernel))),
            ("one", Family::V4, None),
            ("two", Family::V6, None),
            ("vrf", Family::V6, Some(Base::Table(7))),
        ] {
            let by = Rule { iif: Some(iif.to_owned()), family, ..of_table(500, 7) };
            let views = views(&kernel(defaults().into_iter().chain([vrf.clone(), by])));
            let first = views.views[views.links[&2].view];
            let base = |item: Option<Item>| item.map(|item| item.base);
            let found = match family {
                Family::V4 => base(first.v4).filter(|base| *base != Base::Table(10)),
                Family::V6 => base(first.v6),
            };
            assert_eq!(found, seen, "{iif} {family:?}");
        }
    }

    #[test]
    fn a_selector_that_is_turned_round_leaves_all_to_the_kernel() {
        let mut rule = of_table(100, 7);
        (rule.src, rule.odd) = (Some("192.0.2.0/24".parse().unwrap()), Some(NOT.to_owned()));
        let views = views(&kernel(defaults().into_iter().chain([rule])));
        let all = Item { over: Some(LOCAL), base: Base::All(Fate::Kernel) };
        assert_eq!(views.views[views.links[&1].view].v4, Some(all));
        assert!(views.links[&1].policy.is_empty());
    }
}
