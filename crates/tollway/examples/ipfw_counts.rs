//! Measures what the counters of ipfw's rules cost in the user path.
//!
//! Workers with memory ports forward the same packets of 256 flows: one without rules, one by a list of ipfw whose
//! counters were taken out, and one by the whole list. They take turns, so that they share the machine's good and bad
//! times. The example prints the median of each, and of the difference between the last two, in clocks per packet.
//! A packet meets a list twice, at `in` and at `out`.
//!
//!     cargo build --release -p tollway --example ipfw_counts
//!     target/release/examples/ipfw_counts

use std::error::Error;
use std::net::Ipv4Addr;
use std::sync::Arc;

use tollway_dataplane::clock;
use tollway_dataplane::frame::{Descriptor, Umem};
use tollway_dataplane::host::Host;
use tollway_dataplane::id::PortId;
use tollway_dataplane::port::MemoryPort;
use tollway_dataplane::prefix::RoutePrefix;
use tollway_dataplane::tables::{Tables, TablesError};
use tollway_dataplane::worker::Worker;
use tollway_firewall::ir::{Action, Step};
use tollway_firewall::links::Link;
use tollway_firewall::program;

/// Packets that a worker forwards at once.
const BURST: usize = 64;
/// Bursts of a worker before it is another's turn.
const TURN: usize = 1 << 13;
/// Turns of each worker; the medians are over these.
const ROUNDS: usize = 31;
/// Flows that packets belong to, in turn.
const FLOWS: u32 = 256;
/// Bytes of a frame.
const FRAME: usize = 60;

fn main() -> Result<(), Box<dyn Error>> {
    let rules = |count: u32, rule: fn(u32) -> String| (0..count).map(rule).collect::<String>();
    let ten = rules(10, |n| format!("add {} count udp from any to any 5{n}\n", 100 + n));
    let hundred = rules(100, |n| format!("add {} deny udp from 172.16.{n}.0/24 to any\n", 100 + n));
    let allow = "add 1000 allow udp from any to any\n";
    let three = "add 1 count ip from any to any\nadd 2 count udp from any to any\n\
                 add 3 count ip from 10.0.0.0/8 to any\n";
    let lists = [
        ("one rule", allow.to_owned()),
        ("ten count rules that do not match, then one", format!("{ten}{allow}")),
        ("three count rules that match, then one", format!("{three}{allow}")),
        ("100 rules that do not match, then one", format!("{hundred}{allow}")),
        ("the same with three count rules that match", format!("{three}{hundred}{allow}")),
    ];
    println!(
        "clocks per packet, medians of {ROUNDS}: no rules, without counters, with, difference"
    );
    for (name, text) in lists {
        let mut workers =
            [worker(None, true)?, worker(Some(&text), false)?, worker(Some(&text), true)?];
        let mut now_ns = 0;
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            let mut clocks = [0.0; 3];
            for (worker, clocks) in workers.iter_mut().zip(&mut clocks) {
                *clocks = turn(worker, &mut now_ns)?;
            }
            rounds.push(clocks);
        }
        let median = |of: fn(&[f64; 3]) -> f64| {
            let mut values: Vec<_> = rounds.iter().map(of).collect();
            values.sort_unstable_by(f64::total_cmp);
            values[ROUNDS / 2]
        };
        println!(
            "{:6.1} {:6.1} {:6.1} {:6.1}  {name}",
            median(|round| round[0]),
            median(|round| round[1]),
            median(|round| round[2]),
            median(|round| round[2] - round[1]),
        );
    }
    Ok(())
}

/// Tables of two ports, and a default route by the second.
fn routed() -> Result<Tables, TablesError> {
    let mut tables = Tables::new();
    let vrf = tables.add_vrf()?;
    tables.add_port(mac(0), vrf, 1500)?;
    let (_, link) = tables.add_port(mac(1), vrf, 1500)?;
    let gateway = Ipv4Addr::new(192, 0, 2, 1).into();
    let next = tables.set_neigh(link, gateway, Some(mac(9)))?;
    tables.insert(vrf, RoutePrefix::new(Ipv4Addr::UNSPECIFIED.into(), 0), next)?;
    Ok(tables)
}

/// A worker with two memory ports, perhaps with rules of ipfw, perhaps without their counters.
fn worker(text: Option<&str>, counts: bool) -> Result<Worker, Box<dyn Error>> {
    let mut tables = routed().map_err(|error| format!("{error:?}"))?;
    if let Some(text) = text {
        let mut rules =
            tollway_firewall::ipfw::read(text, "list").map_err(|wrong| format!("{wrong:?}"))?;
        for rule in rules.chains.iter_mut().flat_map(|chain| &mut chain.rules) {
            rule.steps.retain(|step| counts || !matches!(step, Step::Do(Action::Count(_))));
        }
        let links = ["a", "b"].map(|name| Link {
            name: name.to_owned(),
            vrf: "main".to_owned(),
            on: None,
            vrf_device: None,
        });
        let filter = program::compile(&rules, &links, &tables.epochs)?;
        tables.filter = Some(Arc::new(filter));
    }
    Ok(Worker::alone(tables, Umem::new(4096, 2048).ok_or("no memory")?, Host::new()))
}

const fn mac(last: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, last]
}

/// Forwards a turn's bursts; returns the median clocks of a burst per packet.
fn turn(worker: &mut Worker, now_ns: &mut u64) -> Result<f64, Box<dyn Error>> {
    let mut ports = [MemoryPort::new(BURST), MemoryPort::new(BURST)];
    let mut spent = Vec::with_capacity(TURN);
    let mut sent = 0;
    for burst in 0..TURN {
        let mut frames = Vec::with_capacity(BURST);
        for lane in 0..BURST {
            let addr = worker.umem.alloc().ok_or("no frame is free")?;
            write(worker.umem.frame_mut(addr, FRAME), (burst * BURST + lane) as u32 % FLOWS);
            frames.push(Descriptor { addr, len: FRAME as u32 });
        }
        ports[0].inject_all(&frames);
        // No limit and no timer may count here: 500 ns are a burst at 128 million packets a second.
        *now_ns += 500;
        let start = clock::now();
        worker.turn(PortId(0), &mut ports, *now_ns);
        spent.push(clock::now() - start);
        for frame in ports[1].take_sent() {
            sent += 1;
            worker.umem.free(frame.addr);
        }
    }
    if sent != TURN * BURST {
        return Err(format!("only {sent} of {} packets were forwarded", TURN * BURST).into());
    }
    spent.sort_unstable();
    Ok(spent[TURN / 2] as f64 / BURST as f64)
}

/// Writes a UDP packet to port 53.
fn write(frame: &mut [u8], flow: u32) {
    frame.fill(0);
    frame[..6].copy_from_slice(&mac(0));
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14..24].copy_from_slice(&[0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17]);
    frame[26..30].copy_from_slice(&[10, 0, 0, flow as u8]);
    frame[30..34].copy_from_slice(&[198, 51, 100, 7]);
    frame[34..38].copy_from_slice(&[flow as u8, 9, 0, 53]);
    let words = frame[14..34].chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    frame[24..26].copy_from_slice(&(!folded as u16).to_be_bytes());
}
