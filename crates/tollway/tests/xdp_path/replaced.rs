//! Tests that programs decide by whole rules while others replace them.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tollway_dataplane::stages::filter::{Condition, Field, Filter, Op, Point, Rule, Rules};
use tollway_dataplane::tables::Tables;
use tollway_xdp::{Action, XdpPrograms};

use crate::compared::{Compared, arriving};
use crate::engines::Engine;
use crate::testkit::dice::Dice;
use crate::testkit::wires::LinkVariant;

/// For how long the rules are replaced.
const STRESS: Duration = Duration::from_secs(4);

/// The most rules that lie before and behind the one that drops.
const MOST_OTHERS: usize = 150;

/// Destinations that all rules drop, that none drop, and that some drop.
const DROPPED: LinkVariant = LinkVariant::Vlan;
const ACCEPTED: LinkVariant = LinkVariant::Plain;
const SOMETIMES: LinkVariant = LinkVariant::Stacked;

/// The port behind which the destinations are.
const TO: u8 = 1;

fn host(variant: LinkVariant, version: u8) -> IpAddr {
    if version == 4 { variant.host4(TO) } else { variant.host6(TO) }
}

fn to(variant: LinkVariant, version: u8) -> Condition {
    let (field, number) = match host(variant, version) {
        IpAddr::V4(v4) => (Field::Destination4, v4.to_bits().into()),
        IpAddr::V6(v6) => (Field::Destination6, v6.to_bits()),
    };
    Condition::new(field, [(number, number)])
}

/// Rules of any number, of which one drops packets to one destination, and perhaps another those to a second one.
fn drawn(dice: &mut Dice, version: u8) -> Rules {
    let mut rules = Vec::new();
    let others = |rules: &mut Vec<Rule>, dice: &mut Dice| {
        for _ in 0..dice.below(MOST_OTHERS) {
            let port = 50_000 + dice.below(1000) as u128;
            let conditions = vec![Condition::new(Field::DestinationPort, [(port, port)])];
            let op = dice.pick(&[Op::Accept, Op::Drop, Op::Count(0)]);
            rules.push(Rule { conditions, ops: vec![op], next: rules.len() as u32 + 1 });
        }
    };
    others(&mut rules, dice);
    for variant in [DROPPED, SOMETIMES] {
        if variant == DROPPED || dice.one_in(2) {
            let next = rules.len() as u32 + 1;
            let ops = vec![Op::Count(0), Op::Drop];
            rules.push(Rule { conditions: vec![to(variant, version)], ops, next });
        }
        others(&mut rules, dice);
    }
    let last = rules.len() as u32;
    rules.push(Rule { conditions: Vec::new(), ops: vec![Op::Accept], next: last + 1 });
    Rules { rules, end: last }
}

/// Draws rules of both versions, each at a point of the path.
fn filter(dice: &mut Dice) -> Filter {
    let mut filter = Filter::new(1, Vec::new());
    for version in [4, 6] {
        let point = dice.pick(&[Point::Prerouting, Point::Forward]);
        filter.set(point, version, &drawn(dice, version)).unwrap();
    }
    filter
}

/// Replaces the rules until told to stop; returns how often.
fn replace(tables: &mut Tables, stop: &AtomicBool) -> u64 {
    let (mut dice, mut count) = (Dice(5), 0);
    while !stop.load(Ordering::Relaxed) {
        tables.filter = Some(Arc::new(filter(&mut dice)));
        tables.write_engines();
        count += 1;
    }
    count
}

/// What programs did with the packets.
#[derive(Debug, Default)]
struct Seen {
    forwarded: u64,
    dropped: u64,
    /// Packets to the destination that only some rules drop.
    changing: [u64; 2],
    to_kernel: u64,
}

fn probe(programs: &XdpPrograms, engine: &Engine, dice: &mut Dice, seen: &mut Seen) {
    let version = dice.pick(&[4, 6]);
    let variant = dice.pick(&[DROPPED, ACCEPTED, SOMETIMES]);
    let dst = host(variant, version);
    let frame = arriving(LinkVariant::Plain, 0, dst);
    programs.state().beat(0);
    let (action, _) = engine.run(&frame);
    match (action, variant) {
        (Action::Redirect, ACCEPTED) => seen.forwarded += 1,
        (Action::Drop, DROPPED) => seen.dropped += 1,
        (Action::Redirect | Action::Drop, SOMETIMES) => {
            seen.changing[usize::from(action == Action::Drop)] += 1;
        }
        // No rules are there for a moment, or no heartbeat on a busy machine.
        (Action::Pass, _) => seen.to_kernel += 1,
        _ => panic!("{action:?} for {dst}"),
    }
}

/// While rules are replaced at full speed, each packet meets whole rules.
pub fn stress() {
    let mut compared = Compared::new();
    compared.set_filter(filter(&mut Dice(4)));
    let engines = Engine::both(&compared);
    let Compared { tables, programs, .. } = &mut compared;
    let (stop, mut dice, mut seen) =
        (AtomicBool::new(false), Dice(8), [(); 2].map(|()| Seen::default()));
    let replaced = std::thread::scope(|scope| {
        let writer = scope.spawn(|| replace(tables, &stop));
        let end = super::renewed::Stop(&stop);
        let start = Instant::now();
        while start.elapsed() < STRESS {
            for (engine, seen) in engines.iter().zip(&mut seen) {
                probe(programs, engine, &mut dice, seen);
            }
        }
        drop(end);
        writer.join().unwrap()
    });
    println!("{replaced} rule sets, {seen:?}");
    for seen in seen {
        let [accepted, dropped] = seen.changing;
        let least = seen.forwarded.min(seen.dropped).min(10 * accepted.min(dropped));
        assert!(least > 1000, "too few were decided: {seen:?}");
    }
    assert!(replaced > 100, "{replaced}");
}
