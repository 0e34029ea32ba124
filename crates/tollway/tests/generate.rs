//! `tollway lab generate`, `sink` and `throughput` between real interfaces, in network namespaces.

#![allow(clippy::unwrap_used)]

mod namespaces;

use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::time::Duration;

use namespaces::{Host, Test, Tests, sh};
use serde_json::Value;

const BESIDE: [Test; 3] = [
    ("wrong_use_is_refused", wrong_use_is_refused),
    ("invalid_options_are_refused", invalid_options_are_refused),
    ("devices_that_pass_no_frames_are_reported", devices_that_pass_no_frames_are_reported),
];

/// Tests that measure times, rates or losses.
const ALONE: [Test; 9] = [
    ("all_ways_to_send_and_receive", all_ways_to_send_and_receive),
    ("frames_of_all_forms_arrive", frames_of_all_forms_arrive),
    ("a_sink_alone_counts", a_sink_alone_counts),
    ("a_sink_alone_follows_generators_at_once", a_sink_alone_follows_generators_at_once),
    ("a_sink_of_any_kind_takes_its_own_run", a_sink_of_any_kind_takes_its_own_run),
    ("a_capture_is_replayed", a_capture_is_replayed),
    ("plain_frames_are_whole_each_time", plain_frames_are_whole_each_time),
    ("throughput_through_the_kernel", throughput_through_the_kernel),
    ("requests_go_through_tollway", requests_go_through_tollway),
];

fn main() -> ExitCode {
    let tests = Tests { beside: &BESIDE, alone: &ALONE };
    namespaces::main(&tests, "-mn", missing, |_| ExitCode::FAILURE)
}

fn missing(_: &str) -> Option<&'static str> {
    (!namespaces::is_root()).then_some("only root may load BPF programs")
}

/// Creates a cable with both ends in this namespace.
fn cable() {
    sh("ip link set lo up");
    sh("ip link add a0 type veth peer name b0");
    sh("ip link set a0 address 02:00:00:00:00:0a up");
    sh("ip link set b0 address 02:00:00:00:00:0b up");
    // A veth accepts redirected frames only if its peer has GRO or XDP.
    sh("ethtool -K b0 gro on");
    // Otherwise the kernel's own frames (router solicitations) would be among the received ones.
    for device in ["a0", "b0"] {
        std::fs::write(format!("/proc/sys/net/ipv6/conf/{device}/disable_ipv6"), "1").unwrap();
    }
}

fn lab(line: &str) -> Output {
    let program = env!("CARGO_BIN_EXE_tollway");
    Command::new(program).arg("lab").args(line.split_whitespace()).output().unwrap()
}

