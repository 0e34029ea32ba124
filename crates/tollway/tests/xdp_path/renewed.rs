//! Tests that memory which programs may read is not used for anything else.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tollway_dataplane::fib::{Fib, Root};
use tollway_dataplane::id::{LinkId, NextHopId, PortId};
use tollway_dataplane::memory::{Capacities, Capacity, Lender as _, Memory, Part};
use tollway_dataplane::next_hops::{Action, HEADER_ROOM, NextHop};
use tollway_dataplane::prefix::Prefix;
use tollway_dataplane::tables::Tables;
use tollway_xdp::TableMaps;
use tollway_xdp::counts::PassReason;

use crate::bench::run_with_heartbeat;
use crate::compared::{Compared, arriving};
use crate::engines::Engine;
use crate::namespaces::{sh, until};
use crate::testkit::dice::Dice;
use crate::testkit::packet::{Packet, ip};
use crate::testkit::wires::{LinkVariant, PORTS};

/// For how long the writer changes the tables.
const STRESS: Duration = Duration::from_secs(6);

/// Blocks of prefixes, the first of which has all the destinations; and next hops of each.
const BLOCKS: u8 = 32;
const NEXT_HOPS: u8 = 8;

/// Grace periods end, and workers do not wait for them.
pub fn grace() {
    let mut compared = Compared::new();
    let epochs = Arc::clone(&compared.tables.epochs);
    for _ in 0..5 {
        let epoch = epochs.advance();
        assert!(epochs.passed_by_workers() >= epoch);
        assert!(epochs.passed() < epoch, "no grace period is that short");
        let start = Instant::now();
        until("a grace period", || epochs.passed() >= epoch);
        println!("a grace period of {:?}", start.elapsed());
    }
    let frame = arriving(LinkVariant::Plain, 0, LinkVariant::Vlan.host4(1));
    assert_eq!(compared.run(0, &frame).reason, None);
    // The programs decide by flows again, and nobody reads the tables any more.
    compared.programs.use_tables(&Tables::new()).unwrap();
    assert!(!compared.programs.has_tables());
    assert!(epochs.passed() < epochs.advance(), "programs of before may run");
    compared.unload();
    until("the programs no longer read the tables", || epochs.passed() == u64::MAX);
}

/// Limits the address space of this process, in bytes.
fn limit_memory(bytes: &str) {
    sh(&format!("prlimit --pid {} --as={bytes}:unlimited", std::process::id()));
}

/// A process that may not map all of the maps gets none of them.
pub fn unmapped() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    let used_kb: u64 = size.trim().trim_end_matches(" kB").parse().unwrap();
    for more_kb in [1 << 10, 12 << 10, 20 << 10] {
        limit_memory(&((used_kb + more_kb) << 10).to_string());
        let maps = TableMaps::new(0);
        limit_memory("unlimited");
        assert!(maps.is_err(), "with {more_kb} KB");
    }
    let maps = TableMaps::new(0).unwrap();
    assert!(Part::ALL.into_iter().all(|part| maps.lend(part).is_some()), "all are lent");
    assert!(Part::ALL.into_iter().all(|part| maps.lend(part).is_none()), "once");
}

fn small() -> Capacities {
    let fib = Capacity { roots: 16, nodes: 1 << 15, values: 1 << 20 };
    Capacities {
        fib4: fib,
        fib6: fib,
        next_hops: 1 << 10,
        groups: 16,
        rules: 0,
        sets: fib,
        processors: 0,
        fdb_buckets: 0,
    }
}

/// A next hop whose header says which one it is.
fn leading(block: u8, number: u8, version: u8, is_ipv4: bool) -> NextHop {
    let dst = [6, block, number, version, !version, number ^ version];
    let src = [2, block, number, version, !version, number ^ version];
    let ethertype: [u8; 2] = if is_ipv4 { [8, 0] } else { [0x86, 0xdd] };
    let mut header = [0; HEADER_ROOM];
    header[HEADER_ROOM - 14..].copy_from_slice(&[&dst[..], &src, &ethertype].concat());
    NextHop {
        header,
        mtu: 1500,
        port: PortId(1),
        header_len: 14,
        action: Action::Forward,
        link: LinkId(1),
        neigh: None,
    }
}

fn block_of(is_ipv4: bool, block: u8) -> Prefix {
    match is_ipv4 {
        true => Prefix::v4(u32::from_be_bytes([10, block, 0, 0]), 16),
        false => Prefix::v6(0x2001_0db8_0000 << 80 | u128::from(block) << 80, 48),
    }
}

