//! The state of a connection, in a word.

use tollway_conntrack::Connection;

/// All states: those of TCP, and of connections whose protocol has none.
pub const STATES: [&str; 14] = [
    "NONE",
    "SYN_SENT",
    "SYN_RECV",
    "ESTABLISHED",
    "FIN_WAIT",
    "CLOSE_WAIT",
    "LAST_ACK",
    "TIME_WAIT",
    "CLOSE",
    "SYN_SENT2",
    "UNREPLIED",
    "SEEN_REPLY",
    "ASSURED",
    "OFFLOAD",
];

/// The state of a connection: TCP's own, or else how far the kernel trusts the connection. A flowtable keeps
/// no state.
pub(super) fn state(connection: &Connection) -> &'static str {
    let status = connection.status;
    match connection.tcp {
        _ if status.is_offloaded() => "OFFLOAD",
        Some(tcp) => tcp.state.name(),
        None if status.is_assured() => "ASSURED",
        None if status.has_seen_reply() => "SEEN_REPLY",
        None => "UNREPLIED",
    }
}
