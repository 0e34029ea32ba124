//! Times, limits, room, other rules, and several workers. Random packets of rules that keep states are compared with
//! a plain list in the firewall's tests.

use std::sync::{Arc, Barrier};
use std::thread;

use super::super::flows::FlowId;
use super::packet::StatePacket;
use super::*;
use crate::wire::l4;

const MS: u64 = S / 1000;
const START: u64 = 1000 * S;

/// A packet from address 1, port `port`, to address 2, port 80.
fn packet(protocol: u8, port: u16) -> StatePacket {
    let flow = FlowId {
        source: 1,
        destination: 2,
        source_port: port,
        destination_port: 80,
        protocol,
        version: 4,
        zone: 0,
        query: None,
    };
    StatePacket { flow, bytes: 100, ..StatePacket::default() }
}

/// The same in the other direction.
fn answer(packet: StatePacket) -> StatePacket {
    let flow = packet.flow;
    let (source, destination) = (flow.destination, flow.source);
    let (source_port, destination_port) = (flow.destination_port, flow.source_port);
    let flow = FlowId { source, destination, source_port, destination_port, ..flow };
    StatePacket { flow, ..packet }
}

fn tcp(port: u16, tcp_flags: u8, ack: u32) -> StatePacket {
    StatePacket { tcp_flags, ack: Some(ack), ..packet(l4::TCP, port) }
}

fn state_rule(rule: &str, limit: Option<StateLimit>) -> StateRule {
    StateRule { rule: rule.to_owned(), nth: 0, name: "default".to_owned(), limit }
}

/// At most `most` connections of each source address.
fn by_source(most: u32) -> Option<StateLimit> {
    Some(StateLimit { source: true, most, ..StateLimit::default() })
}

fn states() -> States {
    States::new(vec![state_rule("100 allow", None)])
}

/// When the state of a packet ends, in tenths of seconds from `START`.
fn end(states: &States) -> u64 {
    let listed = states.list(START);
    assert_eq!(listed.len(), 1);
    listed[0].1.expires_in_ns / (S / 10)
}

#[test]
fn the_time_of_a_state_is_that_of_ipfw() {
    for (protocol, seconds) in [(l4::UDP, 10), (l4::UDP_LITE, 10), (l4::ICMP, 5), (l4::SCTP, 5)] {
        let states = states();
        assert_eq!(states.keep(&packet(protocol, 7), 0, START), Ok(()));
        let last = START + seconds * S - 1;
        let find = |packet, now_ns| states.check(&packet, None, now_ns);
        assert_eq!(find(answer(packet(protocol, 7)), last), Some(0), "{protocol}");
        // The answer has begun the time again.
        assert_eq!(find(packet(protocol, 7), last + seconds * S - 1), Some(0), "{protocol}");
        let last = last + seconds * S - 1;
        assert_eq!(find(packet(protocol, 7), last + seconds * S), None, "{protocol}");
        assert_eq!(find(packet(protocol, 8), last), None, "{protocol}");
    }
}

#[test]
fn a_connection_of_tcp_opens_and_closes() {
    const SYN: u8 = 2;
    const ACK: u8 = 16;
    const FIN: u8 = 17;
    const RST: u8 = 4;
    let states = states();
    let see = |packet: StatePacket, tenths: u64| {
        assert_eq!(states.check(&packet, None, START + tenths * 100 * MS), Some(0));
        end(&states)
    };
    assert_eq!(states.keep(&tcp(7, SYN, 0), 0, START), Ok(()));
    assert_eq!(end(&states), 200);
    assert_eq!(see(tcp(7, SYN, 0), 1), 201, "sent again");
    assert_eq!(see(answer(tcp(7, SYN | ACK, 5)), 2), 201, "one side has acknowledged");
    assert_eq!(see(answer(tcp(7, SYN | ACK, 5)), 3), 201, "still one side");
    assert_eq!(see(tcp(7, ACK, 9), 4), 3004, "both sides");
    assert_eq!(see(tcp(7, ACK, 10), 5), 3004, "the same side");
    assert_eq!(see(answer(tcp(7, ACK, 4)), 6), 3004, "an old acknowledgement");
    assert_eq!(see(answer(tcp(7, ACK, 6)), 7), 3007, "both sides again");
    assert_eq!(states.list(START)[0].1.tcp_flags, [2, 2]);
    assert_eq!(see(tcp(7, FIN, 11), 8), 3008, "one side closes");
    assert_eq!(see(answer(tcp(7, FIN, 12)), 9), 19, "both sides close");
    assert_eq!(states.list(START)[0].1.tcp_flags, [3, 3]);
    let [forward, reverse] = states.list(START)[0].1.counts;
    assert_eq!((forward.packets, reverse.packets, reverse.bytes), (5, 5, 500));
    assert_eq!(states.check(&tcp(7, ACK, 13), None, START + 1900 * MS), None);

    assert_eq!(states.keep(&tcp(9, SYN, 0), 0, START + 2 * S), Ok(()));
    states.sweep(START + 2 * S);
    assert_eq!(see(answer(tcp(9, RST, 1)), 21), 31, "a reset");
    assert_eq!(states.keep(&tcp(9, ACK, 0), 0, START + 4 * S), Ok(()));
    states.sweep(START + 4 * S);
    assert_eq!(end(&states), 50, "from the middle of a connection");
}

