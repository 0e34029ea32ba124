//! The intermediate form: a ruleset without its language.
//!
//! A [`Ruleset`] owns chains, sets, counters and limits, which refer to each other by number. A [`Chain`]
//! with a [`Base`] is attached to a hook; jumps lead to the others. A [`Rule`] is a list of [`Step`]s in the
//! order in which its language executes them. The first condition that does not hold ends the rule; the
//! actions before it have already been done. Reaching a [`Step::Verdict`] ends the rule too.
//!
//! What exists in nft has nft's name and nft's meaning here. The front ends of the other languages translate
//! to it:
//!
//! - **iptables**: the tables raw, mangle, nat and filter are base chains of one hook with priorities -300, -150,
//!   -100 or 100, and 0. User chains are chains. A rule's own counter is its first action after the matches.
//! - **ipfw**: the front end cuts the list into chains at each target of `skipto`. Each chain ends in
//!   [`Verdict::Goto`] to the next. `skipto` is a goto, `call` a jump. `in` and `out` are two base chains
//!   whose rules share counters. `not` over a field that a packet may lack, and or-blocks, are [`Step::Any`].
//!
//! How a front end builds it:
//!
//! ```
//! use tollway_firewall::ir::*;
//!
//! // table inet filter { set bad { type ipv4_addr; flags interval; elements = { 192.0.2.0/24 } }
//! //   chain forward { type filter hook forward priority 0; policy accept;
//! //     ip saddr @bad counter drop
//! //     iifname "wan*" tcp dport { 22, 8000-8080 } reject with tcp reset } }
//! let mut rules = Ruleset::default();
//! let bad = rules.add_set(Set {
//!     name: "inet filter bad".into(),
//!     key: vec![Field::Source4.into()],
//!     dynamic: false,
//!     elements: Elements::Ranges(vec![Range::prefix(0xc000_0200, 24, 32)]),
//! });
//! let hits = rules.add_counter(Counter::default());
//! let mut forward = Chain::new("inet filter forward", Family::Inet);
//! forward.base = Some(Base::new(Hook::Forward, 0, Policy::Accept));
//! // `ip saddr` looks at IPv4 only: a packet that lacks a field never matches.
//! forward.rules.push(Rule {
//!     place: Place::handle(4),
//!     text: "ip saddr @bad counter drop".into(),
//!     steps: vec![
//!         Step::Match(Match::in_set(Field::Source4, bad)),
//!         Step::Do(Action::Count(hits)),
//!         Step::Verdict(Verdict::Drop),
//!     ],
//! });
//! // Ports are whatever the transport header begins with: nft's `tcp dport` says the protocol as well.
//! forward.rules.push(Rule {
//!     place: Place::handle(5),
//!     text: "iifname \"wan*\" tcp dport { 22, 8000-8080 } reject with tcp reset".into(),
//!     steps: vec![
//!         Step::Match(Match::link(Field::Input, LinkPattern::Prefix("wan".into()))),
//!         Step::Match(Match::is(Field::Protocol, 6)),
//!         Step::Match(Match::in_ranges(
//!             Field::DestinationPort,
//!             [Range::one(22), Range::new(8000, 8080)],
//!         )),
//!         Step::Verdict(Verdict::Reject(Reject::TcpReset)),
//!     ],
//! });
//! rules.add_chain(forward);
//! assert_eq!(rules.check(), Ok(()));
//! ```

mod act;
mod aliases;
mod check;
mod connections;
mod matches;
mod set;
mod states;
mod tracking;

pub use act::{Action, Limit, LimitUnit, Log, NatVerdict, Reject, Target, Verdict};
pub use aliases::{Alias, AliasId, AliasInstance};
pub use check::{IrError, MOST_JUMPS};
pub use matches::{Key, LinkPattern, Match, Range, Test};
pub use set::{Datum, Element, Elements, Item, Set};
pub use states::{CheckState, KeepState, StateRuleId};
pub use tollway_dataplane::stages::filter::{
    AliasConfig, AliasEnd, AliasPass, ConnectionField, Direction, Field, MarkOf, MarkUpdate,
    NatRange, NatTarget, PayloadBase, Redirect, StateLimit, StateName, StateRule, TupleField,
    Unregistered,
};
pub use tracking::{Tracking, Translation};

/// The priority of connection tracking at hook prerouting (`NF_IP_PRI_CONNTRACK`). Of chains of the same
/// priority, it is not known which come later.
const TRACKING_PRIORITY: i32 = -200;

/// A position in [`Ruleset::chains`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChainId(pub usize);

/// A position in [`Ruleset::sets`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SetId(pub usize);

/// A position in [`Ruleset::counters`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CounterId(pub usize);

/// A position in [`Ruleset::limits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LimitId(pub usize);