/// Runs a command that must succeed. Returns its report.
fn report_of(line: &str) -> Value {
    let output = lab(&format!("{line} --json"));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {error}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn whole(report: &Value, name: &str) -> u64 {
    report[name].as_f64().unwrap_or_else(|| panic!("{name} in {report}")) as u64
}

/// Returns the first report that is right, or the last of several tries.
fn report_as(line: &str, is_right: impl Fn(&Value) -> bool) -> Value {
    const TRIES: usize = 10;
    let mut reports = std::iter::repeat_with(|| report_of(line)).take(TRIES - 1);
    reports.find(is_right).unwrap_or_else(|| report_of(line))
}

/// Like [`report_as`], for a report without losses. Rings overflow while a processor is taken away for a
/// tenth of a second.
fn lossless(line: &str) -> Value {
    report_as(line, |report| whole(report, "lost_frames") == 0)
}

/// Like [`report_as`], for a report whose rows are all right.
fn report_where(line: &str, is_right: impl Fn(&Value) -> bool) -> Value {
    report_as(line, |report| report["rows"].as_array().unwrap().iter().all(&is_right))
}

const TO_B: &str = "generate -i a0 -m 02:00:00:00:00:0b --sink b0";

fn all_ways_to_send_and_receive() {
    cable();
    for via in ["xdp", "af_xdp", "af_packet"] {
        for sink in ["xdp", "af_xdp", "af_packet"] {
            // The kernel may wake up a receiver late, so the rate is modest.
            let line = format!("{TO_B} --via {via} --sink-via {sink} -n 5000 --rate 20kpps");
            let report = lossless(&line);
            assert_eq!(whole(&report, "sent_frames"), 5000, "{line}");
            assert_eq!(whole(&report, "received_frames"), 5000, "{line}: {report}");
            for name in ["lost_frames", "duplicate_frames", "reordered_frames", "late_frames"] {
                assert_eq!(whole(&report, name), 0, "{line}: {name}");
            }
            assert!(report["latency_p50_us"].as_f64().unwrap() > 0.0);
            assert!(report["mpps"].as_f64().unwrap() < 0.021, "{line}: {report}");
        }
    }
}

fn frames_of_all_forms_arrive() {
    cable();
    for like in [
        "--imix --flows 100 --src 198.19.0.0/16 -p 1000-2000",
        "-6 -s 300 --flows 64 -d 2001:2::/64",
        "-6 --imix --vlan 5 --vlan 6",
        "--vlan 7 -k -b 1",
        // Two processors as fast as they go would fill one queue of a veth.
        "-s 1518 -t 2 -b 64 --rate 50kpps",
    ] {
        let line = format!("{TO_B} -n 20000 --via xdp {like}");
        let report = lossless(&line);
        let sent = whole(&report, "sent_frames");
        assert_eq!(sent, if like.contains("-t 2") { 40_000 } else { 20_000 }, "{line}");
        assert_eq!(whole(&report, "received_frames"), sent, "{line}: {report}");
        assert_eq!(whole(&report, "lost_frames"), 0, "{line}");
        assert_eq!(whole(&report, "reordered_frames"), 0, "{line}");
    }
}

/// A run has one of 251 numbers. Two runs may have the same number, but hardly each time.
const ATTEMPTS: usize = 5;

fn a_sink_alone_counts() {
    cable();
    for attempt in 1..=2 {
        let sink = start("sink -i b0 --time 60 --json");
        namespaces::until("a sink", || sh("ip -json link show dev b0").contains("\"xdp\""));
        report_of("generate -i a0 -m 02:00:00:00:00:0b -n 3000");
        report_of("generate -i a0 -m 02:00:00:00:00:0b -n 2000 --via af_packet");
        let report = interrupt(sink);
        // Two runs of the same number get one more attempt: this test needs both.
        if attempt == 1 && whole(&report, "duplicate_frames") > 1000 {
            continue;
        }
        assert_eq!(whole(&report, "received_frames"), 5000);
        assert_eq!((whole(&report, "lost_frames"), whole(&report, "duplicate_frames")), (0, 0));
        break;
    }
}

/// Starts a command of the lab.
fn start(line: &str) -> Child {
    let program = env!("CARGO_BIN_EXE_tollway");
    let words = line.split_whitespace();
    Command::new(program).arg("lab").args(words).stdout(Stdio::piped()).spawn().unwrap()
}

/// Waits for a started command. Returns its report.
fn end(child: Child) -> Value {
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Interrupts a command. Returns its report.
fn interrupt(child: Child) -> Value {
    // The last frames are still on their way.
    std::thread::sleep(Duration::from_millis(200));
    sh(&format!("kill -INT {}", child.id()));
    end(child)
}

fn a_sink_alone_follows_generators_at_once() {
    cable();
    for attempt in 1..=ATTEMPTS {
        let sink = start("sink -i b0 --time 60 --json");
        namespaces::until("a sink", || sh("ip -json link show dev b0").contains("\"xdp\""));
        let to_b = "generate -i a0 -m 02:00:00:00:00:0b -n 20000 --rate 20kpps --json";
        let senders = ["xdp", "af_packet"].map(|via| start(&format!("{to_b} --via {via}")));
        let sent = senders.map(|sender| whole(&end(sender), "sent_frames"));
        assert_eq!(sent, [20_000; 2]);
        let report = interrupt(sink);
        let is_one_run = whole(&report, "duplicate_frames") > 10_000;
        if attempt < ATTEMPTS && (is_one_run || whole(&report, "received_frames") < 40_000) {
            continue;
        }
        assert_eq!(whole(&report, "received_frames"), 40_000, "{report}");
        for name in ["lost_frames", "duplicate_frames", "unfollowed_frames"] {
            assert_eq!(whole(&report, name), 0, "{report}");
        }
        break;
    }
}

fn a_sink_of_any_kind_takes_its_own_run() {
    cable();
    // Another generator sends all the time. Its thread has nice -20, so it runs on another
    // processor if there is one.
    let is_alone = std::thread::available_parallelism().unwrap().get() == 1;
    let processor = if is_alone { "" } else { "-f 1" };
    let to_b = "generate -i a0 -m 02:00:00:00:00:0b";
    let other = start(&format!("{to_b} --rate 500pps --time 60 --json {processor}"));
    namespaces::until("frames", || received() > 10);
    for sink in ["xdp", "af_packet", "af_xdp"] {
        let line = format!("{TO_B} --via af_packet --sink-via {sink} -n 5000 --rate 10kpps");
        let report = lossless(&format!("{line} --sample 1024"));
        assert_eq!(whole(&report, "received_frames"), 5000, "{line}: {report}");
        assert_eq!(whole(&report, "lost_frames"), 0, "{line}: {report}");
    }
    drop(namespaces::Process(other));
}

fn a_capture_is_replayed() {
    cable();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("test.pcap").display().to_string();
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1] {
        file.extend_from_slice(&word.to_ne_bytes());
    }
    for len in [60_u32, 1514] {
        for word in [0, 0, len, len] {
            file.extend_from_slice(&word.to_ne_bytes());
        }
        let mut frame = vec![0; len as usize];
        frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 0x0b, 2, 0, 0, 0, 0, 0x0a, 0x88, 0xb5]);
        file.extend_from_slice(&frame);
    }
    std::fs::write(&path, file).unwrap();
    let error = refusal_of(&format!("generate -i a0 --replay {path}"), 2);
    assert!(error.contains("0x88b5") && error.contains("--i-know"), "{error}");
    let before = received();
    let report = report_of(&format!("generate -i a0 --replay {path} --i-know -n 1001"));
    assert_eq!(whole(&report, "sent_frames"), 1001);
    assert_eq!(whole(&report, "sent_bytes"), 500 * (60 + 1514) + 60);
    assert_eq!(received() - before, 1001);
    for sink in ["xdp", "af_packet"] {
        let line =
            format!("generate -i a0 --replay {path} --i-know -n 1001 --sink b0 --sink-via {sink}");
        let report = report_of(&line);
        assert_eq!(whole(&report, "received_frames"), 1001, "{report}");
        assert!(report["lost_frames"].is_null() && report["loss_ratio"].is_null(), "{report}");
    }
}

