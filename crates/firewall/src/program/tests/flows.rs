//! Compares the result for a flow with the evaluation of each of its packets.

use tollway_dataplane::epoch::Epochs;
use tollway_dataplane::id::LinkId;
use tollway_dataplane::stages::filter::FlowKey;

use super::super::compile;
use super::frames::{ADDRESSES, Frames, six};
use super::path_bench::{self, MAC, VID};
use super::rulesets::Draw;
use crate::ir::Hook;
use crate::testkit::dice::Dice;
use crate::testkit::eval::{self, Packet, RuleVerdict};

const HOOKS: [Hook; 5] =
    [Hook::Ingress, Hook::Prerouting, Hook::Forward, Hook::Postrouting, Hook::Egress];

/// The ingress links of flows: two ports, and the VLAN on the first.
const INPUTS: [u16; 3] = [0, 1, 3];

fn draw(frames: &Frames, dice: &mut Dice) -> FlowKey {
    let version = dice.pick(&[4, 4, 6]);
    let (source, destination) =
        (dice.pick(&frames.sources), dice.pick(&ADDRESSES) ^ dice.below(2) as u32);
    let wide = |address| if version == 6 { six(address) } else { address.into() };
    let protocol = dice.pick(&[6, 17, if version == 6 { 58 } else { 1 }]);
    let ports = (dice.pick(&frames.ports), dice.pick(&frames.ports));
    FlowKey {
        version,
        source: wide(source),
        destination: wide(destination),
        protocol,
        ports: matches!(protocol, 6 | 17).then_some(ports),
        input: LinkId(dice.pick(&INPUTS)),
        output: LinkId((destination & 1) as u16 + 1),
    }
}

/// Any packet of a flow: everything outside of its key is random.
fn packet(flow: &FlowKey, dice: &mut Dice) -> Vec<u8> {
    let mut body: Vec<u8> = (0..4 + dice.below(30)).map(|_| dice.roll() as u8).collect();
    if let Some((source, destination)) = flow.ports {
        body[..2].copy_from_slice(&source.to_be_bytes());
        body[2..4].copy_from_slice(&destination.to_be_bytes());
    } else {
        body[..2].copy_from_slice(&[dice.pick(&[0, 1, 3, 8, 128]), dice.below(3) as u8]);
    }
    let mut frame = [&MAC[..], &[2, 0, 0, 0, 7, dice.below(3) as u8]].concat();
    if flow.input.0 == 3 {
        frame.extend([0x81, 0, (dice.below(8) as u8) << 5, VID as u8]);
    }
    let (class, ttl) = (dice.below(4) as u8, dice.pick(&[2, 64, 65, 255]));
    let header = if flow.version == 6 {
        frame.extend([0x86, 0xdd]);
        let len = (body.len() as u16).to_be_bytes();
        let start = [0x60, class << 6, 0, 0, len[0], len[1], flow.protocol, ttl];
        [&start[..], &flow.source.to_be_bytes(), &flow.destination.to_be_bytes()].concat()
    } else {
        frame.extend([8, 0]);
        let len = (20 + body.len() as u16).to_be_bytes();
        let df = dice.pick(&[0, 0x40]);
        let start = [0x45, class << 2, len[0], len[1], 0, 7, df, 0, ttl, flow.protocol, 0, 0];
        let address = |wide: u128| (wide as u32).to_be_bytes();
        [&start[..], &address(flow.source), &address(flow.destination)].concat()
    };
    frame.extend(header);
    frame.extend(body);
    frame
}

#[test]
fn the_result_for_a_flow_holds_for_each_of_its_packets() {
    let (mut flows, mut known) = (0, 0);
    let links = path_bench::links();
    for number in 0..400 {
        let seed = 4 << 32 | number;
        let mut dice = Dice(seed);
        let count = dice.pick(&[1, 2, 5, 12, 80, 300]);
        let rules = Draw::new(&mut dice).ruleset(count);
        let Ok(filter) = compile(&rules, &links, &Epochs::new()) else { continue };
        let frames = Frames::new(&rules, &mut dice);
        for _ in 0..50 {
            let flow = draw(&frames, &mut dice);
            flows += 1;
            let Some(touched) = filter.of_flow(&flow) else { continue };
            known += 1;
            for _ in 0..8 {
                let frame = packet(&flow, &mut dice);
                let own = &links[usize::from(flow.input.0)];
                let l3 = if own.on.is_some() { 18 } else { 14 };
                let mut packet = Packet::new(&frame, l3, own);
                let mut state = eval::State::new(&rules);
                let before = state.counts.clone();
                if own.on.is_some() {
                    // The lower device comes first.
                    packet.input = &links[0];
                    let verdict = eval::run(&rules, &mut state, Hook::Ingress, &mut packet, 0);
                    assert_eq!(
                        verdict,
                        RuleVerdict::Accept,
                        "seed {seed:#x}, {flow:?}, {frame:02x?}"
                    );
                    packet.input = own;
                }
                for hook in HOOKS {
                    if hook == Hook::Forward {
                        packet.output = Some(&links[usize::from(flow.output.0)]);
                    }
                    let verdict = eval::run(&rules, &mut state, hook, &mut packet, 0);
                    assert_eq!(
                        verdict,
                        RuleVerdict::Accept,
                        "seed {seed:#x}, {flow:?}, {frame:02x?}"
                    );
                }
                assert_eq!(packet.frame(), frame, "seed {seed:#x}: nothing is written");
                let mut expected = before;
                for counter in touched.counters() {
                    let count = &mut expected[*counter as usize];
                    *count = (count.0 + 1, count.1 + (frame.len() - l3) as u64);
                }
                assert_eq!(state.counts, expected, "seed {seed:#x}, {flow:?}, {frame:02x?}");
            }
        }
    }
    assert!(known * 10 > flows, "{known} of {flows} flows");
    assert!(known * 10 < flows * 9, "{known} of {flows} flows");
}
