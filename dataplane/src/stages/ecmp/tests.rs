use etherparse::{IpAuthHeader, IpNumber};
use proptest::prelude::*;

use super::{BUCKETS, Group, MAX_EXTENSIONS, Member};
use crate::id::NextHopId;
use crate::testkit::packet::Packet;
use crate::testkit::road::{Outcome, Road};
use crate::testkit::wires::{Special, WEIGHTS, Way};

/// Packets for what is counted.
const MANY: u32 = 100_000;

fn flow4() -> Packet {
    Way::Plain.packet(0, Special::Group.host4())
}

fn flow6() -> Packet {
    Way::Plain.packet(0, Special::Group.host6())
}

/// The member, by its port, that each packet gets.
fn members(packets: &[Packet]) -> Vec<u16> {
    let mut road = Road::new();
    let frames = packets.iter().map(Packet::build).collect::<Vec<_>>();
    let outcomes = frames.chunks(64).flat_map(|frames| road.burst(0, frames));
    outcomes
        .map(|outcome| match outcome {
            Outcome::Sent(port @ 1..=2, _) => port,
            other => panic!("{other:?}"),
        })
        .collect()
}

fn one_member(packets: &[Packet]) -> bool {
    members(packets).windows(2).all(|pair| pair[0] == pair[1])
}

