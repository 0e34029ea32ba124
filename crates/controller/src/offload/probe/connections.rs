//! Listeners for all connections: if there are any, no connection may bypass the kernel.

use super::{count, text};

/// Sysctls that make the kernel report every connection or every unusual packet.
const SYSCTLS: [(&str, &str); 3] = [
    ("nf_conntrack_acct", "net.netfilter.nf_conntrack_acct"),
    ("nf_conntrack_log_invalid", "net.netfilter.nf_conntrack_log_invalid"),
    ("nf_conntrack_timestamp", "net.netfilter.nf_conntrack_timestamp"),
];
/// `NETLINK_NETFILTER`, and `NFNLGRP_CONNTRACK_NEW`, `_UPDATE` and `_DESTROY` as bits.
const NETFILTER: &str = "12";
const GROUPS: u32 = 0b111;
const LISTENER: &str = "conntrackd or a similar program listens";

/// The sysctl or the program that makes the kernel report connections, if any.
pub(super) fn watched() -> Option<&'static str> {
    let is_set = |file: &str| count(&format!("/proc/sys/net/netfilter/{file}")) > 0;
    let sysctl = SYSCTLS.iter().find(|(file, _)| is_set(file)).map(|(_, sysctl)| *sysctl);
    sysctl.or_else(|| listens(&text("/proc/thread-self/net/netlink")).then_some(LISTENER))
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
