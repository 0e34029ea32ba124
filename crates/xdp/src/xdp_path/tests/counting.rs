//! The XDP path's packets among all others.

use proptest::prelude::*;
use tollway_dataplane::counters::{Counters, Traffic};
use tollway_dataplane::id::PortId;
use tollway_dataplane::verdict::DropReason;

use crate::counts::PortCounts;
use crate::xdp_path::counts::{Reading, XdpTotals};

/// The counters of an XDP program that forwards packets of 64 bytes from port to port, adding a tag
/// each time.
#[derive(Clone, Default)]
struct Program {
    ports: Vec<PortCounts>,
    refused: Vec<u64>,
}

impl Program {
    fn new(ports: usize) -> Self {
        Self { ports: vec![PortCounts::default(); ports], refused: vec![0; ports] }
    }

    fn forward(&mut self, from: usize, to: usize, packets: u64) {
        self.ports[from].xdp_rx_packets += packets;
        self.ports[from].xdp_rx_bytes += 64 * packets;
        self.ports[to].xdp_tx_packets += packets;
        self.ports[to].xdp_tx_bytes += 68 * packets;
    }

    fn drop(&mut self, port: usize, reason: DropReason, packets: u64) {
        let [count, bytes] = &mut self.ports[port].drops[reason as usize];
        (*count, *bytes) = (*count + packets, *bytes + 60 * packets);
    }

    fn reading(&self) -> Reading {
        let refused = |port: PortId| self.refused[usize::from(port.0)];
        Reading::of_source(self.ports.len(), refused, |port| Ok(self.ports[usize::from(port.0)]))
            .unwrap()
    }
}

fn merged(totals: &XdpTotals, ports: usize) -> Counters {
    let mut counters = Counters::new(ports);
    counters.received(PortId(0), 7, 700);
    counters.sent = 7;
    counters.tx[1].add(7, 700);
    totals.add_to(&mut counters);
    counters.check().unwrap();
    counters
}

#[test]
fn an_xdp_path_at_rest_holds_nothing() {
    let mut program = Program::new(3);
    let mut totals = XdpTotals::new(program.reading());
    program.forward(0, 1, 1000);
    program.forward(2, 0, 10);
    totals.update(program.reading());
    let counters = merged(&totals, 3);
    assert_eq!((counters.sent, counters.held), (1017, 0));
    assert_eq!(counters.rx[0], Traffic { packets: 1007, bytes: 64_700 });
    assert_eq!(counters.tx[1], Traffic { packets: 1007, bytes: 68_700 });
    assert_eq!(counters.rx[2], Traffic { packets: 10, bytes: 640 });
    assert_eq!(counters.tx[0], Traffic { packets: 10, bytes: 680 });
}

#[test]
fn packets_that_pass_while_counts_are_read_are_held() {
    let mut program = Program::new(2);
    let mut totals = XdpTotals::new(program.reading());
    for _ in 0..10 {
        let reading = Reading::of_source(
            2,
            |_| 0,
            |port| {
                program.forward(0, 1, 5);
                program.forward(1, 0, 3);
                Ok(program.ports[usize::from(port.0)])
            },
        );
        totals.update(reading.unwrap());
        assert!(merged(&totals, 2).held > 0);
    }
    totals.update(program.reading());
    let counters = merged(&totals, 2);
    assert_eq!((counters.held, counters.sent), (0, 4 * 10 * 8 + 7));
}

#[test]
fn counts_begin_where_a_predecessor_ended_and_survive_a_new_program() {
    let mut program = Program::new(2);
    program.forward(0, 1, 1_000_000);
    let mut totals = XdpTotals::new(program.reading());
    assert_eq!(merged(&totals, 2).sent, 7);
    program.forward(0, 1, 5);
    totals.update(program.reading());
    assert_eq!(merged(&totals, 2).sent, 12);
    // The XDP program is reloaded.
    program = Program::new(2);
    totals.update(program.reading());
    assert_eq!(merged(&totals, 2).sent, 12);
    program.forward(0, 1, 2);
    totals.update(program.reading());
    assert_eq!(merged(&totals, 2).sent, 14);
}

