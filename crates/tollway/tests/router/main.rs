//! Tests `tollway run DEVICE...`: a router that takes its configuration from the kernel, between
//! hosts in namespaces.
//!
//! Only root can attach its programs. Other users see which tests were left out.

#![allow(clippy::unwrap_used)]

#[path = "../machines/mod.rs"]
mod machines;
#[path = "../namespaces/mod.rs"]
mod namespaces;

mod accounted;
mod attached;
mod bridges;
mod changes;
mod closed;
mod connections;
mod exceptions;
mod generic;
mod groups;
mod guide;
mod hung;
#[path = "../oracle/icmp.rs"]
mod icmp;
mod ipsec;
mod latency;
mod leaks;
mod listed;
mod load;
mod many;
#[path = "../neighbours/raw.rs"]
mod raw;
mod routed_bridges;
mod rules;
mod running;
mod sets;
#[path = "../oracle/socket.rs"]
mod socket;
mod starved;
mod stops;
mod tags;
mod tracked;
mod tracked_tcp;
#[path = "../guide/mod.rs"]
mod typed;
mod untracked;
mod uppers;
mod vlans;

use std::process::ExitCode;

use namespaces::{Test, Tests, is_root};
use tollway_model::Engine;

const BESIDE: [Test; 66] = [
    ("tollway_forwards_what_the_kernel_forwards", changes::forwards),
    ("nothing_is_attached_where_nothing_is_fast", attached::gateway),
    ("routes_come_and_go", changes::routes),
    ("addresses_come_and_go", changes::addresses),
    ("a_neighbour_moves", changes::neighbour),
    ("a_path_mtu_that_holds_for_forwarding_is_heeded", exceptions::locked),
    ("links_go_down_and_up", changes::links),
    ("a_port_goes_and_comes_back", changes::port),
    ("more_queues_leave_memory_for_others", changes::queues),
    ("devices_may_swap_their_names", changes::swapped),
    ("devices_of_others_come_and_go", changes::others),
    ("an_audit_finds_no_drift", changes::audit),
    ("frames_between_hosts_of_a_bridge_are_forwarded", || bridges::forwarded(Engine::Xdp)),
    ("frames_between_hosts_of_a_bridge_are_forwarded_by_tc", || bridges::forwarded(Engine::Tc)),
    ("a_bridge_answers_for_itself", || bridges::bridge_itself(Engine::Xdp)),
    ("a_bridge_answers_for_itself_by_tc", || bridges::bridge_itself(Engine::Tc)),
    ("a_host_moves_to_another_port_of_a_bridge", || bridges::moves(Engine::Xdp)),
    ("a_host_moves_to_another_port_of_a_bridge_by_tc", || bridges::moves(Engine::Tc)),
    ("a_successor_takes_ports_of_a_bridge_over", || bridges::takeover(Engine::Xdp)),
    ("a_successor_takes_ports_of_a_bridge_over_by_tc", || bridges::takeover(Engine::Tc)),
    ("frames_between_ports_of_two_engines_are_forwarded", bridges::between_engines),
    ("packets_of_a_bridge_are_routed", || routed_bridges::routed(Engine::Xdp)),
    ("packets_of_a_bridge_are_routed_by_tc", || routed_bridges::routed(Engine::Tc)),
    ("packets_follow_a_host_to_another_port_of_a_bridge", || routed_bridges::moves(Engine::Xdp)),
    ("packets_follow_a_host_to_another_port_of_a_bridge_by_tc", || {
        routed_bridges::moves(Engine::Tc)
    }),
    ("a_signal_is_an_audit", changes::signal),
    ("flows_keep_their_next_hop_whoever_forwards", groups::stay),
    ("a_seed_is_set_where_it_counts", groups::seed),
    ("policy_rules_decide", rules::policy),
    ("sysctls_decide", rules::sysctls),
    ("rules_of_nft_stop_a_flow", rules::nft),
    ("packets_that_a_rule_drops_are_dropped_in_xdp", rules::dropped),
    ("rules_that_are_not_listed_whole_hold", listed::as_the_kernel),
    ("a_packet_counts_once", rules::counted),
    ("more_rules_than_fit_take_the_kernel_path", rules::many),
    ("sets_have_the_kernels_elements_whatever_happens", sets::live),
    ("old_rules_are_not_active_while_new_ones_are_read", sets::slow),
    ("rules_mean_the_names_that_devices_have", sets::names),
    ("a_firewall_of_the_host_takes_fragments_only", rules::host),
    ("frames_whose_tags_are_not_seen_take_the_kernel_path", tags::beside),
    ("unsuitable_devices_are_refused", stops::refused),
    ("a_stop_leaves_the_kernel_as_it_was", stops::stop),
    ("a_successor_takes_over_and_loses_no_packet", stops::takeover),
    ("the_service_manager_is_notified", stops::service),
    ("upper_devices_may_move_to_another_namespace", uppers::moved),
    ("connections_are_shown_as_the_kernel_has_them", connections::shown),
    ("connections_are_shown_with_all_that_has_passed", accounted::accounted),
    ("a_connection_that_is_over_has_what_has_passed", accounted::ended),
    ("established_connections_are_forwarded_while_the_kernel_has_them", tracked::stateful),
    ("translated_connections_are_forwarded", tracked::masquerade),
    ("connections_of_ipv6_are_forwarded_while_the_kernel_has_them", tracked::stateful6),
    ("translated_connections_of_ipv6_are_forwarded", tracked::masquerade6),
    ("packets_that_rules_keep_out_of_tracking_are_forwarded", untracked::forwarded),
    ("rules_drop_packets_of_forwarded_connections", tracked::dropped),
    ("translated_tcp_is_forwarded_but_for_its_ends", tracked_tcp::translated),
    ("connections_that_somebody_deletes_are_the_kernels_again", tracked_tcp::deleted),
    ("translated_tcp_over_ipv6_is_forwarded_but_for_its_ends", tracked_tcp::translated6),
    ("tcp_goes_on_whatever_happens_to_tollway", tracked_tcp::survive),
    ("connections_stay_with_a_kernel_that_counts_exactly", tracked::counted),
    ("ipsec_policies_count_at_once", ipsec::policies),
    ("a_router_takes_five_minutes", guide::five_minutes),
    ("a_time_namespace_makes_no_difference", stops::clock),
    ("rules_of_a_file_close_the_router_without_a_worker", closed::closed),
    ("rules_of_a_file_may_fail_open", closed::open),
    ("changes_during_a_stop_are_installed", many::stopped),
    ("vlans_are_as_the_guide_has_them_in_a_virtual_machine", || machines::host("vlans")),
];