/// Frames that b0 has received.
fn received() -> u64 {
    let output: Value = serde_json::from_str(&sh("ip -json -statistics link show dev b0")).unwrap();
    output[0]["stats64"]["rx"]["packets"].as_u64().unwrap()
}

fn wrong_use_is_refused() {
    cable();
    for (line, about) in [
        ("generate -i nothing -m 02:00:00:00:00:0b", "there is no interface nothing"),
        ("generate -i lo -m 02:00:00:00:00:0b", "lo is not an Ethernet interface"),
        ("generate -i a0 -m 02:00:00:00:00:0b --sink nothing", "there is no interface nothing"),
        ("generate -i a0 -m 02:00:00:00:00:0b --rate 0", "a rate of zero"),
        ("generate -i a0 -m 02:00:00:00:00:0b -s 63", "Say -s 64 or more"),
        ("generate -i a0 -m 02:00:00:00:00:0b -6 -s 64", "Say -s 84 or more"),
        ("generate -i a0 -m 02:00:00:00:00:0b -d 8.8.8.8", "--i-know"),
        ("generate -i a0 -m 02:00:00:00:00:0b -d 2606::/16", "2606::-2606:ffff:ffff"),
        ("generate -i a0 -m 02:00:00:00:00:0b --src 8.8.8.8", "the source 8.8.8.8"),
        ("generate -i a0", "Say -m"),
        ("generate -i a0 -m 02:00:00:00:00:0b -t 0", "Say -t"),
        ("generate -i a0 -m 02:00:00:00:00:0b -b 65", "Say -b"),
        ("generate -i a0 -m 02:00:00:00:00:0b --vlan 4095", "is no VLAN"),
        ("generate -i a0 -m 02:00:00:00:00:0b -6 -d 198.18.0.1", "Say -d"),
        ("generate -i a0 -m 02:00:00:00:00:0b --via xdp", "gro on"),
        ("generate -i a0 -m 02:00:00:00:00:0b --via af_xdp -t 2", "Say -t 1"),
        (
            "generate -i a0 -m 02:00:00:00:00:0b --plain --via xdp --sink b0",
            "Leave --plain out, or --sink",
        ),
        ("generate -i a0 -m 02:00:00:00:00:0b -f 99999", "Say -f with a number from 0"),
        ("generate --memory -f 18446744073709551615 -t 2", "Say -f with a number from 0"),
        ("generate --memory --plain -n 10", "Leave --plain out, or say -i"),
        ("sink -i nothing", "there is no interface nothing"),
        ("throughput -i a0 --sink nothing -m 02:00:00:00:00:0b", "there is no interface nothing"),
        ("throughput -i a0 --sink b0 -m 02:00:00:00:00:0b --loss 1.5", "ratio of loss"),
        ("throughput -i a0 --sink b0 -m 02:00:00:00:00:0b -d 1.2.3.4", "--i-know"),
    ] {
        if about == "gro on" {
            sh("ethtool -K b0 gro off");
        }
        if line.contains("--loss") {
            sh("ethtool -K b0 gro on");
        }
        let output = lab(line);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line}: {error}");
        assert!(error.contains(about), "{line}: {error}");
        assert_eq!(error.lines().count(), 1, "{line}: {error}");
    }
}

