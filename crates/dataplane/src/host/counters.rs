//! Counters of the host, apart from those of the worker ([`crate::counters::Counters`]).

use std::collections::BTreeMap;

/// All counters of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostCounters {
    /// ICMP messages sent, by type.
    pub icmp4_sent: BTreeMap<u8, u64>,
    /// ICMPv6 messages sent, by type; solicitations and advertisements included.
    pub icmp6_sent: BTreeMap<u8, u64>,
    /// ICMP errors that a rate limit suppressed.
    pub rate_limited: u64,
    /// ICMP errors that RFC 1122 (3.2.2) or RFC 4443 (2.4) forbid.
    pub suppressed: u64,
    /// Own packets without a route or a source address.
    pub unroutable: u64,
    /// Echo requests answered.
    pub echo_answered: u64,
    /// TCP resets sent.
    pub resets_sent: u64,
    /// Packets that the host cut into fragments.
    pub fragmented: u64,
    /// Fragments that it cut them into.
    pub fragments_made: u64,
    /// Packets with options that the host forwarded.
    pub forwarded: u64,
    /// Packets with a source route, which were dropped.
    pub source_routed: u64,
    /// ARP requests sent.
    pub arp_requests_sent: u64,
    /// ARP replies sent.
    pub arp_replies_sent: u64,
    /// Neighbour solicitations sent.
    pub nd_solicits_sent: u64,
    /// Neighbour advertisements sent.
    pub nd_adverts_sent: u64,
    /// ARP or ND messages that are malformed or implausible.
    pub neigh_invalid: u64,
    /// Router solicitations, router advertisements and redirects received and ignored.
    pub nd_router_ignored: u64,
    /// Neighbours that did not answer.
    pub neigh_failed: u64,
    /// Neighbours that were evicted to make room for others.
    pub neigh_evicted: u64,
    /// Delivered packets whose headers or checksums are wrong.
    pub malformed: u64,
    /// Fragments for the router itself, which it does not reassemble.
    pub fragments_ignored: u64,
    /// Delivered packets that the host has no use for.
    pub ignored: u64,
}

impl HostCounters {
    pub(super) fn icmp4(&mut self, kind: u8) {
        *self.icmp4_sent.entry(kind).or_default() += 1;
    }

    pub(super) fn icmp6(&mut self, kind: u8) {
        *self.icmp6_sent.entry(kind).or_default() += 1;
    }
}
