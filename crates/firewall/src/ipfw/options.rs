//! The options of a rule.

use super::address::{address, address6, bits, link, mac, ports, ranges, reject_not_any};
use super::names;
use super::rule::{LinkSelector, Links, Lookup, Side, Term, Test};
use super::states;
use super::words::{Word, Words, number};
use crate::mistake::{SpannedFault, quoted, wrong};

/// Known but unsupported options, and what to write instead.
const UNSUPPORTED: &[(&[&str], &str, &str)] = &[
    (
        &["uid", "gid", "jail", "sockarg"],
        "matches sockets, which forwarded packets do not have",
        "leave the rule out: it never matches what is forwarded",
    ),
    (
        &["verrevpath", "versrcreach", "antispoof"],
        "looks up routes, which rules cannot do in Tollway",
        "set rp_filter on the link, or name the networks that may be there",
    ),
    (
        &["diverted", "diverted-loopback", "diverted-output"],
        "matches packets that divert gave back, and Tollway does not support divert",
        "leave the rule out",
    ),
    (
        &["tagged", "fib", "mark"],
        "matches marks of other rules, which Tollway does not support",
        "use skipto to bring such packets to the rules that are for them",
    ),
    (
        &["ipoptions", "ipopts", "tcpoptions", "tcpopts", "tcpmss"],
        "matches options of a header, which Tollway does not support",
        "leave the rule out, or match the length of the header's packet",
    ),
    (
        &["ext6hdr", "flow-id", "flow", "ipsec"],
        "is a match that Tollway does not support",
        "match addresses, protocol and ports instead",
    ),
];

/// Words that begin a supported option.
const SUPPORTED: &[&str] = &[
    "in",
    "out",
    "via",
    "recv",
    "xmit",
    "layer2",
    "frag",
    "established",
    "setup",
    "tcpflags",
    "tcpflgs",
    "icmptypes",
    "icmptype",
    "icmp6types",
    "icmp6type",
    "iplen",
    "ipttl",
    "ipid",
    "iptos",
    "ipprecedence",
    "ipversion",
    "ipver",
    "dscp",
    "tcpdatalen",
    "tcpseq",
    "tcpack",
    "tcpwin",
    "proto",
    "src-ip",
    "dst-ip",
    "src-ip6",
    "src-ipv6",
    "dst-ip6",
    "dst-ipv6",
    "src-port",
    "dst-port",
    "mac",
    "MAC",
    "mac-type",
    "lookup",
    "ipv4",
    "ip4",
    "ipv6",
    "ip6",
];

/// Says whether a word begins an option.
pub(super) fn is_option(text: &str) -> bool {
    SUPPORTED.contains(&text)
        || states::is_option(text)
        || UNSUPPORTED.iter().any(|(names, ..)| names.contains(&text))
}

/// Parses an option; each becomes a single test, `setup` too.
pub(super) fn option(words: &mut Words<'_>, not: bool) -> Result<Vec<Term>, SpannedFault> {
    let word = words.need("an option")?;
    let test = match word.text.as_str() {
        "in" => Test::In,
        "out" => return Ok(vec![Term { not: !not, test: Test::In }]),
        "layer2" => Test::Layer2,
        "via" => on_link(words, LinkSelector::Via, not)?,
        "recv" => on_link(words, LinkSelector::Recv, not)?,
        "xmit" => on_link(words, LinkSelector::Xmit, not)?,
        "frag" => Test::Fragment(match words.peek().is_some_and(is_fragment_spec) {
            true => bits(words.need("a list")?, names::FRAGMENT)?,
            false => super::rule::Bits { set: 1, clear: 0 },
        }),
        "established" => Test::Established,
        "setup" => Test::TcpFlags(super::rule::Bits { set: 2, clear: 0x10 }),
        "tcpflags" | "tcpflgs" => {
            Test::TcpFlags(bits(words.need("a list of flags")?, names::TCP_FLAGS)?)
        }
        "iptos" => Test::Tos(bits(words.need("a list")?, names::TOS)?),
        "proto" => {
            let word = words.need("a protocol")?;
            match names::protocol(&word.text).or((word.text == "ipv6").then_some(41)) {
                Some(protocol) => Test::Protocol(protocol),
                None => {
                    let what = format!("{} is no protocol", quoted(&word.text));
                    return wrong(&word.span, what, "write a name of /etc/protocols, or a number");
                }
            }
        }
        "ipv4" | "ip4" => Test::Version(4),
        "ipv6" | "ip6" => Test::Version(6),
        "src-ip" => address(words.need("an address")?, Side::Source)?,
        "dst-ip" => address(words.need("an address")?, Side::Destination)?,
        "src-ip6" | "src-ipv6" => address6(words.need("an address")?, Side::Source)?,
        "dst-ip6" | "dst-ipv6" => address6(words.need("an address")?, Side::Destination)?,
        "src-port" => Test::Ports(Side::Source, ports(words.need("ports")?)?),
        "dst-port" => Test::Ports(Side::Destination, ports(words.need("ports")?)?),
        "mac" | "MAC" => {
            Test::Mac([mac(words.need("an address")?)?, mac(words.need("an address")?)?])
        }
        "lookup" => lookup(words)?,
        text if states::is_option(text) => return states::misplaced(word),
        _ => numbers(word, words)?,
    };
    Ok(vec![Term { not, test }])
}

