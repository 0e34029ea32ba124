//! Names that iptables has for numbers and families.

use tollway_dataplane::wire::l4;

use crate::ir::{Family, Reject};
use crate::names::{Names, PROTOCOLS};

/// Names of iptables and `/etc/protocols` in addition to [`PROTOCOLS`].
const MORE_PROTOCOLS: Names = &[
    ("ipv6-crypt", 50),
    ("ipv6-auth", 51),
    ("icmp6", 58),
    ("ipv6-mh", 135),
    ("mh", 135),
    ("all", 0),
];

/// The family as in names of chains.
pub(super) const fn family_name(family: Family) -> &'static str {
    match family {
        Family::Ip6 => "ip6",
        _ => "ip",
    }
}

/// The number of a protocol's name; 0 for all.
pub(super) fn protocol(name: &str) -> Option<u8> {
    let name = name.to_ascii_lowercase();
    let mut all = PROTOCOLS.iter().chain(MORE_PROTOCOLS);
    all.find(|(known, _)| *known == name).map(|(_, number)| *number)
}

/// The match that has the options of a protocol.
pub(super) const fn match_of(protocol: u8, family: Family) -> Option<&'static str> {
    Some(match (protocol, family) {
        (l4::TCP, _) => "tcp",
        (l4::UDP, _) => "udp",
        (l4::DCCP, _) => "dccp",
        (l4::ESP, _) => "esp",
        (l4::SCTP, _) => "sctp",
        (l4::ICMP, Family::Ip) => "icmp",
        (l4::AUTH, Family::Ip) => "ah",
        (l4::ICMPV6, Family::Ip6) => "icmp6",
        (135, Family::Ip6) => "mh",
        _ => return None,
    })
}

const ICMP: [(&str, u8, Option<u8>); 41] = [
    ("echo-reply", 0, None),
    ("pong", 0, None),
    ("destination-unreachable", 3, None),
    ("network-unreachable", 3, Some(0)),
    ("host-unreachable", 3, Some(1)),
    ("protocol-unreachable", 3, Some(2)),
    ("port-unreachable", 3, Some(3)),
    ("fragmentation-needed", 3, Some(4)),
    ("source-route-failed", 3, Some(5)),
    ("network-unknown", 3, Some(6)),
    ("host-unknown", 3, Some(7)),
    ("network-prohibited", 3, Some(9)),
    ("host-prohibited", 3, Some(10)),
    ("TOS-network-unreachable", 3, Some(11)),
    ("TOS-host-unreachable", 3, Some(12)),
    ("communication-prohibited", 3, Some(13)),
    ("host-precedence-violation", 3, Some(14)),
    ("precedence-cutoff", 3, Some(15)),
    ("source-quench", 4, None),
    ("redirect", 5, None),
    ("network-redirect", 5, Some(0)),
    ("host-redirect", 5, Some(1)),
    ("TOS-network-redirect", 5, Some(2)),
    ("TOS-host-redirect", 5, Some(3)),
    ("echo-request", 8, None),
    ("ping", 8, None),
    ("router-advertisement", 9, None),
    ("router-solicitation", 10, None),
    ("time-exceeded", 11, None),
    ("ttl-exceeded", 11, None),
    ("ttl-zero-during-transit", 11, Some(0)),
    ("ttl-zero-during-reassembly", 11, Some(1)),
    ("parameter-problem", 12, None),
    ("ip-header-bad", 12, Some(0)),
    ("required-option-missing", 12, Some(1)),
    ("timestamp-request", 13, None),
    ("timestamp-reply", 14, None),
    ("address-mask-request", 17, None),
    ("address-mask-reply", 18, None),
    ("any", 255, None),
    ("all", 255, None),
];