/// The error of a command that must fail, in one line.
fn refusal_of(line: &str, code: i32) -> String {
    let output = lab(line);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{line}: {error}");
    assert_eq!(error.lines().count(), 1, "{line}: {error}");
    error
}

fn devices_that_pass_no_frames_are_reported() {
    cable();
    let to_b = "generate -i a0 -m 02:00:00:00:00:0b -n 1000";
    for via in ["af_packet", "af_xdp"] {
        let error = refusal_of(&format!("{to_b} --via {via} -s 1519"), 2);
        assert!(error.contains("whose MTU is 1500") && error.contains("1518"), "{error}");
        report_of(&format!("{to_b} --via {via} -s 1518"));
    }
    report_of(&format!("{to_b} --via af_packet -s 1522 --vlan 5"));
    // The device is up, but its peer is down.
    sh("ip link set b0 down");
    let error = refusal_of(&format!("{to_b} --via af_packet"), 1);
    assert!(error.contains("takes no frames"), "{error}");
    for sink in ["auto", "af_packet", "af_xdp"] {
        let error = refusal_of(&format!("sink -i b0 --via {sink} --time 1"), 2);
        assert!(error.contains("b0 is down"), "{error}");
    }
    sh("ip link set a0 down");
    for via in ["auto", "xdp", "af_packet", "af_xdp"] {
        let error = refusal_of(&format!("{to_b} --via {via}"), 2);
        assert!(error.contains("a0 is down"), "{error}");
    }
}

/// The parser of the command line rejects these options, and also prints the usage.
fn invalid_options_are_refused() {
    for (line, about) in [
        ("generate --memory -w nan", "write nanoseconds, 0 or more"),
        ("generate --memory -w=-5", "write nanoseconds, 0 or more"),
        ("generate --memory --replay f.pcap -d 198.18.0.1", "--dst"),
        ("generate --memory --replay f.pcap -m 02:00:00:00:00:0b", "--dst-mac"),
        ("generate --memory --replay f.pcap -p 5", "--dport"),
        ("generate --memory --replay f.pcap -k", "--udp-csum"),
        ("generate --memory --replay f.pcap --flows 5", "--flows"),
        ("generate --memory --replay f.pcap --vlan 5", "--vlan"),
    ] {
        let output = lab(line);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line}: {error}");
        assert!(error.contains(about), "{line}: {error}");
    }
}

/// Makes a namespace whose kernel routes from r0 to r1. Also returns the Ethernet address of r0.
fn routed() -> (Host, String) {
    let router = Host::new();
    let pid = router.0.0.id();
    for (own, far, mac, net) in
        [("a0", "r0", "02:00:00:00:00:0a", 18), ("b0", "r1", "02:00:00:00:00:0b", 19)]
    {
        sh(&format!("ip link add {own} type veth peer name {far}"));
        sh(&format!("ip link set {far} netns {pid}"));
        sh(&format!("ip link set {own} address {mac} up"));
        router.sh(&format!("ip link set {far} up"));
        router.sh(&format!("ip address add 198.{net}.0.1/16 dev {far}"));
        router.sh(&format!("ethtool -K {far} gro on"));
        router.sh(&format!("ip neigh replace 198.{net}.0.42 lladdr {mac} dev {far}"));
    }
    router.sh("sysctl -qw net.ipv4.ip_forward=1");
    let to: Value = serde_json::from_str(&router.sh("ip -json link show dev r0")).unwrap();
    let mac = to[0]["address"].as_str().unwrap().to_owned();
    (router, mac)
}

