//! Matches: the list of all, and those that test the transport header.

use tollway_dataplane::wire::l4;

use super::Family;
use super::check::Check;
use super::connections;
use super::fields;
use super::header::{Header, has_extensions};
use super::names;
use super::once::{Options, Used, needs_option};
use super::value;
use super::words::{Cursor, Word};
use crate::conntrack::ConntrackMatch;
use crate::ir::{Field, Match, PayloadBase, Range, Step};
use crate::mistake::{Span, SpannedFault, quoted, wrong};

/// Unsupported matches that test only the packet, or state that the packet does not change.
const UNSUPPORTED: [&str; 22] = [
    "addrtype",
    "bpf",
    "cgroup",
    "cluster",
    "connbytes",
    "connlabel",
    "cpu",
    "devgroup",
    "ecn",
    "eui64",
    "helper",
    "ipv6header",
    "mh",
    "osf",
    "owner",
    "physdev",
    "policy",
    "realm",
    "rpfilter",
    "string",
    "tcpmss",
    "u32",
];

/// `XT_MULTI_PORTS`.
const MOST_PORTS: usize = 15;

/// A match of a rule.
#[derive(Clone, Debug)]
pub(super) struct ParsedMatch {
    pub(super) name: String,
    kind: MatchKind,
    checks: Vec<Check>,
    /// Rate and burst of a limit.
    rate: fields::Rate,
    /// What is tested of the connection.
    conntrack: ConntrackMatch,
    used: Used,
    /// Its position in the rule.
    place: Span,
}

/// How a match is parsed and checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MatchKind {
    /// Two ports at the beginning of a header.
    Ports {
        protocol: u8,
    },
    Multiport,
    Icmp,
    /// A 32-bit number in the header.
    Spi {
        option: &'static str,
        protocol: u8,
        offset: u8,
    },
    Field,
    Limit,
    /// About the packet's connection.
    Connection,
    /// An IPv6 extension header: packets without it never match.
    Extension,
    Unsupported,
    UnsupportedState,
}

impl ParsedMatch {
    /// Starts a match.
    pub(super) fn new(
        word: &Word,
        name: &str,
        header: &Header,
        family: Family,
    ) -> Result<Self, SpannedFault> {
        let six = family == Family::Ip6;
        let kind = match name {
            "tcp" => MatchKind::Ports { protocol: l4::TCP },
            "udp" => MatchKind::Ports { protocol: l4::UDP },
            "sctp" => MatchKind::Ports { protocol: l4::SCTP },
            "dccp" => MatchKind::Ports { protocol: l4::DCCP },
            "icmp" if !six => MatchKind::Icmp,
            "icmp6" | "icmpv6" if six => MatchKind::Icmp,
            "esp" => MatchKind::Spi { option: "--espspi", protocol: l4::ESP, offset: 0 },
            "ah" if !six => MatchKind::Spi { option: "--ahspi", protocol: l4::AUTH, offset: 4 },
            "ah" | "frag" | "rt" | "hbh" | "dst" if six => MatchKind::Extension,
            "multiport" => MatchKind::Multiport,
            "limit" => MatchKind::Limit,
            name if fields::parses(name, family) => MatchKind::Field,
            name if connections::parses(name) => MatchKind::Connection,
            name if UNSUPPORTED.contains(&name) => MatchKind::Unsupported,
            name if is_sound(name) => MatchKind::UnsupportedState,
            _ => {
                return wrong(
                    &word.span,
                    format!("{} is no match", quoted(name)),
                    "write its name",
                );
            }
        };
        let mut loaded = Self {
            name: name.to_owned(),
            kind,
            checks: Vec::new(),
            rate: fields::Rate::default(),
            conntrack: ConntrackMatch::default(),
            used: Used::default(),
            place: word.span.clone(),
        };
        loaded.check(word, header, family)?;
        loaded.push_header_checks(family);
        Ok(loaded)
    }

    /// Checks that the rule requires the header that the match tests: the kernel rejects other rules.
    fn check(&self, word: &Word, header: &Header, family: Family) -> Result<(), SpannedFault> {
        let wanted: &[u8] = match self.kind {
            MatchKind::Ports { protocol } | MatchKind::Spi { protocol, .. } => &[protocol],
            MatchKind::Icmp if family == Family::Ip6 => &[l4::ICMPV6],
            MatchKind::Icmp => &[l4::ICMP],
            MatchKind::Multiport => &[l4::TCP, l4::UDP, l4::DCCP, l4::SCTP, l4::UDP_LITE],
            _ => return Ok(()),
        };
        match header.only_protocol() {
            Some(protocol) if wanted.contains(&protocol) => Ok(()),
            _ => wrong(
                &word.span,
                format!("-m {} is in a rule for other protocols", self.name),
                "write -p with its protocol before it",
            ),
        }
    }