#[test]
fn names_keep_states_apart() {
    let named = |rule, name: &str| StateRule { name: name.to_owned(), ..state_rule(rule, None) };
    let states = States::new(vec![named("1", "web"), named("2", "mail")]);
    let check = |name: Option<&str>| {
        states.check(&answer(packet(l4::UDP, 7)), name.map(StateName::of), START)
    };
    assert_eq!(states.keep(&packet(l4::UDP, 7), 0, START), Ok(()));
    assert_eq!((check(None), check(Some("web")), check(Some("mail"))), (Some(0), Some(0), None));
    assert_eq!(states.keep(&packet(l4::UDP, 7), 1, START), Ok(()));
    assert_eq!(check(None), Some(1), "the newest");
    assert_eq!((check(Some("web")), check(Some("mail"))), (Some(0), Some(1)));
    assert_eq!(states.list(START).len(), 2);
}

#[test]
fn a_limit_counts_the_states_of_its_group() {
    let states = States::new(vec![state_rule("100 allow", by_source(2))]);
    let keep = |port, source, now_ns| {
        let mut packet = packet(l4::UDP, port);
        packet.flow.source = source;
        states.sweep(now_ns);
        states.keep(&packet, 0, now_ns)
    };
    assert_eq!([keep(1, 5, START), keep(2, 5, START)], [Ok(()), Ok(())]);
    assert_eq!(keep(3, 5, START), Err(StateRefusal::OverLimit));
    assert_eq!(keep(3, 6, START), Ok(()), "another group");
    // As with ipfw, a rule that does not look for the state first refuses its packets, too.
    assert_eq!(keep(1, 5, START), Err(StateRefusal::OverLimit));
    // Keeping a known state counts nothing.
    assert_eq!(keep(3, 6, START), Ok(()));
    let table = states.table.get().unwrap();
    let mut counts = table.group_counts();
    counts.sort_unstable();
    assert_eq!((counts, table.count()), (vec![1, 2], 3));
    // Their time is over and the room is free.
    assert_eq!(keep(3, 5, START + 10 * S), Ok(()));
    assert_eq!((table.group_counts(), table.count()), (vec![1], 1));
}

#[test]
fn without_room_there_is_no_state() {
    let states = states();
    let nth = |number: usize| {
        let mut packet = packet(l4::UDP, number as u16);
        packet.flow.source = (number >> 8) as u128;
        packet
    };
    for number in 0..MOST_STATES {
        assert_eq!(states.keep(&nth(number), 0, START), Ok(()), "{number}");
    }
    assert_eq!(states.keep(&nth(MOST_STATES), 0, START), Err(StateRefusal::Full));
    assert_eq!(states.keep(&nth(5), 0, START), Ok(()), "it has one");
    for number in 0..MOST_STATES {
        let (answer, now_ns) = (answer(nth(number)), START + number as u64 % 10 * S);
        assert_eq!(states.check(&answer, None, now_ns), Some(0), "{number}");
    }
    // One tenth lives for each second.
    for seconds in 10..20 {
        states.sweep(START + seconds * S);
        let left = (0..MOST_STATES).filter(|number| (number % 10) as u64 > seconds - 10).count();
        assert_eq!(states.table.get().unwrap().count(), left);
        assert_eq!(states.list(START + seconds * S).len(), left);
    }
    assert_eq!(states.keep(&nth(MOST_STATES), 0, START + 20 * S), Ok(()));
}

