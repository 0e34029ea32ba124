//! Sysctls that change forwarding, and those that the test sets only to make two runs comparable.

use std::fmt::Write as _;

use crate::net::DEVICES;

/// Settings that cases draw. The fields are: the name below `net/`; the default value here; other
/// values; one in how many cases takes one of these; whether that leaves much traffic to the
/// kernel, so that only odd cases use it. A `*` stands for a device or `all`.
pub const DRAWN: &[(&str, u32, &[u32], usize, bool)] = &[
    ("ipv4/ip_forward", 1, &[0], 20, true),
    ("ipv6/conf/all/forwarding", 1, &[0], 20, true),
    ("ipv4/conf/*/forwarding", 1, &[0], 20, true),
    ("ipv6/conf/*/forwarding", 1, &[0], 20, true),
    ("ipv4/conf/*/rp_filter", 0, &[1, 2], 12, false),
    ("ipv4/conf/*/accept_local", 0, &[1], 24, false),
    ("ipv4/conf/*/send_redirects", 0, &[1], 16, false),
    ("ipv4/conf/*/log_martians", 0, &[1], 24, false),
    ("ipv4/conf/*/route_localnet", 0, &[1], 13, true),
    ("ipv4/conf/*/src_valid_mark", 0, &[1], 30, false),
    ("ipv4/conf/*/accept_source_route", 0, &[1], 40, false),
    ("ipv4/conf/*/bc_forwarding", 0, &[1], 40, false),
    ("ipv4/conf/*/shared_media", 1, &[0], 40, false),
    ("ipv4/conf/*/ignore_routes_with_linkdown", 0, &[1], 13, true),
    ("ipv4/conf/*/drop_unicast_in_l2_multicast", 0, &[1], 20, true),
    ("ipv6/conf/*/drop_unicast_in_l2_multicast", 0, &[1], 20, true),
    ("ipv6/conf/*/accept_source_route", 0, &[1], 60, false),
    ("ipv6/conf/*/disable_ipv6", 0, &[1], 20, true),
    ("ipv6/conf/*/proxy_ndp", 0, &[1], 20, true),
    ("ipv6/conf/*/hop_limit", 64, &[30], 60, false),
    ("ipv6/conf/*/ignore_routes_with_linkdown", 0, &[1], 20, true),
    ("ipv4/ip_default_ttl", 64, &[33, 255], 12, false),
    ("ipv4/ip_forward_use_pmtu", 0, &[1], 4, true),
    ("ipv4/ip_forward_update_priority", 1, &[0], 20, false),
    ("ipv4/fib_multipath_hash_policy", 0, &[1], 3, false),
    ("ipv4/fib_multipath_hash_policy", 0, &[2, 3], 5, true),
    ("ipv4/fib_multipath_hash_seed", 4711, &[1, 4_000_000_000], 4, false),
    ("ipv4/fib_multipath_use_neigh", 0, &[1], 4, true),
    ("ipv4/icmp_echo_ignore_all", 0, &[1], 20, false),
    ("ipv4/icmp_errors_use_inbound_ifaddr", 0, &[1], 10, false),
    ("ipv4/fwmark_reflect", 0, &[1], 20, false),
    ("ipv6/fib_multipath_hash_policy", 0, &[1], 3, false),
    ("ipv6/fib_multipath_hash_policy", 0, &[2, 3], 5, true),
    ("ipv6/icmp/echo_ignore_all", 0, &[1], 20, false),
];

/// Settings that belong to no drawn configuration: they control noise, limits, and how long the
/// kernel waits for silent neighbours.
const FIXED: &str = "
    ipv4/icmp_ratelimit=0 ipv4/icmp_ratemask=0 ipv6/icmp/ratelimit=0
    ipv4/icmp_msgs_per_sec=1000000 ipv4/icmp_msgs_burst=1000000
    ipv4/ipfrag_time=3600 ipv6/ip6frag_time=3600 ipv6/auto_flowlabels=0
    ipv6/conf/*/accept_ra=0 ipv6/conf/*/autoconf=0 ipv6/conf/*/accept_dad=0 ipv6/conf/*/dad_transmits=0
    ipv6/conf/*/router_solicitations=0 ipv6/conf/*/addr_gen_mode=1
    ipv6/conf/*/mldv1_unsolicited_report_interval=1 ipv6/conf/*/mldv2_unsolicited_report_interval=1
";

/// The same for each device, where the device does not inherit from `default`.
const NEIGHBOURS: &str = "
    ipv4/neigh/*/mcast_solicit=1 ipv6/neigh/*/mcast_solicit=1
    ipv4/neigh/*/retrans_time_ms=300 ipv6/neigh/*/retrans_time_ms=300
    ipv4/neigh/*/delay_first_probe_time=3600 ipv6/neigh/*/delay_first_probe_time=3600
    ipv4/neigh/*/locktime=0
";

/// Returns the script line that writes one setting, `name=value`, if the kernel has it.
pub fn set(line: &str) -> String {
    let (name, value) = line.split_once('=').unwrap_or((line, ""));
    format!("[ ! -e /proc/sys/net/{name} ] || echo {value} > /proc/sys/net/{name}\n")
}

/// The full names of a setting: with a `*`, one for `all` and one for each device.
pub fn names(name: &str) -> Vec<String> {
    if !name.contains('*') {
        return vec![name.to_owned()];
    }
    let of = ["all"].iter().chain(&DEVICES).map(|device| name.replace('*', device));
    of.collect()
}

/// The script that runs once, before there are devices.
pub fn fixed() -> String {
    let mut script = String::new();
    for setting in FIXED.split_whitespace() {
        // New devices inherit from `default`.
        let _ = write!(script, "{}", set(&setting.replace('*', "default")));
    }
    script
}

/// The script that runs for each device, once the device exists.
pub fn neighbours(device: &str) -> String {
    NEIGHBOURS.split_whitespace().map(|setting| set(&setting.replace('*', device))).collect()
}

/// The script that sets everything that cases draw to its default value.
pub fn baseline() -> String {
    let mut script = String::new();
    for (name, value, ..) in DRAWN {
        // For these settings `all` has a value of its own, which the kernel adds to each device's
        // value.
        names(name).iter().for_each(|name| script += &set(&format!("{name}={value}")));
    }
    script
}
