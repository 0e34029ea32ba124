//! Tests regions of destinations. A region's next generation makes its flows void.

use std::net::IpAddr;
use std::sync::Arc;

use tollway_dataplane::changes::Changes;
use tollway_dataplane::id::LinkId;
use tollway_xdp::flows::{Flow, Flow4Key};
use tollway_xdp::regions::{region4, region6};
use tollway_xdp::xdp_path::Outdated;
use tollway_xdp::{Action, Mode};

use super::frames::{Bench, Packet, UDP};
use super::xdp_path::{enter, flow, in_time, new_header};

/// Returns addresses whose region the XDP program and user space must compute alike.
fn some_addresses(is_ipv4: bool) -> Vec<IpAddr> {
    (0..200_u32)
        .map(|number| {
            let first = number.wrapping_mul(0x0101_4f1b) % 0xdf00_0000;
            match is_ipv4 {
                // These addresses are routed. None belongs to the kernel itself.
                true => IpAddr::from((0x1000_0000 | first >> 3 | 1).to_be_bytes()),
                false => IpAddr::from(
                    ((0x2000_0000_u128 | u128::from(first >> 4)) << 96 | 7).to_be_bytes(),
                ),
            }
        })
        .collect()
}

/// A region's next generation makes flows void: those to it, and those from it if they depend on
/// the source.
pub fn regions() {
    let mut bench = Bench::new(Mode::Native, true);
    let (state, flows) = (bench.programs.state(), bench.programs.flows());
    for (packet, ethertype) in [(Packet::v4(), 0x0800), (Packet::v6(), 0x86dd)] {
        let all = some_addresses(packet.src.is_ipv4());
        let template = flow(&bench, &new_header(&[], ethertype));
        for (number, pair) in all.windows(2).enumerate() {
            let by_source = number % 2 == 1;
            let packet = Packet { src: pair[0], dst: pair[1], ..packet.clone() };
            let [src, dst] = [packet.src, packet.dst].map(region);
            assert_ne!(src, dst);
            let by_source_template = Flow { by_source, ..template };
            let enter_now = || {
                let mut generation = state.generation() + state.region_generation(dst);
                generation += if by_source { state.region_generation(src) } else { 0 };
                let mut value: Flow = by_source_template;
                value.generation = generation;
                enter(&flows, 7, &packet, &value);
            };
            let frame = packet.frame();
            let mut is_redirected = || bench.run(&frame).0 == Action::Redirect;
            let what = format!("{} to {}, {by_source}", packet.src, packet.dst);
            enter_now();
            assert!(is_redirected(), "{what}");
            state.bump_regions((0..3).filter(|region| ![src, dst].contains(region)));
            assert!(is_redirected(), "{what}: other regions");
            state.bump_regions([src]);
            assert_eq!(is_redirected(), !by_source, "{what}: the source's region");
            enter_now();
            assert!(is_redirected(), "{what}: entered again");
            state.bump_regions([dst]);
            assert!(!is_redirected(), "{what}: the destination's region");
            enter_now();
            state.bump_generation();
            assert!(!is_redirected(), "{what}: everything");
        }
    }
}

/// A void flow makes room for others, whatever made it void.
pub fn room_of_regions() {
    let bench = Bench::new(Mode::Native, true);
    let (state, flows) = (bench.programs.state(), bench.programs.flows());
    // With some seeds, the hash puts consecutive addresses into few of so few buckets. This
    // function mixes the numbers and makes no two the same.
    let mixed = |index: u32| {
        let folded = (index ^ index >> 16).wrapping_mul(0x85eb_ca6b);
        (folded ^ folded >> 13).wrapping_mul(0xc2b2_ae35)
    };
    let key = |index: u32, net: u8| {
        let end = |at: u32, port: u16| (std::net::Ipv4Addr::from(at), port);
        Flow4Key::new(LinkId(7), UDP, end(mixed(index), 1), end(u32::from(net) << 24, 2))
    };
    let fill = |range: std::ops::Range<u32>, net: u8| {
        let generation = state.generation() + state.region_generation(u32::from(net) << 8);
        let value = Flow { generation, ..flow(&bench, &new_header(&[], 0x0800)) };
        let keys: Vec<_> = range.map(|index| key(index, net)).collect();
        flows.insert4(&keys, &vec![value; keys.len()])
    };
    in_time(&bench, || {
        state.bump_regions([20 << 8]);
        let (taken, others) = (fill(0..20_000, 20), fill(0..1000, 30));
        move || {
            assert!((4000..=4096).contains(&taken), "{taken}");
            assert!(others < 100, "all are in use");
        }
    });
    state.bump_regions([20 << 8]);
    assert_eq!(fill(0..1000, 30), 1000);
}

fn region(address: IpAddr) -> u32 {
    match address {
        IpAddr::V4(v4) => region4((v4.to_bits() >> 16) as u16),
        IpAddr::V6(v6) => region6((v6.to_bits() >> 96) as u32),
    }
}

/// Connections find the way of each packet by the tables, so a changed next hop leaves them active; other changes do not.
pub fn connections() {
    let state = Bench::new(Mode::Native, true).programs.state();
    let (changes, mut outdated) = (Changes::new(), Outdated::new(Arc::default()));
    let mut generations = || {
        outdated.void(&changes, &state);
        (state.generation(), state.connections_generation())
    };
    let first = generations();
    changes.note_next_hop();
    let second = generations();
    assert!(second.0 != first.0 && second.1 == first.1, "{first:?}, then {second:?}");
    changes.note();
    let third = generations();
    assert!(third.0 != second.0 && third.1 != second.1, "{second:?}, then {third:?}");
}
