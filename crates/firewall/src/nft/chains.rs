//! The listing as a whole: tables, chains in the order in which packets meet them, and named objects.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::Value;

use super::forms::PacketEnd;
use super::json::{Mention, mentions, number, only, several, text};
use super::listing::{Listing, Name, Site};
use super::rule::{OfConnection, Rule};
use super::statement::limit;
use crate::ir::{
    self, Base, ChainId, ChainKind, Counter, Family, Hook, LinkPattern, Place, Policy, Ruleset,
    Step,
};
use crate::mistake::{Fault, quoted};

/// A chain as listed, with its rules.
struct Listed<'v> {
    chain: &'v Value,
    name: Name,
    family: Family,
    base: Option<Base>,
    rules: Vec<&'v Value>,
    /// Why the whole chain is unsupported.
    refused: Option<String>,
}

/// Reads a listing. `translates` says whether its rules may translate addresses.
pub(super) fn read(
    value: &Value,
    file: &str,
    translates: bool,
) -> Result<(Ruleset, Vec<PacketEnd>), Vec<Fault>> {
    let Some(objects) = value.get("nftables").and_then(Value::as_array) else {
        let remedy = "give what `nft -j list ruleset` writes";
        return Err(vec![Fault::new("there is no list \"nftables\" in this JSON", remedy)]);
    };
    let mut listing = Listing { translates, ..Listing::default() };
    let chains = listing.collect(objects);
    let chains = in_order(chains);
    for (number, listed) in chains.iter().enumerate() {
        listing.chains.insert(listed.name.clone(), ChainId(number));
    }
    let hooks = listing.hooks(&chains);
    for (listed, hooks) in chains.iter().zip(hooks) {
        listing.chain_rules(listed, hooks, file);
    }
    if listing.faults.is_empty()
        && let Err(error) = listing.rules.check()
    {
        let remedy = "the kernel does not take such a ruleset; list it again";
        listing.faults.push(Fault::new(error.to_string(), remedy));
    }
    match listing.faults.is_empty() {
        true => Ok((listing.rules, listing.packet_ends)),
        false => Err(listing.faults),
    }
}

/// The key of an object's table in the maps of [`Listing`].
fn table_of(object: &Value) -> String {
    format!("{} {}", text(object, "family"), text(object, "table"))
}

