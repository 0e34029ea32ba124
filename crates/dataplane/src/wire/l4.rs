//! Protocol numbers of transport and extension headers (IANA), and which of them have ports.

/// IPv6 hop-by-hop options.
pub const HOP_BY_HOP: u8 = 0;
/// ICMP.
pub const ICMP: u8 = 1;
/// TCP.
pub const TCP: u8 = 6;
/// UDP.
pub const UDP: u8 = 17;
/// DCCP.
pub const DCCP: u8 = 33;
/// IPv6 routing header.
pub const ROUTING: u8 = 43;
/// IPv6 fragment header.
pub const FRAGMENT: u8 = 44;
/// Generic routing encapsulation.
pub const GRE: u8 = 47;
/// Encapsulating security payload.
pub const ESP: u8 = 50;
/// Authentication header.
pub const AUTH: u8 = 51;
/// ICMPv6.
pub const ICMPV6: u8 = 58;
/// IPv6 without a next header.
pub const NO_NEXT_HEADER: u8 = 59;
/// IPv6 destination options.
pub const DEST_OPTIONS: u8 = 60;
/// SCTP.
pub const SCTP: u8 = 132;
/// UDP-Lite.
pub const UDP_LITE: u8 = 136;

/// Says whether the header starts with a source and a destination port of 16 bits each.
#[inline(always)]
#[must_use]
pub const fn has_ports(protocol: u8) -> bool {
    matches!(protocol, TCP | UDP | DCCP | SCTP | UDP_LITE)
}

/// Says whether an IPv6 header chain continues after this header (`ipv6_ext_hdr`). "No next header" ends it.
#[must_use]
pub const fn is_extension(next: u8) -> bool {
    matches!(next, HOP_BY_HOP | ROUTING | FRAGMENT | AUTH | DEST_OPTIONS)
}
