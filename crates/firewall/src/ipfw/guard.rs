//! What FreeBSD does without a rule (`ipfw_chk`, `send_reject`): it denies packets with truncated headers
//! before any rule, and answers only packets that may be answered.

use tollway_dataplane::wire::l4;

use super::conditions::one_of;
use super::rule::RejectKind;
use crate::ir::{
    Action, Counter, CounterId, Field, Key, Match, Place, Range, Reject, Rule, Ruleset, Step,
    Verdict,
};

/// Transport protocols of each version of IP, and the least length of their headers in bytes.
const WHOLE: &[(u8, u8, u128)] = &[
    (0, 6, 20),
    (0, 17, 8),
    (0, 136, 8),
    (0, 132, 12),
    (4, 1, 4),
    (6, 58, 8),
    (6, 50, 4),
    (6, 89, 2),
    (6, 103, 4),
    (6, 47, 4),
    (6, 41, 40),
    (6, 4, 20),
];

/// Known upper layers of IPv6; others are denied (`net.inet6.ip6.fw.deny_unknown_exthdrs`).
const KNOWN6: &[u8] = &[4, 6, 17, 41, 47, 50, 58, 59, 89, 103, 112, 132, 136];

/// Counters of packets denied before any rule.
pub(super) struct Counters {
    short: CounterId,
    unknown: CounterId,
}

impl Counters {
    pub(super) fn new(rules: &mut Ruleset) -> Self {
        let mut named = |name: &str| {
            rules.add_counter(Counter { name: Some(name.to_owned()), ..Counter::default() })
        };
        Self { short: named("ipfw short headers"), unknown: named("ipfw unknown IPv6 headers") }
    }

    /// The rules before the list.
    pub(super) fn rules(&self) -> Vec<Rule> {
        let short = vec![
            Step::Any(short()),
            Step::Do(Action::Count(self.short)),
            Step::Verdict(Verdict::Drop),
        ];
        let unknown = vec![
            Step::Match(Match::is(Field::IpVersion, 6)),
            Step::Match(one_of(Field::Protocol, KNOWN6).negated()),
            Step::Match(Match::is(Field::FragmentOffset, 0)),
            Step::Do(Action::Count(self.unknown)),
            Step::Verdict(Verdict::Drop),
        ];
        vec![
            added("(denied: a header is not whole)", short),
            added("(denied: an unknown header of IPv6)", unknown),
        ]
    }
}

/// Says whether a packet is IPv4 or IPv6.
pub(super) fn is_ip() -> Match {
    Match::in_ranges(Field::IpVersion, [Range::new(4, 6)])
}

fn added(text: &str, steps: Vec<Step>) -> Rule {
    Rule { place: Place::default(), text: text.to_owned(), steps }
}

fn short() -> Vec<Vec<Match>> {
    let whole = WHOLE.iter().map(|(version, protocol, bytes)| {
        let of = (*version > 0).then(|| Match::is(Field::IpVersion, (*version).into()));
        let is = Match::is(Field::Protocol, (*protocol).into());
        let less = Match::in_ranges(Field::TransportLength, [Range::new(0, bytes - 1)]);
        of.into_iter().chain([is, less]).collect()
    });
    // RFC 3128: a second fragment that would overwrite TCP's flags.
    let over = vec![
        Match::is(Field::IpVersion, 4),
        Match::is(Field::Protocol, l4::TCP.into()),
        Match::is(Field::FragmentOffset, 1),
    ];
    whole.chain([over]).collect()
}

/// The rules that reject a packet, or just drop it.
pub(super) fn rejecting(kind: RejectKind) -> Vec<Rule> {
    let (four, six) = match kind {
        RejectKind::Unreach(code) => {
            (Some(Reject::Icmp(code)), Some(Reject::Icmp6(as_icmp6(code))))
        }
        RejectKind::Unreach6(code) => (None, Some(Reject::Icmp6(code))),
        RejectKind::Reset => (Some(Reject::TcpReset), Some(Reject::Icmp6(1))),
        RejectKind::Reset6 => (None, Some(Reject::TcpReset)),
    };
    let mut rules = Vec::new();
    for (version, reject) in [(4, four), (6, six)] {
        let Some(reject) = reject else { continue };
        let mut steps = vec![
            Step::Match(Match::is(Field::IpVersion, version)),
            Step::Match(Match::is(Field::FragmentOffset, 0)),
        ];
        steps.extend(answerable(version, reject));
        steps.push(Step::Verdict(Verdict::Reject(reject)));
        rules.push(added("(answers the sender)", steps));
    }
    rules.push(added("(denies)", vec![Step::Verdict(Verdict::Drop)]));
    rules
}

/// The destination is not a group, and the packet is not an ICMP error.
fn answerable(version: u128, reject: Reject) -> Vec<Step> {
    let group = match version {
        4 => Match::in_ranges(Field::Destination4, [Range::prefix(0xe000_0000, 4, 32)]),
        _ => Match::in_ranges(Field::Destination6, [Range::prefix(0xff << 120, 8, 128)]),
    };
    let group = Step::Match(group.negated());
    if reject == Reject::TcpReset {
        let reset = Match::is(Key::masked(Field::TcpFlags, 4), 0);
        return vec![
            group,
            Step::Match(Match::is(Field::Protocol, l4::TCP.into())),
            Step::Match(reset),
        ];
    }
    let (icmp, queries): (u8, &[u8]) = match version {
        4 => (l4::ICMP, &[8, 10, 13, 15, 17]),
        _ => (l4::ICMPV6, &[128, 130, 139]),
    };
    let icmp = icmp.into();
    let other = vec![Match::is(Field::Protocol, icmp).negated()];
    let query = vec![Match::is(Field::Protocol, icmp), one_of(Field::IcmpType, queries)];
    vec![group, Step::Any(vec![other, query])]
}

/// RFC 7915, section 4.2, as in `map_icmp_unreach`.
fn as_icmp6(code: u8) -> u8 {
    match code {
        0 | 1 | 5 | 6 | 7 | 11 | 12 => 0,
        3 => 4,
        _ => 1,
    }
}