/// The generator uses memory pages again. A page comes back as the last hop left it, with another
/// TTL and other addresses.
fn plain_frames_are_whole_each_time() {
    const RULES: &str = "table netdev t {
        counter whole { }
        counter came { }
        chain c {
            type filter hook ingress device \"b0\" priority 0
            ether type ip udp dport 9 counter name came
            ether daddr 02:00:00:00:00:0b ip saddr 198.18.0.42 ip daddr 198.19.0.42 ip ttl 63 counter name whole
        }
    }";
    let (router, mac) = routed();
    let to = format!("generate -i a0 -m {mac} --src 198.18.0.42 -d 198.19.0.42 --plain --via xdp");
    let counted = || {
        let listing: Value = serde_json::from_str(&sh("nft -j list counters")).unwrap();
        let objects = listing["nftables"].as_array().unwrap().clone();
        ["came", "whole"].map(|name| {
            let is = |object: &&Value| object["counter"]["name"] == name;
            objects.iter().find(is).unwrap()["counter"]["packets"].as_u64().unwrap()
        })
    };
    let send = |more: &str| {
        sh("nft flush ruleset");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), RULES).unwrap();
        sh(&format!("nft -f {}", file.path().display()));
        let report = report_of(&format!("{to} -n 20000 --rate 20kpps {more}"));
        assert_eq!(whole(&report, "sent_frames"), 20_000, "{report}");
        let mut counts = counted();
        for _ in 0..40 {
            std::thread::sleep(Duration::from_millis(25));
            let before = std::mem::replace(&mut counts, counted());
            if counts[0] >= 20_000 || before == counts && counts[0] > 0 {
                break;
            }
        }
        counts
    };
    for more in ["", "-k -s 300", "--imix"] {
        let mut tries = 0;
        loop {
            let counts = send(more);
            assert_eq!(counts[0], counts[1], "{more}: not whole");
            tries += 1;
            // A processor that is away for long loses some frames at any rate.
            if counts[1] == 20_000 {
                break;
            }
            assert!(tries < 10, "{more}: {counts:?}");
        }
    }
    drop(router);
}

fn throughput_through_the_kernel() {
    let (router, mac) = routed();
    let line = format!(
        "throughput -i a0 --sink b0 -m {mac} --src 198.18.0.42 -d 198.19.0.42 -s 64 1518 --trial 0.2 --within 6 \
         --precision 0.05 --loss 0 0.2 --most 50kpps"
    );
    let mpps = |row: &Value| row["mpps"].as_f64().unwrap();
    // A processor that is away for long loses frames at any rate.
    let report = report_where(&line, |row| mpps(row) > 0.002);
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 4);
    for row in rows {
        assert!(mpps(row) > 0.002 && mpps(row) <= 0.0501, "{row}");
        assert!(row["loss_ratio"].as_f64().unwrap() <= row["allowed_loss_ratio"].as_f64().unwrap());
        assert!(row["latency_us"][0].as_f64().unwrap() > 0.0);
    }
    // The path has a limit below the tried rates: a token bucket at the router.
    router.sh("tc qdisc add dev r1 root tbf rate 10mbit burst 5kb limit 5kb");
    let limited = line
        .replace("-s 64 1518", "-s 1518")
        .replace("--loss 0 0.2", "--loss 0")
        .replace("--trial 0.2 --within 6", "--trial 0.5 --within 30");
    // 10 Mbit/s of 1514 bytes are 825 frames a second.
    let is_the_limit = |row: &Value| (500.0..900.0).contains(&(mpps(row) * 1e6));
    let report = report_where(&limited, is_the_limit);
    let row = &report["rows"][0];
    assert!(is_the_limit(row), "{row}");
    assert!(!row["is_senders_limit"].as_bool().unwrap(), "{row}");
    // A path that leads nowhere is reported at once.
    router.sh("sysctl -qw net.ipv4.ip_forward=0");
    let output = lab(&line);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("none came to b0"));
}

fn requests_go_through_tollway() {
    for router in ["tollway", "xdp"] {
        let only = "--only tcp-rr-ip6 tcp-crr-ip4 udp-rr-ip4 tcp-stream-ip6 --pairs 2 --time 0.1";
        let line = format!("rr kernel {router} {only}");
        let rates = |row: &Value, end: &str| {
            ["base", "head"].map(|side| row[side]["rate"][end].as_f64().unwrap())
        };
        // A lost segment stops a stream for longer than the measurement.
        let goes = |row: &Value| rates(row, "min").iter().all(|rate| *rate > 1.0);
        let report = report_where(&line, goes);
        let rows = report["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 4);
        for row in rows {
            assert!(goes(row), "{row}");
            // The difference is a mean over pairs. No pair differs more than these extremes.
            let [slowest, fastest] = ["min", "max"].map(|end| rates(row, end));
            let ends = [slowest[1] / fastest[0], fastest[1] / slowest[0]];
            let [least, most] = ends.map(|ratio| (ratio - 1.0) * 100.0);
            let difference = row["difference_percent"].as_f64().unwrap();
            assert!(least - 0.01 <= difference && difference <= most + 0.01, "{row}");
        }
    }
    let output = lab("rr kernel cisco");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no router is called cisco"));
}
