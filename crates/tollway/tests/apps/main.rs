//! Applications and rules of other programs beside Tollway's connections: what worked without Tollway works as before, and
//! is fast or not as `tollway check` and `tollway show connections` say.
//!
//! Only root can attach its programs. Other users see which tests were left out.

#![allow(clippy::unwrap_used)]

#[path = "../router/connections.rs"]
#[allow(dead_code, reason = "the tests of the router take all of it")]
mod connections;
#[path = "../machines/mod.rs"]
mod machines;
#[path = "../namespaces/mod.rs"]
mod namespaces;
#[path = "../router/running.rs"]
#[allow(dead_code, reason = "the tests of the router take all of it")]
mod running;
#[path = "../tc/scene.rs"]
#[allow(dead_code, reason = "the tests of the tc engine take all of it")]
mod traffic;

mod bans;
mod docker;
mod helpers;
mod kubernetes;
mod machine;
mod nat;
mod scene;
mod sip;
mod talk;

use std::process::ExitCode;

use namespaces::{Test, Tests, is_root};

const BESIDE: [Test; 15] = [
    ("files_come_by_ftp", helpers::ftp),
    ("files_come_by_ftp_with_rules_of_iptables", helpers::ftp_by_iptables),
    ("files_come_from_an_ftp_server_behind_the_router", helpers::ftp_server),
    ("files_come_by_tftp", helpers::tftp),
    ("published_ports_of_docker_by_a_bridge", docker::bridged),
    ("published_ports_of_docker_by_routes", docker::routed),
    ("services_of_kubernetes_by_iptables", kubernetes::iptables),
    ("services_of_kubernetes_by_nftables", kubernetes::nftables),
    ("addresses_that_fail2ban_bans", bans::fail2ban),
    ("addresses_in_a_set_whose_elements_end", bans::timed),
    ("ports_are_forwarded_and_redirected", nat::ports),
    ("connections_whose_way_out_changes", nat::failover),
    ("connections_whose_address_goes", nat::address),
    ("calls_by_sip_are_heard", sip::calls),
    ("tunnels_vlans_vrfs_and_flowtables_in_a_virtual_machine", || machines::host("machine")),
];

fn main() -> ExitCode {
    let missing = |name: &str| {
        if name.ends_with("virtual_machine") {
            return machines::missing();
        }
        (!is_root()).then_some("only root may load BPF programs (CAP_BPF and CAP_NET_ADMIN)")
    };
    // `-m`: mounts and pins disappear with the test.
    let tests = Tests { beside: &BESIDE, alone: &[] };
    namespaces::main(&tests, "-nm", missing, |words| match words {
        ["--role", words] if words.starts_with("sip-") => sip::role(words),
        ["--role", "machine"] => machines::inside("machine", &machine::PARTS, None),
        ["--role", "machine", part] => machines::inside("machine", &machine::PARTS, Some(part)),
        ["--role", words] => talk::role(words),
        ["--serve", address] => traffic::serve(address),
        ["--client", address] => traffic::send(address),
        _ => ExitCode::FAILURE,
    })
}
