//! From rules to lookup chains: in which tables packets of each link are looked up, and in which order.
//!
//! The kernel evaluates its rules one by one (`fib_rules_lookup`, `net/core/fib_rules.c`). For the packets
//! of one link, rules of other input devices do not apply, and the VRF rule names the VRF's table or
//! nothing. A sequence of lookups remains. If none of them depends on the packet, the sequence becomes a
//! chain of [`LookupChain`]s, each of which falls back to the next. Otherwise it becomes a policy: a list
//! of selectors with a lookup chain each.
//!
//! The local table comes before all others, and is small. A lookup chain merges it with the table that
//! follows: the local table shadows what it covers of the other. With the kernel's default rules, there is
//! one lookup chain and no policy.
//!
//! Limits: packets that may match a `goto` with a selector, or a rule with an unknown selector, take the
//! kernel path.

use std::collections::{BTreeMap, HashMap};

use ipnet::IpNet;

use super::kernel::{Family, Ifindex, Kernel, Netdev, Rule, RuleAction, TableId};
use super::netlink::{NOT, VRF_ONLY};

/// The number of table `local`, which has the host's own addresses.
pub const LOCAL: TableId = 255;
/// The number of table `default`, which is empty on nearly every system.
pub const DEFAULT: TableId = 253;

/// A position in [`LookupChains::lookup_chains`], and the number of the model's VRF that represents it.
pub type ChainIndex = usize;

/// Where packets are looked up that have no route in the local table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BaseTable {
    /// A table's routes.
    Table(TableId),
    /// One answer for all packets.
    All(RouteAction),
}

/// What happens to packets without a route lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RouteAction {
    /// Dropped silently.
    Blackhole,
    /// Refused with an error: unreachable.
    Unreachable,
    /// Refused with an error: prohibited.
    Prohibit,
    /// The kernel decides.
    Kernel,
}

/// The content of one FIB of a lookup chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChainFib {
    /// A table that shadows what it covers of the base.
    pub over: Option<TableId>,
    /// The table or answer beneath.
    pub base: BaseTable,
}

/// One FIB for each family, and the lookup chain for packets that find no route in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LookupChain {
    /// The FIB for IPv4 packets.
    pub v4: Option<ChainFib>,
    /// The FIB for IPv6 packets.
    pub v6: Option<ChainFib>,
    /// The lookup chain that follows.
    pub next: Option<ChainIndex>,
}

/// One line of a link's policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PolicyLine {
    /// The packets' family; none for both.
    pub family: Option<Family>,
    /// Sources that match; none for all.
    pub src: Option<IpNet>,
    /// Destinations that match; none for all.
    pub dst: Option<IpNet>,
    /// The value and mask of the packets' mark.
    pub mark: Option<(u32, u32)>,
    /// Where matching packets are looked up; if they find no route there, the next line applies.
    pub lookup_chain: ChainIndex,
}

/// How packets of a link are looked up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ingress {
    /// The lookup chain, if there is no policy; else that of its last line.
    pub lookup_chain: ChainIndex,
    /// The policy; empty if there is none.
    pub policy: Vec<PolicyLine>,
}

/// All lookup chains, and which of them each link uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LookupChains {
    /// The lookup chains; at least one.
    pub lookup_chains: Vec<LookupChain>,
    /// How packets of each device are looked up.
    pub links: BTreeMap<Ifindex, Ingress>,
    /// Tables left out because they are empty; a route in one of them changes the lookup chains.
    pub left_out: Vec<(Family, TableId)>,
}

/// A rule as it applies to packets of one link.
#[derive(Clone, Copy, Debug)]
struct RuleLookup {
    src: Option<IpNet>,
    dst: Option<IpNet>,
    mark: Option<(u32, u32)>,
    base: BaseTable,
}

impl RuleLookup {
    const fn looks_at_packets(&self) -> bool {
        self.src.is_some() || self.dst.is_some() || self.mark.is_some()
    }

    fn is_for_local(&self) -> bool {
        !self.looks_at_packets() && self.base == BaseTable::Table(LOCAL)
    }
}

impl LookupChains {
    /// The lookup chains of some links; `has` says whether a table has routes.
    pub fn of(
        kernel: &Kernel,
        links: impl IntoIterator<Item = Ifindex>,
        has: impl Fn(Family, TableId) -> bool,
    ) -> Self {
        let mut build =
            Builder { kernel, has: &has, lookup_chains: Self::default(), known: HashMap::new() };
        for index in links {
            let ingress = build.link(index);
            build.lookup_chains.links.insert(index, ingress);
        }
        if build.lookup_chains.lookup_chains.is_empty() {
            build.lookup_chain(LookupChain { v4: None, v6: None, next: None });
        }
        build.lookup_chains
    }
}