impl<'v> Listing<'v> {
    /// Collects everything that has a name. Returns the chains.
    fn collect(&mut self, objects: &'v [Value]) -> Vec<Listed<'v>> {
        let objects: Vec<_> = objects.iter().filter_map(only).collect();
        for (kind, object) in objects.iter().filter(|(_, object)| is_ip(object)) {
            let name = || (table_of(object), text(object, "name").to_owned());
            match *kind {
                "table" => self.note_flags(object),
                "set" | "map" | "meter" => {
                    self.sets.insert(name(), *object);
                }
                "counter" => {
                    let count = |name| number(object, name).unwrap_or(0);
                    let counter = Counter {
                        name: Some(format!("{} {}", table_of(object), text(object, "name"))),
                        packets: count("packets"),
                        bytes: count("bytes"),
                    };
                    let id = self.rules.add_counter(counter);
                    self.counters.insert(name(), id);
                }
                "limit" => {
                    let rules = &mut self.rules;
                    let read = limit(object).map(|(limit, over)| (rules.add_limit(limit), over));
                    self.limits.insert(name(), read);
                }
                _ => {}
            }
        }
        self.collect_chains(&objects)
    }

    fn note_flags(&mut self, table: &Value) {
        let name = format!("{} {}", text(table, "family"), text(table, "name"));
        for flag in table.get("flags").map(several).unwrap_or_default() {
            match flag.as_str() {
                Some("owner" | "persist") => {}
                Some("dormant") => {
                    self.dormant.insert(name.clone());
                }
                _ => {
                    self.doubtful.insert(name.clone());
                }
            }
        }
    }

    fn collect_chains(&mut self, objects: &[(&'v str, &'v Value)]) -> Vec<Listed<'v>> {
        let of = |wanted: &'static str| {
            let objects = objects.iter().filter(move |(kind, _)| *kind == wanted);
            objects.map(|(_, object)| *object).filter(|object| is_ip(object))
        };
        let mut chains: Vec<_> = of("chain").filter_map(|chain| self.listed(chain)).collect();
        let places: HashMap<_, _> =
            chains.iter().enumerate().map(|(at, chain)| (chain.name.clone(), at)).collect();
        for rule in of("rule") {
            let (table, chain) = (table_of(rule), text(rule, "chain"));
            let steps = rule.get("expr").map(several).unwrap_or_default();
            let fills = steps
                .iter()
                .filter_map(only)
                .filter(|(name, _)| matches!(*name, "set" | "map" | "meter"));
            for (name, fill) in fills {
                let set = if name == "meter" { text(fill, "name") } else { text(fill, name) };
                let set = set.strip_prefix('@').unwrap_or(set);
                self.filled.insert((table.clone(), set.to_owned()));
            }
            match places.get(&(table.clone(), chain.to_owned())) {
                Some(at) => chains[*at].rules.push(rule),
                None => self.faults.push(Fault::new(
                    format!("a rule is in chain {} {}, which is not listed", table, quoted(chain)),
                    "list the whole ruleset",
                )),
            }
        }
        chains
    }

    fn listed(&mut self, chain: &'v Value) -> Option<Listed<'v>> {
        let name = (table_of(chain), text(chain, "name").to_owned());
        let family = match text(chain, "family") {
            "ip" => Family::Ip,
            "ip6" => Family::Ip6,
            "inet" => Family::Inet,
            "netdev" => Family::Netdev,
            "bridge" => Family::Bridge,
            family => {
                self.faults.push(Fault::new(
                    format!("chain {} is of family {}", quoted(&name.1), quoted(family)),
                    "families are ip, ip6, inet, netdev, bridge and arp",
                ));
                return None;
            }
        };
        let mut listed =
            Listed { chain, name, family, base: None, rules: Vec::new(), refused: None };
        if chain.get("hook").is_some() && !self.dormant.contains(&listed.name.0) {
            match base(chain) {
                Ok(base) => listed.base = Some(base),
                Err(fault) => self.faults.push(fault),
            }
            let translates = self.translates;
            listed.refused = listed.base.as_ref().and_then(|base| refused(chain, base, translates));
            if self.doubtful.contains(&listed.name.0) {
                let why = "the listing does not say if the table is dormant";
                listed.refused.get_or_insert_with(|| why.to_owned());
            }
        }
        Some(listed)
    }

    /// For each chain, the hooks whose packets reach it.
    fn hooks(&self, chains: &[Listed<'v>]) -> Vec<BTreeSet<Hook>> {
        let exits: Vec<_> = chains.iter().map(|chain| self.exits(chain)).collect();
        let mut hooks = vec![BTreeSet::new(); chains.len()];
        let bases = chains.iter().enumerate();
        let mut open: Vec<_> =
            bases.filter_map(|(at, chain)| Some((at, chain.base.as_ref()?.hook))).collect();
        while let Some((at, hook)) = open.pop() {
            if hooks[at].insert(hook) {
                open.extend(exits[at].iter().map(|next| (*next, hook)));
            }
        }
        hooks
    }

    /// Chains that a chain's rules lead to, directly or by maps that they look up.
    fn exits(&self, chain: &Listed<'v>) -> BTreeSet<usize> {
        let mut exits = BTreeSet::new();
        let mut maps = BTreeSet::new();
        let table = &chain.name.0;
        let lead =
            |name: &str| self.chains.get(&(table.clone(), name.to_owned())).map(|chain| chain.0);
        for rule in &chain.rules {
            mentions(rule.get("expr").unwrap_or(&Value::Null), &mut |mention| match mention {
                Mention::Chain(name) => exits.extend(lead(name)),
                Mention::Set(name) => {
                    maps.insert(name);
                }
            });
        }
        for map in maps {
            let Some(map) = self.sets.get(&(table.clone(), map.to_owned())) else { continue };
            mentions(map, &mut |mention| {
                if let Mention::Chain(name) = mention {
                    exits.extend(lead(name));
                }
            });
        }
        exits
    }

    fn chain_rules(&mut self, listed: &Listed<'v>, hooks: BTreeSet<Hook>, file: &str) {
        let (table, name) = &listed.name;
        let site = Site { family: listed.family, table: table.clone(), hooks };
        let mut chain = ir::Chain::new(format!("{table} {name}"), listed.family);
        chain.base.clone_from(&listed.base);
        let drops = chain.base.as_ref().is_some_and(|base| base.policy == Policy::Drop);
        if let Some(why) = listed.refused.as_ref().filter(|_| drops && listed.rules.is_empty()) {
            let steps = vec![Step::Unsupported(why.clone())];
            let place = place(listed.chain, file);
            chain.rules.push(ir::Rule { place, text: "policy drop".to_owned(), steps });
        }
        for rule in &listed.rules {
            let steps = rule.get("expr").map(several).unwrap_or_default();
            let steps = match &listed.refused {
                Some(why) => vec![Step::Unsupported(why.clone())],
                None => {
                    let (steps, connection) = self.steps(&site, steps);
                    if let Some(OfConnection { at, why }) = connection {
                        let rule = (self.rules.chains.len(), chain.rules.len());
                        self.packet_ends.push(PacketEnd { rule, at, why });
                    }
                    steps
                }
            };
            let text = super::text::rule(rule);
            chain.rules.push(ir::Rule { place: place(rule, file), text, steps });
        }
        self.rules.add_chain(chain);
    }

    /// Turns a rule's statements into steps; also returns the first that concerns the packet's connection.
    fn steps(&mut self, site: &Site, statements: &[Value]) -> (Vec<Step>, Option<OfConnection>) {
        let mut rule = Rule::new(self, site);
        for statement in statements {
            match rule.statement(statement) {
                Ok(true) => {}
                Ok(false) => break,
                Err(why) => {
                    rule.steps.push(Step::Unsupported(why));
                    break;
                }
            }
        }
        (rule.steps, rule.connection)
    }
}

fn is_ip(object: &Value) -> bool {
    text(object, "family") != "arp"
}

fn place(object: &Value, file: &str) -> Place {
    Place { file: Some(file.to_owned()), line: 0, handle: number(object, "handle") }
}

fn base(chain: &Value) -> Result<Base, Fault> {
    let place = || format!("chain {} {}", table_of(chain), quoted(text(chain, "name")));
    let hook = match text(chain, "hook") {
        "ingress" => Hook::Ingress,
        "prerouting" => Hook::Prerouting,
        "input" => Hook::Input,
        "forward" => Hook::Forward,
        "output" => Hook::Output,
        "postrouting" => Hook::Postrouting,
        "egress" => Hook::Egress,
        hook => {
            return Err(Fault::new(
                format!("{} has hook {}, which is not known here", place(), quoted(hook)),
                "take the chain out, or leave the ruleset to the kernel",
            ));
        }
    };
    let policy = match text(chain, "policy") {
        "accept" | "" => Policy::Accept,
        "drop" => Policy::Drop,
        policy => {
            return Err(Fault::new(
                format!("{} has policy {}", place(), quoted(policy)),
                "policies are accept and drop",
            ));
        }
    };
    let priority = chain.get("prio").and_then(Value::as_i64).unwrap_or(0);
    let priority = i32::try_from(priority).map_err(|_| {
        Fault::new(
            format!("{} has priority {priority}", place()),
            "priorities are numbers of 32 bits",
        )
    })?;
    let devices = chain.get("dev").map(several).unwrap_or_default();
    let devices = devices.iter().map(super::value::link).collect::<Result<Vec<LinkPattern>, _>>();
    let devices = devices.map_err(|why| Fault::new(format!("{}: {why}", place()), "name it"))?;
    let kind = match text(chain, "type") {
        "nat" => ChainKind::Nat,
        "route" => ChainKind::Route,
        _ => ChainKind::Filter,
    };
    Ok(Base { devices, kind, ..Base::new(hook, priority, policy) })
}

/// Why a whole base chain is unsupported.
fn refused(chain: &Value, base: &Base, translates: bool) -> Option<String> {
    let kind = text(chain, "type");
    if kind != "filter" && !(translates && kind == "nat") {
        // Later packets of a flow are translated without meeting the chain's rules.
        return Some(format!("chains of type {kind} take the kernel path"));
    }
    let at_device = matches!(base.hook, Hook::Ingress | Hook::Egress);
    (at_device && base.devices.is_empty())
        .then(|| "the listing does not name the chain's devices".to_owned())
}

/// Chains in the order in which packets meet them. Of chains of one hook and priority, the kernel runs the
/// newest first (`nf_hook_entries_grow` in `net/netfilter/core.c`).
fn in_order(chains: Vec<Listed<'_>>) -> Vec<Listed<'_>> {
    let mut alike: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for (at, chain) in chains.iter().enumerate() {
        if let Some(base) = &chain.base {
            alike.entry((base.hook, base.priority)).or_default().push(at);
        }
    }
    let mut order: Vec<_> = (0..chains.len()).collect();
    for places in alike.values() {
        for (place, chain) in places.iter().zip(places.iter().rev()) {
            order[*place] = *chain;
        }
    }
    let mut chains: Vec<_> = chains.into_iter().map(Some).collect();
    order.into_iter().filter_map(|at| chains[at].take()).collect()
}
