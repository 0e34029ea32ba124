//! Measures what changes of routes cost the packets of the XDP program: one thread runs the program on frames in
//! memory, to random destinations, while another changes routes of the same tables at full speed, or rests. Needs
//! root, two processors, and a mount namespace of its own: it mounts the BPF file system, which tests would share.
//!
//!     cargo build --release -p tollway --example engine_updates
//!     unshare --mount target/release/examples/engine_updates

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use etherparse::PacketBuilder;
use etherparse::err::packet::BuildWriteError;
use tollway_dataplane::fib::{Fib, Root};
use tollway_dataplane::id::{LinkId, NextHopId, PortId};
use tollway_dataplane::memory::Memory;
use tollway_dataplane::prefix::{Prefix, RoutePrefix};
use tollway_dataplane::tables::{Tables, TablesError};
use tollway_net::{KernelPath, Mac};
use tollway_xdp::xdp_path::{Exit, Ports};
use tollway_xdp::{Action, Mode, Options, Program, TableMaps, XdpLink, XdpPort, XdpPrograms};

/// Routes of the table: about as many as the Internet has.
const ROUTES: u32 = 900_000;
/// Of these, the writer changes the last so many, one after the other.
const CHANGED: u32 = 100_000;
/// Destinations of the packets.
const DESTINATIONS: u32 = 65_536;
/// Length of a window, and number of pairs of windows.
const WINDOW: Duration = Duration::from_millis(100);
const PAIRS: usize = 101;
/// The median lies between these of the sorted pairs in 95 of 100 runs (binomial).
const BOUNDS: [usize; 2] = [40, 60];
const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
/// The loopback device: the program is attached to nothing.
const DEVICE: u32 = 1;