struct Builder<'a, F> {
    kernel: &'a Kernel,
    has: &'a F,
    lookup_chains: LookupChains,
    known: HashMap<LookupChain, ChainIndex>,
}

/// The compiled form of a sequence of lookups: lines with selectors first, then a chain for all packets.
#[derive(Default)]
struct Sequence {
    lines: Vec<(RuleLookup, ChainFib)>,
    chain: Vec<ChainFib>,
}

impl<F: Fn(Family, TableId) -> bool> Builder<'_, F> {
    fn link(&mut self, index: Ifindex) -> Ingress {
        let v4 = self.lookups(index, Family::V4);
        let v6 = self.lookups(index, Family::V6);
        let (v4, v6) = (sequence(&v4), sequence(&v6));
        let lookup_chain = self.chain(&v4.chain, &v6.chain);
        let mut policy = Vec::new();
        for (lookup, item) in v4.lines {
            let lookup_chain =
                self.lookup_chain(LookupChain { v4: Some(item), v6: None, next: None });
            policy.push(line(Some(Family::V4), &lookup, lookup_chain));
        }
        for (lookup, item) in v6.lines {
            let lookup_chain =
                self.lookup_chain(LookupChain { v4: None, v6: Some(item), next: None });
            policy.push(line(Some(Family::V6), &lookup, lookup_chain));
        }
        if !policy.is_empty() {
            policy.push(PolicyLine {
                family: None,
                src: None,
                dst: None,
                mark: None,
                lookup_chain,
            });
        }
        Ingress { lookup_chain, policy }
    }

    fn chain(&mut self, v4: &[ChainFib], v6: &[ChainFib]) -> ChainIndex {
        let mut next = None;
        for at in (0..v4.len().max(v6.len())).rev() {
            let (v4, v6) = (v4.get(at).copied(), v6.get(at).copied());
            next = Some(self.lookup_chain(LookupChain { v4, v6, next }));
        }
        next.unwrap_or_else(|| self.lookup_chain(LookupChain { v4: None, v6: None, next: None }))
    }

    fn lookup_chain(&mut self, lookup_chain: LookupChain) -> ChainIndex {
        let lookup_chains = &mut self.lookup_chains.lookup_chains;
        *self.known.entry(lookup_chain).or_insert_with(|| {
            lookup_chains.push(lookup_chain);
            lookup_chains.len() - 1
        })
    }

    /// The lookups of a link's packets in order, up to the first that decides for all.
    fn lookups(&mut self, index: Ifindex, family: Family) -> Vec<RuleLookup> {
        let device = Device::of(self.kernel, index);
        let rules = self.kernel.rules.iter().filter(|rule| rule.family == family);
        let rules: Vec<_> = rules.collect();
        let mut lookups: Vec<RuleLookup> = Vec::new();
        let mut at = 0;
        while let Some(rule) = rules.get(at) {
            at += 1;
            if !device.is_for(rule) {
                continue;
            }
            // Tollway does not know which packets an inverted rule excludes, so assume that it selects all.
            let (src, dst, mark) = match is_inverted(rule) {
                true => (None, None, None),
                false => (rule.src, rule.dst, rule.mark),
            };
            let selects = src.is_some() || dst.is_some() || mark.is_some();
            let base = match (rule.action, &rule.unsupported) {
                (RuleAction::Nop, None) => continue,
                _ if is_by_member(self.kernel, rule) => BaseTable::All(RouteAction::Kernel),
                (RuleAction::Vrf, None) => match device.vrf_table {
                    Some(table) => BaseTable::Table(table),
                    None => continue,
                },
                (RuleAction::Goto(target), None) if !selects => {
                    at = after_goto(&rules, at, target);
                    continue;
                }
                (_, Some(_)) | (RuleAction::Goto(_), None) => BaseTable::All(RouteAction::Kernel),
                (RuleAction::Table(table), None) => BaseTable::Table(table),
                (RuleAction::Blackhole, None) => BaseTable::All(RouteAction::Blackhole),
                (RuleAction::Unreachable, None) => BaseTable::All(RouteAction::Unreachable),
                (RuleAction::Prohibit, None) => BaseTable::All(RouteAction::Prohibit),
            };
            if self.is_left_out(family, base) {
                continue;
            }
            let lookup = RuleLookup { src, dst, mark, base };
            let ends = !selects && matches!(base, BaseTable::All(_));
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

    fn is_left_out(&mut self, family: Family, base: BaseTable) -> bool {
        let empty = base == BaseTable::Table(DEFAULT) && !(self.has)(family, DEFAULT);
        if empty && !self.lookup_chains.left_out.contains(&(family, DEFAULT)) {
            self.lookup_chains.left_out.push((family, DEFAULT));
        }
        empty
    }
}

/// A device as rules see packets from it. For a device in a VRF, IPv6 packets come from the VRF's device
/// (`vrf_ip6_rcv`); IPv4 packets come from either, as kernels differ ([`is_by_member`]).
struct Device<'a> {
    name: Option<&'a str>,
    vrf: Option<&'a str>,
    vrf_table: Option<TableId>,
}

