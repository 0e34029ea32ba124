//! Translated packets against packets that are built with the other addresses and ports from the beginning.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// A packet to build.
#[derive(Clone, Debug)]
struct Packet {
    version: u8,
    protocol: u8,
    source: u128,
    destination: u128,
    ports: (u16, u16),
    /// Type of ICMP, and what follows the header.
    kind: u8,
    payload: Vec<u8>,
    /// IPv4 options or IPv6 extension headers.
    extra: usize,
    fragment: Fragment,
    /// A checksum of UDP that is 0, and one that is wrong.
    no_sum: bool,
    wrong: u16,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fragment {
    None,
    First,
    Later,
}

/// RFC 1071, by remainders.
fn naive(parts: &[&[u8]]) -> u16 {
    let bytes: u128 = parts
        .iter()
        .flat_map(|part| part.chunks(2))
        .map(|pair| u128::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u128::from(*low)))
        .sum();
    let rest = (bytes % 0xffff) as u16;
    if bytes != 0 && rest == 0 { 0 } else { !rest }
}

impl Packet {
    fn address(&self, address: u128) -> Vec<u8> {
        address.to_be_bytes()[if self.version == 4 { 12 } else { 0 }..].to_vec()
    }

    fn build(&self) -> Vec<u8> {
        self.with_transport(if self.fragment == Fragment::Later {
            self.payload.clone()
        } else {
            self.transport()
        })
    }

    fn transport(&self) -> Vec<u8> {
        let mut bytes = [self.ports.0.to_be_bytes(), self.ports.1.to_be_bytes()].concat();
        let (len, sum_at) = match self.protocol {
            l4::TCP => (20, 16),
            l4::UDP | l4::UDP_LITE => (8, 6),
            l4::DCCP => (12, 6),
            l4::ICMP | l4::ICMPV6 => (8, 2),
            _ => (12, 12),
        };
        bytes.resize(len, 0x35);
        if matches!(self.protocol, l4::ICMP | l4::ICMPV6) {
            bytes[..4].copy_from_slice(&[self.kind, 7, 0, 0]);
            bytes[4..6].copy_from_slice(&self.ports.0.to_be_bytes());
        }
        bytes.extend(&self.payload);
        self.sign(&mut bytes, sum_at);
        bytes
    }

    fn sign(&self, bytes: &mut [u8], at: usize) {
        if !matches!(
            self.protocol,
            l4::TCP | l4::UDP | l4::UDP_LITE | l4::DCCP | l4::ICMP | l4::ICMPV6
        ) {
            return;
        }
        bytes[at..at + 2].fill(0);
        let pseudo = [
            self.address(self.source),
            self.address(self.destination),
            vec![0, self.protocol],
            (bytes.len() as u16).to_be_bytes().to_vec(),
        ]
        .concat();
        let pseudo = if self.protocol == l4::ICMP { &[][..] } else { &pseudo };
        let mut sum = naive(&[pseudo, bytes, &self.wrong.to_be_bytes()]);
        if matches!(self.protocol, l4::UDP | l4::UDP_LITE) && sum == 0 {
            sum = 0xffff;
        }
        if self.protocol == l4::UDP && self.no_sum {
            sum = 0;
        }
        bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }

    fn with_transport(&self, transport: Vec<u8>) -> Vec<u8> {
        if self.version == 4 { self.build4(&transport) } else { self.build6(&transport) }
    }

    fn build4(&self, transport: &[u8]) -> Vec<u8> {
        let mut header = vec![0; 20 + self.extra * 4];
        header[0] = 0x40 | (header.len() / 4) as u8;
        let total = (header.len() + transport.len()) as u16;
        header[2..4].copy_from_slice(&total.to_be_bytes());
        header[6..8].copy_from_slice(&match self.fragment {
            Fragment::None => [0x40, 0],
            Fragment::First => [0x20, 0],
            Fragment::Later => [0x20, 9],
        });
        header[8..10].copy_from_slice(&[64, self.protocol]);
        header[12..16].copy_from_slice(&self.address(self.source));
        header[16..20].copy_from_slice(&self.address(self.destination));
        let sum = naive(&[&header]);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        [&header, transport].concat()
    }

