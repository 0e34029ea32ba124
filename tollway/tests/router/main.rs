//! `tollway run DEVICE...`: a router that is configured by its kernel, between hosts in namespaces.
//!
//! Only root can attach its programs. Whoever is not, is told what was left out.

#![allow(clippy::unwrap_used)]

#[path = "../namespaces/mod.rs"]
mod namespaces;

mod changes;
mod guide;
mod ipsec;
mod latency;
mod many;
mod rules;
mod running;
mod sets;
#[path = "../oracle/socket.rs"]
mod socket;
mod stops;
mod tags;
#[path = "../guide/mod.rs"]
mod typed;
mod uppers;

use std::process::ExitCode;

use namespaces::{Test, is_root};

const TESTS: [Test; 29] = [
    ("what_the_kernel_forwards_is_forwarded", changes::forwards),
    ("routes_come_and_go", changes::routes),
    ("addresses_come_and_go", changes::addresses),
    ("a_neighbour_moves", changes::neighbour),
    ("links_go_down_and_up", changes::links),
    ("a_port_goes_and_comes_back", changes::port),
    ("devices_may_swap_their_names", changes::swapped),
    ("devices_of_others_come_and_go", changes::others),
    ("an_audit_has_nothing_to_tell", changes::audit),
    ("a_signal_is_an_audit", changes::signal),
    ("policy_rules_decide", rules::policy),
    ("sysctls_decide", rules::sysctls),
    ("rules_of_nft_stop_a_flow", rules::nft),
    ("more_rules_than_fit_are_the_kernels", rules::many),
    ("sets_have_the_kernels_elements_whatever_happens", sets::live),
    ("old_rules_are_not_in_force_while_new_ones_are_read", sets::slow),
    ("rules_mean_the_names_that_devices_have", sets::names),
    ("a_firewall_of_the_host_takes_fragments_only", rules::host),
    ("frames_whose_tags_are_not_seen_are_the_kernels", tags::beside),
    ("devices_that_can_not_be_are_refused", stops::refused),
    ("the_kernel_forwards_after_a_kill", stops::kill),
    ("a_stop_leaves_the_kernel_as_it_was", stops::stop),
    ("the_service_manager_hears_of_it", stops::service),
    ("who_takes_frames_first_may_move", uppers::moved),
    ("ipsec_policies_count_at_once", ipsec::policies),
    ("a_router_takes_five_minutes", guide::five_minutes),
    ("a_change_is_in_force_within_milliseconds", latency::changes),
    ("many_routes_are_mirrored", many::routes),
    ("what_changes_while_stopped_is_mirrored", many::stopped),
];

fn main() -> ExitCode {
    let missing = |_: &str| {
        (!is_root()).then_some("only root may load BPF programs (CAP_BPF and CAP_NET_ADMIN)")
    };
    // `-m`: what is mounted and pinned is gone with the test.
    namespaces::main(&TESTS, "-nm", missing, |_| ExitCode::FAILURE)
}