/// A whole ruleset, from a file or from the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ruleset {
    /// Chains of all tables. Base chains of one hook and priority run in this order.
    pub chains: Vec<Chain>,
    /// Sets and maps, including anonymous ones.
    pub sets: Vec<Set>,
    /// Counters of the rules; rules may share one.
    pub counters: Vec<Counter>,
    /// Rate limits of the rules; rules may share one.
    pub limits: Vec<Limit>,
    /// The rules that keep states.
    pub state_rules: Vec<StateRule>,
    /// The instances that translate addresses, in the order of the file.
    pub aliases: Vec<AliasInstance>,
    /// Whether the router tracks connections for these rules.
    pub tracking: Option<Tracking>,
    /// Whether [`Field::Protocol`] and the transport header are those behind an IPv6 authentication header
    /// (ip6tables). If not, the authentication header is itself the protocol (nft).
    pub past_auth: bool,
}

/// A chain of rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Its name after its table's: `inet filter forward`.
    pub name: String,
    /// Which packets it sees.
    pub family: Family,
    /// Where it is attached; `None` for a chain that is only jumped to.
    pub base: Option<Base>,
    /// Its rules in order.
    pub rules: Vec<Rule>,
}

/// Which packets a chain sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// IPv4.
    Ip,
    /// IPv6.
    Ip6,
    /// IPv4 and IPv6.
    Inet,
    /// All packets of a device (hooks ingress and egress).
    Netdev,
    /// All packets of a bridge.
    Bridge,
}

/// Where a base chain is attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    /// The hook.
    pub hook: Hook,
    /// Which packets meet it there.
    pub kind: ChainKind,
    /// Its devices, at the hooks of devices; the chain does not see packets of others. Empty at other hooks.
    pub devices: Vec<LinkPattern>,
    /// Base chains of lower priority run earlier.
    pub priority: i32,
    /// What happens to packets that reach its end.
    pub policy: Policy,
    /// Whether it drops IP packets whose headers cannot be walked before its first rule.
    pub only_sound: bool,
}

/// Which packets a base chain sees at its hook (nft's chain type).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ChainKind {
    /// All of them.
    #[default]
    Filter,
    /// Only the first packet of each connection (`nf_nat_inet_fn` in `net/netfilter/nf_nat_core.c`).
    Nat,
    /// All of them; the packet is routed again if rules change what its route depends on.
    Route,
}

/// A point on a packet's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Hook {
    /// A device has received the packet.
    Ingress,
    /// The IP header is valid, and the packet has no route yet.
    Prerouting,
    /// The packet is for the router itself: the kernel path, never the fast path.
    Input,
    /// The packet is to be forwarded: its egress link is known and its TTL decremented.
    Forward,
    /// The router itself has sent the packet: the kernel path, never the fast path.
    Output,
    /// The packet is about to exit the IP layer.
    Postrouting,
    /// The packet is about to be sent by a device.
    Egress,
}

/// What happens to packets that reach the end of a base chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Policy {
    /// They go on to the next base chain.
    #[default]
    Accept,
    /// They are dropped.
    Drop,
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Where it was written.
    pub place: Place,
    /// The rule in its language, for display; in brackets if the file contains no such rule.
    pub text: String,
    /// Conditions and actions in order.
    pub steps: Vec<Step>,
}

/// Where a rule was written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Place {
    /// The file, if there is one.
    pub file: Option<String>,
    /// The line, from 1; 0 if there is none.
    pub line: usize,
    /// nft's handle, or ipfw's number.
    pub handle: Option<u64>,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.file.as_deref().unwrap_or("its file"))?;
        match (self.line, self.handle) {
            (0, Some(handle)) => write!(f, ", handle {handle}"),
            (0, None) => Ok(()),
            (line, _) => write!(f, ":{line}"),
        }
    }
}

/// A step of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Continues if this holds.
    Match(Match),
    /// Continues if all matches of at least one alternative hold.
    Any(Vec<Vec<Match>>),
    /// Continues if the packet is within the rate, or (`over`) beyond it. Only packets that get here consume
    /// tokens.
    Limit {
        /// The limit.
        limit: LimitId,
        /// Whether to continue beyond the rate instead of within it.
        over: bool,
    },
    /// Continues in the chain of the rule that keeps the packet's state, if it has a state; else with the
    /// next step.
    CheckState(CheckState),
    /// Keeps a state of the packet and continues; drops the packet if it gets none.
    KeepState(KeepState),
    /// Translates the packet and continues; drops the packet if it gets no mapping.
    Alias(Alias),
    /// Does this and continues.
    Do(Action),
    /// Looks up a map. If an element has the packet's keys, stores its datum and continues.
    Map {
        /// The keys of the lookup, one for each of the map's.
        keys: Vec<Key>,
        /// The map; its data are numbers.
        map: SetId,
        /// Where the number goes.
        target: Target,
    },
    /// Looks up a verdict map and executes the verdict found; without one, the next rule follows. After
    /// [`Verdict::Continue`] the next step follows, as in the kernel.
    VerdictMap {
        /// The keys of the lookup, one for each of the map's.
        keys: Vec<Key>,
        /// The map; its data are verdicts.
        map: SetId,
    },
    /// Ends the rule.
    Verdict(Verdict),
    /// What Tollway cannot do exactly, and why: packets that get here take the kernel path.
    Unsupported(String),
}

