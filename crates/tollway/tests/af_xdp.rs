//! Tests `tollway run` by AF_XDP between hosts in network namespaces. The router's kernel has the
//! same configuration, as on a real router, so the counts show which of the two forwarded.

#![allow(clippy::unwrap_used)]

mod namespaces;
#[path = "af_xdp/ports.rs"]
mod ports;
#[path = "af_xdp/rivals.rs"]
mod rivals;
#[path = "af_xdp/router.rs"]
mod router;
#[path = "running/mod.rs"]
mod running;
#[path = "oracle/socket.rs"]
mod socket;
#[path = "af_xdp/workers.rs"]
mod workers;

use std::process::ExitCode;
use std::time::Duration;

use namespaces::{Host, is_root, ping, sh, unanswered, until};
use router::{Counts, Net, config};
use running::{Router, sleeps};

const BESIDE: [namespaces::Test; 14] = [
    ("both_families_and_all_protocols_cross", traffic),
    ("jumbo_frames_cross_in_several_chunks", jumbo),
    ("jumbo_frames_cross_to_another_kind_of_port", jumbo_elsewhere),
    ("jumbo_frames_that_are_dropped_leave_their_memory", jumbo_dropped),
    ("four_queues_are_served", queues),
    ("workers_and_queues_add_up", workers::shown),
    ("generic_mode_forwards_and_hands_back", generic),
    ("a_lost_interface_is_survived", links),
    ("a_second_router_is_refused_and_so_is_one_without_privilege", refusals),
    ("a_stopped_router_keeps_its_ports", rivals::stopped),
    ("a_router_notices_that_its_program_was_taken", rivals::taken),
    ("a_router_in_another_pid_namespace_is_replaced", rivals::replaced),
    ("a_queue_that_comes_back_late_is_waited_for", ports::lateness),
    ("ports_come_and_go_without_a_leak", ports::cycles),
];

/// Tests that measure times, rates or losses.
const ALONE: [namespaces::Test; 4] = [
    ("a_peer_that_vanishes_under_load_is_survived", vanishing),
    ("a_planned_stop_loses_nothing", stop),
    ("a_starved_port_recovers", ports::starvation),
    ("a_port_that_is_refused_holds_nobody_up", ports::refusals),
];

fn main() -> ExitCode {
    let tests = namespaces::Tests { beside: &BESIDE, alone: &ALONE };
    namespaces::main(&tests, "-nm", missing, |words| match words {
        ["--serve", address] => router::serve(address.parse().unwrap()),
        ["--client", address] => router::run_client(address.parse().unwrap()),
        _ => ExitCode::FAILURE,
    })
}

fn missing(_: &str) -> Option<&'static str> {
    (!is_root()).then_some("only root may load XDP programs")
}

#[track_caller]
fn assert_pings(host: &Host, count: usize, arguments: &str) {
    let output = host.pings(count, arguments);
    assert!(output.contains("ttl=63"), "{output}");
}

fn traffic() {
    let net = Net::new(1500, 1);
    let mut router = Router::start(&config("copy", 1500, true));
    assert!(
        router.read("stderr").contains("AF_XDP copy mode, native XDP"),
        "the log names the mode"
    );
    for (host, target) in
        [(&net.a, "10.0.2.2"), (&net.a, "fd00:2::2"), (&net.b, "10.0.1.2"), (&net.b, "fd00:1::2")]
    {
        assert_pings(host, 20, target);
    }
    net.talk(["10.0.2.2:7000", "[fd00:2::2]:7000"]);
    // The kernel is the host: it resolves the neighbours and answers pings.
    assert!(net.a.sh("ping -n -c 2 -i 0.05 -W 5 10.0.1.1").contains("ttl=64"));
    sleeps(&router);
    let counts = Counts::of(&router.stop());
    // Half of 80 requests and 80 answers, and the conversations: the kernel forwards while nobody keeps the tables,
    // as on a machine that is busy for 80 ms.
    assert!(counts.received >= 80 && counts.sent == counts.received, "{counts:?}");
}

fn jumbo() {
    let net = Net::new(9000, 1);
    let mut router = Router::start(&config("auto", 9000, true));
    let log = router.read("stderr");
    assert!(
        log.contains("(zero-copy: operation not supported)") && log.contains("MTU 9000"),
        "{log}"
    );
    for (size, target) in [(8972, "10.0.2.2"), (3000, "10.0.2.2"), (8952, "fd00:2::2")] {
        assert_pings(&net.a, 20, &format!("-M do -s {size} {target}"));
    }
    net.talk(["10.0.2.2:7000", "[fd00:2::2]:7000"]);
    let counts = Counts::of(&router.stop());
    assert!(counts.received >= 120 && counts.sent == counts.received, "{counts:?}");
}

