//! A router of three ports, and the evaluator beside it.

use std::sync::Arc;

use tollway_dataplane::burst::Burst;
use tollway_dataplane::dispatch::Path;
use tollway_dataplane::frame::Umem;
use tollway_dataplane::id::PortId;
use tollway_dataplane::stages::filter::State;
use tollway_dataplane::stages::route::Prefix;
use tollway_dataplane::stages::transmit::Egress;
use tollway_dataplane::tables::{RoutePrefix, Tables};
use tollway_dataplane::tolls::Tolls;
use tollway_dataplane::verdict::{DropReason, PuntReason, Verdict};

use super::super::flatten;
use super::Dice;
use crate::filter::eval::{self, Fate, Link, Packet};
use crate::filter::ir::{Hook, Ruleset};

pub(super) const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const VIA: [u8; 6] = [2, 0, 0, 0, 0, 9];

/// Names of the links by number: what arrives comes by the first two.
pub(super) const LINKS: [(&str, &str); 3] = [("wan0", "main"), ("wan1", "red"), ("lan0", "main")];

pub(super) fn links() -> Vec<Link> {
    let link = |(name, vrf): (&str, &str)| Link { name: name.into(), vrf: vrf.into() };
    LINKS.into_iter().map(link).collect()
}

pub(super) struct Road {
    rules: Ruleset,
    links: Vec<Link>,
    tables: Tables,
    path: Path,
    umem: Umem,
    burst: Box<Burst>,
    egress: Egress,
    tolls: Tolls,
    state: State,
    expected: eval::State,
    now_ns: u64,
}

impl Road {
    pub(super) fn new(rules: &Ruleset) -> Self {
        let links = links();
        let mut tables = tables();
        let filter = flatten(rules, &links, &tables.epochs).expect("it compiles");
        let mut state = State::new();
        state.renew(&filter, &[]);
        tables.filter = Some(Arc::new(filter));
        Self {
            rules: rules.clone(),
            links,
            tables,
            path: Path::detect(),
            umem: Umem::new(64, 2048).expect("memory"),
            burst: Box::new(Burst::new()),
            egress: Egress::new(LINKS.len()),
            tolls: Tolls::new(),
            state,
            expected: eval::State::new(rules),
            now_ns: 0,
        }
    }

    /// Sends a burst both ways; says which packet fares otherwise than it was evaluated, and how.
    pub(super) fn send(&mut self, frames: &[Vec<u8>]) -> Result<(), (usize, String)> {
        self.now_ns += 50_000;
        self.state.now_ns = self.now_ns;
        self.burst.reset(PortId((self.now_ns / 50_000 % 2) as u16));
        let addrs: Vec<_> = frames
            .iter()
            .map(|frame| {
                let stored = self.umem.store(frame).expect("memory");
                assert!(self.burst.push(stored.addr, frame.len() as u16));
                stored.addr
            })
            .collect();
        let Self { burst, umem, tables, tolls, egress, state, .. } = self;
        self.path.forward(burst, umem, tables, tolls, egress, state);
        self.egress.drain(|_, _| {});
        for addr in addrs {
            self.umem.free(addr);
        }
        // Rules are asked hook by hook for the whole burst, as the path does: limits notice.
        let links = self.links.clone();
        let input = usize::from(self.burst.port.0);
        let mut packets: Vec<_> = frames
            .iter()
            .map(|frame| (Packet::new(frame, 14, &links[input]), Fate::Accept))
            .collect();
        for version in [4, 6] {
            self.evaluate(&mut packets, version, &[Hook::Prerouting]);
        }
        for (packet, _) in &mut packets {
            packet.output = Some(&links[output(packet.frame())]);
        }
        for version in [4, 6] {
            self.evaluate(&mut packets, version, &[Hook::Forward, Hook::Postrouting, Hook::Egress]);
        }
        for (lane, (_, fate)) in packets.iter().enumerate() {
            let done = self.fate(lane);
            if !alike(&done, fate) {
                return Err((lane, format!("{done:?}, not {fate:?}")));
            }
        }
        Ok(())
    }

