//! nft's names of numbers (`src/datatype.c`, `src/proto.c`, /etc/protocols).

use super::named_bits::Kind;
use crate::names;

type Words = &'static [(&'static str, u128)];

/// The number that a name denotes in fields of this kind.
pub(super) fn number(kind: Kind, word: &str) -> Option<u128> {
    let words = match kind {
        Kind::Protocol => MORE_PROTOCOLS,
        Kind::EtherType => ETHER_TYPES,
        Kind::Dscp => MORE_DSCP,
        Kind::Ecn => ECN,
        Kind::IcmpType => ICMP_TYPES,
        Kind::IcmpCode => ICMP_CODES,
        Kind::Icmp6Type => ICMP6_TYPES,
        Kind::Icmp6Code => ICMP6_CODES,
        Kind::IcmpxCode => ICMPX_CODES,
        Kind::TcpFlags => TCP_FLAGS,
        Kind::Nfproto => NFPROTO,
        Kind::DccpType => DCCP_TYPES,
        Kind::IgmpType => IGMP_TYPES,
        Kind::L3Protocol => L3_PROTOCOLS,
        Kind::CtState => CT_STATES,
        Kind::CtStatus => CT_STATUS,
        Kind::CtDirection => CT_DIRECTIONS,
        _ => return None,
    };
    let shared = match kind {
        Kind::Protocol => names::PROTOCOLS,
        Kind::Dscp => names::DSCP,
        _ => &[],
    };
    let shared = shared.iter().map(|(name, number)| (*name, u128::from(*number)));
    let mut all = words.iter().copied().chain(shared);
    all.find(|(name, _)| *name == word).map(|(_, number)| number)
}

/// In addition to [`names::PROTOCOLS`].
const MORE_PROTOCOLS: Words = &[("ipv4", 4), ("comp", 108), ("mptcp", 262)];

const ETHER_TYPES: Words = &[
    ("ip", 0x0800),
    ("arp", 0x0806),
    ("ip6", 0x86dd),
    ("8021q", 0x8100),
    ("vlan", 0x8100),
    ("8021ad", 0x88a8),
];

const NFPROTO: Words = &[("ipv4", 4), ("ipv6", 6)];

/// `NFPROTO_*`.
const L3_PROTOCOLS: Words = &[("ipv4", 2), ("ipv6", 10)];

/// `NF_CT_STATE_*`.
const CT_STATES: Words =
    &[("invalid", 1), ("established", 2), ("related", 4), ("new", 8), ("untracked", 64)];

/// `enum ip_conntrack_status`.
const CT_STATUS: Words = &[
    ("expected", 1),
    ("seen-reply", 2),
    ("assured", 4),
    ("confirmed", 8),
    ("snat", 16),
    ("dnat", 32),
    ("dying", 512),
];

const CT_DIRECTIONS: Words = &[("original", 0), ("reply", 1)];

/// In addition to [`names::DSCP`].
const MORE_DSCP: Words = &[("df", 0), ("lephb", 1)];

const ECN: Words = &[("not-ect", 0), ("ect1", 1), ("ect0", 2), ("ce", 3)];

const TCP_FLAGS: Words = &[
    ("fin", 1),
    ("syn", 2),
    ("rst", 4),
    ("psh", 8),
    ("ack", 16),
    ("urg", 32),
    ("ecn", 64),
    ("cwr", 128),
];

const ICMP_TYPES: Words = &[
    ("echo-reply", 0),
    ("destination-unreachable", 3),
    ("source-quench", 4),
    ("redirect", 5),
    ("echo-request", 8),
    ("router-advertisement", 9),
    ("router-solicitation", 10),
    ("time-exceeded", 11),
    ("parameter-problem", 12),
    ("timestamp-request", 13),
    ("timestamp-reply", 14),
    ("info-request", 15),
    ("info-reply", 16),
    ("address-mask-request", 17),
    ("address-mask-reply", 18),
];

const ICMP_CODES: Words = &[
    ("net-unreachable", 0),
    ("host-unreachable", 1),
    ("prot-unreachable", 2),
    ("port-unreachable", 3),
    ("frag-needed", 4),
    ("net-prohibited", 9),
    ("host-prohibited", 10),
    ("admin-prohibited", 13),
];

const ICMP6_TYPES: Words = &[
    ("destination-unreachable", 1),
    ("packet-too-big", 2),
    ("time-exceeded", 3),
    ("parameter-problem", 4),
    ("echo-request", 128),
    ("echo-reply", 129),
    ("mld-listener-query", 130),
    ("mld-listener-report", 131),
    ("mld-listener-done", 132),
    ("mld-listener-reduction", 132),
    ("nd-router-solicit", 133),
    ("nd-router-advert", 134),
    ("nd-neighbor-solicit", 135),
    ("nd-neighbor-advert", 136),
    ("nd-redirect", 137),
    ("router-renumbering", 138),
    ("ind-neighbor-solicit", 141),
    ("ind-neighbor-advert", 142),
    ("mld2-listener-report", 143),
];

const ICMP6_CODES: Words = &[
    ("no-route", 0),
    ("admin-prohibited", 1),
    ("addr-unreachable", 3),
    ("port-unreachable", 4),
    ("policy-fail", 5),
    ("reject-route", 6),
];

const ICMPX_CODES: Words =
    &[("no-route", 0), ("port-unreachable", 1), ("host-unreachable", 2), ("admin-prohibited", 3)];

const DCCP_TYPES: Words = &[
    ("request", 0),
    ("response", 1),
    ("data", 2),
    ("ack", 3),
    ("dataack", 4),
    ("closereq", 5),
    ("close", 6),
    ("reset", 7),
    ("sync", 8),
    ("syncack", 9),
];

const IGMP_TYPES: Words = &[
    ("membership-query", 0x11),
    ("membership-report-v1", 0x12),
    ("membership-report-v2", 0x16),
    ("leave-group", 0x17),
    ("membership-report-v3", 0x22),
];
