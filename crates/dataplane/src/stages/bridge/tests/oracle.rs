//! Random bridges and frames, compared with a naive bridge.

use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;

use super::bench::{Bench, frame, station};
use crate::id::PortId;
use crate::stages::bridge::{BridgePortSettings, BridgeSettings};
use crate::verdict::DropReason;

const PORTS: u16 = 4;
const STATIONS: u32 = 7;
const LEAST_MTU: u16 = 1000;
const MTUS: [u16; PORTS as usize] = [1500, 1500, LEAST_MTU, 1500];

/// Time passes in steps, so that each entry is either young enough or too old: 3, 6 and 9 s, or 12 s and more.
const STEP_S: u64 = 3;
const AGEING_S: u32 = 10;

/// A bridge as one would write it down.
struct Naive {
    settings: BridgeSettings,
    /// For each station that it has learned, the port, and when it has sent last.
    learned: HashMap<[u8; 6], (PortId, u64)>,
    /// When the stations of static entries have sent last.
    fixed_s: HashMap<[u8; 6], u64>,
    now_s: u64,
    drops: BTreeMap<DropReason, u64>,
    moved: u64,
    full: u64,
}

impl Naive {
    fn pass(&mut self, seconds: u64) {
        self.now_s += seconds;
        let now_s = self.now_s;
        self.learned.retain(|_, (_, sent_s)| now_s - *sent_s <= AGEING_S.into());
    }

    fn fixed(&self, mac: [u8; 6]) -> Option<PortId> {
        self.settings.entries.iter().find(|(own, _)| *own == mac).map(|(_, port)| *port)
    }

    fn port_of(&self, mac: [u8; 6]) -> Option<PortId> {
        self.fixed(mac).or(self.learned.get(&mac).map(|(port, _)| *port))
    }

    fn may_send(&self, from: &BridgePortSettings, to: &BridgePortSettings) -> bool {
        match from.port == to.port {
            true => from.is_hairpin,
            false => !from.is_isolated || !to.is_isolated,
        }
    }

    fn learn(&mut self, from: &BridgePortSettings, src: [u8; 6]) {
        if !from.learns {
            return;
        }
        if let Some(port) = self.fixed(src) {
            if port == from.port {
                self.fixed_s.insert(src, self.now_s);
            }
            return;
        }
        let room = self.learned.len() < self.settings.max_entries as usize;
        match self.learned.get(&src) {
            None if !room => self.full += 1,
            before => {
                self.moved += u64::from(before.is_some_and(|(port, _)| *port != from.port));
                self.learned.insert(src, (from.port, self.now_s));
            }
        }
    }

    /// The ports by which a frame leaves; none if it is dropped.
    fn forward(&mut self, port: u16, frame: &[u8]) -> Vec<u16> {
        let from = self.settings.ports[usize::from(port)];
        let [dst, src] = addresses(frame);
        self.learn(&from, src);
        let known = if frame[0] & 1 == 0 { self.port_of(dst) } else { None };
        let all =
            self.settings.ports.iter().filter(|to| self.may_send(&from, to)).map(|to| to.port.0);
        let allowed: Vec<_> = all.filter(|to| known.is_none_or(|known| known.0 == *to)).collect();
        let fits = |to: &u16| frame.len() <= usize::from(MTUS[usize::from(*to)]) + 18;
        let sent: Vec<_> = allowed.iter().copied().filter(fits).collect();
        let reason = match (allowed.is_empty(), sent.is_empty()) {
            (true, _) => DropReason::NoTxTarget,
            (false, true) => DropReason::PktTooBig,
            _ => return sent,
        };
        *self.drops.entry(reason).or_default() += 1;
        Vec::new()
    }

    /// Says whether a frame is among those of a burst that do not wait for others: nothing about it is new.
    fn is_first(&self, port: u16, frame: &[u8]) -> bool {
        let from = self.settings.ports[usize::from(port)];
        let [dst, src] = addresses(frame);
        let fixed_s = self.fixed_s.get(&src).copied().unwrap_or_default();
        let sender = match self.fixed(src) {
            Some(port) => Some((port, fixed_s)),
            None => self.learned.get(&src).copied(),
        };
        let is_fresh = sender == Some((from.port, self.now_s));
        let fits = frame.len() <= usize::from(LEAST_MTU) + 18;
        let to = self.port_of(dst).map(|to| self.settings.ports[usize::from(to.0)]);
        fits && (is_fresh || !from.learns) && to.is_some_and(|to| self.may_send(&from, &to))
    }
}

