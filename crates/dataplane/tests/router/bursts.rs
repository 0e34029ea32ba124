//! The outcome for a packet does not depend on the other packets of its burst, on the old content
//! of its memory, on the instruction set, or on whether the burst is timed.

use std::net::IpAddr;

use proptest::prelude::*;
use tollway_dataplane::cpu::Level;
use tollway_dataplane::dispatch::Path;
use tollway_dataplane::tolls::SAMPLE_EVERY;
use tollway_dataplane::verdict::DropReason;

use crate::testkit::mixed;
use crate::testkit::packet::layer3;
use crate::testkit::path_bench::{Outcome, PathBench, paths};
use crate::testkit::wires::{LinkVariant, PORTS, Special, TABLES};

const CHUNK: u32 = 16_384;

fn seeds() -> impl Strategy<Value = (u8, Vec<u64>)> {
    (0..PORTS, proptest::collection::vec(any::<u64>(), 1..=64))
}

fn frames(port: u8, seeds: &[u64]) -> Vec<Vec<u8>> {
    seeds.iter().map(|seed| mixed::frame(port, *seed)).collect()
}

/// Two valid frames that are in the memory before other frames overwrite them.
fn stale(port: u8) -> [Vec<u8>; 2] {
    [
        LinkVariant::Qinq.packet(port, LinkVariant::Plain.host4(1)).size(700).build(),
        LinkVariant::Plain.packet(port, LinkVariant::Stacked.host6(2)).size(900).build(),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        cases: if cfg!(miri) { 2 } else { 1000 },
        ..Default::default()
    })]

    #[test]
    fn a_packet_fares_in_a_burst_as_it_does_alone((port, seeds) in seeds()) {
        let frames = frames(port, &seeds);
        let [one, other] = stale(port);
        let outcomes = PathBench::new().with_stale(&one).burst(port, &frames);
        let mut alone = PathBench::new().with_stale(&other);
        for (lane, (frame, outcome)) in frames.iter().zip(outcomes).enumerate() {
            prop_assert_eq!(alone.send(port, frame), outcome, "packet {}: {:02x?}", lane, frame);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes under Miri")]
    fn order_changes_nothing((port, seeds) in seeds(), turn in 0..64_usize) {
        let mut frames = frames(port, &seeds);
        let mut path_bench = PathBench::new();
        let mut outcomes = path_bench.burst(port, &frames);
        let turn = turn % frames.len();
        frames.rotate_left(turn);
        outcomes.rotate_left(turn);
        prop_assert_eq!(&path_bench.burst(port, &frames), &outcomes);
        frames.reverse();
        outcomes.reverse();
        prop_assert_eq!(&path_bench.burst(port, &frames), &outcomes);
    }

    #[test]
    fn every_instruction_set_gives_the_same_bytes((port, seeds) in seeds()) {
        let frames = frames(port, &seeds);
        let outcomes = paths().into_iter().map(|path| {
            let level = path.level();
            (level, PathBench::over(&TABLES, path, CHUNK).burst(port, &frames))
        });
        let outcomes = outcomes.collect::<Vec<_>>();
        prop_assert_eq!(outcomes[0].0, Level::Baseline);
        for pair in outcomes.windows(2) {
            prop_assert_eq!(&pair[0].1, &pair[1].1, "{:?} and {:?}", pair[0].0, pair[1].0);
        }
    }

    /// If VLANs and groups are not compiled in, packets that need neither have the same outcome.
    #[test]
    #[cfg_attr(miri, ignore = "takes minutes under Miri")]
    fn optional_stages_touch_only_their_packets((port, seeds) in seeds()) {
        let frames = frames(port, &seeds);
        let everything = PathBench::over(&TABLES, Path::detect(), CHUNK).burst(port, &frames);
        let nothing = PathBench::over(&TABLES, Path::without_optional_stages(), CHUNK).burst(port, &frames);
        for ((frame, with), without) in frames.iter().zip(everything).zip(nothing) {
            // Only the path with all stages does not look at the bytes after a runt.
            if frame.len() < 14 {
                continue;
            }
            let tagged = matches!(u16::from_be_bytes([frame[12], frame[13]]), 0x8100 | 0x88a8);
            if tagged {
                prop_assert_eq!(without, Outcome::Drop(DropReason::VlanUnknown));
            } else if !is_for_a_group(frame) {
                prop_assert_eq!(without, with);
            }
        }
    }
}

/// Says whether the route to a frame's destination leads to a next-hop group.
fn is_for_a_group(frame: &[u8]) -> bool {
    let (_, packet) = layer3(frame);
    let dst4 = packet.get(16..19);
    let dst6 = packet.get(24..32);
    let IpAddr::V4(group4) = Special::Group.host4() else { return false };
    let IpAddr::V6(group6) = Special::Group.host6() else { return false };
    dst4 == Some(&group4.octets()[..3]) || dst6 == Some(&group6.octets()[..8])
}

/// Bursts of every size, with equal packets except for one, at the start, middle or end.
#[test]
fn every_size_with_an_odd_one_at_every_place() {
    let good = LinkVariant::Plain.packet(0, LinkVariant::Vlan.host4(1)).build();
    let odd = [
        LinkVariant::Plain.packet(0, LinkVariant::Vlan.host6(1)).build(),
        LinkVariant::Qinq.packet(0, LinkVariant::Vlan.host4(2)).build(),
        LinkVariant::Plain.packet(0, LinkVariant::Vlan.host4(1)).ttl(1).build(),
        good[..20].to_vec(),
        Vec::new(),
    ];
    let mut path_bench = PathBench::new();
    let usual = path_bench.send(0, &good);
    let sizes: Vec<usize> = if cfg!(miri) { vec![1, 64] } else { (1..=64).collect() };
    for odd in &odd {
        let unusual = path_bench.send(0, odd);
        for &size in &sizes {
            for at in [0, size / 2, size - 1] {
                let mut frames = vec![&good[..]; size];
                frames[at] = odd;
                let mut expected = vec![usual.clone(); size];
                expected[at] = unusual.clone();
                assert_eq!(path_bench.burst(0, &frames), expected, "{size} packets, odd at {at}");
            }
        }
    }
}

/// The timed build of the path has the same outcomes as the plain one.
#[test]
fn a_timed_burst_is_a_burst_like_any() {
    let frames = frames(0, &(0..64).collect::<Vec<_>>());
    let mut path_bench = PathBench::new();
    let expected = path_bench.burst(0, &frames);
    let bursts = if cfg!(miri) { 1 } else { SAMPLE_EVERY as usize / 64 * 2 };
    for _ in 0..bursts {
        assert_eq!(path_bench.burst(0, &frames), expected);
    }
}