#[test]
fn a_limit_has_room_for_so_many_groups() {
    let states = States::new(vec![state_rule("100 allow", by_source(1))]);
    let nth = |source: usize| {
        let mut packet = packet(l4::UDP, 7);
        packet.flow.source = source as u128;
        packet
    };
    for number in 0..MOST_PARENTS {
        assert_eq!(states.keep(&nth(number), 0, START), Ok(()));
    }
    assert_eq!(states.keep(&nth(MOST_PARENTS), 0, START), Err(StateRefusal::Full));
    assert_eq!(states.table.get().unwrap().count(), MOST_PARENTS);
    states.sweep(START + 10 * S);
    assert_eq!(states.table.get().unwrap().group_counts(), []);
    assert_eq!(states.keep(&nth(MOST_PARENTS), 0, START + 10 * S), Ok(()));
}

#[test]
fn other_rules_take_over_the_states_of_equal_ones() {
    let before = States::new(vec![
        state_rule("1", None),
        state_rule("2", by_source(1)),
        state_rule("3", None),
    ]);
    for (state_rule, port) in [(0, 10), (1, 11), (2, 12)] {
        assert_eq!(before.keep(&packet(l4::UDP, port), state_rule, START), Ok(()));
    }
    let after = States::new(vec![
        state_rule("3", None),
        state_rule("9", None),
        state_rule("2", by_source(1)),
    ]);
    after.prepare(Some(&before));
    let check = |port| after.check(&answer(packet(l4::UDP, port)), None, START + 1);
    assert_eq!((check(10), check(11), check(12)), (None, Some(2), Some(0)));
    let listed = after.list(START + 1);
    let mut rules: Vec<_> = listed.iter().map(|(state_rule, _)| &state_rule.rule[..]).collect();
    rules.sort_unstable();
    assert_eq!(rules, ["2", "3"]);
    let over = after.keep(&packet(l4::UDP, 13), 2, START + 1);
    assert_eq!(over, Err(StateRefusal::OverLimit), "it counts on");
    // A worker that still has the rules before makes one more, which nobody knows.
    assert_eq!(before.keep(&packet(l4::UDP, 10), 0, START + 1), Ok(()));
    assert_eq!(check(10), None);
    assert_eq!(after.keep(&packet(l4::UDP, 10), 1, START + 1), Ok(()));
    assert_eq!(check(10), Some(1));
    // Rules that packets have come to already keep their own.
    let late = States::new(vec![state_rule("3", None)]);
    assert_eq!(late.check(&packet(l4::UDP, 12), None, START), None);
    late.prepare(Some(&after));
    assert_eq!(late.check(&packet(l4::UDP, 12), None, START), None);
}

#[test]
fn two_equal_rules_have_states_of_their_own() {
    let twice = StateRule { nth: 1, ..state_rule("1", None) };
    assert_ne!(twice.identity(), state_rule("1", None).identity());
}

#[test]
fn workers_share_states_and_limits() {
    const MOST: u32 = 50;
    const EACH: u16 = if cfg!(miri) { 60 } else { 2000 };
    let states =
        Arc::new(States::new(vec![state_rule("1", by_source(MOST)), state_rule("2", None)]));
    let started = Arc::new(Barrier::new(3));
    let workers = [0, 1, 2].map(|worker| {
        let (states, started) = (Arc::clone(&states), Arc::clone(&started));
        thread::spawn(move || {
            started.wait();
            let mut kept = 0;
            for number in 0..EACH {
                let now_ns = START + u64::from(number) * MS / 100;
                states.sweep(now_ns);
                let limited = packet(l4::UDP, number * 3 + worker);
                kept += u32::from(states.keep(&limited, 0, now_ns).is_ok());
                // All workers keep the same ones, and find them from the other side.
                let shared = packet(l4::TCP, number);
                assert_eq!(states.keep(&shared, 1, now_ns), Ok(()));
                assert_eq!(states.check(&answer(shared), None, now_ns), Some(1));
            }
            kept
        })
    });
    let kept: u32 = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
    assert_eq!(kept, MOST);
    let table = states.table.get().unwrap();
    assert_eq!(table.count(), usize::from(EACH) + MOST as usize);
    assert_eq!(table.group_counts(), [MOST]);
}