/// Draws an address in a block. Few bits differ, so that the same nodes are rebuilt again and again.
fn drawn(dice: &mut Dice, is_ipv4: bool, block: u8) -> u128 {
    let noise = if is_ipv4 { 0x0301 << 96 } else { 0x0301 << 64 | 1 << 24 | 1 };
    block_of(is_ipv4, block).bits() | (dice.wide() & noise)
}

/// What the writer changes.
struct Writer {
    is_ipv4: bool,
    fib: Arc<Fib>,
    root: Root,
    next_hops: Vec<Vec<NextHopId>>,
}

impl Writer {
    fn new(tables: &Tables, is_ipv4: bool) -> Self {
        let routes = &tables.routes;
        let (fib, root) = match is_ipv4 {
            true => (&routes.fib4, routes.vrfs[0].root4),
            false => (&routes.fib6, routes.vrfs[0].root6),
        };
        let next_hops: Vec<Vec<_>> = (0..BLOCKS)
            .map(|block| {
                let push =
                    |number| routes.next_hops.push(&leading(block, number, 0, is_ipv4)).unwrap();
                (0..NEXT_HOPS).map(push).collect()
            })
            .collect();
        for (block, ids) in (0..).zip(&next_hops) {
            fib.insert(root, block_of(is_ipv4, block), ids[0]).unwrap();
        }
        Self { is_ipv4, fib: Arc::clone(fib), root, next_hops }
    }

    /// Changes a route within any block; false if memory waits for a grace period.
    fn change(&self, dice: &mut Dice) -> bool {
        let block = if dice.one_in(3) { 0 } else { dice.below(BLOCKS.into()) as u8 };
        let bits = drawn(dice, self.is_ipv4, block);
        self.change_to(dice, block, bits)
    }

    /// Changes a route to an address in a block.
    fn change_to(&self, dice: &mut Dice, block: u8, bits: u128) -> bool {
        let (within, most) = (block_of(self.is_ipv4, block), if self.is_ipv4 { 32 } else { 128 });
        let len = within.len() + 1 + dice.below(most - usize::from(within.len())) as u8;
        let prefix = match self.is_ipv4 {
            true => Prefix::v4((bits >> 96) as u32, len),
            false => Prefix::v6(bits, len),
        };
        match dice.one_in(2) {
            true => {
                let next = dice.pick(&self.next_hops[usize::from(block)]);
                self.fib.insert(self.root, prefix, next).is_ok()
            }
            false => self.fib.remove(self.root, prefix).is_ok(),
        }
    }
}

/// Small tables of the test network's ports, all in one VRF.
fn stressed(_: &Memory) -> Tables {
    let maps = TableMaps::with_capacities(small()).unwrap();
    let mut tables = Tables::with_memory(&Memory::lent(Arc::new(maps)));
    let vrf = tables.add_vrf().unwrap();
    for port in 0..PORTS {
        tables.add_port(LinkVariant::Plain.mac(port), vrf, 1500).unwrap();
    }
    tables
}

fn write(tables: &Tables, writers: &[Writer; 2], stop: &AtomicBool, changes: &AtomicU64) {
    let (mut dice, next_hops) = (Dice(99), &tables.routes.next_hops);
    while !stop.load(Ordering::Relaxed) {
        let writer = &writers[dice.below(2)];
        let is_done = match dice.one_in(4) {
            true => {
                let block = if dice.one_in(2) { 0 } else { dice.below(BLOCKS.into()) as u8 };
                let number = dice.below(NEXT_HOPS.into()) as u8;
                let next = leading(block, number, dice.roll() as u8, writer.is_ipv4);
                next_hops.set(writer.next_hops[usize::from(block)][usize::from(number)], &next)
            }
            false => writer.change(&mut dice),
        };
        match is_done {
            true => drop(changes.fetch_add(1, Ordering::Relaxed)),
            false => std::thread::sleep(Duration::from_micros(200)),
        }
    }
}