const ICMP6: [(&str, u8, Option<u8>); 28] = [
    ("destination-unreachable", 1, None),
    ("no-route", 1, Some(0)),
    ("communication-prohibited", 1, Some(1)),
    ("beyond-scope", 1, Some(2)),
    ("address-unreachable", 1, Some(3)),
    ("port-unreachable", 1, Some(4)),
    ("failed-policy", 1, Some(5)),
    ("reject-route", 1, Some(6)),
    ("packet-too-big", 2, None),
    ("time-exceeded", 3, None),
    ("ttl-exceeded", 3, None),
    ("ttl-zero-during-transit", 3, Some(0)),
    ("ttl-zero-during-reassembly", 3, Some(1)),
    ("parameter-problem", 4, None),
    ("bad-header", 4, Some(0)),
    ("unknown-header-type", 4, Some(1)),
    ("unknown-option", 4, Some(2)),
    ("echo-request", 128, None),
    ("ping", 128, None),
    ("echo-reply", 129, None),
    ("pong", 129, None),
    ("router-solicitation", 133, None),
    ("router-advertisement", 134, None),
    ("neighbour-solicitation", 135, None),
    ("neighbor-solicitation", 135, None),
    ("neighbour-advertisement", 136, None),
    ("neighbor-advertisement", 136, None),
    ("redirect", 137, None),
];

/// Type and code of an ICMP message, by its name.
pub(super) fn icmp(name: &str, family: Family) -> Option<(u8, Option<u8>)> {
    let names = if family == Family::Ip6 { &ICMP6[..] } else { &ICMP };
    let found = names.iter().find(|(known, ..)| known.eq_ignore_ascii_case(name));
    found.map(|(_, kind, code)| (*kind, *code))
}

/// The error that `--reject-with` names.
pub(super) fn reject(name: &str, family: Family) -> Option<Reject> {
    Some(match (name, family) {
        ("tcp-reset" | "tcp-rst", _) => Reject::TcpReset,
        ("icmp-net-unreachable" | "net-unreach", Family::Ip) => Reject::Icmp(0),
        ("icmp-host-unreachable" | "host-unreach", Family::Ip) => Reject::Icmp(1),
        ("icmp-proto-unreachable" | "proto-unreach", Family::Ip) => Reject::Icmp(2),
        ("icmp-port-unreachable" | "port-unreach", Family::Ip) => Reject::Icmp(3),
        ("icmp-net-prohibited" | "net-prohib", Family::Ip) => Reject::Icmp(9),
        ("icmp-host-prohibited" | "host-prohib", Family::Ip) => Reject::Icmp(10),
        ("icmp-admin-prohibited" | "admin-prohib", Family::Ip) => Reject::Icmp(13),
        ("icmp6-no-route" | "no-route", Family::Ip6) => Reject::Icmp6(0),
        ("icmp6-adm-prohibited" | "adm-prohibited", Family::Ip6) => Reject::Icmp6(1),
        ("icmp6-addr-unreachable" | "addr-unreach", Family::Ip6) => Reject::Icmp6(3),
        ("icmp6-port-unreachable" | "port-unreach", Family::Ip6) => Reject::Icmp6(4),
        ("icmp6-policy-fail" | "policy-fail", Family::Ip6) => Reject::Icmp6(5),
        ("icmp6-reject-route" | "reject-route", Family::Ip6) => Reject::Icmp6(6),
        _ => return None,
    })
}

/// Says whether syslog has this level.
pub(super) fn is_log_level(name: &str) -> bool {
    let names = ["alert", "crit", "debug", "emerg", "error", "info", "notice", "panic", "warning"];
    names.contains(&name) || super::value::plain(name).is_some_and(|level| level < 8)
}

/// TCP flags, separated by commas.
pub(super) fn tcp_flags(list: &str) -> Option<u8> {
    list.split(',').try_fold(0, |flags, name| {
        let flag = match name.to_ascii_uppercase().as_str() {
            "FIN" => 0x01,
            "SYN" => 0x02,
            "RST" => 0x04,
            "PSH" => 0x08,
            "ACK" => 0x10,
            "URG" => 0x20,
            "ALL" => 0x3f,
            "NONE" => 0,
            _ => return None,
        };
        Some(flags | flag)
    })
}

/// The DSCP of a class.
pub(super) fn dscp_class(name: &str) -> Option<u8> {
    let name = name.to_ascii_uppercase();
    let digit = |at: usize, from: u8, to: u8| {
        let digit = name.as_bytes().get(at)?.checked_sub(b'0')?;
        (from <= digit && digit <= to).then_some(digit)
    };
    match (name.get(..2)?, name.len()) {
        ("BE", 2) => Some(0),
        ("EF", 2) => Some(0x2e),
        ("CS", 3) => Some(digit(2, 0, 7)? << 3),
        ("AF", 4) => Some(digit(2, 1, 4)? << 3 | digit(3, 1, 3)? << 1),
        _ => None,
    }
}