    fn push_header_checks(&mut self, family: Family) {
        let least = match self.kind {
            MatchKind::Ports { protocol: l4::TCP } => 20,
            MatchKind::Ports { protocol: l4::UDP }
            | MatchKind::Icmp
            | MatchKind::Spi { offset: 0, .. } => 8,
            MatchKind::Ports { .. } | MatchKind::Spi { .. } => 12,
            MatchKind::Multiport => 4,
            MatchKind::Extension => {
                self.checks.push(Check::one(has_extensions(), false));
                return self.push_unsupported("the match");
            }
            MatchKind::Unsupported | MatchKind::UnsupportedState => {
                return self.push_unsupported("the match");
            }
            MatchKind::Field | MatchKind::Limit | MatchKind::Connection => return,
        };
        let mut cases = vec![Check::shorter_than(least)];
        // IPv6 counts offsets in bytes here (`ip6_packet_match`), so no offset is 1.
        if self.kind == (MatchKind::Ports { protocol: l4::TCP }) && family == Family::Ip {
            cases.push(vec![Match::is(Field::FragmentOffset, 1)]);
        }
        self.checks.push(Check::Hotdrop(cases));
    }

    fn push_unsupported(&mut self, what: &str) {
        let why = format!("{what} {} of iptables takes the kernel path", self.name);
        self.checks.push(match self.kind {
            MatchKind::UnsupportedState => Check::UnsupportedState(why),
            _ => Check::Unsupported(why),
        });
    }
}

impl Options for ParsedMatch {
    fn used(&mut self) -> &mut Used {
        &mut self.used
    }

    fn parse_option(
        &mut self,
        option: &Word,
        negate: bool,
        words: &mut Cursor<'_>,
        family: Family,
    ) -> Result<bool, SpannedFault> {
        let name = option.text.as_str();
        let check = match (self.kind, name) {
            (MatchKind::Ports { .. }, "--sport" | "--source-port") => {
                let ports = value::range(words.value(option)?, 0xffff)?;
                Check::one(Match::in_ranges(Field::SourcePort, [ports]), negate)
            }
            (MatchKind::Ports { .. }, "--dport" | "--destination-port") => {
                let ports = value::range(words.value(option)?, 0xffff)?;
                Check::one(Match::in_ranges(Field::DestinationPort, [ports]), negate)
            }
            (MatchKind::Ports { protocol: l4::TCP }, "--syn") => flags(0x17, 0x02, negate),
            (MatchKind::Ports { protocol: l4::TCP }, "--tcp-flags") => {
                let mask = tcp_flags(words.value(option)?)?;
                flags(mask, tcp_flags(words.value(option)?)?, negate)
            }
            (MatchKind::Icmp, "--icmp-type") if family == Family::Ip => {
                icmp(words.value(option)?, negate, family)?
            }
            (MatchKind::Icmp, "--icmpv6-type") if family == Family::Ip6 => {
                icmp(words.value(option)?, negate, family)?
            }
            (MatchKind::Spi { option: own, offset, .. }, name) if name == own => {
                let spis = value::range(words.value(option)?, u32::MAX.into())?;
                let field = Field::Payload { base: PayloadBase::Transport, offset, bytes: 4 };
                Check::one(Match::in_ranges(field, [spis]), negate)
            }
            (MatchKind::Multiport, _) => {
                let Some(checks) = multiport(option, negate, words)? else { return Ok(false) };
                self.checks.extend(checks);
                return Ok(true);
            }
            (MatchKind::Connection, "--ctexpire") if self.name == "conntrack" => {
                words.value(option)?;
                Check::Unsupported("--ctexpire of the match conntrack takes the kernel path".into())
            }
            (MatchKind::Connection, _) => {
                let Self { name, conntrack, .. } = self;
                return connections::option(conntrack, name, option, negate, words, family);
            }
            (MatchKind::Limit, _) => return self.rate.option(option, negate, words),
            (MatchKind::Field, _) => {
                let Some(checks) = fields::option(&self.name, option, negate, words, family)?
                else {
                    return Ok(false);
                };
                self.checks.extend(checks);
                return Ok(true);
            }
            _ => return Ok(false),
        };
        self.checks.push(check);
        Ok(true)
    }
}

impl ParsedMatch {
    /// Handles an unknown option.
    pub(super) fn other(&mut self, option: &Word, words: &mut Cursor<'_>) {
        words.skip_values();
        if !matches!(
            self.kind,
            MatchKind::Unsupported | MatchKind::UnsupportedState | MatchKind::Extension
        ) {
            let why = format!(
                "{} of the match {} takes the kernel path",
                quoted(&option.text),
                self.name
            );
            self.checks.push(Check::Unsupported(why));
        }
    }