    fn evaluate(&mut self, packets: &mut [(Packet<'_>, Fate)], version: u8, hooks: &[Hook]) {
        for (packet, fate) in packets.iter_mut().filter(|(packet, _)| packet.version() == version) {
            for hook in hooks {
                if *fate == Fate::Accept {
                    *fate = eval::run(&self.rules, &mut self.expected, *hook, packet, self.now_ns);
                }
            }
        }
    }

    fn fate(&self, lane: usize) -> Fate {
        if !self.burst.left.has(lane) {
            return Fate::Accept;
        }
        match self.burst.verdict[lane] {
            Verdict::Drop(DropReason::NetfilterDrop) => Fate::Drop,
            Verdict::Punt(PuntReason::Reject) => Fate::Reject(crate::filter::ir::Reject::TcpReset),
            Verdict::Punt(PuntReason::FilterUnsupported) => Fate::Unsupported(String::new()),
            other => panic!("{other:?}"),
        }
    }

    /// The rules with what their sets have by now.
    pub(super) fn rules(&self) -> Ruleset {
        self.rules.clone()
    }

    /// Adds elements to live sets and takes some out, here and in the evaluator's rules; says how many
    /// there were.
    pub(super) fn change_sets(&mut self, dice: &mut Dice) -> usize {
        let Some(filter) = &self.tables.filter else { return 0 };
        let mut changes = 0;
        for live in filter.live_sets() {
            let gone: Vec<_> = live.elements().into_iter().filter(|_| dice.one_in(3)).collect();
            assert_eq!(live.remove(&gone), Ok(gone.len()));
            let low = dice.pick(&super::frames::ADDRESSES);
            let first = match live.version() {
                4 => u128::from(low),
                _ => super::frames::six(low),
            };
            let last = first + dice.pick(&[0, 0, 1, 2, 255]);
            let new = live.add(&[(first, last)]).expect("room");
            assert!(live.covers(first) && live.covers(last));
            changes += gone.len() + new;
        }
        self.rules.take_live_sets(filter);
        changes
    }

    /// What was counted is the same.
    pub(super) fn same_counts(&self, seed: u64) {
        let counts: Vec<_> =
            self.state.counts.iter().map(|count| (count.packets, count.bytes)).collect();
        assert_eq!(counts, self.expected.counts, "seed {seed:#x}\n{:#?}", self.rules);
    }
}

fn alike(done: &Fate, fate: &Fate) -> bool {
    std::mem::discriminant(done) == std::mem::discriminant(fate)
}

/// The number of the link that a packet leaves by: the last bit of its destination says.
fn output(frame: &[u8]) -> usize {
    let at = if frame[12] == 8 { 33 } else { 53 };
    usize::from(frame[at] & 1) + 1
}

/// Any destination is forwarded, by the link that [`output`] says.
fn tables() -> Tables {
    let mut tables = Tables::new();
    let vrf = tables.add_vrf().expect("a VRF");
    let links = [0; LINKS.len()].map(|_| tables.add_port(MAC, vrf, 9000).expect("a port").1);
    let vias = ["192.0.2.1", "2001:db8::1"];
    for (number, link) in links.iter().enumerate().skip(1) {
        for via in vias {
            let next = tables.set_neigh(*link, via.parse().expect("one"), Some(VIA)).expect("room");
            for dst in super::frames::ADDRESSES {
                let four = Prefix::v4(dst & !1 | (number as u32 - 1), 32);
                let six = Prefix::v6(super::frames::six(dst & !1 | (number as u32 - 1)), 128);
                let prefix =
                    if via.contains(':') { RoutePrefix::V6(six) } else { RoutePrefix::V4(four) };
                tables.insert(vrf, prefix, next).expect("room");
            }
        }
    }
    tables
}
