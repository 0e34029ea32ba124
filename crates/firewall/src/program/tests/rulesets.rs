//! Random rulesets with everything that the intermediate form has.

use super::connections;
use super::frames::{ADDRESSES, PORTS, PROTOCOLS, six};
use super::path_bench::{LINKS, VID};
use crate::ir::*;
use crate::testkit::dice::Dice;

/// A ruleset being drawn.
pub(super) struct Draw<'a> {
    dice: &'a mut Dice,
    rules: Ruleset,
    /// Whether rules test and set something of connections.
    with_connections: bool,
}

/// Chains that are jumped to; each leads only to later ones.
const CALLED: usize = 4;

impl<'a> Draw<'a> {
    pub(super) fn new(dice: &'a mut Dice) -> Self {
        Self { dice, rules: Ruleset::default(), with_connections: false }
    }

    /// Rules that test connections too.
    pub(super) fn with_connections(dice: &'a mut Dice) -> Self {
        Self { with_connections: true, ..Self::new(dice) }
    }

    /// Draws this many rules, in several chains.
    pub(super) fn ruleset(mut self, count: usize) -> Ruleset {
        for _ in 0..4 {
            self.rules.add_counter(Counter::default());
        }
        self.rules.add_limit(Limit {
            rate: 20,
            period_ns: 1_000_000,
            burst: 5,
            unit: LimitUnit::Packets,
        });
        self.rules.add_limit(Limit {
            rate: 900,
            period_ns: 1_000_000,
            burst: 400,
            unit: LimitUnit::Bytes,
        });
        for number in 0..4 {
            let set = self.set(number);
            self.rules.add_set(set);
        }
        for number in 0..CALLED {
            self.rules.add_chain(Chain::new(format!("called {number}"), Family::Inet));
        }
        for map in self.maps() {
            self.rules.add_set(map);
        }
        let bases = 1 + self.dice.below(4);
        for number in 0..bases {
            let chain = self.base(number);
            self.rules.add_chain(chain);
        }
        for _ in 0..count {
            let chain = if self.dice.one_in(4) {
                self.dice.below(CALLED)
            } else {
                CALLED + self.dice.below(bases)
            };
            let rule = self.rule(chain, count);
            self.rules.chains[chain].rules.push(rule);
        }
        self.rules
    }

    fn base(&mut self, number: usize) -> Chain {
        let family = self.dice.pick(&[Family::Inet, Family::Inet, Family::Ip, Family::Ip6]);
        let mut chain = Chain::new(format!("base {number}"), family);
        let hook = self.dice.pick(&[
            Hook::Ingress,
            Hook::Ingress,
            Hook::Prerouting,
            Hook::Forward,
            Hook::Forward,
            Hook::Postrouting,
            Hook::Egress,
        ]);
        let policy = self.dice.pick(&[Policy::Accept, Policy::Accept, Policy::Drop]);
        let mut base = Base::new(hook, self.dice.below(3) as i32 - 1, policy);
        if self.with_connections {
            base.priority *= 201;
            base.kind = self.dice.pick(&[ChainKind::Filter, ChainKind::Filter, ChainKind::Nat]);
        }
        if matches!(hook, Hook::Ingress | Hook::Egress) {
            chain.family = Family::Netdev;
            base.devices = vec![self.link()];
        }
        chain.base = Some(base);
        chain
    }

    fn rule(&mut self, chain: usize, count: usize) -> Rule {
        let mut steps = Vec::new();
        // If there are many rules, each should match few packets, or packets reach none behind the first.
        let least = if count > 20 { 2 } else { 0 };
        for _ in 0..least + self.dice.below(3) {
            steps.push(self.step());
        }
        let verdict = self.verdict(chain);
        match self.dice.below(12) {
            0 if chain != CALLED - 1 => {
                steps.push(Step::VerdictMap { keys: port_keys(), map: SetId(5) });
                // For packets for which the map says continue.
                if self.dice.one_in(2) {
                    steps.push(self.step());
                    steps.push(Step::Verdict(verdict));
                }
            }
            1 => steps.push(Step::Unsupported("drawn".into())),
            2..5 => {}
            _ => steps.push(Step::Verdict(verdict)),
        }
        Rule { place: Place::default(), text: String::new(), steps }
    }

