//! States: what rules remember of a packet, so that the packets behind it, of both directions, find the rule
//! that let the first one by.
//!
//! Kernel equivalent: FreeBSD's dynamic states (`sys/netpfil/ipfw/ip_fw_dynamic.c`; `keep-state`, `limit`
//! and `check-state` of ipfw(8)). There is no kernel behind the rules of a file, so the states are here. What
//! connection tracking of Linux does, they do not: no NAT, no windows, no related connections.
//!
//! - A state belongs to addresses, ports and protocol of its first packet, in both directions, and has a
//!   name. Protocols without ports have one state for each pair of addresses; so have later fragments.
//! - It lives as long as ipfw's defaults say (`net.inet.ip.fw.dyn_*_lifetime`): 300 s for TCP with a SYN and
//!   an acknowledgement from both sides, 20 s with a SYN of one side, 1 s after FINs of both sides or a RST;
//!   10 s for UDP; 5 s for others. Each packet begins the time again.
//! - A limit counts the states of one rule whose packets share some of addresses and ports
//!   (`parents.rs`; `O_LIMIT_PARENT`).
//!
//! All workers share the states, which lie in a table of flows (`flows/`). Without a rule that keeps states there is no
//! table, and no packet looks for one.
//!
//! Rules that are read again take over the states of rules that are the same ([`StateRule::identity`]).
//!
//! Limits: [`MOST_STATES`] states and [`MOST_PARENTS`] groups of a limit, as with ipfw's defaults. The router
//! sends no keepalives (`dyn_keepalive`), so an idle connection of TCP ends after 300 s. The time is exact,
//! where ipfw counts whole seconds; room of states whose time is over comes back once a second.

mod packet;
mod parents;
mod table;
mod tcp;
#[cfg(test)]
mod tests;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, OnceLock};

pub(super) use packet::StatePacket;
pub use table::StateReport;
use table::Table;

use super::Count;
use super::flows::Size;

/// The most states at a time (`net.inet.ip.fw.dyn_max`).
pub const MOST_STATES: usize = 16_384;

/// The most groups of states that limits count (`net.inet.ip.fw.dyn_parent_max`).
pub const MOST_PARENTS: usize = 4096;

/// How large the table is.
const SIZE: Size = Size { most: MOST_STATES, parts: 16, lists: 1024, sweep_ns: S };

const S: u64 = 1_000_000_000;

/// The name of states, by a hash of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateName(u64);

impl StateName {
    /// The name of these letters.
    #[must_use]
    pub fn of(name: &str) -> Self {
        Self(hash(&name))
    }
}

/// A rule that keeps states.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StateRule {
    /// The rule, for lists and to find it again among other rules.
    pub rule: String,
    /// The place among equal rules.
    pub nth: u32,
    /// The name of its states.
    pub name: String,
    /// How many states it may keep.
    pub limit: Option<StateLimit>,
}

impl StateRule {
    /// What identifies the rule: states of a rule with the same identity are its own.
    #[must_use]
    pub fn identity(&self) -> u64 {
        hash(self)
    }
}

/// A limit on the states of a rule whose packets share these parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StateLimit {
    /// The source address of the first packet.
    pub source: bool,
    /// Its destination address.
    pub destination: bool,
    /// Its source port.
    pub source_port: bool,
    /// Its destination port.
    pub destination_port: bool,
    /// The most states of each group.
    pub most: u32,
}

/// The states of a filter.
#[derive(Debug, Default)]
pub struct States {
    /// The rules that keep states, by number.
    rules: Vec<StateRule>,
    known: Vec<Known>,
    /// The table, from the first use on: until then, that of earlier rules can take its place.
    table: OnceLock<Arc<Table>>,
}

/// What a rule is to the table.
#[derive(Clone, Copy, Debug)]
struct Known {
    identity: u64,
    name: StateName,
    limit: Option<StateLimit>,
}

/// Why a packet got no state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StateRefusal {
    /// Its group has all the states that the limit allows.
    OverLimit,
    /// There is no room.
    Full,
}

impl States {
    /// States for these rules.
    #[must_use]
    pub fn new(rules: Vec<StateRule>) -> Self {
        let known = rules.iter().map(|rule| Known {
            identity: rule.identity(),
            name: StateName::of(&rule.name),
            limit: rule.limit,
        });
        Self { known: known.collect(), rules, table: OnceLock::new() }
    }

    /// Takes over the states of the active rules, or makes a table, unless packets have come to these already.
    pub(crate) fn prepare(&self, before: Option<&Self>) {
        let shared = before.and_then(|before| before.table.get());
        let table = shared.map_or_else(|| Arc::new(Table::new(0)), Arc::clone);
        if self.table.set(Arc::clone(&table)).is_ok() {
            table.retain(&self.known);
        }
    }

    #[inline]
    fn table(&self, now_ns: u64) -> &Table {
        self.table.get_or_init(|| Arc::new(Table::new(now_ns)))
    }

    /// Gives back the room of states whose time is over, once a second.
    #[inline]
    pub(super) fn sweep(&self, now_ns: u64) {
        if let Some(table) = self.table.get() {
            table.sweep(now_ns);
        }
    }

    /// The rule that keeps the packet's state, if there is one with this name, or with any. Its time begins again.
    pub(super) fn check(
        &self,
        packet: &StatePacket,
        name: Option<StateName>,
        now_ns: u64,
    ) -> Option<usize> {
        self.table(now_ns).check(packet, name, &self.known, now_ns)
    }

    /// Keeps a state of the packet for a rule. One that it has already with the rule's name is enough.
    pub(super) fn keep(
        &self,
        packet: &StatePacket,
        rule: u32,
        now_ns: u64,
    ) -> Result<(), StateRefusal> {
        self.table(now_ns).keep(packet, rule as usize, &self.known, now_ns)
    }

    /// All states whose time is not over, and their rules.
    #[must_use]
    pub fn list(&self, now_ns: u64) -> Vec<(&StateRule, StateReport)> {
        let Some(table) = self.table.get() else { return Vec::new() };
        let listed = table.list(now_ns).into_iter().filter_map(|(identity, report)| {
            let number = self.known.iter().position(|known| known.identity == identity)?;
            Some((self.rules.get(number)?, report))
        });
        listed.collect()
    }
}

fn hash(of: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}