    fn build6(&self, transport: &[u8]) -> Vec<u8> {
        let mut chain = match self.extra {
            0 => vec![],
            1 => vec![(l4::HOP_BY_HOP, vec![0; 8])],
            2 => vec![(l4::DEST_OPTIONS, vec![0; 16]), (l4::AUTH, vec![0; 12])],
            _ => vec![(l4::ROUTING, vec![0; 24])],
        };
        match self.fragment {
            Fragment::None => {}
            Fragment::First => chain.push((l4::FRAGMENT, vec![0, 0, 0, 1, 0, 0, 0, 5])),
            Fragment::Later => chain.push((l4::FRAGMENT, vec![0, 0, 1, 8, 0, 0, 0, 5])),
        }
        let mut next = self.protocol;
        let mut extensions = Vec::new();
        for (kind, mut bytes) in chain.into_iter().rev() {
            bytes[0] = next;
            match kind {
                l4::FRAGMENT => {}
                l4::AUTH => bytes[1] = (bytes.len() / 4 - 2) as u8,
                _ => bytes[1] = (bytes.len() / 8 - 1) as u8,
            }
            next = kind;
            extensions.splice(0..0, bytes);
        }
        let length = (extensions.len() + transport.len()) as u16;
        let mut header = vec![0x60, 0, 0, 0];
        header.extend(length.to_be_bytes());
        header.extend([next, 64]);
        header.extend(self.address(self.source));
        header.extend(self.address(self.destination));
        [&header, &extensions[..], transport].concat()
    }

    /// The same with other addresses and ports.
    fn translated(&self, new: &Translation) -> Self {
        let is_query = match self.protocol {
            l4::ICMP => matches!(self.kind, 0 | 8 | 13..=18),
            l4::ICMPV6 => matches!(self.kind, 128 | 129),
            _ => false,
        };
        let (source, destination) = (new.source_port, new.destination_port);
        let ports = match self.protocol {
            l4::TCP | l4::UDP | l4::UDP_LITE | l4::DCCP => {
                (source.unwrap_or(self.ports.0), destination.unwrap_or(self.ports.1))
            }
            _ if is_query => (source.or(destination).unwrap_or(self.ports.0), 0),
            _ => self.ports,
        };
        Self {
            source: new.source.unwrap_or(self.source),
            destination: new.destination.unwrap_or(self.destination),
            ports,
            ..self.clone()
        }
    }
}

/// An address whose words are often all zeros or all ones.
fn address() -> impl Strategy<Value = u128> {
    let word = prop_oneof![Just(0_u16), Just(0xffff), 0_u16..];
    vec(word, 8).prop_map(|words| {
        words.into_iter().fold(0, |address, word| address << 16 | u128::from(word))
    })
}

fn port() -> impl Strategy<Value = u16> {
    prop_oneof![Just(0_u16), Just(0xffff), 0_u16..]
}

fn translation() -> impl Strategy<Value = Translation> {
    use proptest::option::of;
    (of(address()), of(address()), of(port()), of(port())).prop_map(
        |(source, destination, source_port, destination_port)| Translation {
            source,
            destination,
            source_port,
            destination_port,
        },
    )
}

fn packet() -> impl Strategy<Value = Packet> {
    const PROTOCOLS: [u8; 8] =
        [l4::TCP, l4::UDP, l4::UDP_LITE, l4::DCCP, l4::SCTP, l4::GRE, l4::ESP, l4::ICMP];
    let fragment = prop_oneof![4 => Just(Fragment::None), 1 => Just(Fragment::First), 1 => Just(Fragment::Later)];
    let what = (proptest::bool::ANY, proptest::sample::select(&PROTOCOLS[..]), 0_usize..4);
    let kind = prop_oneof![Just(0_u8), Just(8), Just(3), 13_u8..19, Just(128), Just(129), 0_u8..];
    let wrong = prop_oneof![3 => Just(0_u16), 1 => 1_u16..];
    let sums = (proptest::bool::ANY, wrong, fragment, kind);
    (what, address(), address(), (port(), port()), vec(0_u8.., 1..40), sums).prop_map(
        |(what, source, destination, ports, payload, sums)| {
            let (is_four, protocol, extra) = what;
            let (no_sum, wrong, fragment, kind) = sums;
            let protocol = match (is_four, protocol) {
                (false, l4::ICMP) => l4::ICMPV6,
                _ => protocol,
            };
            Packet {
                version: if is_four { 4 } else { 6 },
                protocol,
                source,
                destination,
                ports,
                kind,
                payload,
                extra,
                fragment,
                no_sum,
                wrong,
            }
        },
    )
}