/// Changes a flow in 64 ways and says how many members there are then.
fn spread(flow: impl Fn(u16) -> Packet) -> usize {
    let mut members = members(&(0..64).map(flow).collect::<Vec<_>>());
    members.sort_unstable();
    members.dedup();
    members.len()
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes there")]
fn a_flow_stays_on_its_member() {
    for flow in [flow4(), flow6()] {
        for port in 0..64 {
            let flow = flow.clone().ports(port, 53);
            let packets = [
                flow.clone(),
                flow.clone().ttl(9),
                flow.clone().size(1200),
                flow.clone().padded(40),
                flow.clone().tagged(Way::Vlan.tags()),
                flow.clone().tagged(Way::Qinq.tags()),
            ];
            assert!(one_member(&packets), "source port {port}");
        }
    }
    let marked = |id| flow4().v4(|header| header.identification = id);
    assert!(one_member(&[marked(0), marked(1), marked(0xffff)]));
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes there")]
fn addresses_ports_and_protocol_tell_flows_apart() {
    for flow in [flow4(), flow6()] {
        assert_eq!(spread(|n| flow.clone().ports(n, 53)), 2, "source port");
        assert_eq!(spread(|n| flow.clone().ports(53, n)), 2, "destination port");
    }
    assert_eq!(spread(|n| flow4().v4(|header| header.source[3] = n as u8)), 2);
    assert_eq!(spread(|n| flow4().v4(|header| header.destination[3] = n as u8)), 2);
    assert_eq!(spread(|n| flow4().v4(|header| header.protocol = IpNumber(n as u8))), 2);
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes there")]
fn only_transports_with_ports_have_them_looked_at() {
    for protocol in 0..=u8::MAX {
        let flow = |n: u16| flow4().ports(n, n).v4(|header| header.protocol = IpNumber(protocol));
        let expected = if matches!(protocol, 6 | 17 | 33 | 132 | 136) { 2 } else { 1 };
        assert_eq!(spread(flow), expected, "protocol {protocol}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes there")]
fn all_fragments_of_a_packet_go_one_way() {
    for flow in [flow4(), flow6()] {
        for port in 0..32 {
            let first = flow.clone().ports(port, 53).fragment(0, true);
            let middle = flow.clone().ports(port ^ 0x5555, 9).fragment(100, true);
            let last = flow.clone().ports(!port, 1).fragment(200, false);
            assert!(one_member(&[first, middle, last]));
        }
        assert_eq!(spread(|n| flow.clone().ports(n, n).fragment(0, true)), 1);
    }
}

#[test]
fn a_fragment_can_be_shorter_than_ports() {
    for flow in [flow4(), flow6()] {
        let headers = flow.build().len() - 14 - flow.body.len();
        for bytes in 0..8 {
            members(&[flow.clone().size(headers + bytes)]);
            members(&[flow.clone().size(headers + bytes).padded(20)]);
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes there")]
fn ports_are_found_behind_extension_headers() {
    let kinds = [IpNumber::IPV6_DESTINATION_OPTIONS, IpNumber::IPV6_ROUTE_HEADER];
    for kind in kinds {
        for bytes in [8, 16, 48] {
            assert_eq!(spread(|n| flow6().ports(n, 53).extension(kind, bytes)), 2);
            let flow = |n| flow6().ports(n, 53).extension(kind, bytes);
            assert!((0..32).all(|n| one_member(&[flow(n), flow(n).size(600)])));
        }
    }
    let authenticated = |n| {
        flow6().ports(n, 53).extend(IpNumber::AUTHENTICATION_HEADER, |next| {
            IpAuthHeader::new(next, 1, 2, &[0; 12]).expect("fits").to_bytes().to_vec()
        })
    };
    assert_eq!(spread(authenticated), 2);
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes there")]
fn the_walk_over_extension_headers_ends() {
    let chain = |headers: usize, port| {
        let packet = flow6().ports(port, 53);
        (0..headers)
            .fold(packet, |packet, _| packet.extension(IpNumber::IPV6_DESTINATION_OPTIONS, 8))
    };
    assert_eq!(spread(|n| chain(MAX_EXTENSIONS - 1, n)), 2);
    assert_eq!(spread(|n| chain(MAX_EXTENSIONS, n)), 1);
    assert_eq!(spread(|n| chain(MAX_EXTENSIONS + 20, n)), 1);
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes there")]
fn weights_are_kept_within_two_percent() {
    let flow = |n: u32, flow: Packet| flow.ports(n as u16, (n >> 16) as u16 + 1);
    for kind in [flow4, flow6] {
        let mut seen = [0_u32; 2];
        for start in (0..MANY).step_by(4096) {
            let end = MANY.min(start + 4096);
            for port in members(&(start..end).map(|n| flow(n, kind())).collect::<Vec<_>>()) {
                seen[usize::from(port) - 1] += 1;
            }
        }
        let total: u16 = WEIGHTS.iter().sum();
        for (seen, weight) in seen.iter().zip(WEIGHTS) {
            let share = f64::from(*seen) / f64::from(MANY);
            let expected = f64::from(weight) / f64::from(total);
            assert!((share - expected).abs() < 0.02, "{share} instead of {expected}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        cases: if cfg!(miri) { 4 } else { 256 },
        ..Default::default()
    })]

    /// Each member has its share of the buckets, to the next one, and at least one.
    #[test]
    fn buckets_follow_weights(weights in proptest::collection::vec(any::<u16>(), 1..40)) {
        let member = |(at, weight): (usize, &u16)| {
            Member { next: NextHopId(at as u32 + 1), weight: *weight }
        };
        let members: Vec<_> = weights.iter().enumerate().map(member).collect();
        let group = Group::new(&members).unwrap();
        let mut buckets = vec![0_usize; members.len()];
        for hash in 0..BUCKETS as u32 {
            buckets[group.select(hash).0 as usize - 1] += 1;
        }
        let total: f64 = weights.iter().map(|weight| f64::from((*weight).max(1))).sum();
        for (buckets, weight) in buckets.iter().zip(&weights) {
            let share = f64::from((*weight).max(1)) / total * BUCKETS as f64;
            prop_assert!(*buckets >= 1);
            let slack = 1.0 + weights.len() as f64;
            prop_assert!((*buckets as f64 - share).abs() <= slack, "{buckets} for {share}");
        }
    }

    /// Bytes that are no packet have a hash as well.
    #[test]
    fn any_bytes_have_a_hash(bytes: Vec<u8>, version in 0_u8..16) {
        let mut bytes = bytes;
        if let Some(first) = bytes.first_mut() {
            *first = version << 4 | *first & 15;
        }
        prop_assert_eq!(super::stage::flow_hash(&bytes), super::stage::flow_hash(&bytes));
    }
}

#[test]
fn a_group_has_one_to_256_members() {
    let members = |n| vec![Member { next: NextHopId(7), weight: 1 }; n];
    assert!(Group::new(&[]).is_none());
    assert!(Group::new(&members(BUCKETS)).is_some());
    assert!(Group::new(&members(BUCKETS + 1)).is_none());
}
