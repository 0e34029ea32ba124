use std::collections::BTreeSet;

use etherparse::{IpAuthHeader, IpNumber};
use proptest::collection::vec;
use proptest::prelude::*;

use super::{Groups, Hash, MAX_EXTENSIONS, MOST_GROUPS, MOST_HASH, MOST_MEMBERS, Member};
use crate::dispatch::Path;
use crate::epoch::Epochs;
use crate::id::NextHopId;
use crate::testkit::packet::Packet;
use crate::testkit::path_bench::{Outcome, PathBench};
use crate::testkit::wires::{LinkVariant, Special, WEIGHTS, tables};

/// The number of packets for counts.
const MANY: u32 = 100_000;

fn flow4() -> Packet {
    LinkVariant::Plain.packet(0, Special::Group.host4())
}

fn flow6() -> Packet {
    LinkVariant::Plain.packet(0, Special::Group.host6())
}

/// The member, by its port, for each packet.
fn members(packets: &[Packet]) -> Vec<u16> {
    let mut path_bench = PathBench::new();
    let frames = packets.iter().map(Packet::build).collect::<Vec<_>>();
    let outcomes = frames.chunks(64).flat_map(|frames| path_bench.burst(0, frames));
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

/// Changes a flow in 64 ways and returns how many members it then gets.
fn spread(flow: impl Fn(u16) -> Packet) -> usize {
    let mut members = members(&(0..64).map(flow).collect::<Vec<_>>());
    members.sort_unstable();
    members.dedup();
    members.len()
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes under Miri")]
fn a_flow_stays_on_its_member() {
    for flow in [flow4(), flow6()] {
        for port in 0..64 {
            let flow = flow.clone().ports(port, 53);
            let packets = [
                flow.clone(),
                flow.clone().ttl(9),
                flow.clone().size(1200),
                flow.clone().padded(40),
                flow.clone().tagged(LinkVariant::Vlan.tags()),
                flow.clone().tagged(LinkVariant::Qinq.tags()),
            ];
            assert!(one_member(&packets), "source port {port}");
        }
    }
    let marked = |id| flow4().v4(|header| header.identification = id);
    assert!(one_member(&[marked(0), marked(1), marked(0xffff)]));
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes under Miri")]
fn addresses_ports_and_protocol_distinguish_flows() {
    for flow in [flow4(), flow6()] {
        assert_eq!(spread(|n| flow.clone().ports(n, 53)), 2, "source port");
        assert_eq!(spread(|n| flow.clone().ports(53, n)), 2, "destination port");
    }
    assert_eq!(spread(|n| flow4().v4(|header| header.source[3] = n as u8)), 2);
    assert_eq!(spread(|n| flow4().v4(|header| header.destination[3] = n as u8)), 2);
    assert_eq!(spread(|n| flow4().v4(|header| header.protocol = IpNumber(n as u8))), 2);
}

/// Each family uses its own policy, and a burst of both uses both.
#[test]
#[cfg_attr(miri, ignore = "takes minutes under Miri")]
fn each_family_uses_its_own_hash_policy() {
    for (v4, v6) in [(Hash::L3, Hash::L4), (Hash::L4, Hash::L3), (Hash::L3, Hash::L3)] {
        let mut tables = tables();
        let version = tables.version();
        tables.set_multipath(v4, v6);
        assert_ne!(tables.version(), version, "a change");
        let mut path_bench = PathBench::over(&tables, Path::detect(), 2048);
        let flows = (0..32).flat_map(|n| [flow4().ports(n, 53), flow6().ports(n, 53)]);
        let frames: Vec<_> = flows.map(|flow| flow.build()).collect();
        let mut members = [BTreeSet::new(), BTreeSet::new()];
        for (index, outcome) in path_bench.burst(0, &frames).into_iter().enumerate() {
            let Outcome::Sent(port, _) = outcome else { panic!("{outcome:?}") };
            members[index % 2].insert(port);
        }
        let expected = |hash| if hash == Hash::L3 { 1 } else { 2 };
        assert_eq!(members.map(|members| members.len()), [expected(v4), expected(v6)]);
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes under Miri")]
fn ports_count_only_for_transports_that_have_them() {
    // An authentication header's index stands in the place of ports.
    for protocol in (0..=u8::MAX).filter(|protocol| *protocol != 51) {
        let flow = |n: u16| flow4().ports(n, n).v4(|header| header.protocol = IpNumber(protocol));
        let expected = if matches!(protocol, 6 | 17 | 33 | 50 | 132 | 136) { 2 } else { 1 };
        assert_eq!(spread(flow), expected, "protocol {protocol}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes under Miri")]
fn all_fragments_of_a_packet_use_one_member() {
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
#[cfg_attr(miri, ignore = "takes minutes under Miri")]
fn ports_are_found_after_extension_headers() {
    let kinds = [IpNumber::IPV6_DESTINATION_OPTIONS, IpNumber::IPV6_ROUTE_HEADER];
    for kind in kinds {
        for bytes in [8, 16, 48] {
            assert_eq!(spread(|n| flow6().ports(n, 53).extension(kind, bytes)), 2);
            let flow = |n| flow6().ports(n, 53).extension(kind, bytes);
            assert!((0..32).all(|n| one_member(&[flow(n), flow(n).size(600)])));
        }
    }
    // The kernel stops at an authentication header; its index replaces the ports.
    let authenticated = |n, index| {
        flow6().ports(n, 53).extend(IpNumber::AUTHENTICATION_HEADER, |next| {
            IpAuthHeader::new(next, index, 2, &[0; 12]).expect("fits").to_bytes().to_vec()
        })
    };
    assert_eq!(spread(|n| authenticated(n, 1)), 1);
    assert_eq!(spread(|n| authenticated(1, u32::from(n))), 2);
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes under Miri")]
fn the_walk_over_extension_headers_has_a_limit() {
    let chain = |headers: usize, port| {
        let packet = flow6().ports(port, 53);
        (0..headers)
            .fold(packet, |packet, _| packet.extension(IpNumber::IPV6_DESTINATION_OPTIONS, 8))
    };
    assert_eq!(spread(|n| chain(MAX_EXTENSIONS, n)), 2);
    assert_eq!(spread(|n| chain(MAX_EXTENSIONS + 1, n)), 1);
    assert_eq!(spread(|n| chain(MAX_EXTENSIONS + 20, n)), 1);
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes under Miri")]
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

    /// Members have the hashes that the kernel gives them, whatever the group had before.
    #[test]
    fn bounds_equal_the_kernels(
        weights in vec(0..1000_u16, 1..40),
        before in vec(0..1000_u16, 1..40),
        hashes in vec(0..=MOST_HASH, 32),
    ) {
        let all = |weights: &[u16]| weights.iter().enumerate().map(member).collect::<Vec<_>>();
        let groups = Groups::new(Epochs::new());
        let group = groups.push(&all(&before)).unwrap();
        prop_assert!(groups.set(group, &all(&weights)));
        let total: u64 = weights.iter().map(|weight| u64::from(*weight).max(1)).sum();
        let mut sum = 0;
        let bounds: Vec<u32> = weights.iter().map(|weight| {
            sum += u64::from(*weight).max(1);
            // `fib_rebalance`.
            (((sum << 31) + total / 2) / total - 1) as u32
        }).collect();
        let edges = bounds.iter().flat_map(|bound| [*bound, (bound + 1).min(MOST_HASH)]);
        for hash in hashes.into_iter().chain(edges) {
            let expected = bounds.iter().position(|bound| hash <= *bound).unwrap();
            prop_assert_eq!(groups.select(group, hash), NextHopId(expected as u32 + 1));
        }
        let listed = groups.members(group);
        prop_assert_eq!(listed.len(), weights.len());
        let nexts: Vec<_> = groups.nexts(group).collect();
        prop_assert_eq!(nexts, all(&weights).iter().map(|member| member.next).collect::<Vec<_>>());
        prop_assert_eq!(groups.members(group + 1), vec![]);
        for (weight, listed) in weights.iter().zip(listed) {
            let share = u64::from(*weight).max(1) as f64 * MOST_MEMBERS as f64 / total as f64;
            prop_assert!((f64::from(listed.weight) - share).abs() <= 1.0, "{listed:?} for {share}");
        }
    }

    /// Bytes that are no packet have a hash as well.
    #[test]
    fn any_bytes_have_a_hash(bytes: Vec<u8>, version in 0_u8..16) {
        let mut bytes = bytes;
        if let Some(first) = bytes.first_mut() {
            *first = version << 4 | *first & 15;
        }
        prop_assert!(super::Multipath::default().hash(&bytes) <= MOST_HASH);
    }
}

fn member((index, weight): (usize, &u16)) -> Member {
    Member { next: NextHopId(index as u32 + 1), weight: *weight }
}

/// A next hop that appears twice has two shares, which are not adjacent.
#[test]
fn one_next_hop_may_be_several_members() {
    let groups = Groups::new(Epochs::new());
    let members =
        [(1, 1), (2, 2), (1, 1)].map(|(next, weight)| Member { next: NextHopId(next), weight });
    let group = groups.push(&members).unwrap();
    let quarter = 1 << 29;
    let chosen =
        [0, quarter, 3 * quarter - 1, 3 * quarter].map(|hash| groups.select(group, hash).0);
    assert_eq!(chosen, [1, 2, 2, 1]);
    let shares =
        [(1, 128), (2, 128)].map(|(next, weight)| Member { next: NextHopId(next), weight });
    assert_eq!(groups.members(group), shares);
}

#[test]
fn a_group_has_members_and_not_too_many() {
    let members = |count: usize| vec![Member { next: NextHopId(1), weight: 1 }; count];
    let groups = Groups::new(Epochs::new());
    assert_eq!(groups.push(&[]), None);
    assert_eq!(groups.push(&members(MOST_MEMBERS)), Some(0));
    assert_eq!(groups.push(&members(MOST_MEMBERS + 1)), None);
    assert!(!groups.set(1, &members(1)));
    assert!(!groups.set(0, &[]));
    assert_eq!(groups.select(1, 0), NextHopId::NO_ROUTE);
    assert_eq!(groups.select(u32::MAX, u32::MAX), NextHopId::NO_ROUTE);
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes under Miri")]
fn no_group_is_added_beyond_the_limit() {
    let groups = Groups::new(Epochs::new());
    let only = [Member { next: NextHopId(1), weight: 1 }];
    for number in 0..MOST_GROUPS as u32 {
        assert_eq!(groups.push(&only), Some(number));
    }
    assert_eq!(groups.push(&only), None);
    assert_eq!(groups.len(), MOST_GROUPS);
}
