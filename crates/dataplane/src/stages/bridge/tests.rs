//! Bridges between memory ports.

mod bench;
mod options;
mod oracle;

use bench::{Bench, frame, station};

use super::LearningCounts;
use crate::verdict::DropReason;

#[test]
fn a_frame_to_an_unknown_address_is_flooded_and_the_answer_is_not() {
    let mut bench = Bench::new(4, |_| {});
    let question = frame(station(2), station(1), 100);
    assert_eq!(bench.send(0, &question), [1, 2, 3].map(|port| (port, question.clone())));
    let answer = frame(station(1), station(2), 200);
    assert_eq!(bench.send(2, &answer), [(0, answer.clone())]);
    assert_eq!(bench.send(0, &question), [(2, question)]);
    assert_eq!(bench.counts(), LearningCounts { learned: 2, moved: 0, full: 0 });
    assert_eq!((bench.worker.counters.cloned, bench.worker.counters.sent), (2, 5));
}

#[test]
fn broadcast_and_multicast_are_flooded_always() {
    let mut bench = Bench::new(3, |_| {});
    for dst in [[0xff; 6], [1, 0, 0x5e, 0, 0, 251], [0x33, 0x33, 0, 0, 0, 1]] {
        let frame = frame(dst, station(1), 60);
        assert_eq!(bench.send(1, &frame), [(0, frame.clone()), (2, frame)]);
    }
}

#[test]
fn a_frame_for_a_station_behind_its_own_port_is_dropped() {
    let mut bench = Bench::new(3, |_| {});
    bench.send(0, &frame([0xff; 6], station(1), 60));
    assert_eq!(bench.send(0, &frame(station(1), station(2), 60)), []);
    assert_eq!(bench.drops(DropReason::NoTxTarget), 1);
}

#[test]
fn a_station_that_moves_is_found_at_its_new_port() {
    let mut bench = Bench::new(3, |_| {});
    bench.send(0, &frame([0xff; 6], station(1), 60));
    bench.send(2, &frame([0xff; 6], station(1), 60));
    let answer = frame(station(1), station(9), 60);
    assert_eq!(bench.send(1, &answer), [(2, answer)]);
    assert_eq!(bench.counts(), LearningCounts { learned: 2, moved: 1, full: 0 });
}

#[test]
fn what_sends_nothing_is_forgotten_and_what_sends_is_not() {
    let mut bench = Bench::new(3, |bridge| bridge.ageing_s = 10);
    bench.send(0, &frame([0xff; 6], station(1), 60));
    bench.send(0, &frame([0xff; 6], station(2), 60));
    for _ in 0..30 {
        bench.pass(1);
        bench.send(0, &frame([0xff; 6], station(2), 60));
    }
    let receivers =
        |bench: &mut Bench, number| bench.send(2, &frame(station(number), station(9), 60)).len();
    assert_eq!(receivers(&mut bench, 1), 2, "flooded");
    assert_eq!(receivers(&mut bench, 2), 1);
    bench.pass(9);
    assert_eq!(receivers(&mut bench, 2), 1, "not before its time");
    bench.pass(3);
    assert_eq!(receivers(&mut bench, 2), 2, "a second or so after it");
    assert_eq!(bench.counts().learned, 1, "who asked");
}

#[test]
fn many_stations_are_forgotten_in_parts() {
    const STATIONS: u32 = 5000;
    let mut bench = Bench::new(2, |bridge| bridge.ageing_s = 5);
    for number in 0..STATIONS {
        bench.send(0, &frame([0xff; 6], station(number), 60));
    }
    assert_eq!(bench.counts().learned, STATIONS);
    bench.pass(7);
    assert_eq!(bench.counts().learned, 0);
    // The next ones find room again.
    bench.send(0, &frame([0xff; 6], station(1), 60));
    assert_eq!(bench.counts().learned, 1);
}

#[test]
fn a_full_table_floods_and_counts() {
    let mut bench = Bench::new(3, |bridge| bridge.max_entries = 1);
    for number in 1..=3 {
        assert_eq!(bench.send(0, &frame([0xff; 6], station(number), 60)).len(), 2);
    }
    assert_eq!(bench.counts(), LearningCounts { learned: 1, moved: 0, full: 2 });
    assert_eq!(bench.send(1, &frame(station(3), station(1), 60)).len(), 2, "not learned");
    assert_eq!(bench.counts(), LearningCounts { learned: 1, moved: 1, full: 2 });
}

#[test]
fn group_addresses_of_bridges_and_impossible_senders_are_dropped() {
    let mut bench = Bench::new(3, |_| {});
    for last in 0..=16 {
        let sent = bench.send(0, &frame([1, 0x80, 0xc2, 0, 0, last], station(1), 60));
        assert_eq!(sent.len(), if last < 16 { 0 } else { 2 });
    }
    assert_eq!(bench.drops(DropReason::MacReserved), 16);
    for src in [[0; 6], [0xff; 6], [1, 2, 3, 4, 5, 6]] {
        assert_eq!(bench.send(0, &frame([0xff; 6], src, 60)), []);
    }
    assert_eq!(bench.drops(DropReason::MacInvalidSource), 3);
    assert_eq!(bench.counts().learned, 1);
}

#[test]
fn a_runt_is_too_small_whatever_lies_behind_it() {
    let mut bench = Bench::new(2, |_| {});
    for len in 0..14 {
        assert_eq!(bench.send(0, &frame([0xff; 6], station(1), 60)[..len]), []);
    }
    assert_eq!(bench.drops(DropReason::PktTooSmall), 14);
}

#[test]
fn ports_of_different_mtus_get_what_they_can_send() {
    let mut bench = Bench::with_mtus(&[9000, 1500, 9000], |_| {});
    let (fits, tagged, long) = (1514, 1518, 1519);
    let mut flooded = |len| bench.send(0, &frame([0xff; 6], station(1), len)).len();
    assert_eq!((flooded(fits), flooded(tagged), flooded(long)), (2, 2, 1));
    bench.send(1, &frame([0xff; 6], station(2), 60));
    let mut known = |len| bench.send(0, &frame(station(2), station(1), len)).len();
    assert_eq!((known(tagged), known(long)), (1, 0));
    assert_eq!(bench.drops(DropReason::PktTooBig), 1);
}

#[test]
fn every_length_is_copied_whole() {
    let mut bench = Bench::new(3, |_| {});
    for len in 14..300 {
        let frame = frame([0xff; 6], station(1), len);
        assert_eq!(bench.send(0, &frame), [(1, frame.clone()), (2, frame)]);
    }
}

#[test]
fn copies_without_memory_are_dropped() {
    let mut bench = Bench::new(4, |_| {});
    let burst: Vec<_> = (0..64).map(|_| frame([0xff; 6], station(1), 60)).collect();
    // 256 chunks: the ports keep what was sent.
    for _ in 0..2 {
        bench.inject(0, &burst);
        bench.turn(0);
    }
    assert_eq!(bench.worker.counters.cloned, 256);
    assert_eq!(bench.drops(DropReason::NoMem), 2 * 192 - 256);
    bench.check();
}