    fn verdict(&mut self, chain: usize) -> Verdict {
        let behind = if chain < CALLED { chain + 1..CALLED } else { 0..CALLED };
        let target = ChainId(behind.start + self.dice.below(behind.len().max(1)));
        match self.dice.below(10) {
            0 | 1 if !behind.is_empty() => Verdict::Jump(target),
            2 if !behind.is_empty() => Verdict::Goto(target),
            3 => Verdict::Return,
            4 => Verdict::Continue,
            5 => Verdict::Reject(self.dice.pick(&[
                Reject::TcpReset,
                Reject::Icmp(13),
                Reject::Icmp6(4),
                Reject::Icmpx(2),
            ])),
            6 | 7 => Verdict::Drop,
            _ => Verdict::Accept,
        }
    }

    fn step(&mut self) -> Step {
        if self.with_connections && self.dice.one_in(2) {
            return connections::step(self.dice);
        }
        match self.dice.below(16) {
            0 => Step::Do(Action::Count(CounterId(self.dice.below(4)))),
            1 => Step::Do(Action::Mark {
                keep: self.dice.pick(&[0, 0xf0]),
                flip: self.dice.below(4) as u32,
            }),
            2 if self.dice.one_in(2) => Step::Do(Action::Dscp(self.dice.below(4) as u8)),
            2 if self.dice.one_in(2) => Step::Do(Action::NoTrack),
            2 => Step::Do(Action::Log(Log {
                prefix: format!("{:x}", self.dice.roll()),
                group: Some(1),
            })),
            3 => Step::Limit { limit: LimitId(self.dice.below(2)), over: self.dice.one_in(2) },
            4 => Step::Map {
                keys: port_keys(),
                map: SetId(4),
                target: self.dice.pick(&[Target::Mark, Target::Dscp]),
            },
            5 | 6 => {
                let all =
                    |draw: &mut Self| (0..1 + draw.dice.below(2)).map(|_| draw.one()).collect();
                Step::Any((0..1 + self.dice.below(3)).map(|_| all(self)).collect())
            }
            _ => Step::Match(self.one()),
        }
    }

    fn one(&mut self) -> Match {
        let one = match self.dice.below(10) {
            0 => {
                let set = self.dice.below(4);
                let mut keys = self.rules.sets[set].key.clone();
                // The rule decides which field to look up.
                if keys == [Field::Source4.into()] && self.dice.one_in(2) {
                    keys = vec![Field::Destination4.into()];
                }
                Match { keys, test: Test::Set(SetId(set)), negate: false }
            }
            1 => {
                let field = self.dice.pick(&[Field::Input, Field::Output]);
                Match::link(field, self.link())
            }
            _ => {
                let key = self.key();
                let ranges: Vec<_> = (0..1 + self.dice.below(2)).map(|_| self.range(key)).collect();
                Match::in_ranges(key, ranges)
            }
        };
        if self.dice.one_in(4) { one.negated() } else { one }
    }

    fn key(&mut self) -> Key {
        let field = self.dice.pick(&[
            Field::Source4,
            Field::Source4,
            Field::Destination4,
            Field::Destination4,
            Field::Source6,
            Field::Destination6,
            Field::Protocol,
            Field::SourcePort,
            Field::DestinationPort,
            Field::DestinationPort,
            Field::TcpFlags,
            Field::IcmpType,
            Field::IcmpCode,
            Field::TransportLength,
            Field::TrafficClass,
            Field::Length,
            Field::Ttl,
            Field::Fragment,
            Field::FragmentOffset,
            Field::Mark,
            Field::NextHeader6,
            Field::EtherSource,
            Field::EtherType,
            Field::IpVersion,
            Field::VlanId,
            Field::Payload { base: PayloadBase::Transport, offset: 2, bytes: 2 },
            Field::Payload { base: PayloadBase::Network, offset: 12, bytes: 3 },
            Field::Payload { base: PayloadBase::Link, offset: 10, bytes: 4 },
        ]);
        let mask = match self.dice.below(8) {
            0 => field.max() << 4 & field.max(),
            1 => field.max() & 0x00ff_ff0f_0ff1,
            _ => field.max(),
        };
        Key::masked(field, mask)
    }

