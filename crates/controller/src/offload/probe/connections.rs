//! Listeners for all connections: if there are any, no connection may bypass the kernel.

use std::fmt;

use super::{count, text};

/// What makes the kernel report every connection or every unusual packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Watch {
    /// It logs packets that are of no connection (`nf_conntrack_log_invalid`).
    LogInvalid,
    /// It counts packets and bytes of connections (`nf_conntrack_acct`).
    Accounting,
    /// It notes when connections begin and end (`nf_conntrack_timestamp`).
    Timestamps,
    /// A program listens to the events of connections.
    Listener,
}

impl fmt::Display for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LogInvalid => "net.netfilter.nf_conntrack_log_invalid",
            Self::Accounting => "net.netfilter.nf_conntrack_acct",
            Self::Timestamps => "net.netfilter.nf_conntrack_timestamp",
            Self::Listener => "conntrackd or a similar program listens",
        })
    }
}

/// Sysctls that make the kernel report.
const SYSCTLS: [(&str, Watch); 3] = [
    ("nf_conntrack_log_invalid", Watch::LogInvalid),
    ("nf_conntrack_acct", Watch::Accounting),
    ("nf_conntrack_timestamp", Watch::Timestamps),
];
/// `NETLINK_NETFILTER`, and `NFNLGRP_CONNTRACK_NEW`, `_UPDATE` and `_DESTROY` as bits.
const NETFILTER: &str = "12";
const GROUPS: u32 = 0b111;

/// The sysctl or the program that makes the kernel report connections, if any.
pub(super) fn watched() -> Option<Watch> {
    let is_set = |file: &str| count(&format!("/proc/sys/net/netfilter/{file}")) > 0;
    let sysctl = SYSCTLS.iter().find(|(file, _)| is_set(file)).map(|(_, watch)| *watch);
    sysctl.or_else(|| listens(&text("/proc/thread-self/net/netlink")).then_some(Watch::Listener))
}

/// Says whether a socket receives events of connections, according to the list of all netlink
/// sockets.
fn listens(list: &str) -> bool {
    list.lines().any(|line| {
        let mut words = line.split_whitespace().skip(1);
        let is_netfilter = words.next() == Some(NETFILTER);
        let groups = words.nth(1).and_then(|groups| u32::from_str_radix(groups, 16).ok());
        is_netfilter && groups.is_some_and(|groups| groups & GROUPS != 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_known_by_its_groups() {
        let head = "sk               Eth Pid        Groups   Rmem     Wmem\n";
        let line = |protocol: u32, groups: &str| {
            format!("{head}00000000635aca8e {protocol:<3} 4711       {groups} 0        0\n")
        };
        assert!(listens(&line(12, "00000001")));
        assert!(listens(&line(12, "00000004")));
        assert!(!listens(&line(12, "00000040")), "nft monitor");
        assert!(!listens(&line(0, "00000001")), "ip monitor");
        assert!(!listens(head));
    }
}