#[test]
fn packets_that_a_device_refuses_are_dropped() {
    let mut program = Program::new(2);
    // A predecessor's packets.
    program.forward(0, 1, 10);
    program.refused[1] = 4;
    let mut totals = XdpTotals::new(program.reading());
    program.forward(0, 1, 6);
    totals.update(program.reading());
    program.forward(0, 1, 4);
    program.refused[1] += 4;
    totals.update(program.reading());
    let counters = merged(&totals, 2);
    assert_eq!((counters.sent, counters.drops[DropReason::DevTxFailed as usize]), (13, 4));
    assert_eq!(counters.tx[1], Traffic { packets: 13, bytes: 700 + 6 * 68 });
    // A device refuses packets that counted as sent at the last reading.
    program.refused[1] += 2;
    totals.update(program.reading());
    let counters = merged(&totals, 2);
    assert_eq!((counters.sent, counters.drops[DropReason::DevTxFailed as usize]), (11, 6));
    assert_eq!(counters.tx[1], Traffic { packets: 11, bytes: 700 + 4 * 68 });
    assert_eq!(counters.held, 0);
}

#[test]
fn dropped_packets_are_received_ones() {
    let (rule, route) = (DropReason::NetfilterDrop, DropReason::Blackhole);
    let mut program = Program::new(2);
    // A predecessor's packets.
    program.drop(0, rule, 100);
    let mut totals = XdpTotals::new(program.reading());
    program.forward(0, 1, 10);
    program.drop(0, rule, 5);
    program.drop(1, rule, 2);
    program.drop(1, route, 1);
    totals.update(program.reading());
    let counters = merged(&totals, 2);
    assert_eq!([rule, route].map(|reason| counters.drops[reason as usize]), [7, 1]);
    assert_eq!((counters.dropped_packets(), counters.sent, counters.held), (8, 17, 0));
    assert_eq!(counters.rx[0], Traffic { packets: 22, bytes: 700 + 10 * 64 + 5 * 60 });
    assert_eq!(counters.rx[1], Traffic { packets: 3, bytes: 3 * 60 });
    // The XDP program is reloaded.
    program = Program::new(2);
    program.forward(0, 1, 30);
    program.drop(0, rule, 1);
    totals.update(program.reading());
    let counters = merged(&totals, 2);
    assert_eq!((counters.dropped_packets(), counters.held), (9, 0));
    assert_eq!(totals.dropped().map(|traffic| traffic.packets).sum::<u64>(), 9);
}

#[test]
fn unreadable_counters_are_an_error() {
    let failed = Reading::of_source(2, |_| 0, |_| Err(std::io::ErrorKind::PermissionDenied.into()));
    assert_eq!(failed.unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
}

proptest! {
    #[test]
    fn counts_add_up_and_never_go_back(
        steps in proptest::collection::vec((0..3_usize, 0..3_usize, 0..100_u64, 0..20_u8), 1..50)
    ) {
        let mut program = Program::new(3);
        let mut totals = XdpTotals::new(program.reading());
        let mut last = merged(&totals, 3);
        let (mut all, mut dropped) = (7, 0);
        for (from, to, packets, chance) in steps {
            if chance == 0 {
                program = Program::new(3);
            }
            totals.update(program.reading());
            program.forward(from, to, packets);
            program.drop(to, DropReason::NetfilterDrop, packets / 2);
            all += packets;
            dropped += packets / 2;
            totals.update(program.reading());
            let now = merged(&totals, 3);
            prop_assert_eq!((now.sent, now.dropped_packets()), (all, dropped));
            for (new, old) in now.rx.iter().chain(&now.tx).zip(last.rx.iter().chain(&last.tx)) {
                prop_assert!(new.packets >= old.packets && new.bytes >= old.bytes);
            }
            last = now;
        }
    }
}
