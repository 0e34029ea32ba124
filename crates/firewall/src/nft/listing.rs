//! A listing that is being read: its named objects, and the context in which rules name them.

use std::collections::{BTreeSet, HashMap, HashSet};

use serde_json::Value;

use super::forms::PacketEnd;
use super::json::{only, text};
use super::named_bits::Kind;
use super::nat_map::NatMap;
use super::refusal::refusal;
use crate::ir::{ChainId, CounterId, Family, Field, Hook, LimitId, Ruleset, SetId, Verdict};
use crate::mistake::{Fault, quoted};

/// A table (`inet filter`) and the name of an object in it.
pub(super) type Name = (String, String);

/// A listing being read.
#[derive(Default)]
pub(super) struct Listing<'v> {
    /// Whether rules may translate addresses: no kernel is behind them.
    pub(super) translates: bool,
    pub(super) rules: Ruleset,
    pub(super) sets: HashMap<Name, &'v Value>,
    /// Sets that rules add to.
    pub(super) filled: HashSet<Name>,
    pub(super) read_sets: HashMap<Reading, Result<SetId, String>>,
    pub(super) chains: HashMap<Name, ChainId>,
    pub(super) counters: HashMap<Name, CounterId>,
    pub(super) limits: HashMap<Name, Result<(LimitId, bool), String>>,
    pub(super) dormant: HashSet<String>,
    /// Tables that may be dormant.
    pub(super) doubtful: HashSet<String>,
    pub(super) faults: Vec<Fault>,
    pub(super) packet_ends: Vec<PacketEnd>,
}

/// The type of a map's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Data {
    /// There are none: it is a set.
    None,
    Verdicts,
    Numbers(Kind),
    /// Addresses and ports that a statement translates to.
    Nat(NatMap),
}

/// A named set, as keys of these kinds read it.
pub(super) type Reading = (String, String, Vec<(Kind, u32, u32)>, Data);

/// The context of a rule: its chain's family, and the hooks whose packets reach it.
#[derive(Clone, Debug)]
pub(super) struct Site {
    pub(super) family: Family,
    /// The table, as the key of its sets and chains.
    pub(super) table: String,
    /// The hooks whose packets reach the chain.
    pub(super) hooks: BTreeSet<Hook>,
}

/// Whether packets have a certain link in a rule's context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    Always,
    Never,
    Sometimes,
}

impl Site {
    pub(super) fn presence(&self, field: Field) -> Presence {
        let has = |hook: &Hook| match field {
            Field::Input => !matches!(hook, Hook::Output | Hook::Egress),
            Field::Output => !matches!(hook, Hook::Ingress | Hook::Prerouting | Hook::Input),
            _ => true,
        };
        match (self.hooks.iter().all(has), self.hooks.iter().any(has)) {
            (true, _) => Presence::Always,
            (false, true) => Presence::Sometimes,
            (false, false) => Presence::Never,
        }
    }

    /// Whether the header's TTL and checksum may differ from those received.
    pub(super) fn is_behind_routing(&self) -> bool {
        let before = [Hook::Ingress, Hook::Prerouting, Hook::Input];
        !self.hooks.iter().all(|hook| before.contains(hook))
    }

    /// Whether frames are as a device has received them, including tags.
    pub(super) fn is_at_device(&self) -> bool {
        matches!(self.family, Family::Netdev | Family::Bridge)
            || self.hooks.contains(&Hook::Ingress)
            || self.hooks.contains(&Hook::Egress)
    }
}

impl Listing<'_> {
    /// A chain in the site's table.
    pub(super) fn chain(&self, site: &Site, name: &str) -> Result<ChainId, String> {
        let chain = self.chains.get(&(site.table.clone(), name.to_owned()));
        chain.copied().ok_or_else(|| format!("chain {} is not in the table", quoted(name)))
    }

    /// A counter in the site's table.
    pub(super) fn named_counter(&self, site: &Site, name: &str) -> Result<CounterId, String> {
        let counter = self.counters.get(&(site.table.clone(), name.to_owned()));
        counter.copied().ok_or_else(|| format!("counter {} is not in the table", quoted(name)))
    }

    /// A limit in the site's table, and whether packets beyond it go on.
    pub(super) fn named_limit(&self, site: &Site, name: &str) -> Result<(LimitId, bool), String> {
        let limit = self.limits.get(&(site.table.clone(), name.to_owned()));
        let missing = || Err(format!("limit {} is not in the table", quoted(name)));
        limit.cloned().unwrap_or_else(missing)
    }

    /// The verdict of a statement or of a map's datum.
    pub(super) fn verdict(&self, site: &Site, statement: &Value) -> Result<Verdict, String> {
        let (name, inner) = only(statement).ok_or_else(|| format!("{statement} is no verdict"))?;
        Ok(match name {
            "accept" => Verdict::Accept,
            "drop" => Verdict::Drop,
            "continue" => Verdict::Continue,
            "return" => Verdict::Return,
            "jump" => Verdict::Jump(self.chain(site, text(inner, "target"))?),
            "goto" => Verdict::Goto(self.chain(site, text(inner, "target"))?),
            _ => return Err(refusal(name, inner)),
        })
    }
}
