//! Rules that test connections decide about flows, and never about packets.

use super::super::{
    Condition, Connection, ConnectionField, ConnectionState, Direction, Field, Filter, FilterError,
    FlowConnection, FlowFilter, FlowKey, FlowReport, MarkOf, MarkUpdate, Op, Point, Rule, Rules,
    Tuple, TupleField,
};
use crate::id::LinkId;

const CONNECTION: Connection = Connection {
    state: ConnectionState::Established,
    direction: Direction::Reply,
    status: 0x1ee,
    mark: 7,
    zone: 3,
    original: Tuple { source: 10, destination: 20, source_port: 1000, destination_port: 80 },
    reply: Tuple { source: 21, destination: 11, source_port: 80, destination_port: 1001 },
};

fn flow(version: u8, connection: Option<FlowConnection>) -> FlowKey {
    FlowKey {
        version,
        source: 21,
        destination: 11,
        protocol: 6,
        ports: Some((80, 1001)),
        input: LinkId(0),
        output: Some(LinkId(1)),
        connection,
    }
}

fn tracked(version: u8) -> FlowKey {
    flow(version, Some(FlowConnection::Tracked(CONNECTION)))
}

fn is(field: ConnectionField, number: u128) -> Condition {
    Condition::new(Field::Connection(field), [(number, number)])
}

/// One rule, behind which packets are accepted.
fn list(conditions: Vec<Condition>, ops: Vec<Op>) -> Rules {
    let end = Rule { ops: vec![Op::Accept], next: 2, ..Rule::default() };
    Rules { rules: vec![Rule { conditions, ops, next: 1 }, end], end: 1 }
}

fn filter(rules: &Rules) -> FlowFilter {
    let fill = |filter: &mut Filter| {
        filter.set(Point::Forward, 4, rules)?;
        filter.set(Point::Forward, 6, rules)
    };
    FlowFilter::with(0, Vec::new(), fill).unwrap()
}

/// Whether the rules drop a flow; none if that is not known.
fn drops(rules: &Rules, flow: &FlowKey) -> Option<bool> {
    filter(rules).of_flow(flow).map(|FlowReport { dropped_at, .. }| dropped_at.is_some())
}

#[test]
fn each_property_is_that_of_the_connection() {
    use ConnectionField::{L3Protocol, Mark, Protocol, State, Status, Zone};
    let part = |direction, field| ConnectionField::Tuple(direction, field);
    let (original, reply) = (Direction::Original, Direction::Reply);
    for (field, version, number) in [
        (State, 4, 2),
        (ConnectionField::Direction, 4, 1),
        (Status, 4, 0x1ee),
        (Mark, 4, 7),
        (Zone, 4, 3),
        (L3Protocol, 4, 2),
        (L3Protocol, 6, 10),
        (Protocol, 6, 6),
        (part(original, TupleField::Source4), 4, 10),
        (part(original, TupleField::Destination6), 6, 20),
        (part(original, TupleField::SourcePort), 4, 1000),
        (part(original, TupleField::DestinationPort), 6, 80),
        (part(reply, TupleField::Source6), 6, 21),
        (part(reply, TupleField::Destination4), 4, 11),
        (part(reply, TupleField::SourcePort), 6, 80),
        (part(reply, TupleField::DestinationPort), 4, 1001),
    ] {
        let rules = |number| list(vec![is(field, number)], vec![Op::Drop]);
        assert_eq!(drops(&rules(number), &tracked(version)), Some(true), "{field:?}");
        assert_eq!(drops(&rules(number ^ 64), &tracked(version)), Some(false), "{field:?}");
        assert_eq!(drops(&rules(number), &flow(version, None)), None, "{field:?}");
        let untracked = flow(version, Some(FlowConnection::Untracked));
        assert_eq!(drops(&rules(number), &untracked), Some(false), "{field:?}");
    }
}

#[test]
fn packets_of_no_connection_have_only_a_state() {
    for (connection, bit) in [(FlowConnection::Invalid, 1), (FlowConnection::Untracked, 64)] {
        let flow = flow(4, Some(connection));
        let state = list(vec![is(ConnectionField::State, bit)], vec![Op::Drop]);
        assert_eq!(drops(&state, &flow), Some(true));
        // Not even a negated condition holds.
        let other = is(ConnectionField::Mark, 7).outside();
        assert_eq!(drops(&list(vec![other], vec![Op::Drop]), &flow), Some(false));
    }
}

