//! The kernel's own lists of its rules (`NFT_MSG_GETCHAIN`, `GETRULE`, `GETSET`): where chains are attached,
//! which rules there are, and which expressions each consists of.
//!
//! nft's listing is made for people. It omits conditions that other conditions seem to imply: in a table
//! of ip6, it lists `ip6 nexthdr tcp tcp dport 80` as `tcp dport 80`. A rule that the installed nft
//! cannot parse is missing, and a comment may look like a rule. So Tollway proceeds in this order:
//!
//! 1. `listing.rs` corrects the listing.
//! 2. The compiler's front end reads it.
//! 3. `verify.rs` verifies the result against the kernel's expressions. `anonymous.rs` does so for the
//!    elements of sets that are written in rules. `merged.rs` splits comparisons that nft has merged.

mod anonymous;
mod condition;
mod connection;
mod conntrack;
mod elements;
mod expression;
mod listed;
mod listing;
mod match_set;
mod merged;
mod multiport;
mod program;
#[cfg(test)]
mod tests;
mod verify;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;

use super::ipset::{Budget, Contents, IpSet};
use super::message::{List, Table, attribute, be_word, family_number, name};
use super::socket::NetfilterSocket;
use elements::{SetItem, items};
use expression::{Expression, expressions};
pub(super) use program::Scope;
use tollway_linux::netlink::attributes;
pub(super) use verify::verify;

/// The kernel's own lists of chains, rules and sets.
#[derive(Debug, Default)]
pub(super) struct Kernel {
    /// Tables with their families and `NFT_TABLE_F_*`.
    tables: Vec<(&'static str, String, u32)>,
    chains: Vec<Chain>,
    /// All rules, those of each chain in order.
    rules: Vec<Rule>,
    /// Rules by table and handle.
    handles: HashMap<(String, u64), usize>,
    /// By table and name.
    sets: HashMap<String, HashMap<String, Set>>,
    /// The sets of ipset that rules look up, by their indices.
    ipsets: HashMap<u16, IpSet>,
}

/// A chain.
#[derive(Debug)]
struct Chain {
    family: &'static str,
    table: String,
    name: String,
    handle: u64,
    hook: Option<Hook>,
}

/// Where a base chain is attached.
#[derive(Debug)]
struct Hook {
    kind: String,
    number: u32,
    priority: i32,
    /// Whether the policy is to accept.
    accepts: bool,
    devices: Vec<String>,
}

/// A rule.
#[derive(Debug)]
struct Rule {
    family: &'static str,
    table: String,
    chain: String,
    handle: u64,
    expressions: Vec<Expression>,
}

/// A set or map.
#[derive(Debug)]
struct Set {
    /// `NFT_SET_*`.
    flags: u32,
    /// Length of its keys in bytes.
    key: u32,
    /// The elements of an anonymous set; `None` if they are more than keys and data.
    items: Option<Vec<SetItem>>,
}

impl Kernel {
    /// Queries the kernel for all its lists.
    pub(super) fn read(tables: &[Table], socket: &mut NetfilterSocket) -> io::Result<Self> {
        let mut kernel = Self::default();
        for table in tables {
            kernel.tables.extend(table.place().map(|(family, name)| (family, name, table.flags())));
        }
        let [chains, rules, sets] =
            [List::Chains, List::Rules, List::Sets].map(|what| socket.list(what));
        let broken = || io::Error::from(io::ErrorKind::InvalidData);
        for (family, body) in chains? {
            kernel.chains.push(Chain::read(family, &body).ok_or_else(broken)?);
        }
        for (family, body) in rules? {
            kernel.add(Rule::read(family, &body).ok_or_else(broken)?);
        }
        let mut budget = Budget::new();
        for (index, tables) in kernel.ipsets_in_rules() {
            kernel.ipsets.insert(index, IpSet::read(index, tables, &mut budget, socket));
        }
        for (family, body) in sets? {
            let (table, name, mut set) = Set::read(family, &body).ok_or_else(broken)?;
            if set.is_anonymous() {
                set.items = contents(socket, &table, &name)?;
            }
            kernel.sets.entry(table).or_default().insert(name, set);
        }
        Ok(kernel)
    }

    /// The sets of ipset that rules look up.
    pub(super) fn ipsets(&self) -> Vec<IpSet> {
        self.ipsets.values().cloned().collect()
    }

    /// The indices of the sets of ipset that rules look up, and the tables of these rules. None if a rule
    /// changes such sets: the next packet must see the change, and it may be on the fast path.
    fn ipsets_in_rules(&self) -> BTreeMap<u16, BTreeSet<String>> {
        let mut found: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for rule in &self.rules {
            for expression in &rule.expressions {
                if matches!(expression, Expression::Target { name, .. } if name == "SET") {
                    return BTreeMap::new();
                }
                if let Some(lookup) = match_set::SetLookup::of(expression) {
                    let table = format!("{} {}", rule.family, rule.table);
                    found.entry(lookup.index).or_default().insert(table);
                }
            }
        }
        found
    }

    fn add(&mut self, rule: Rule) {
        let key = (format!("{} {}", rule.family, rule.table), rule.handle);
        self.handles.insert(key, self.rules.len());
        self.rules.push(rule);
    }

    /// The expressions of a rule, found by its chain's name after its table's.
    fn expressions(&self, chain: &str, handle: u64) -> Option<&[Expression]> {
        let (table, chain) = chain.rsplit_once(' ')?;
        let rule = self.rules.get(*self.handles.get(&(table.to_owned(), handle))?)?;
        (rule.chain == chain).then_some(&rule.expressions[..])
    }