/// Tests that measure times, rates or losses.
const ALONE: [Test; 34] = [
    ("tcp_out_of_window_becomes_what_it_becomes_by_the_kernel", tracked_tcp::invalid),
    ("hosts_that_leave_checksums_transfer_at_the_kernels_rate", attached::offloads),
    ("a_dead_next_hop_is_noticed_as_soon_as_by_the_kernel", changes::dead),
    ("the_kernel_forwards_after_a_kill", stops::kill),
    ("a_bridge_forwards_after_a_kill", || bridges::kill(Engine::Xdp)),
    ("a_bridge_forwards_after_a_kill_by_tc", || bridges::kill(Engine::Tc)),
    ("connections_are_followed_from_a_bridge", || routed_bridges::tracked([Engine::Xdp; 2])),
    ("connections_are_followed_from_a_bridge_by_tc", || routed_bridges::tracked([Engine::Tc; 2])),
    ("connections_are_followed_from_a_bridge_by_xdp_to_tc", || {
        routed_bridges::tracked([Engine::Xdp, Engine::Tc])
    }),
    ("packets_of_a_bridge_are_routed_after_a_kill", || routed_bridges::kill(Engine::Xdp)),
    ("a_bridge_ages_hosts_as_before", || bridges::ages(Engine::Xdp)),
    ("a_bridge_ages_hosts_as_before_by_tc", || bridges::ages(Engine::Tc)),
    ("a_worker_that_hangs_costs_the_others_nothing", hung::worker),
    ("a_router_whose_workers_starve_goes_on", starved::by_xdp),
    ("a_router_by_tc_whose_workers_starve_goes_on", starved::by_tc),
    ("a_change_is_active_within_milliseconds", latency::changes),
    ("forbidden_flows_end_at_once", leaks::idle),
    ("forbidden_flows_end_soon_on_a_busy_machine", leaks::loaded),
    ("the_kernel_forwards_after_a_pause_until_all_is_read", leaks::behind::stopped),
    ("the_kernel_forwards_while_changes_wait", leaks::behind::flooded),
    ("no_packet_passes_after_a_sync", leaks::behind::synced),
    ("neighbours_of_a_router_by_a_file_are_never_late", leaks::file::behind),
    ("flows_on_the_kernel_path_are_not_lost", load::flows),
    ("a_flood_on_the_kernel_path_is_not_lost", load::flood),
    ("packets_through_a_shaper_are_not_lost", load::shaped),
    ("packets_that_renew_elements_are_not_lost", load::timed),
    ("packets_within_a_limit_are_not_lost", load::limited),
    ("packets_into_a_tunnel_are_not_lost", load::tunnelled),
    ("a_rule_holds_beside_floods_and_busy_loops", closed::loaded),
    ("packets_to_be_fragmented_are_not_lost", load::fragments),
    ("a_burst_of_new_flows_is_not_lost", load::burst),
    ("a_new_flow_stays_in_order", load::order),
    ("many_routes_are_installed", many::routes),
    ("packets_stay_on_the_xdp_path_while_many_routes_come", many::arriving),
];

fn main() -> ExitCode {
    let missing = |name: &str| {
        if name.ends_with("virtual_machine") {
            return machines::missing();
        }
        (!is_root()).then_some("only root may load BPF programs (CAP_BPF and CAP_NET_ADMIN)")
    };
    // `-m`: mounts and pins disappear with the test.
    let tests = Tests { beside: &BESIDE, alone: &ALONE };
    namespaces::main(&tests, "-nm", missing, |words| match words {
        ["--role", words] if tracked::is_role(words) => tracked::role(words),
        ["--role", words] if words.starts_with("tcp-") => tracked_tcp::role(words),
        ["--role", "vlans"] => machines::inside("vlans", &vlans::PARTS, None),
        ["--role", "vlans", part] => machines::inside("vlans", &vlans::PARTS, Some(part)),
        ["--serve", address] if is_tcp(address) => attached::serve(address),
        ["--client", address] if is_tcp(address) => attached::run_client(address),
        words => leaks::role(words),
    })
}

/// Says whether an argument is the server's address and port, which only the roles of TCP have.
fn is_tcp(address: &str) -> bool {
    address.parse::<std::net::SocketAddr>().is_ok()
}