fn on_link(words: &mut Words<'_>, which: LinkSelector, not: bool) -> Result<Test, SpannedFault> {
    let word = words.need("a link")?;
    match link(word)? {
        Links::Any if not => reject_not_any(word),
        Links::Any => Ok(Test::Any),
        links => Ok(Test::Link(which, links)),
    }
}

/// Options whose arguments are numbers.
fn numbers(word: &Word, words: &mut Words<'_>) -> Result<Test, SpannedFault> {
    let short = |text: &str| number(text, 65_535).map(|number| number as u16);
    let byte = |text: &str| number(text, 255).map(|number| number as u16);
    let mut list =
        |what: &str, one: &dyn Fn(&str) -> Option<u16>| ranges(words.need(what)?, what, one);
    Ok(match word.text.as_str() {
        "iplen" => Test::Length(list("list of lengths", &short)?),
        "ipttl" => Test::Ttl(list("list of times to live", &byte)?),
        "ipid" => Test::Id(list("list of identifiers", &short)?),
        "tcpdatalen" => Test::TcpData(list("list of lengths", &short)?),
        "tcpwin" => Test::TcpWindow(list("list of windows", &short)?),
        "mac-type" => Test::EtherType(list("list of ethertypes", &names::ethertype)?),
        "icmptypes" | "icmptype" => Test::Icmp(types(words.need("a list of types")?, 31)?),
        "icmp6types" | "icmp6type" => Test::Icmp6(types(words.need("a list of types")?, 201)?),
        "dscp" => Test::Dscp(dscps(words.need("a list of DSCP")?)?),
        "ipversion" | "ipver" => Test::Version(words.number("version", 15)? as u8),
        "ipprecedence" => Test::Precedence(words.number("precedence", 7)? as u8),
        "tcpseq" => Test::TcpSequence(words.number("sequence number", u32::MAX)?),
        "tcpack" => Test::TcpAck(words.number("sequence number", u32::MAX)?),
        _ => return unknown(word),
    })
}

fn unknown(word: &Word) -> Result<Test, SpannedFault> {
    let text = word.text.as_str();
    match UNSUPPORTED.iter().find(|(names, ..)| names.contains(&text)) {
        Some((_, what, remedy)) => wrong(&word.span, format!("\"{text}\" {what}"), *remedy),
        None if text == "or" || text == "}" || text == ")" => wrong(
            &word.span,
            format!("{} is outside of a block", quoted(text)),
            "write { this or that }",
        ),
        None => wrong(
            &word.span,
            format!("{} is no option", quoted(text)),
            "write one of ipfw(8), or from and to before it",
        ),
    }
}

fn is_fragment_spec(text: &str) -> bool {
    let known = |part: &str| {
        names::named(names::FRAGMENT, part.strip_prefix('!').unwrap_or(part)).is_some()
    };
    text.split(',').all(known)
}

fn types(word: &Word, most: u32) -> Result<Vec<u8>, SpannedFault> {
    let one = |text: &str| number(text, most).map(|number| number as u8);
    match word.text.split(',').map(one).collect() {
        Some(types) => Ok(types),
        None => wrong(
            &word.span,
            format!("{} is no list of ICMP types", quoted(&word.text)),
            format!("write numbers up to {most} with commas between"),
        ),
    }
}

fn dscps(word: &Word) -> Result<Vec<u8>, SpannedFault> {
    match word.text.split(',').map(names::dscp).collect() {
        Some(all) => Ok(all),
        None => wrong(
            &word.span,
            format!("{} is no list of DSCP", quoted(&word.text)),
            "write numbers up to 63, or names as af11, cs1, ef",
        ),
    }
}

fn lookup(words: &mut Words<'_>) -> Result<Test, SpannedFault> {
    let word = words.need("what to look up")?;
    let what = match word.text.as_str() {
        "src-ip" => Lookup::Address(Side::Source),
        "dst-ip" => Lookup::Address(Side::Destination),
        "src-port" => Lookup::Port(Side::Source),
        "dst-port" => Lookup::Port(Side::Destination),
        "dscp" => Lookup::Dscp,
        _ => {
            return wrong(
                &word.span,
                format!("{} is no key that Tollway looks up in tables", quoted(&word.text)),
                "write src-ip, dst-ip, src-port, dst-port or dscp",
            );
        }
    };
    let table = words.need("the table's name")?;
    if !super::address::table_name(&table.text) {
        let what = format!("{} is no name of a table", quoted(&table.text));
        return wrong(&table.span, what, "write the name of a table");
    }
    Ok(Test::Lookup(what, table.text.clone()))
}