    /// The sets of a table.
    fn sets(&self, table: &str) -> TableSets<'_> {
        TableSets { kernel: self, named: self.sets.get(table), version: version(table) }
    }

    /// The contents of a set of ipset that a rule looks up, if its packets are of the set's version of IP.
    ///
    /// # Errors
    /// Why such rules take the kernel path.
    fn ipset(&self, index: u16, version: Option<u8>) -> Result<(&IpSet, &Contents), String> {
        let changed = || "a rule of iptables changes sets of ipset".to_owned();
        let set = self.ipsets.get(&index).ok_or_else(changed)?;
        let contents = set.contents.as_ref().map_err(Clone::clone)?;
        let name = set.name_in_rules();
        let has_set =
            |table: &String| self.sets.get(table).is_some_and(|sets| sets.contains_key(&name));
        if set.tables.iter().any(has_set) {
            return Err(format!("a set of nftables is called {name}"));
        }
        match Some(contents.version) == version {
            true => Ok((set, contents)),
            false => Err(format!("the ipset {} is of another family", set.name)),
        }
    }
}

/// The version of IP of the packets in a table of iptables.
fn version(table: &str) -> Option<u8> {
    match table.split(' ').next() {
        Some("ip") => Some(4),
        Some("ip6") => Some(6),
        _ => None,
    }
}

/// The sets that rules of a table can look up.
struct TableSets<'k> {
    kernel: &'k Kernel,
    named: Option<&'k HashMap<String, Set>>,
    version: Option<u8>,
}

impl program::Sets for TableSets<'_> {
    fn version(&self) -> Option<u8> {
        self.version
    }

    fn ipset(&self, index: u16) -> Option<(String, u8)> {
        let (set, contents) = self.kernel.ipset(index, self.version).ok()?;
        Some((set.name_in_rules(), contents.version))
    }

    fn find(&self, name: &str) -> Option<program::SetContents<'_>> {
        let set = self.named?.get(name)?;
        Some(program::SetContents {
            key: set.key,
            is_anonymous: set.is_anonymous(),
            is_interval: set.is_interval(),
            items: set.items.as_deref(),
        })
    }
}

impl Chain {
    fn read(family: &'static str, body: &[u8]) -> Option<Self> {
        let text = |kind| attribute(body, kind).and_then(name);
        let hook = match attribute(body, 4) {
            Some(hook) => {
                let accepts = be_word(attribute(body, 5)?)? == 1;
                Some(Hook::read(hook, text(7)?, accepts)?)
            }
            None => None,
        };
        let handle = handle(attribute(body, 2)?)?;
        Some(Self { family, table: text(1)?, name: text(3)?, handle, hook })
    }
}

impl Hook {
    fn read(body: &[u8], kind: String, accepts: bool) -> Option<Self> {
        let number = be_word(attribute(body, 1)?)?;
        let priority = be_word(attribute(body, 2)?)?.cast_signed();
        let one = attribute(body, 3).map(name);
        let several = attribute(body, 4).unwrap_or_default();
        let several = attributes(several, 0).map(|device| match device.kind {
            1 => name(device.value),
            // `NFTA_DEVICE_PREFIX`.
            2 => name(device.value).map(|prefix| format!("{prefix}*")),
            _ => None,
        });
        let mut devices: Vec<String> = several.collect::<Option<_>>()?;
        if let Some(one) = one.filter(|_| devices.is_empty()) {
            devices.push(one?);
        }
        Some(Self { kind, number, priority, accepts, devices })
    }
}

impl Rule {
    fn read(family: &'static str, body: &[u8]) -> Option<Self> {
        let text = |kind| attribute(body, kind).and_then(name);
        Some(Self {
            family,
            table: text(1)?,
            chain: text(2)?,
            handle: handle(attribute(body, 3)?)?,
            expressions: expressions(attribute(body, 4).unwrap_or_default()),
        })
    }
}

impl Set {
    /// Parses a set. Returns its table, its name and the set.
    fn read(family: &str, body: &[u8]) -> Option<(String, String, Self)> {
        let text = |kind| attribute(body, kind).and_then(name);
        let word = |kind| attribute(body, kind).map_or(Some(0), be_word);
        let set = Self { flags: word(3)?, key: word(5)?, items: None };
        Some((format!("{family} {}", text(1)?), text(2)?, set))
    }

    const fn is_anonymous(&self) -> bool {
        /// `NFT_SET_ANONYMOUS`.
        const ANONYMOUS: u32 = 1;
        self.flags & ANONYMOUS != 0
    }

    const fn is_interval(&self) -> bool {
        /// `NFT_SET_INTERVAL`.
        const INTERVAL: u32 = 4;
        self.flags & INTERVAL != 0
    }
}

/// The elements of a set; `table` includes the family.
fn contents(
    socket: &mut NetfilterSocket,
    table: &str,
    name: &str,
) -> io::Result<Option<Vec<SetItem>>> {
    let Some((family, table)) = table.split_once(' ') else { return Ok(None) };
    let Some(family) = family_number(family) else { return Ok(None) };
    let lists = socket.element_lists(family, table, name)?;
    let items: Option<Vec<_>> = lists.iter().map(|list| items(list)).collect();
    Ok(items.map(|items| items.concat()))
}

fn handle(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.try_into().ok()?))
}
