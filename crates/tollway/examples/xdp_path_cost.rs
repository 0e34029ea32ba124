//! Measures what the user-space half of the XDP path costs a packet of the user path, in TSC
//! clocks. It takes whole turns of a router over memory ports, with the XDP path and without.
//!
//!     cargo run --release -p tollway --example xdp_path_cost

mod memory_ports;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tollway_dataplane::host::Host;
use tollway_dataplane::id::PortId;
use tollway_dataplane::worker::Worker;
use tollway_xdp::flows::{Flow, Flow4Key, Flow6Key};
use tollway_xdp::xdp_path::{Exit, Flows, Ports, XdpFlows};

use memory_ports::{clocks, median};

const ROUNDS: usize = 9;
const PACKETS: usize = 1 << 20;

/// Maps that accept every flow and cost nothing.
#[derive(Default)]
struct Nowhere(AtomicU32);

impl Flows for Nowhere {
    fn generation(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    fn bump_generation(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    fn region_generation(&self, _: u32) -> u32 {
        0
    }

    fn region_changes(&self) -> u32 {
        0
    }

    fn bump_regions(&self, _: &[u32]) {}

    fn enter4(&mut self, keys: &[Flow4Key], _: &[Flow]) -> usize {
        keys.len()
    }

    fn enter6(&mut self, keys: &[Flow6Key], _: &[Flow]) -> usize {
        keys.len()
    }

    fn tally(&self, _: u16) -> std::io::Result<(u64, u64)> {
        Ok((0, 0))
    }
}

/// A router between two memory ports, with a default route to the second.
fn router(with_xdp_path: bool) -> Option<Worker> {
    let tables = memory_ports::tables().ok()?;
    let mut worker = Worker::alone(tables, memory_ports::umem()?, Host::new());
    if with_xdp_path {
        let ports = Ports::new(2);
        ports.set_entrance(PortId(0), true);
        let exit = |ifindex| Exit { ifindex, mtu: 1500, takes_pieces: true };
        ports.set_exit(PortId(1), NonZeroU32::new(1).map(exit));
        worker.xdp_path =
            Some(Box::new(XdpFlows::new(Nowhere::default(), Arc::clone(&ports), 1 << 20)));
    }
    Some(worker)
}

fn main() {
    type Shape = (&'static str, fn(usize, usize) -> u32);
    let shapes: [Shape; 4] = [
        ("one flow", |_, _| 1),
        ("256 flows", |_, packet| packet as u32 % 256),
        ("64k flows", |_, packet| packet as u32 % 65_536),
        ("a flood of single packets", |round, packet| (round * PACKETS + packet) as u32),
    ];
    for (name, flow) in shapes {
        let (Some(mut plain), Some(mut flows)) = (router(false), router(true)) else { return };
        let (mut now, mut also_now) = (1_000_000_000, 1_000_000_000);
        let figures: Vec<[f64; 2]> = (0..ROUNDS)
            .map(|round| {
                [
                    clocks(&mut plain, PACKETS, |packet| flow(round, packet), &mut now),
                    clocks(&mut flows, PACKETS, |packet| flow(round, packet), &mut also_now),
                ]
            })
            .collect();
        let without = median(&figures, |pair: &[f64; 2]| pair[0]);
        let with = median(&figures, |pair: &[f64; 2]| pair[1]);
        let more = median(&figures, |pair: &[f64; 2]| pair[1] - pair[0]);
        println!("{name}: {without:.1} without, {with:.1} with, {more:.1} more (medians)");
    }
}