/// A number that looks random (SplitMix64).
fn mixed(number: u64) -> u64 {
    let mut z = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A route of the table.
fn route(number: u32) -> Prefix {
    let random = mixed(number.into());
    let len = [24, 24, 24, 24, 24, 22, 23, 21, 20, 19, 16, 18][(random >> 40) as usize % 12];
    // Unicast addresses that nobody reserves for hosts.
    let address = 0x1400_0000 | random as u32 & 0x3fff_ffff;
    Prefix::v4(address & (u32::MAX << (32 - u32::from(len))), len)
}

/// A UDP packet of 60 bytes to an address that has a route.
fn frame(number: u32) -> Result<Vec<u8>, BuildWriteError> {
    let to = (route(mixed(number.into()) as u32 % (ROUTES - CHANGED)).bits() >> 96) as u32;
    let builder =
        PacketBuilder::ethernet2([2; 6], MACS[0]).ipv4([192, 0, 2, 77], to.to_be_bytes(), 64);
    let mut frame = Vec::new();
    builder.udp(9, 53).write(&mut frame, &[0; 18])?;
    Ok(frame)
}

/// Changes routes until the end, whenever it may.
fn write(
    (fib, root, nexts): (&Fib, Root, [NextHopId; 2]),
    (may, end, changes): (&AtomicBool, &AtomicBool, &AtomicU64),
) {
    let mut round = 0_u64;
    while !end.load(Ordering::Relaxed) {
        if !may.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_micros(100));
            continue;
        }
        let prefix = route(ROUTES - CHANGED + (round % u64::from(CHANGED)) as u32);
        // Each is removed, added by one next hop, and changed to the other.
        let is_done = match round / u64::from(CHANGED) % 3 {
            0 => fib.remove(root, prefix).is_ok(),
            way => fib.insert(root, prefix, nexts[way as usize - 1]).is_ok(),
        };
        if is_done {
            round += 1;
            changes.fetch_add(1, Ordering::Relaxed);
        } else {
            // Memory waits for a grace period.
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// Nanoseconds for each packet of a window, the system call included, and how many the program redirected.
fn window(
    programs: &XdpPrograms,
    program: &Program,
    frames: &[Vec<u8>],
    first: &mut usize,
) -> (f64, u64) {
    let (start, mut count, mut redirected) = (Instant::now(), 0_u64, 0);
    while start.elapsed() < WINDOW {
        programs.state().beat(0);
        for _ in 0..64 {
            let done = program.probe(&frames[*first % frames.len()]);
            redirected += u64::from(done.is_ok_and(|(action, _)| action == Action::Redirect));
            (*first, count) = (*first + 1, count + 1);
        }
    }
    (start.elapsed().as_nanos() as f64 / count as f64, redirected * 100 / count)
}

fn full(error: TablesError) -> String {
    format!("the tables: {error:?}")
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut tables = Tables::with_memory(&Memory::lent(Arc::new(TableMaps::new(0)?)));
    let vrf = tables.add_vrf().map_err(full)?;
    let mut links = Vec::new();
    for mac in MACS {
        links.push(tables.add_port(mac, vrf, 1500).map_err(full)?.1);
    }
    let mut next = |last: u8| {
        let via = IpAddr::from(Ipv4Addr::new(192, 0, 2, last));
        tables.set_neigh(links[1], via, Some([6, 0, 0, 0, 0, last]))
    };
    let nexts = [next(1).map_err(full)?, next(2).map_err(full)?];
    for number in 0..ROUTES {
        let prefix = RoutePrefix::V4(route(number));
        tables.insert(vrf, prefix, nexts[number as usize % 2]).map_err(full)?;
    }
    let port = |number: u16| XdpPort {
        port: PortId(number),
        device: "lo".to_owned(),
        ifindex: DEVICE,
        mac: Mac(MACS[usize::from(number)]),
        queues: 1,
        links: vec![XdpLink {
            tag: None,
            outer: None,
            link: LinkId(number),
            kernel_path: KernelPath::default(),
        }],
        is_bridge_port: false,
    };
    let ports = [port(0), port(1)];
    let mut programs = XdpPrograms::load(&ports, &Options::default())?;
    programs.state().set_bypass(false);
    programs.use_tables(&tables)?;
    let exits = Ports::with_programs(ports.len(), Some(programs.state()));
    let exit = |ifindex| Exit { ifindex, mtu: u16::MAX, takes_pieces: true };
    exits.set_exit(PortId(1), NonZeroU32::new(DEVICE).map(exit));
    tables.write_engines();
    let program = programs.program(PortId(0), Mode::Native, true)?;
    let frames = (0..DESTINATIONS).map(frame).collect::<Result<Vec<_>, _>>()?;
    let (may, end, changes) = (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(0));
    let (fib, root) = (Arc::clone(&tables.routes.fib4), tables.routes.vrfs[0].root4);
    let mut pairs = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| write((&fib, root, nexts), (&may, &end, &changes)));
        let mut at = 0;
        for _ in 0..PAIRS {
            let before = changes.load(Ordering::Relaxed);
            let alone = window(&programs, &program, &frames, &mut at);
            may.store(true, Ordering::Relaxed);
            let beside = window(&programs, &program, &frames, &mut at);
            may.store(false, Ordering::Relaxed);
            let rate = (changes.load(Ordering::Relaxed) - before) as f64 / WINDOW.as_secs_f64();
            pairs.push((beside.0 - alone.0, alone, beside, rate));
        }
        end.store(true, Ordering::Relaxed);
    });
    let redirected = pairs.iter().map(|(_, alone, beside, _)| alone.1.min(beside.1)).min();
    let mut rates: Vec<f64> = pairs.iter().map(|(.., rate)| *rate).collect();
    rates.sort_by(f64::total_cmp);
    pairs.sort_by(|one, other| one.0.total_cmp(&other.0));
    println!(
        "{:.1} ns a packet more (95 %: {:.1} to {:.1}) than {:.1} ns, the system call included; {:.0} changes/s; at \
         least {} % redirected",
        pairs[PAIRS / 2].0,
        pairs[BOUNDS[0]].0,
        pairs[BOUNDS[1]].0,
        pairs[PAIRS / 2].1.0,
        rates[PAIRS / 2],
        redirected.unwrap_or(0),
    );
    Ok(())
}