    /// Reports what is missing, once the whole rule is parsed.
    pub(super) fn check_whole(&self) -> Result<(), SpannedFault> {
        if self.used.is_any() || !needs_option(&self.name) {
            return Ok(());
        }
        let what = format!("-m {} has no option", self.name);
        wrong(&self.place, what, "write what it is to match")
    }

    /// Its checks.
    pub(super) fn checks(self) -> Vec<Check> {
        let mut checks = self.checks;
        match self.kind {
            MatchKind::Limit => checks.push(self.rate.check()),
            MatchKind::Connection => checks.push(connections::check(&self.conntrack)),
            // Excludes later fragments; a condition on the header does that too.
            MatchKind::Ports { .. } | MatchKind::Spi { .. } | MatchKind::Icmp
                if !checks.iter().any(|check| matches!(check, Check::Holds(_) | Check::Never)) =>
            {
                checks.push(Check::one(Match::is(Field::FragmentOffset, 0), false));
            }
            _ => {}
        }
        checks
    }
}

fn is_sound(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    !name.is_empty() && name.len() < 30 && !name.starts_with('-') && name.bytes().all(plain)
}

fn flags(mask: u8, set: u8, negate: bool) -> Check {
    let key = crate::ir::Key::masked(Field::TcpFlags, mask.into());
    Check::one(Match::is(key, set.into()), negate)
}

fn tcp_flags(word: &Word) -> Result<u8, SpannedFault> {
    match names::tcp_flags(&word.text) {
        Some(flags) => Ok(flags),
        None => wrong(
            &word.span,
            format!("{} are no TCP flags", quoted(&word.text)),
            "write some of FIN,SYN,RST,PSH,ACK,URG, or ALL, or NONE",
        ),
    }
}

/// A type, optionally with a code.
fn icmp(word: &Word, negate: bool, family: Family) -> Result<Check, SpannedFault> {
    let (kind, code) = match names::icmp(&word.text, family) {
        Some(found) => found,
        None => match word.text.split_once('/') {
            None => (value::number(word, 255)? as u8, None),
            Some((kind, code)) => {
                let code = value::in_word(word, code, 255)? as u8;
                (value::in_word(word, kind, 255)? as u8, Some(code))
            }
        },
    };
    // `icmp_type_code_match`: 255 means any in IPv4.
    if kind == 255 && family == Family::Ip {
        return Ok(if negate {
            Check::Never
        } else {
            Check::one(Match::is(Field::FragmentOffset, 0), false)
        });
    }
    let kind = Match::is(Field::IcmpType, kind.into());
    let code = code.map(|code| Match::is(Field::IcmpCode, code.into()));
    Ok(match (code, negate) {
        (None, _) => Check::one(kind, negate),
        (Some(code), false) => Check::Holds(Step::Any(vec![vec![kind, code]])),
        (Some(code), true) => {
            Check::Holds(Step::Any(vec![vec![kind.negated()], vec![code.negated()]]))
        }
    })
}

/// Ports and ranges, at most as many as `xt_multiport` has room for: a range takes two places.
fn port_list(word: &Word) -> Result<Vec<Range>, SpannedFault> {
    let parts = || word.text.split(',');
    if parts().any(|part| part.starts_with(':') || part.ends_with(':')) {
        let what = format!("{} has a range with one end", quoted(&word.text));
        return wrong(&word.span, what, "write both, like 1024:65535");
    }
    let places: usize = parts().map(|part| 1 + usize::from(part.contains(':'))).sum();
    if places > MOST_PORTS {
        let what = format!("{} are too many ports, a range counting twice", quoted(&word.text));
        return wrong(&word.span, what, format!("write {MOST_PORTS} at most, and more rules"));
    }
    value::ranges(word, 0xffff)
}

fn multiport(
    option: &Word,
    negate: bool,
    words: &mut Cursor<'_>,
) -> Result<Option<Vec<Check>>, SpannedFault> {
    let (source, destination) = (Field::SourcePort, Field::DestinationPort);
    let fields: &[Field] = match option.text.as_str() {
        "--sports" | "--source-ports" => &[source],
        "--dports" | "--destination-ports" => &[destination],
        "--ports" => &[source, destination],
        _ => return Ok(None),
    };
    let ports = port_list(words.value(option)?)?;
    let ports = |field: &Field| Match::in_ranges(*field, ports.clone());
    Ok(Some(match (fields, negate) {
        ([_, _], false) => {
            vec![Check::Holds(Step::Any(fields.iter().map(|one| vec![ports(one)]).collect()))]
        }
        _ => fields.iter().map(|one| Check::one(ports(one), negate)).collect(),
    }))
}