    fn range(&mut self, key: Key) -> Range {
        let number = match key.field {
            Field::Source4 | Field::Destination4 => self.dice.pick(&ADDRESSES).into(),
            Field::Source6 | Field::Destination6 => six(self.dice.pick(&ADDRESSES)),
            Field::SourcePort | Field::DestinationPort => self.dice.pick(&PORTS).into(),
            Field::Protocol | Field::NextHeader6 => self.dice.pick(&PROTOCOLS).into(),
            Field::Length => 20 + self.dice.below(60) as u128,
            Field::Ttl => self.dice.pick(&[1, 63, 64, 254]),
            Field::EtherType => self.dice.pick(&[0x0800, 0x86dd, 0x0806]),
            Field::IpVersion => self.dice.pick(&[0, 4, 6]),
            Field::VlanId => VID.into(),
            Field::EtherSource => 0x0200_0000_0700 + self.dice.below(3) as u128,
            _ => self.dice.below(30) as u128,
        };
        let first = number.saturating_add(self.dice.below(3) as u128).saturating_sub(1);
        let first = first.min(key.field.max()) & key.mask;
        let wide = self.dice.pick(&[0, 0, 1, 7, 255, 1 << 20]);
        Range::new(first, first.saturating_add(wide).min(key.field.max()))
    }

    fn link(&mut self) -> LinkPattern {
        let (name, vrf) = self.dice.pick(&LINKS);
        match self.dice.below(3) {
            0 => LinkPattern::Name(name.into()),
            1 => LinkPattern::Prefix("wan".into()),
            _ => LinkPattern::Vrf(vrf.into()),
        }
    }

    fn set(&mut self, number: usize) -> Set {
        let keys: Vec<Key> = match self.dice.below(4) {
            0 => vec![Field::Source4.into()],
            1 => vec![Field::Source4.into(), Field::DestinationPort.into()],
            2 => {
                vec![Field::Input.into(), Field::Protocol.into(), Field::SourcePort.into()]
            }
            _ => vec![Field::Destination6.into()],
        };
        let count = self.dice.below(6);
        let elements = match &keys[..] {
            [key] => Elements::Ranges((0..count).map(|_| self.range(*key)).collect()),
            _ => Elements::Tuples((0..count).map(|_| self.element(&keys)).collect()),
        };
        let dynamic = self.dice.one_in(2);
        Set { name: format!("set {number}"), key: keys, dynamic, elements }
    }

    fn element(&mut self, keys: &[Key]) -> Element {
        let item = |key: &Key| match key.field.is_link() {
            true => Item::Link(self.link()),
            false => Item::Range(self.range(*key)),
        };
        Element { key: keys.iter().map(item).collect(), datum: None }
    }

    /// A map to numbers and one to verdicts, by destination ports.
    fn maps(&mut self) -> [Set; 2] {
        let mut map = |datum: &dyn Fn(u128) -> Datum| {
            let ports = PORTS.iter().filter(|_| self.dice.one_in(2));
            let elements = ports.map(|port| Element {
                key: vec![Item::Range(Range::one((*port).into()))],
                datum: Some(datum((*port).into())),
            });
            let elements = Elements::Tuples(elements.collect());
            Set { name: "map".into(), key: port_keys(), dynamic: false, elements }
        };
        let verdict = |port: u128| match port % 5 {
            0 => Verdict::Drop,
            3 => Verdict::Continue,
            1 => Verdict::Accept,
            2 => Verdict::Jump(ChainId(CALLED - 1)),
            _ => Verdict::Return,
        };
        [map(&|port| Datum::Number(port & 3)), map(&|port| Datum::Verdict(verdict(port)))]
    }
}

fn port_keys() -> Vec<Key> {
    vec![Field::DestinationPort.into()]
}