/// An error about a packet, which quotes so many bytes of it.
fn error(packet: &Packet, outer: &Packet, quoted: usize) -> Vec<u8> {
    let inner = packet.build();
    let quoted = inner[..quoted.min(inner.len())].to_vec();
    let protocol = if outer.version == 4 { l4::ICMP } else { l4::ICMPV6 };
    let kind = if outer.version == 4 { 3 } else { 1 };
    let fragment = Fragment::None;
    Packet { protocol, kind, payload: quoted, fragment, ..outer.clone() }.build()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn a_translated_packet_is_as_if_built_so(
        packet in packet(),
        new in translation(),
        padding in vec(0_u8.., 0..6),
    ) {
        let mut bytes = packet.build();
        bytes.extend(&padding);
        prop_assert_eq!(translate(&mut bytes, &new), Ok(()));
        let mut expected = packet.translated(&new).build();
        expected.extend(&padding);
        prop_assert_eq!(bytes, expected);
    }

    #[test]
    fn a_quoted_packet_is_as_if_built_so(
        packet in packet(),
        outer in packet(),
        new in translation(),
        quoted in 0_usize..120,
    ) {
        let outer = Packet { version: packet.version, ..outer };
        // The checksum of a header that is cut off stays.
        let in_transport = quoted.saturating_sub(packet.build().len() - packet.transport().len());
        prop_assume!(match packet.protocol {
            l4::TCP => !(17..20).contains(&in_transport),
            l4::DCCP => !(7..12).contains(&in_transport),
            _ => true,
        });
        let bytes = error(&packet, &outer, quoted);
        let mut after = bytes.clone();
        let result = translate_quoted(&mut after, &new);
        let whole = packet.build().len();
        if quoted >= whole {
            prop_assert_eq!(result, Ok(()));
        }
        match result {
            Ok(()) => prop_assert_eq!(after, error(&packet.translated(&new), &outer, quoted)),
            Err(error) => {
                prop_assert_eq!(error, Untranslatable::Truncated);
                prop_assert_eq!(after, bytes);
            }
        }
    }

    #[test]
    fn what_is_cut_off_stays_as_it_is(packet in packet(), new in translation(), cut in 1_usize..200) {
        let bytes = packet.build();
        let mut cut_off = bytes[..bytes.len().saturating_sub(cut)].to_vec();
        let before = cut_off.clone();
        prop_assert_eq!(translate(&mut cut_off, &new), Err(Untranslatable::Truncated));
        prop_assert_eq!(cut_off, before);
    }

    #[test]
    fn nothing_panics(mut bytes in vec(0_u8.., 0..120), new in translation(), version: bool) {
        if let Some(first) = bytes.first_mut() {
            *first = *first & 15 | if version { 0x40 } else { 0x60 };
        }
        let _ = translate(&mut bytes, &new);
        let _ = translate_quoted(&mut bytes, &new);
    }
}

#[test]
fn the_checksum_of_a_header_that_is_cut_off_stays() {
    let new =
        Translation { source: Some(0x0a00_0001), source_port: Some(1), ..Translation::default() };
    let tcp = Packet {
        version: 4,
        protocol: l4::TCP,
        source: 0xc000_0201,
        destination: 0xc633_6401,
        ports: (5000, 80),
        kind: 0,
        payload: b"x".to_vec(),
        extra: 0,
        fragment: Fragment::None,
        no_sum: false,
        wrong: 0,
    };
    let outer = Packet { protocol: l4::ICMP, ..tcp.clone() };
    for (quoted, changes) in [(38, false), (39, false), (40, true)] {
        let mut bytes = error(&tcp, &outer, quoted);
        let sum = bytes[20 + 8 + 20 + 16..][..2].to_vec();
        assert_eq!(translate_quoted(&mut bytes, &new), Ok(()));
        assert_eq!(bytes[20 + 8 + 20 + 16..][..2] != sum, changes, "{quoted}");
        assert_eq!(bytes[48..50], [0, 1], "the port");
    }
}

#[test]
fn there_and_back_is_the_same() {
    let new =
        Translation { source: Some(0x0a00_0001), source_port: Some(1), ..Translation::default() };
    let udp = Packet {
        version: 4,
        protocol: l4::UDP,
        source: 0xc000_0201,
        destination: 0xc633_6401,
        ports: (5000, 53),
        kind: 0,
        payload: b"query".to_vec(),
        extra: 0,
        fragment: Fragment::None,
        no_sum: false,
        wrong: 0,
    };
    let before = udp.build();
    let mut bytes = before.clone();
    assert_eq!(translate(&mut bytes, &new), Ok(()));
    assert_ne!(bytes, before);
    let back =
        Translation { source: Some(udp.source), source_port: Some(5000), ..Translation::default() };
    assert_eq!(translate(&mut bytes, &back), Ok(()));
    assert_eq!(bytes, before);
    assert_eq!(translate_quoted(&mut bytes, &back), Err(Untranslatable::NoError));
}