#[test]
fn only_a_flow_that_is_untracked_is_kept_out_of_tracking() {
    let rules = |again| list(Vec::new(), vec![Op::NoTrack { again }, Op::Drop]);
    let again = filter(&rules(true));
    let filter = filter(&rules(false));
    assert!(filter.untracks() && !self::filter(&list(Vec::new(), vec![Op::Drop])).untracks());
    let report = |connection| filter.of_flow(&flow(4, connection));
    let untracked = report(Some(FlowConnection::Untracked)).unwrap();
    assert!(untracked.is_untracked && untracked.dropped_at == Some(Point::Forward));
    for connection in
        [None, Some(FlowConnection::Invalid), Some(FlowConnection::Tracked(CONNECTION))]
    {
        assert_eq!(report(connection), None, "{connection:?}");
    }
    // Behind tracking, it keeps those out that have no connection.
    assert!(!again.untracks());
    for (connection, is_known) in [
        (None, false),
        (Some(FlowConnection::Invalid), false),
        (Some(FlowConnection::Tracked(CONNECTION)), true),
        (Some(FlowConnection::Untracked), true),
    ] {
        let report = again.of_flow(&flow(4, connection));
        assert_eq!(report.map(|report| report.is_untracked), is_known.then_some(false));
    }
    // Where the rule does not apply, nothing is kept out.
    let other = Condition::new(Field::Protocol, [(17, 17)]);
    let rules = list(vec![other], vec![Op::NoTrack { again: false }, Op::Drop]);
    let report = self::filter(&rules).of_flow(&flow(4, Some(FlowConnection::Untracked)));
    assert_eq!(report, Some(FlowReport::default()));
}

#[test]
fn addresses_of_the_other_version_are_lacking() {
    let field = ConnectionField::Tuple(Direction::Original, TupleField::Source6);
    let any = Condition::new(Field::Connection(field), [(0, u128::MAX)]);
    let rules = list(vec![any], vec![Op::Drop]);
    assert_eq!(drops(&rules, &tracked(4)), Some(false));
    assert_eq!(drops(&rules, &tracked(6)), Some(true));
}

#[test]
fn rules_that_the_key_excludes_need_no_connection() {
    let protocol = Condition::new(Field::Protocol, [(17, 17)]);
    let rules = list(vec![protocol, is(ConnectionField::State, 2)], vec![Op::Drop]);
    assert_eq!(drops(&rules, &flow(4, None)), Some(false));
}

#[test]
fn only_the_kernel_gives_a_connection_another_mark() {
    let update = |target, packet, connection, flip| {
        let mark = Condition::new(Field::Mark, [(7, 7)]);
        let update = Op::UpdateMark(MarkUpdate { target, packet, connection, flip });
        list(Vec::new(), vec![update, Op::Check(mark), Op::Drop])
    };
    let all = u32::MAX;
    let restore = update(MarkOf::Packet, 0, Some(all), 0);
    assert_eq!(drops(&restore, &tracked(4)), Some(true));
    assert_eq!(drops(&restore, &flow(4, None)), None);
    // The rule ends there.
    assert_eq!(drops(&restore, &flow(4, Some(FlowConnection::Invalid))), Some(false));
    for (rules, result) in [
        (update(MarkOf::Connection, 0, None, 7), Some(false)),
        (update(MarkOf::Connection, 0, None, 8), None),
        (update(MarkOf::Connection, all, None, 0), None),
        (update(MarkOf::Connection, all, Some(all), 0), Some(false)),
        (update(MarkOf::Connection, 0, Some(3), 4), Some(false)),
        (update(MarkOf::Connection, 0, Some(all), 4), None),
    ] {
        assert_eq!(drops(&rules, &tracked(4)), result, "{rules:?}");
        // Without a connection there is nothing to set.
        let nothing = drops(&rules, &flow(4, Some(FlowConnection::Untracked)));
        assert_eq!(nothing, Some(false), "{rules:?}");
    }
}

#[test]
fn packets_on_the_user_path_never_meet_such_rules() {
    let state = is(ConnectionField::State, 2);
    let (target, connection) = (MarkOf::Packet, Some(0));
    let update = MarkUpdate { target, packet: 0, connection, flip: 0 };
    for rules in [
        list(vec![state.clone()], vec![Op::Drop]),
        list(Vec::new(), vec![Op::Check(state), Op::Drop]),
        list(Vec::new(), vec![Op::UpdateMark(update), Op::Drop]),
    ] {
        let mut filter = Filter::new(0, Vec::new());
        assert_eq!(filter.set(Point::Forward, 4, &rules), Err(FilterError::Connection));
        assert!(filter.at(Point::Forward, 4).is_none());
    }
}