/// A count of packets and bytes, with an optional name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    /// The name of a named counter; `None` for a rule's own.
    pub name: Option<String>,
    /// Initial number of packets.
    pub packets: u64,
    /// Initial number of bytes, counted from layer 3.
    pub bytes: u64,
}

impl Ruleset {
    /// Adds a chain.
    pub fn add_chain(&mut self, chain: Chain) -> ChainId {
        self.chains.push(chain);
        ChainId(self.chains.len() - 1)
    }

    /// Adds a set.
    pub fn add_set(&mut self, set: Set) -> SetId {
        self.sets.push(set);
        SetId(self.sets.len() - 1)
    }

    /// Adds a counter.
    pub fn add_counter(&mut self, counter: Counter) -> CounterId {
        self.counters.push(counter);
        CounterId(self.counters.len() - 1)
    }

    /// Adds a limit.
    pub fn add_limit(&mut self, limit: Limit) -> LimitId {
        self.limits.push(limit);
        LimitId(self.limits.len() - 1)
    }

    /// Returns the base chains of a hook in the order in which packets meet them.
    #[must_use]
    pub fn base_chains(&self, hook: Hook) -> Vec<(ChainId, &Base)> {
        let mut chains: Vec<_> = self
            .chains
            .iter()
            .enumerate()
            .filter_map(|(index, chain)| Some((ChainId(index), chain.base.as_ref()?)))
            .filter(|(_, base)| base.hook == hook)
            .collect();
        chains.sort_by_key(|(_, base)| base.priority);
        chains
    }
}

impl Step {
    /// The keys that the step tests.
    #[must_use]
    pub fn keys(&self) -> Vec<&Key> {
        match self {
            Self::Match(one) => one.keys.iter().collect(),
            Self::Any(any) => any.iter().flatten().flat_map(|one| &one.keys).collect(),
            Self::Map { keys, .. } | Self::VerdictMap { keys, .. } => keys.iter().collect(),
            _ => Vec::new(),
        }
    }
}

impl Chain {
    /// A chain without rules, attached nowhere.
    #[must_use]
    pub fn new(name: impl Into<String>, family: Family) -> Self {
        Self { name: name.into(), family, base: None, rules: Vec::new() }
    }

    /// Says whether it drops IP packets whose headers cannot be walked before its first rule, see
    /// [`Base::only_sound`]. The kernel does so at hook ingress of family inet (`nft_do_chain_inet_ingress` in
    /// `net/netfilter/nft_chain_filter.c`).
    #[must_use]
    pub fn is_only_sound(&self) -> bool {
        self.base.as_ref().is_some_and(|base| {
            base.only_sound || (self.family, base.hook) == (Family::Inet, Hook::Ingress)
        })
    }
}

impl Base {
    /// Says whether packets meet it before connection tracking sees them, by its priority.
    #[must_use]
    pub const fn is_before_tracking(&self) -> bool {
        self.priority < TRACKING_PRIORITY
    }

    /// Says whether packets of hook prerouting meet it before their destination is translated, by its priority.
    #[must_use]
    pub const fn is_before_destination_nat(&self) -> bool {
        self.priority < connections::TRANSLATES_DESTINATION
    }

    /// A base at a hook that does not belong to devices.
    #[must_use]
    pub const fn new(hook: Hook, priority: i32, policy: Policy) -> Self {
        let kind = ChainKind::Filter;
        Self { hook, kind, devices: Vec::new(), priority, policy, only_sound: false }
    }
}

impl Place {
    /// A place that has only a handle.
    #[must_use]
    pub const fn handle(handle: u64) -> Self {
        Self { file: None, line: 0, handle: Some(handle) }
    }

    /// A line of a file.
    #[must_use]
    pub fn line(file: impl Into<String>, line: usize) -> Self {
        Self { file: Some(file.into()), line, handle: None }
    }
}

impl Family {
    /// Says whether the family's chains see IPv4 packets.
    #[must_use]
    pub const fn has_ip4(self) -> bool {
        !matches!(self, Self::Ip6)
    }

    /// Says whether the family's chains see IPv6 packets.
    #[must_use]
    pub const fn has_ip6(self) -> bool {
        !matches!(self, Self::Ip)
    }
}