/// Asserts that a frame was forwarded by a next hop of the first block, whole.
fn check(frame: &[u8], is_ipv4: bool) -> Result<(), String> {
    let [6, block, number, version, inverse, mixed, 2, rest @ ..] =
        *frame.first_chunk::<12>().unwrap()
    else {
        return Err(format!("{:02x?}", &frame[..14]));
    };
    let is_whole = inverse == !version && mixed == number ^ version;
    let is_same = rest == [block, number, version, inverse, mixed];
    let ttl = frame[if is_ipv4 { 14 + 8 } else { 14 + 7 }];
    match is_whole && is_same && block == 0 && ttl == 63 {
        true => Ok(()),
        false => Err(format!("TTL {ttl}: {:02x?}", &frame[..14])),
    }
}

/// A frame to a left-aligned address.
fn frame_to(bits: u128, is_ipv4: bool) -> Vec<u8> {
    let dst: IpAddr = match is_ipv4 {
        true => Ipv4Addr::from_bits((bits >> 96) as u32).into(),
        false => Ipv6Addr::from_bits(bits).into(),
    };
    let src = ip(if is_ipv4 { "192.0.2.77" } else { "2001:db9::7" });
    Packet::between(src, dst).to(LinkVariant::Plain.mac(0)).build()
}

fn probe(programs: &tollway_xdp::XdpPrograms, engine: &Engine, dice: &mut Dice) {
    let is_ipv4 = dice.one_in(2);
    let bits = drawn(dice, is_ipv4, 0);
    let frame = frame_to(bits, is_ipv4);
    let stale = || programs.counts().port(PortId(0)).unwrap().passed(PassReason::Stale);
    let before = stale();
    programs.state().beat(0);
    let (_, output) = engine.run(&frame);
    let checked = check(&output, is_ipv4);
    // Without a heartbeat, the program decides nothing.
    assert!(checked.is_ok() || stale() != before, "to {bits:x}: {checked:?}");
}

/// After each change of a route, programs forward by it at once, also to where they have sent packets just before.
pub fn at_once() {
    let compared = Compared::over(stressed);
    let engines = Engine::both(&compared);
    let Compared { tables, programs, .. } = &compared;
    let writers = [true, false].map(|is_ipv4| Writer::new(tables, is_ipv4));
    tables.write_engines();
    let mut dice = Dice(17);
    for (writer, is_ipv4) in writers.iter().zip([true, false]) {
        let dsts: Vec<u128> = (0..8).map(|_| drawn(&mut dice, is_ipv4, 0)).collect();
        let (mut last, mut changes) = ([0; 8], 0);
        for round in 0..1000 {
            let dst = dice.pick(&dsts);
            writer.change_to(&mut dice, 0, dst);
            let engine = &engines[dice.below(2)];
            for (bits, last) in dsts.iter().zip(&mut last) {
                let next = writer.fib.lookup(writer.root, *bits);
                let wanted = writer.next_hops[0].iter().position(|id| *id == next).unwrap();
                changes += u32::from(std::mem::replace(last, wanted) != wanted);
                let frame = frame_to(*bits, is_ipv4);
                // Programs look for recent routes only while they find most of them.
                for _ in 0..4 {
                    let output = run_with_heartbeat(programs, 0, || engine.run(&frame).1);
                    let begin = &output[..14];
                    assert_eq!(usize::from(output[2]), wanted, "round {round}: {begin:02x?}");
                }
            }
        }
        assert!(changes > 20, "{changes}");
    }
}

/// While routes and next hops change at full speed, each packet is forwarded as by tables of that time.
pub fn stress() {
    let compared = Compared::over(stressed);
    let engines = Engine::both(&compared);
    let Compared { tables, programs, .. } = &compared;
    let writers = [true, false].map(|is_ipv4| Writer::new(tables, is_ipv4));
    tables.write_engines();
    let (stop, changes) = (AtomicBool::new(false), AtomicU64::new(0));
    let (mut dice, mut probes) = (Dice(3), 0_u64);
    std::thread::scope(|scope| {
        scope.spawn(|| write(tables, &writers, &stop, &changes));
        let _stop = Stop(&stop);
        let start = Instant::now();
        while start.elapsed() < STRESS {
            for engine in &engines {
                probe(programs, engine, &mut dice);
                probes += 1;
            }
        }
    });
    let changes = changes.into_inner();
    println!("{changes} changes, {} packets", probes);
    // Most changes take the memory of a node: all of it was used again.
    let nodes = 2 * small().fib4.nodes as u64;
    assert!(changes > 3 * nodes && probes > 100_000, "{changes}, {probes}");
}

/// Stops the writer, also if a check fails.
pub struct Stop<'a>(pub &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
