//! Names of protocols, services and codes that rules use: `/etc/protocols`, `/etc/services` and the tables of
//! FreeBSD's `sbin/ipfw/ipfw2.c`.

use super::words::number;
use crate::names::{DSCP, Names};

const PROTOCOLS: Names = &[
    ("icmp", 1),
    ("igmp", 2),
    ("ipencap", 4),
    ("st", 5),
    ("tcp", 6),
    ("egp", 8),
    ("igp", 9),
    ("udp", 17),
    ("ipv6-route", 43),
    ("ipv6-frag", 44),
    ("rsvp", 46),
    ("gre", 47),
    ("esp", 50),
    ("ah", 51),
    ("ipv6-icmp", 58),
    ("icmp6", 58),
    ("ipv6-nonxt", 59),
    ("ipv6-opts", 60),
    ("eigrp", 88),
    ("ospf", 89),
    ("ospfigp", 89),
    ("ipip", 94),
    ("etherip", 97),
    ("encap", 98),
    ("pim", 103),
    ("ipcomp", 108),
    ("carp", 112),
    ("vrrp", 112),
    ("l2tp", 115),
    ("sctp", 132),
    ("udplite", 136),
];

/// Codes of ICMP destination unreachable.
pub(super) const UNREACH: Names = &[
    ("net", 0),
    ("host", 1),
    ("protocol", 2),
    ("port", 3),
    ("needfrag", 4),
    ("srcfail", 5),
    ("net-unknown", 6),
    ("host-unknown", 7),
    ("isolated", 8),
    ("net-prohib", 9),
    ("host-prohib", 10),
    ("tosnet", 11),
    ("toshost", 12),
    ("filter-prohib", 13),
    ("host-precedence", 14),
    ("precedence-cutoff", 15),
];

/// Codes of ICMPv6 destination unreachable.
pub(super) const UNREACH6: Names =
    &[("no-route", 0), ("admin-prohib", 1), ("address", 3), ("port", 4)];

/// TCP flags.
pub(super) const TCP_FLAGS: Names =
    &[("fin", 1), ("syn", 2), ("rst", 4), ("psh", 8), ("ack", 0x10), ("urg", 0x20)];

/// Bits of the type of service.
pub(super) const TOS: Names =
    &[("lowdelay", 0x10), ("throughput", 0x08), ("reliability", 0x04), ("mincost", 0x02)];

/// Tests of a fragment, as the upper byte of its field; `offset` is any but 0.
pub(super) const FRAGMENT: Names = &[("rf", 0x80), ("df", 0x40), ("mf", 0x20), ("offset", 0x01)];

/// The most used names of ports.
const SERVICES: &[(&str, u16)] = &[
    ("ftp-data", 20),
    ("ftp", 21),
    ("ssh", 22),
    ("telnet", 23),
    ("smtp", 25),
    ("time", 37),
    ("tacacs", 49),
    ("domain", 53),
    ("bootps", 67),
    ("bootpc", 68),
    ("tftp", 69),
    ("gopher", 70),
    ("finger", 79),
    ("http", 80),
    ("kerberos", 88),
    ("pop3", 110),
    ("sunrpc", 111),
    ("auth", 113),
    ("ident", 113),
    ("nntp", 119),
    ("ntp", 123),
    ("epmap", 135),
    ("netbios-ns", 137),
    ("netbios-dgm", 138),
    ("netbios-ssn", 139),
    ("imap", 143),
    ("imap2", 143),
    ("snmp", 161),
    ("snmptrap", 162),
    ("bgp", 179),
    ("ldap", 389),
    ("https", 443),
    ("microsoft-ds", 445),
    ("isakmp", 500),
    ("exec", 512),
    ("login", 513),
    ("shell", 514),
    ("syslog", 514),
    ("printer", 515),
    ("router", 520),
    ("route", 520),
    ("submission", 587),
    ("ldaps", 636),
    ("rsync", 873),
    ("imaps", 993),
    ("pop3s", 995),
    ("socks", 1080),
    ("openvpn", 1194),
    ("l2tp", 1701),
    ("pptp", 1723),
    ("radius", 1812),
    ("nfsd", 2049),
    ("nfs", 2049),
    ("mysql", 3306),
    ("rdp", 3389),
    ("sip", 5060),
    ("postgresql", 5432),
    ("x11", 6000),
    ("http-alt", 8080),
];

/// The number of a name.
pub(super) fn named(names: &[(&str, u8)], name: &str) -> Option<u8> {
    names.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| *value)
}

/// The names of a table, for messages.
pub(super) fn list(names: &[(&str, u8)]) -> String {
    names.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

/// A protocol by name or number, except 0.
pub(super) fn protocol(text: &str) -> Option<u8> {
    let by_number = number(text, 255).filter(|number| *number > 0).map(|number| number as u8);
    by_number.or_else(|| named(PROTOCOLS, text))
}

/// A port by number or name.
pub(super) fn port(text: &str) -> Option<u16> {
    let known = || SERVICES.iter().find(|(name, _)| *name == text).map(|(_, port)| *port);
    number(text, 65_535).map(|number| number as u16).or_else(known)
}

/// A DSCP by number or name.
pub(super) fn dscp(text: &str) -> Option<u8> {
    number(text, 63).map(|number| number as u8).or_else(|| named(DSCP, text))
}

/// An ethertype by number or name.
pub(super) fn ethertype(text: &str) -> Option<u16> {
    let known = [("ip", 0x0800), ("ipv4", 0x0800), ("arp", 0x0806), ("ipv6", 0x86dd)];
    let named = || known.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
    let hexadecimal = || match text.len() {
        4 => u16::from_str_radix(text, 16).ok(),
        _ => None,
    };
    // ipfw(8) reads them as hexadecimal, with or without `0x`.
    text.strip_prefix("0x")
        .and_then(|digits| u16::from_str_radix(digits, 16).ok())
        .or_else(named)
        .or_else(hexadecimal)
        .or_else(|| number(text, 65_535).map(|number| number as u16))
}