/// Destination and source.
fn addresses(frame: &[u8]) -> [[u8; 6]; 2] {
    [0, 6].map(|at| *frame[at..].first_chunk().expect("a header"))
}

#[derive(Clone, Debug)]
enum Step {
    Pass(u64),
    Burst(u16, Vec<(u32, u32, bool)>),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let frame = (0..STATIONS, 0..STATIONS + 2, any::<bool>());
    let burst = (0..PORTS, proptest::collection::vec(frame, 1..12));
    let step = prop_oneof![
        1 => (1..5_u64).prop_map(|steps| Step::Pass(STEP_S * steps)),
        4 => burst.prop_map(|(port, frames)| Step::Burst(port, frames)),
    ];
    proptest::collection::vec(step, 1..40)
}

fn settings() -> impl Strategy<Value = BridgeSettings> {
    let flags = proptest::collection::vec(any::<(bool, bool)>(), usize::from(PORTS));
    let learns = proptest::collection::vec(proptest::bool::weighted(0.9), usize::from(PORTS));
    let entries = proptest::collection::btree_map(0..STATIONS, 0..PORTS, 0..3);
    (flags, learns, entries, 1..10_u32).prop_map(|(flags, learns, entries, max_entries)| {
        let ports = flags.into_iter().zip(learns).zip(0..);
        let ports = ports.map(|(((is_isolated, is_hairpin), learns), id)| BridgePortSettings {
            is_isolated,
            is_hairpin,
            learns,
            ..BridgePortSettings::new(PortId(id))
        });
        let entries = entries.into_iter().map(|(number, port)| (station(number), PortId(port)));
        let (ports, entries) = (ports.collect(), entries.collect());
        BridgeSettings { ports, entries, ageing_s: AGEING_S, max_entries }
    })
}

/// Frames, each with a number of its own.
fn frames(numbers: &mut u64, given: &[(u32, u32, bool)]) -> Vec<Vec<u8>> {
    let build = |(src, dst, long): &(u32, u32, bool)| {
        let dst = if *dst < STATIONS { station(*dst) } else { [0xff; 6] };
        let mut bytes = frame(dst, station(*src), if *long { 1200 } else { 60 });
        *numbers += 1;
        bytes[14..22].copy_from_slice(&numbers.to_be_bytes());
        bytes
    };
    given.iter().map(build).collect()
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        cases: if cfg!(miri) { 2 } else { 512 },
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_stage_does_what_a_naive_bridge_does(settings in settings(), steps in steps()) {
        let mut bench = Bench::with_bridges(&MTUS, std::slice::from_ref(&settings));
        let mut naive = Naive {
            settings,
            learned: HashMap::new(),
            fixed_s: HashMap::new(),
            now_s: 0,
            drops: BTreeMap::new(),
            moved: 0,
            full: 0,
        };
        let mut numbers = 0;
        for step in steps {
            match step {
                Step::Pass(seconds) => {
                    bench.pass(seconds);
                    naive.pass(seconds);
                }
                Step::Burst(port, given) => {
                    let frames = frames(&mut numbers, &given);
                    let sent = bench.burst(port, &frames);
                    let (first, then): (Vec<_>, Vec<_>) =
                        frames.into_iter().partition(|frame| naive.is_first(port, frame));
                    let mut expected = Vec::new();
                    for frame in first.into_iter().chain(then) {
                        let ports = naive.forward(port, &frame);
                        expected.extend(ports.into_iter().map(|port| (port, frame.clone())));
                    }
                    prop_assert_eq!(sorted(sent), sorted(expected));
                }
            }
        }
        let counts = bench.counts();
        prop_assert_eq!(counts.learned as usize, naive.learned.len());
        prop_assert_eq!((counts.moved, counts.full), (naive.moved, naive.full));
        for (reason, count) in naive.drops {
            prop_assert_eq!(bench.drops(reason), count, "{:?}", reason);
        }
    }
}

fn sorted(mut frames: Vec<(u16, Vec<u8>)>) -> Vec<(u16, Vec<u8>)> {
    frames.sort_unstable();
    frames
}