/// Says whether a rule selects IPv4 packets by a device that is a VRF or in one. Up to Linux 5.17 such
/// packets come from the VRF device, then from its member (`l3mdev_update_flow`), and since 6.15 from both.
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
    rule.unsupported.as_deref().is_some_and(|words| words.split(", ").any(|of| of == word))
}

/// Where evaluation continues behind a `goto`: at the first rule of that priority; if there is none, as
/// if the `goto` did not exist.
fn after_goto(rules: &[&Rule], at: usize, target: u32) -> usize {
    let found = rules[at..].iter().position(|rule| rule.priority == target);
    found.map_or(at, |found| at + found)
}

fn line(family: Option<Family>, lookup: &RuleLookup, lookup_chain: ChainIndex) -> PolicyLine {
    PolicyLine { family, src: lookup.src, dst: lookup.dst, mark: lookup.mark, lookup_chain }
}

/// Merges the local table into all lookups behind it. A repeated lookup changes nothing: where the local
/// table had no route, it has none the second time. So the main table's lookup chain is the same for
/// links in a VRF and for others.
fn sequence(lookups: &[RuleLookup]) -> Sequence {
    let selects = lookups.iter().rposition(RuleLookup::looks_at_packets);
    let (first, rest) = lookups.split_at(selects.map_or(0, |last| last + 1));
    let (mut lines, mut chain) = (Vec::new(), Vec::new());
    let mut over = None;
    for lookup in first {
        if lookup.is_for_local() {
            over = Some(LOCAL);
        } else {
            lines.push((*lookup, ChainFib { over, base: lookup.base }));
        }
    }
    for (at, lookup) in rest.iter().enumerate() {
        if lookup.is_for_local() && at + 1 < rest.len() {
            over = Some(LOCAL);
        } else {
            chain.push(ChainFib { over, base: lookup.base });
        }
    }
    if let (Some(over), []) = (over, rest) {
        chain.push(ChainFib { over: None, base: BaseTable::Table(over) });
    }
    Sequence { lines, chain }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAIN: TableId = 254;

    fn rule(priority: u32, action: RuleAction) -> Rule {
        let (src, dst, iif, mark, unsupported) = Default::default();
        Rule { family: Family::V4, priority, src, dst, iif, mark, action, unsupported }
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

    fn lookup_chains(kernel: &Kernel) -> LookupChains {
        LookupChains::of(kernel, [1, 2], |_, table| table != DEFAULT)
    }

    fn item(over: Option<TableId>, table: TableId) -> Option<ChainFib> {
        Some(ChainFib { over, base: BaseTable::Table(table) })
    }

    #[test]
    fn the_default_rules_are_one_lookup_chain() {
        let lookup_chains = lookup_chains(&kernel(defaults()));
        assert_eq!(
            lookup_chains.lookup_chains,
            [LookupChain { v4: item(Some(LOCAL), MAIN), v6: None, next: None }]
        );
        let plain = Ingress { lookup_chain: 0, policy: Vec::new() };
        assert_eq!(lookup_chains.links, [(1, plain.clone()), (2, plain)].into());
        assert_eq!(lookup_chains.left_out, [(Family::V4, DEFAULT)]);
    }

    #[test]
    fn a_vrf_falls_back_to_the_lookup_chain_of_all_others() {
        let vrf = rule(1000, RuleAction::Vrf);
        for local_at in [0, 32765] {
            let mut rules = defaults();
            rules[0].priority = local_at;
            let lookup_chains = lookup_chains(&kernel(rules.into_iter().chain([vrf.clone()])));
            let over = (local_at == 0).then_some(LOCAL);
            assert_eq!(lookup_chains.lookup_chains.len(), 2);
            assert_eq!(lookup_chains.links[&1].lookup_chain, 0);
            let main = LookupChain { v4: item(Some(LOCAL), MAIN), v6: None, next: None };
            assert_eq!(lookup_chains.lookup_chains[0], main);
            let own = LookupChain { v4: item(over, 10), v6: None, next: Some(0) };
            assert_eq!(lookup_chains.lookup_chains[lookup_chains.links[&2].lookup_chain], own);
        }
    }

    #[test]
    fn rules_behind_the_vrf_rule_are_for_vrfs() {
        let mut unreachable = rule(2000, RuleAction::Unreachable);
        unreachable.unsupported = Some(VRF_ONLY.to_owned());
        let vrf = rule(1000, RuleAction::Vrf);
        let lookup_chains =
            lookup_chains(&kernel(defaults().into_iter().chain([vrf, unreachable])));
        assert_eq!(
            lookup_chains.lookup_chains[lookup_chains.links[&1].lookup_chain].v4,
            item(Some(LOCAL), MAIN)
        );
        let own = lookup_chains.lookup_chains[lookup_chains.links[&2].lookup_chain];
        let next = own.next.map(|next| lookup_chains.lookup_chains[next].v4);
        let rest = ChainFib { over: Some(LOCAL), base: BaseTable::All(RouteAction::Kernel) };
        assert_eq!((own.v4, next), (item(Some(LOCAL), 10), Some(Some(rest))));
    }

    #[test]
    fn selectors_make_a_policy_that_ends_with_the_chain() {
        let mut from = of_table(100, 7);
        from.src = Some("192.0.2.0/24".parse().unwrap());
        let mut by = of_table(200, 8);
        by.iif = Some("one".to_owned());
        let lookup_chains =
            lookup_chains(&kernel(defaults().into_iter().chain([from.clone(), by])));
        let lines = |index| lookup_chains.links[&index].policy.iter();
        let seen = |index| {
            lines(index)
                .map(|line| lookup_chains.lookup_chains[line.lookup_chain].v4)
                .collect::<Vec<_>>()
        };
        let local = Some(LOCAL);
        assert_eq!(seen(1), [item(local, 7), item(local, 8)]);
        assert_eq!(seen(2), [item(local, 7), item(local, MAIN)]);
        assert!(lines(1).map(|line| line.src).eq([from.src, None]));
        let own = lookup_chains.lookup_chains[lookup_chains.links[&1].lookup_chain];
        assert_eq!(
            own.next.map(|next| lookup_chains.lookup_chains[next].v4),
            Some(item(local, MAIN))
        );
    }

    #[test]
    fn rules_by_input_device_take_the_kernel_path_in_a_vrf() {
        let vrf = rule(1000, RuleAction::Vrf);
        for (iif, family, seen) in [
            ("two", Family::V4, Some(BaseTable::All(RouteAction::Kernel))),
            ("vrf", Family::V4, Some(BaseTable::All(RouteAction::Kernel))),
            ("one", Family::V4, None),
            ("two", Family::V6, None),
            ("vrf", Family::V6, Some(BaseTable::Table(7))),
        ] {
            let by = Rule { iif: Some(iif.to_owned()), family, ..of_table(500, 7) };
            let lookup_chains =
                lookup_chains(&kernel(defaults().into_iter().chain([vrf.clone(), by])));
            let first = lookup_chains.lookup_chains[lookup_chains.links[&2].lookup_chain];
            let base = |item: Option<ChainFib>| item.map(|item| item.base);
            let found = match family {
                Family::V4 => base(first.v4).filter(|base| *base != BaseTable::Table(10)),
                Family::V6 => base(first.v6),
            };
            assert_eq!(found, seen, "{iif} {family:?}");
        }
    }

    #[test]
    fn an_inverted_selector_puts_all_packets_on_the_kernel_path() {
        let mut rule = of_table(100, 7);
        (rule.src, rule.unsupported) =
            (Some("192.0.2.0/24".parse().unwrap()), Some(NOT.to_owned()));
        let lookup_chains = lookup_chains(&kernel(defaults().into_iter().chain([rule])));
        let all = ChainFib { over: Some(LOCAL), base: BaseTable::All(RouteAction::Kernel) };
        assert_eq!(lookup_chains.lookup_chains[lookup_chains.links[&1].lookup_chain].v4, Some(all));
        assert!(lookup_chains.links[&1].policy.is_empty());
    }
}