/// One port is a packet socket. Frames of several chunks are copied to it, and arrive by it.
fn jumbo_elsewhere() {
    let net = Net::new(9000, 1);
    for family in ["ipv4.ip_forward", "ipv6.conf.all.forwarding"] {
        sh(&format!("sysctl -qw net.{family}=0"));
    }
    let config = config("copy", 9000, true);
    let (head, tail) = config.split_at(config.find("[ports.b]").unwrap());
    let tail = tail.replacen("kind = \"af_xdp\"\nmode = \"copy\"", "kind = \"af_packet\"", 1);
    let mut router = Router::start(&format!("{head}{tail}"));
    // Packets that a busy machine leaves to the kernel are lost here. So the test tries twenty
    // times.
    let is_answered = || {
        let mut ping = net.a.command(&ping(20, "-w 5 -M do -s 8972 10.0.2.2"));
        unanswered(&String::from_utf8_lossy(&ping.output().unwrap().stdout), 20).is_empty()
    };
    assert!((0..20).any(|_| is_answered()), "{}", router.read("stderr"));
    let counts = Counts::of(&router.stop());
    assert!(counts.received >= 40, "{counts:?}");
}

/// Sends whole bursts of frames in several chunks whose header checksum is wrong. At its end, the router
/// itself checks that no memory is lost. With the XDP path, the kernel would drop the frames.
fn jumbo_dropped() {
    let net = Net::new(9000, 1);
    let mut router = Router::start(&format!("xdp = \"off\"\n{}", config("copy", 9000, true)));
    let index = net.a.ifindex("ha");
    let mut wire = socket::Wire::open_in(net.a.0.0.id(), index.cast_signed()).unwrap();
    let mut frame = Vec::new();
    let (to, from) = ([2, 0, 0, 0, 0, 0xa], [2, 0, 0, 0, 1, 2]);
    let packet = etherparse::PacketBuilder::ethernet2(from, to);
    let packet = packet.ipv4([10, 0, 1, 2], [10, 0, 2, 2], 64).udp(7, 7);
    packet.write(&mut frame, &[0; 8858]).unwrap();
    frame[24] ^= 1;
    let mut sent = 0;
    until("enough frames to be sent", || {
        // The sender waits while the queue is full.
        sent += (0..100).take_while(|_| wire.send(&frame).is_ok()).count();
        sent >= 2000
    });
    // These pings follow the frames. When they are answered, all frames have arrived.
    assert_pings(&net.a, 10, "-M do -s 8972 10.0.2.2");
    let summary = router.stop();
    let dropped = summary.lines().find_map(|line| line.trim_start().strip_prefix("ip_csum"));
    let dropped: usize = dropped.unwrap_or_default().trim().replace(',', "").parse().unwrap_or(0);
    assert!(dropped >= 500, "{dropped} of {sent} were dropped: {summary}");
}

fn queues() {
    let net = Net::new(1500, 4);
    let mut router = Router::start(&config("copy", 1500, true));
    for port in 7001..7009 {
        net.talk([&format!("10.0.2.2:{port}"), &format!("[fd00:2::2]:{port}")]);
    }
    let counts = Counts::of(&router.stop());
    assert!(counts.received >= 100 && counts.sent == counts.received, "{counts:?}");
}

fn generic() {
    let net = Net::new(1500, 1);
    // No neighbour is known at first. Without the XDP path, packets are handed back, and the kernel resolves and
    // forwards.
    let first = |xdp_path: &str| {
        sh("ip neigh flush all");
        let config = config("generic", 1500, false);
        let mut router = Router::start(&format!("xdp = \"{xdp_path}\"\n{config}"));
        assert!(router.read("stderr").contains("AF_XDP copy mode, generic XDP"));
        assert_pings(&net.a, 20, "10.0.2.2");
        assert_pings(&net.b, 20, "fd00:1::2");
        let counts = Counts::of(&router.stop());
        println!("of pings and their answers: {counts:?}");
        counts
    };
    let punts = |counts: Counts| counts.punted >= 4 && counts.received >= 40;
    assert!((0..5).any(|_| punts(first("off"))), "none is known, and the first are handed back");
    // With it, the kernel has the first packets at once.
    let passes = |counts: Counts| counts.punted == 0 && counts.sent >= 20;
    assert!(
        (0..5).any(|_| passes(first("auto"))),
        "none is known, and the first never leave the kernel"
    );

    let forwards = |_| {
        let mut router = Router::start(&config("generic", 1500, true));
        assert_pings(&net.a, 20, "10.0.2.2");
        let counts = Counts::of(&router.stop());
        println!("of 20 pings and their answers: {counts:?}");
        counts.sent >= 20 && counts.punted == 0
    };
    assert!((0..5).any(forwards), "all are known, and none is handed back");
}

