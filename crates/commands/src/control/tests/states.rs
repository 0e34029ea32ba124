//! The states that rules of a file keep, as connections over the socket.

use std::sync::Arc;

use tollway_dataplane::id::PortId;
use tollway_dataplane::port::MemoryPort;
use tollway_dataplane::wire::checksum;
use tollway_firewall::ir::Family;
use tollway_firewall::links::Link;
use tollway_firewall::{ipfw, iptables, program};

use super::*;
use crate::control::{Connection, ConnectionsPage};

const RULES: &str = "add 1 check-state\n\
                     add 2 allow ip from 10.0.1.0/24 to any keep-state\n";

/// A frame for a port, between a port of a host in 10.0.1.0/24 and port 53 of 10.0.2.2.
fn udp(mac: [u8; 6], port: u16, is_answer: bool) -> Vec<u8> {
    let (inside, outside) = ([10, 0, 1, 2], [10, 0, 2, 2]);
    let (ends, ports) = match is_answer {
        false => ([inside, outside], [port, 53]),
        true => ([outside, inside], [53, port]),
    };
    let mut header = [0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    header[12..].copy_from_slice(&ends.concat());
    let sum = !checksum::sum(&header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    let ports = ports.map(u16::to_be_bytes).concat();
    [&mac[..], &[2, 0, 0, 0, 0, 9, 8, 0], &header, &ports, &[0, 8, 0, 0]].concat()
}

/// Takes a packet into the router, by its first port or, as an answer, by its second.
fn receive(worker: &mut Worker, port: u16, is_answer: bool, now_ns: u64) {
    let from = usize::from(is_answer);
    let [_, _, mac @ ..] = worker.state().ports[from].mac.0.to_le_bytes();
    let frame = worker.umem.store(&udp(mac, port, is_answer)).unwrap();
    let mut ports = [MemoryPort::new(64), MemoryPort::new(64)];
    ports[from].inject(frame);
    assert_eq!(worker.turn(PortId(from as u16), &mut ports, now_ns), 1);
}

fn shown(testbed: &Testbed, filter: ConnectionFilter) -> Vec<Connection> {
    let shown = testbed.client().show::<ConnectionsPage>(&ShowRequest::Connections(filter));
    shown.unwrap().connections
}

/// Installs these rules in place of others.
fn install(worker: &mut Worker, rules: &str) {
    let rules = match rules.starts_with('*') {
        true => iptables::read(rules, "t.rules", Family::Ip).unwrap(),
        false => ipfw::read(rules, "t.rules").unwrap(),
    };
    let links = [(); 2].map(|()| Link::default());
    let filter = program::compile(&rules, &links, &worker.state().epochs).unwrap();
    worker.set_filter(Some(Arc::new(filter)), &[]);
    worker.look();
}

#[test]
fn states_are_shown_with_their_rule() {
    let testbed = Testbed::new();
    let put = |worker: &mut Worker, _: &mut _| {
        install(worker, RULES);
        const S: u64 = 1_000_000_000;
        for (port, is_answer, seconds) in [(7, false, 1), (8, false, 12), (8, true, 14)] {
            receive(worker, port, is_answer, seconds * S);
        }
    };
    testbed.mailbox.call(Duration::from_secs(10), put).unwrap();
    let all = shown(&testbed, ConnectionFilter::default());
    // The time of the first is over.
    assert_eq!(all.len(), 1, "{all:?}");
    let one = &all[0];
    assert_eq!((one.path.as_str(), one.state.as_str()), ("user", "SEEN_REPLY"));
    assert_eq!(one.why, "2 allow ip from 10.0.1.0/24 to any keep-state");
    assert_eq!((one.original.source_port, one.original.destination_port), (Some(8), Some(53)));
    assert_eq!(one.reply.source.to_string(), "10.0.2.2");
    assert_eq!(one.timeout_s, Some(10));
    let counts = one.counts.unwrap();
    assert_eq!((counts.packets, counts.bytes, counts.reply_packets), (1, 28, 1));

    let port = |port| ConnectionFilter { port: Some(port), ..ConnectionFilter::default() };
    assert_eq!((shown(&testbed, port(53)).len(), shown(&testbed, port(7)).len()), (1, 0));

    // Other rules have the states of those that stay.
    let reload = |rules: String| {
        let install = move |worker: &mut Worker, _: &mut _| install(worker, &rules);
        testbed.mailbox.call(Duration::from_secs(10), install).unwrap();
        shown(&testbed, ConnectionFilter::default()).len()
    };
    assert_eq!(reload(format!("{RULES}add 1 count ip from any to any\n")), 1);
    assert_eq!(reload(RULES.replace("add 2", "add 3")), 0);
}

const TRACKED: &str = "*filter
:FORWARD ACCEPT [0:0]
-A FORWARD -m conntrack --ctstate NEW -s 10.0.1.0/24 -j CONNMARK --set-mark 5
-A FORWARD -m conntrack --ctstate NEW,ESTABLISHED -m connmark --mark 5 -j ACCEPT
-A FORWARD -j DROP
COMMIT
";

#[test]
fn tracked_connections_are_shown_with_their_mark() {
    let testbed = Testbed::new();
    const S: u64 = 1_000_000_000;
    let put = |worker: &mut Worker, _: &mut _| {
        install(worker, TRACKED);
        // The first one is an answer to nothing: it is dropped, and leaves no connection.
        for (port, is_answer, seconds) in
            [(9, true, 1), (7, false, 1), (8, false, 32), (8, true, 33), (8, false, 36)]
        {
            receive(worker, port, is_answer, seconds * S);
        }
    };
    testbed.mailbox.call(Duration::from_secs(10), put).unwrap();
    let all = shown(&testbed, ConnectionFilter::default());
    assert_eq!(all.len(), 1, "{all:?}");
    let one = &all[0];
    assert_eq!((one.path.as_str(), one.why.as_str(), one.mark), ("user", "", 5));
    assert_eq!(one.state, "ASSURED");
    assert_eq!((one.original.source_port, one.reply.source_port), (Some(8), Some(53)));
    assert_eq!(one.timeout_s, Some(120));
    let counts = one.counts.unwrap();
    assert_eq!((counts.packets, counts.reply_packets), (2, 1));
    // Other rules go on with them, as long as they track.
    let reload = |rules: String| {
        let install = move |worker: &mut Worker, _: &mut _| install(worker, &rules);
        testbed.mailbox.call(Duration::from_secs(10), install).unwrap();
    };
    reload(TRACKED.replace("NEW,ESTABLISHED", "ESTABLISHED"));
    assert_eq!(shown(&testbed, ConnectionFilter::default()).len(), 1);
}
