use std::collections::HashSet;
use std::sync::Arc;

use super::*;
use crate::fib::FibError;
use crate::id::{LinkId, NextHopId, PortId};
use crate::next_hops::{Action, HEADER_ROOM, NextHop, SPARE_RECORDS};
use crate::prefix::{Prefix, RoutePrefix};
use crate::sync::{AtomicU32, AtomicU64};
use crate::tables::{Tables, TablesError};
use crate::testkit::lender::PlainLender;

#[derive(bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([AtomicU64; 8]);

/// Writes all items, and reads them back.
fn fills(lines: &Aligned<Line>, values: &Aligned<AtomicU32>) {
    use std::sync::atomic::Ordering::Relaxed;
    for (number, line) in (0..).zip(lines.get()) {
        assert!(line.0.iter().all(|word| word.swap(number, Relaxed) == 0), "zeroed");
    }
    for (number, value) in (0..).zip(values.get()) {
        assert_eq!(value.swap(number, Relaxed), 0);
    }
    let is_kept = |(number, line): (u64, &Line)| line.0[7].load(Relaxed) == number;
    assert!((0..).zip(lines.get()).all(is_kept));
    assert!((0..).zip(values.get()).all(|(number, value): (u32, _)| value.load(Relaxed) == number));
}

#[test]
fn items_lie_in_lent_memory_or_in_their_own() {
    let lender = PlainLender::small();
    for memory in [Memory::default(), lender.memory()] {
        let lines = Aligned::<Line>::new(&memory, Part::Nodes4, 100);
        let values = Aligned::<AtomicU32>::new(&memory, Part::Values4, 1001);
        assert_eq!((lines.get().len(), values.get().len()), (100, 1001));
        assert_eq!(lines.get().as_ptr().addr() % 64, 0);
        fills(&lines, &values);
        // They may move; what they lie in stays where it is.
        let moved = Box::new((lines, values));
        assert_eq!(moved.0.get()[99].0[0].load(std::sync::atomic::Ordering::Relaxed), 99);
    }
    assert_eq!(lender.word(Part::Nodes4, 99 * 8), 99, "programs see the items");
    assert_eq!(lender.word(Part::Values4, 500) as u32, 1000);
}

#[test]
fn what_is_not_lent_or_too_small_is_taken_from_the_process() {
    let lender = PlainLender::small();
    let memory = lender.memory();
    let first = Aligned::<Line>::new(&memory, Part::Nodes4, 4);
    let second = Aligned::<Line>::new(&memory, Part::Nodes4, 4);
    let large = Aligned::<Line>::new(&memory, Part::Nodes6, 1 << 11);
    for lines in [&second, &large] {
        lines.get()[3].0[0].store(77, std::sync::atomic::Ordering::Relaxed);
    }
    assert_eq!(first.get()[3].0[0].load(std::sync::atomic::Ordering::Relaxed), 0);
    assert_eq!(lender.word(Part::Nodes4, 3 * 8), 0);
    assert_eq!(lender.word(Part::Nodes6, 3 * 8), 0);
    assert_eq!(large.get().len(), 1 << 11);
}

fn leading(last: u8) -> NextHop {
    NextHop {
        header: [last; HEADER_ROOM],
        mtu: 1500,
        port: PortId(0),
        header_len: 14,
        action: Action::Forward,
        link: LinkId(0),
        neigh: None,
    }
}

/// Changes routes until no memory is left; returns the number of changes.
fn change_until_full(tables: &mut Tables, next: NextHopId) -> usize {
    let mut changes = 0;
    loop {
        // A route comes and goes in a node that others need.
        let prefix = RoutePrefix::V4(Prefix::v4(0x0a00_0000 | (changes as u32 % 2) << 8, 24));
        let vrf = crate::id::VrfId(0);
        let done = match changes % 4 {
            0 | 1 => tables.insert(vrf, prefix, next),
            _ => tables.remove(vrf, prefix).map(|_| ()),
        };
        match done {
            Ok(()) => changes += 1,
            Err(error) => {
                assert_eq!(error, TablesError::Fib(FibError::Full));
                return changes;
            }
        }
        assert!(changes < 1 << 16, "memory is used again too early");
    }
}

/// As long as programs may read it, whatever the workers have passed.
#[test]
#[cfg_attr(miri, ignore = "takes minutes under Miri")]
fn memory_of_routes_waits_for_programs() {
    let lender = PlainLender::small();
    let mut tables = Tables::with_memory(&lender.memory());
    tables.add_vrf().unwrap();
    let next = tables.routes.next_hops.push(&leading(1)).unwrap();
    let epochs = Arc::clone(&tables.epochs);
    let (worker, programs) = (epochs.join(), epochs.join_programs());
    tables.write_engine_links();
    assert!(change_until_full(&mut tables, next) > 100);
    let mut passed = HashSet::new();
    for round in 0..5 {
        worker.pass();
        assert_eq!(change_until_full(&mut tables, next), 0, "workers alone free no memory");
        let epoch = programs.due().unwrap();
        programs.pass_epoch(epoch);
        assert!(passed.insert(epoch));
        assert!(change_until_full(&mut tables, next) > 100, "{round}");
    }
}

#[test]
fn records_of_next_hops_wait_for_programs() {
    let lender = PlainLender::small();
    let tables = Tables::with_memory(&lender.memory());
    let epochs = Arc::clone(&tables.epochs);
    let (worker, programs) = (epochs.join(), epochs.join_programs());
    tables.write_engine_links();
    let next_hops = &tables.routes.next_hops;
    let id = next_hops.push(&leading(1)).unwrap();
    let number = lender.word(Part::NextHops, id.0 as usize / 2) >> (32 * (id.0 % 2)) & 0xffff_ffff;
    assert_eq!(number, u64::from(id.0), "a program finds the number's own record");
    let word = |record: u64| lender.word(Part::Records, 8 * record as usize);
    let current =
        || lender.word(Part::NextHops, id.0 as usize / 2) >> (32 * (id.0 % 2)) & 0xffff_ffff;
    assert_eq!(word(number), u64::from_ne_bytes([1; 8]));
    let done = (0..).take_while(|_| next_hops.set(id, &leading(2))).count();
    assert_eq!(done, SPARE_RECORDS);
    worker.pass();
    assert!(!next_hops.set(id, &leading(3)), "workers alone free no record");
    // A program that found the old record still reads the old header.
    assert_eq!(word(number), u64::from_ne_bytes([1; 8]));
    assert_eq!(word(current()), u64::from_ne_bytes([2; 8]));
    programs.pass_epoch(programs.due().unwrap());
    assert!(next_hops.set(id, &leading(3)));
    assert_eq!(word(current()), u64::from_ne_bytes([3; 8]));
}