fn links() {
    let net = Net::new(1500, 1);
    let mut router = Router::start(&config("copy", 1500, true));
    assert_pings(&net.a, 3, "10.0.2.2");

    sh("ip link set ra down");
    until("the loss to be noticed", || router.read("stderr").contains("the interface is down"));
    sh("ip link set ra up");
    sh("ip address replace fd00:1::1/64 dev ra nodad");
    until("the return to be noticed", || router.read("stderr").contains("ra is back"));
    assert_pings(&net.a, 3, "10.0.2.2");

    // Another name: still the same interface.
    sh("ip link set ra down");
    sh("ip link set ra name other");
    sh("ip link set other up");
    until("the name to be noticed", || router.read("stderr").contains("ra is called other now"));
    assert_pings(&net.a, 3, "10.0.2.2");
    sh("ip link set other down");
    sh("ip link set other name ra");
    sh("ip link set ra up");
    until("the name to be noticed", || router.read("stderr").contains("other is called ra now"));

    sh("ip link set ra mtu 1400");
    until("the MTU to be noticed", || router.read("stderr").contains("was 1500 and is 1400"));
    sh("ip link set ra mtu 1500");

    sh("ip link delete ra");
    until("the loss to be noticed", || router.read("stderr").contains("the interface is gone"));
    assert!(router.lives());
    net.plug_a();
    let backs = || router.read("stderr").matches("ra is back").count();
    until("the new one to be noticed", || backs() >= 2);
    // A new cable loses packets that come too early.
    until("a ping", || {
        net.a.command("ping -n -c 1 -W 1 10.0.2.2").output().unwrap().status.success()
    });
    assert_pings(&net.a, 3, "10.0.2.2");
    let counts = Counts::of(&router.stop());
    assert!(counts.sent >= 18, "{counts:?}");
}

fn vanishing() {
    let net = Net::new(1500, 1);
    let mut router = Router::start(&config("copy", 1500, true));
    for _ in 0..3 {
        let mut flood = net.a.command("ping -n -f -q -w 2 10.0.2.2");
        let mut flood =
            namespaces::Process(flood.stdout(std::process::Stdio::null()).spawn().unwrap());
        std::thread::sleep(Duration::from_millis(300));
        net.b.sh("ip link delete hb");
        flood.0.wait().unwrap();
        let gone = || router.read("stderr").matches("rb passes no frames").count();
        let backs = || router.read("stderr").matches("rb is back").count();
        until("the loss to be noticed", || gone() > backs());
        net.plug_b();
        until("the new one to be noticed", || backs() == gone());
        assert!(router.lives());
        assert_pings(&net.a, 5, "10.0.2.2");
    }
    let counts = Counts::of(&router.stop());
    assert!(counts.received >= 100, "{counts:?}");
}

fn stop() {
    let net = Net::new(1500, 1);
    let mut router = Router::start(&config("copy", 1500, true));
    let mut ping = net.a.command(&ping(400, "-i 0.005 10.0.2.2"));
    let ping = ping.stdout(std::process::Stdio::piped()).spawn().unwrap();
    until("a quarter of them to be sent", || net.b.received("hb") >= 100);
    let counts = Counts::of(&router.stop());
    let output = ping.wait_with_output().unwrap();
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(unanswered(&output, 400).is_empty(), "{output}");
    assert!(
        counts.sent >= 100 && counts.sent < 800,
        "the kernel has forwarded the rest: {counts:?}"
    );
    let link = sh("ip -details link show ra");
    assert!(!link.contains("xdp"), "{link}");
    assert!(!sh("ip -br link").contains("toll"), "the TAP devices are gone");
}

fn refusals() {
    let _net = Net::new(1500, 1);
    let mut first = Router::start(&config("auto", 1500, true));
    for mode in ["auto", "copy"] {
        let error = router::refused("tollway", &config(mode, 1500, true));
        assert!(error.contains("ra is served by another Tollway"), "{error}");
        assert!(error.contains("Stop that one"), "{error}");
    }
    first.stop();
    let poor = "setpriv --inh-caps=-all --ambient-caps=-all --bounding-set=-all tollway";
    let error = router::refused(poor, &config("copy", 1500, true));
    assert!(error.contains("without CAP_BPF and CAP_NET_ADMIN. Run as root"), "{error}");
    let error = router::refused(poor, &config("auto", 1500, true));
    assert!(error.contains("would send every packet a second time"), "{error}");
    assert!(error.contains("net.ipv4.conf.ra.forwarding=0"), "{error}");
    let error = router::refused("tollway", &config("zero-copy", 1500, true));
    assert!(error.contains("zero-copy: operation not supported. Set mode = \"auto\""), "{error}");
}
