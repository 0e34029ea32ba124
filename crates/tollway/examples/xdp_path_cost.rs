//! Measures what the user-space half of the XDP path costs a packet of the user path, in TSC
//! clocks. It takes whole turns of a router over memory ports, with the XDP path and without.
//!
//!     cargo run --release -p tollway --example xdp_path_cost

use std::net::Ipv4Addr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tollway_dataplane::clock;
use tollway_dataplane::frame::{Descriptor, Umem};
use tollway_dataplane::host::Host;
use tollway_dataplane::id::PortId;
use tollway_dataplane::port::MemoryPort;
use tollway_dataplane::prefix::RoutePrefix;
use tollway_dataplane::tables::Tables;
use tollway_dataplane::worker::Worker;
use tollway_xdp::flows::{Flow, Flow4Key, Flow6Key};
use tollway_xdp::xdp_path::{Exit, Flows, Ports, XdpFlows};

const BURST: usize = 64;
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
    let mut tables = Tables::new();
    let vrf = tables.add_vrf().ok()?;
    let macs = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
    let links = macs.map(|mac| tables.add_port(mac, vrf, 1500).map(|(_, link)| link));
    let gateway = Ipv4Addr::new(192, 0, 2, 1).into();
    let next = tables.set_neigh(links[1].ok()?, gateway, Some([6; 6])).ok()?;
    let default = RoutePrefix::new(Ipv4Addr::UNSPECIFIED.into(), 0);
    tables.insert(vrf, default, next).ok()?;
    let mut worker = Worker::alone(tables, Umem::new(4096, 2048)?, Host::new());
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

/// A UDP packet in an Ethernet frame, 60 bytes; the flow's number is its source address and port.
fn write(frame: &mut [u8], flow: u32) {
    frame.fill(0);
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14..24].copy_from_slice(&[0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17]);
    frame[26..30].copy_from_slice(&(0x0a00_0000 | flow >> 8).to_be_bytes());
    frame[30..34].copy_from_slice(&[198, 51, 100, 7]);
    frame[34..38].copy_from_slice(&[flow as u8, 9, 0, 53]);
    let words = frame[14..34].chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    frame[24..26].copy_from_slice(&(!folded as u16).to_be_bytes());
}

/// Returns the clocks a packet of the median turn, so that other work on the machine does not
/// count. `flow` gives the flow's number for each packet.
fn clocks(worker: &mut Worker, flow: impl Fn(usize) -> u32, now_ns: &mut u64) -> f64 {
    let mut ports = [MemoryPort::new(BURST), MemoryPort::new(BURST)];
    let mut spent = Vec::with_capacity(PACKETS / BURST);
    for burst in 0..PACKETS / BURST {
        let frames: Vec<Descriptor> = (0..BURST)
            .filter_map(|lane| {
                let addr = worker.umem.alloc()?;
                write(worker.umem.frame_mut(addr, 60), flow(burst * BURST + lane));
                Some(Descriptor { addr, len: 60 })
            })
            .collect();
        ports[0].inject_all(&frames);
        *now_ns += 500;
        let start = clock::now();
        worker.turn(PortId(0), &mut ports, *now_ns);
        spent.push(clock::now() - start);
        for frame in ports[1].take_sent() {
            worker.umem.free(frame.addr);
        }
    }
    spent.sort_unstable();
    spent[spent.len() / 2] as f64 / BURST as f64
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
        let mut figures: Vec<[f64; 2]> = (0..ROUNDS)
            .map(|round| {
                [
                    clocks(&mut plain, |packet| flow(round, packet), &mut now),
                    clocks(&mut flows, |packet| flow(round, packet), &mut also_now),
                ]
            })
            .collect();
        let median = |figures: &mut Vec<[f64; 2]>, of: fn(&[f64; 2]) -> f64| {
            figures.sort_by(|one, other| of(one).total_cmp(&of(other)));
            of(&figures[ROUNDS / 2])
        };
        let without = median(&mut figures, |pair| pair[0]);
        let with = median(&mut figures, |pair| pair[1]);
        let more = median(&mut figures, |pair| pair[1] - pair[0]);
        println!("{name}: {without:.1} without, {with:.1} with, {more:.1} more (medians)");
    }
}
