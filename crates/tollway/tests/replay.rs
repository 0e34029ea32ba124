//! The whole program between capture files: its input, its output and its messages.

#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use etherparse::{LinkSlice, NetSlice, PacketBuilder, SlicedPacket, TransportSlice, VlanId};
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapReader, PcapWriter};
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::{DataLink, TsResolution};
use serde_json::Value;
use tempfile::TempDir;

#[path = "replay/aliases.rs"]
mod aliases;
#[path = "replay/bridges.rs"]
mod bridges;
#[path = "replay/states.rs"]
mod states;

const CONFIG: &str = r#"
[ports.a]
kind = "af_packet"
mac = "02:00:00:00:00:0a"
addresses = ["10.0.1.1/24", "2001:db8:1::1/64"]

[ports.b]
kind = "memory"
mac = "02:00:00:00:00:0b"
addresses = ["10.0.2.1/24", "2001:db8:2::1/64"]

[vlans."a.10"]
parent = "a"
vid = 10
vrf = "red"
addresses = ["10.0.1.1/24"]

[vlans."b.20"]
parent = "b"
vid = 20
vrf = "red"
addresses = ["10.0.2.1/24"]

[vrfs.red]

[[routes]]
to = "10.9.0.0/16"
type = "blackhole"

[[neighbours]]
dev = "b"
address = "10.0.2.2"
mac = "02:00:00:00:00:22"

[[neighbours]]
dev = "b"
address = "2001:db8:2::2"
mac = "02:00:00:00:00:22"

[[neighbours]]
dev = "b.20"
address = "10.0.2.2"
mac = "02:00:00:00:00:33"
"#;

const A: [u8; 6] = [2, 0, 0, 0, 0, 0x0a];
const HOST: [u8; 6] = [2, 0, 0, 0, 0, 0x11];

/// A directory with a configuration and captures.
struct Bench {
    dir: TempDir,
}

impl Bench {
    fn new() -> Self {
        let bench = Self { dir: tempfile::tempdir().unwrap() };
        std::fs::write(bench.path("router.toml"), CONFIG).unwrap();
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs `tollway replay` with these further arguments.
    fn replay(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_tollway"))
            .current_dir(self.dir.path())
            .args(["replay", "--config", "router.toml"])
            .args(arguments)
            .output()
            .unwrap()
    }

    /// Runs the command, which must succeed. Returns its JSON.
    fn replay_json(&self, arguments: &[&str]) -> Value {
        let output = self.replay(&[arguments, &["--out", "out", "--json"]].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn pcap(&self, name: &str, resolution: TsResolution, frames: &[(Duration, Vec<u8>)]) {
        let header = PcapHeader { ts_resolution: resolution, ..PcapHeader::default() };
        let mut writer =
            PcapWriter::with_header(File::create(self.path(name)).unwrap(), header).unwrap();
        for (time, bytes) in frames {
            writer.write_packet(&PcapPacket::new(*time, bytes.len() as u32, bytes)).unwrap();
        }
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Frames of a pcap file of nanosecond resolution.
fn read(path: &Path) -> Vec<(Duration, Vec<u8>)> {
    let mut reader = PcapReader::new(File::open(path).unwrap()).unwrap();
    assert_eq!(reader.header().ts_resolution, TsResolution::NanoSecond);
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let packet = packet.unwrap();
        frames.push((packet.timestamp, packet.data.to_vec()));
    }
    frames
}

fn udp4(dst: [u8; 4]) -> Vec<u8> {
    let mut frame = Vec::new();
    PacketBuilder::ethernet2(HOST, A)
        .ipv4([10, 0, 1, 2], dst, 64)
        .udp(1, 2)
        .write(&mut frame, b"tollway")
        .unwrap();
    frame
}

fn udp6() -> Vec<u8> {
    let (mut src, mut dst) = ([0; 16], [0; 16]);
    src[..6].copy_from_slice(&[0x20, 1, 0x0d, 0xb8, 0, 1]);
    dst[..6].copy_from_slice(&[0x20, 1, 0x0d, 0xb8, 0, 2]);
    (src[15], dst[15]) = (2, 2);
    let mut frame = Vec::new();
    PacketBuilder::ethernet2(HOST, A).ipv6(src, dst, 64).udp(1, 2).write(&mut frame, b"6").unwrap();
    frame
}

fn tagged(vid: u16) -> Vec<u8> {
    let mut frame = Vec::new();
    PacketBuilder::ethernet2(HOST, A)
        .single_vlan(VlanId::try_new(vid).unwrap())
        .ipv4([10, 0, 1, 2], [10, 0, 2, 2], 64)
        .udp(1, 2)
        .write(&mut frame, b"red")
        .unwrap();
    frame
}

fn at(ns: u64) -> Duration {
    Duration::from_nanos(1_700_000_000_000_000_000 + ns)
}

#[test]
fn packets_are_forwarded_with_the_times_of_their_causes() {
    let bench = Bench::new();
    let frames = [(at(1), udp4([10, 0, 2, 2])), (at(2), udp6()), (at(3), udp4([10, 9, 9, 9]))];
    bench.pcap("a.pcap", TsResolution::NanoSecond, &frames);
    let json = bench.replay_json(&["--in", "a=a.pcap"]);
    assert_eq!(json["received"], 3);
    assert_eq!(json["sent"], 2);
    assert_eq!(json["drops"]["blackhole"], 1);
    assert_eq!(json["ports"][1]["tx"]["packets"], 2);
    assert_eq!(json["errors"], Value::Array(Vec::new()));

    let out = read(&bench.path("out/b.pcap"));
    assert_eq!(out.iter().map(|(time, _)| *time).collect::<Vec<_>>(), [at(1), at(2)]);
    let packet = SlicedPacket::from_ethernet(&out[0].1).unwrap();
    let Some(LinkSlice::Ethernet2(eth)) = &packet.link else { panic!("no Ethernet") };
    assert_eq!(eth.source(), [2, 0, 0, 0, 0, 0x0b]);
    assert_eq!(eth.destination(), [2, 0, 0, 0, 0, 0x22]);
    let Some(NetSlice::Ipv4(ip)) = &packet.net else { panic!("no IPv4") };
    assert_eq!(ip.header().ttl(), 63);
    assert_eq!(ip.header().header_checksum(), ip.header().to_header().calc_header_checksum());
    let Some(TransportSlice::Udp(udp)) = &packet.transport else { panic!("no UDP") };
    assert_eq!(udp.payload(), b"tollway");
    let packet = SlicedPacket::from_ethernet(&out[1].1).unwrap();
    let Some(NetSlice::Ipv6(ip)) = &packet.net else { panic!("no IPv6") };
    assert_eq!(ip.header().hop_limit(), 63);
}

#[test]
fn a_vlan_in_a_vrf_leaves_by_its_own_neighbour_and_tag() {
    let bench = Bench::new();
    let frames = [(at(0), tagged(10)), (at(1), tagged(11)), (at(2), udp4([10, 0, 2, 2]))];
    bench.pcap("a.pcap", TsResolution::MicroSecond, &frames);
    let json = bench.replay_json(&["--in", "a=a.pcap"]);
    assert_eq!(json["sent"], 2);
    assert_eq!(json["drops"]["vlan_unknown"], 1);
    let out = read(&bench.path("out/b.pcap"));
    assert_eq!(out[0].1[..6], [2, 0, 0, 0, 0, 0x33]);
    assert_eq!(out[0].1[12..18], [0x81, 0, 0, 20, 8, 0]);
    assert_eq!(out[1].1[..6], [2, 0, 0, 0, 0, 0x22]);
    assert_eq!(out[1].1[12..14], [8, 0]);
}

#[test]
fn both_formats_and_resolutions_merge_by_time_and_leave_as_requested() {
    let bench = Bench::new();
    let frame = udp4([10, 0, 2, 2]);
    bench.pcap("us.pcap", TsResolution::MicroSecond, &[(at(5000), frame.clone())]);
    bench.pcap("ns.pcap", TsResolution::NanoSecond, &[(at(5001), udp6())]);
    let mut writer = PcapNgWriter::new(File::create(bench.path("ng.pcapng")).unwrap()).unwrap();
    let options = vec![InterfaceDescriptionOption::IfTsResol(9)];
    let interface = InterfaceDescriptionBlock { linktype: DataLink::ETHERNET, snaplen: 0, options };
    writer.write_pcapng_block(interface).unwrap();
    let packet = EnhancedPacketBlock {
        interface_id: 0,
        timestamp: at(4999),
        original_len: 9000,
        data: tagged(10).into(),
        options: Vec::new(),
    };
    writer.write_pcapng_block(packet).unwrap();
    drop(writer);

    let inputs = ["--in", "a=us.pcap", "--in", "a=ns.pcap", "--in", "a=ng.pcapng"];
    let json = bench.replay_json(&[&inputs[..], &["--format", "pcapng"]].concat());
    assert_eq!((&json["received"], &json["sent"]), (&3.into(), &3.into()));
    let mut out = tollway_capture::CaptureReader::open(&bench.path("out/b.pcapng")).unwrap();
    let mut times = Vec::new();
    while let Some(frame) = out.next_frame().unwrap() {
        times.push(Duration::from_nanos(frame.time_ns));
    }
    assert_eq!(times, [at(4999), at(5000), at(5001)]);
}

/// Another program must be able to read what is written.
#[test]
fn tshark_reads_what_is_written() {
    let bench = Bench::new();
    bench.pcap("a.pcap", TsResolution::NanoSecond, &[(at(123_456_789), udp4([10, 0, 2, 2]))]);
    for format in ["pcap", "pcapng"] {
        let output = bench.replay(&["--in", "a=a.pcap", "--out", "out", "--format", format]);
        assert!(output.status.success(), "{}", stderr(&output));
        let file = format!("out/b.{format}");
        let fields = ["-T", "fields", "-e", "frame.time_epoch", "-e", "ip.ttl", "-e", "udp.length"];
        let shown = Command::new("tshark")
            .current_dir(bench.dir.path())
            .args(["-r", &file])
            .args(fields)
            .output()
            .expect("tshark is needed for this test: install it (Debian: apt install tshark)");
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        assert_eq!(shown.trim_end(), "1700000000.123456789\t63\t15", "{format}");
    }
}

#[test]
fn a_cut_capture_is_used_as_far_as_it_goes() {
    let bench = Bench::new();
    let frames: Vec<_> = (0..3).map(|n| (at(n), udp4([10, 0, 2, 2]))).collect();
    bench.pcap("a.pcap", TsResolution::NanoSecond, &frames);
    let bytes = std::fs::read(bench.path("a.pcap")).unwrap();
    std::fs::write(bench.path("a.pcap"), &bytes[..bytes.len() - 1]).unwrap();
    let output = bench.replay(&["--in", "a=a.pcap", "--out", "out"]);
    assert_eq!(output.status.code(), Some(1));
    let error = stderr(&output);
    assert!(error.contains("a.pcap is damaged at packet 3: the file ends within it"), "{error}");
    assert!(error.contains("The 2 packets before it were used"), "{error}");
    assert_eq!(read(&bench.path("out/b.pcap")).len(), 2);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("received"), "the summary is printed all the same: {text}");
}

#[test]
fn empty_captures_give_empty_captures() {
    let bench = Bench::new();
    bench.pcap("a.pcap", TsResolution::NanoSecond, &[]);
    std::fs::write(bench.path("nothing"), "").unwrap();
    let json = bench.replay_json(&["--in", "a=a.pcap", "--in", "b=nothing"]);
    assert_eq!(json["received"], 0);
    assert!(read(&bench.path("out/a.pcap")).is_empty());
    assert!(read(&bench.path("out/b.pcap")).is_empty());
}

#[test]
fn mistakes_are_one_sentence_and_a_remedy() {
    let bench = Bench::new();
    bench.pcap("a.pcap", TsResolution::NanoSecond, &[]);
    let header = PcapHeader { datalink: DataLink::LINUX_SLL, ..PcapHeader::default() };
    PcapWriter::with_header(File::create(bench.path("sll.pcap")).unwrap(), header).unwrap();
    std::fs::write(bench.path("text"), "no capture at all").unwrap();
    std::fs::write(bench.path("file"), "").unwrap();
    std::fs::create_dir(bench.path("same")).unwrap();
    std::fs::copy(bench.path("a.pcap"), bench.path("same/b.pcap")).unwrap();
    std::fs::create_dir(bench.path("linked")).unwrap();
    std::fs::hard_link(bench.path("a.pcap"), bench.path("linked/a.pcap")).unwrap();
    let cases = [
        (["--in", "c=a.pcap", "--out", "out"], 2, "has no port c. Its ports are a, b."),
        (["--in", "a.pcap", "--out", "out"], 2, "write PORT=FILE"),
        (["--in", "a=none", "--out", "out"], 1, "cannot be opened: no such file or directory."),
        (["--in", "a=a.pcap", "--out", "file"], 1, "cannot be made"),
        (["--in", "a=sll.pcap", "--out", "out"], 1, "link type LINUX_SLL (113), not Ethernet."),
        (["--in", "a=sll.pcap", "--out", "out"], 1, "editcap -T ether"),
        (["--in", "a=text", "--out", "out"], 1, "neither a pcap nor a pcapng capture."),
        (["--in", "a=same/b.pcap", "--out", "same"], 2, "is both an input and an output."),
        (["--in", "b=a.pcap", "--out", "linked"], 2, "is both an input and an output."),
    ];
    for (arguments, code, text) in cases {
        let output = bench.replay(&arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(text), "{arguments:?}: {}", stderr(&output));
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}

#[test]
fn check_reports_contents_or_mistakes() {
    let bench = Bench::new();
    let check = |file: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollway"));
        command.current_dir(bench.dir.path()).args(["check", file]).output().unwrap()
    };
    let output = check("router.toml");
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "router.toml is in order: 2 ports, 2 VLAN links, 2 VRFs, 1 route, 3 static neighbours\n"
    );
    std::fs::write(bench.path("bad.toml"), "[ports.a]\nkind = \"af_paket\"\n").unwrap();
    let output = check("bad.toml");
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("bad.toml:2:"), "{}", stderr(&output));
    assert!(stderr(&output).contains("af_packet"), "{}", stderr(&output));
}

/// A reader that closes early (`| head`) is no error; a full disk is one.
#[test]
fn nobody_has_to_read_what_is_printed() {
    let bench = Bench::new();
    bench.pcap("a.pcap", TsResolution::NanoSecond, &[]);
    let replay = ["replay", "--config", "router.toml", "--in", "a=a.pcap", "--out", "out"];
    let run = |arguments: &[&str], stdout: Stdio, stderr: Stdio| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollway"));
        command.current_dir(bench.dir.path()).args(arguments).stdin(Stdio::null());
        let child = command.stdout(stdout).stderr(stderr).spawn().unwrap();
        child.wait_with_output().unwrap()
    };
    // A pipe without a reader.
    let unread = || Stdio::from(std::io::pipe().unwrap().1);
    let full = || Stdio::from(File::options().write(true).open("/dev/full").unwrap());
    for arguments in [&replay[..], &["check", "router.toml"]] {
        let output = run(arguments, unread(), Stdio::piped());
        assert_eq!((output.status.code(), &stderr(&output)[..]), (Some(0), ""), "{arguments:?}");
        let output = run(arguments, full(), Stdio::piped());
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(stderr(&output).contains("no space left on device. Redirect it"), "{output:?}");
    }
    for nowhere in [unread, full] {
        let output = run(&["check", "none.toml"], Stdio::piped(), nowhere());
        assert_eq!(output.status.code(), Some(1));
    }
}

/// A configuration of capture files alone is replayed by `run` too.
#[test]
fn run_replays_a_configuration_of_files() {
    let bench = Bench::new();
    bench.pcap("a.pcap", TsResolution::NanoSecond, &[(at(9), udp4([10, 0, 2, 2]))]);
    let config = CONFIG
        .replace("kind = \"af_packet\"", "kind = \"capture\"\ninput = \"a.pcap\"")
        .replace("kind = \"memory\"", "kind = \"capture\"\noutput = \"sent.pcap\"");
    std::fs::write(bench.path("files.toml"), config).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollway"));
    let output =
        command.current_dir(bench.dir.path()).args(["run", "--config", "files.toml"]).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(read(&bench.path("sent.pcap")).len(), 1);
}

/// The clock runs on after the last frame, so that packets for a silent neighbour do not wait for
/// ever.
#[test]
fn a_packet_to_a_silent_neighbour_is_given_up_in_virtual_time() {
    let bench = Bench::new();
    bench.pcap("a.pcap", TsResolution::NanoSecond, &[(at(0), udp4([10, 0, 2, 9]))]);
    let start = std::time::Instant::now();
    let json = bench.replay_json(&["--in", "a=a.pcap"]);
    assert!(start.elapsed() < Duration::from_secs(3), "virtual seconds pass at once");
    assert_eq!(json["held"], 0, "{json}");
    assert_eq!(json["drops"]["neigh_failed"], 1, "{json}");
    let requests = read(&bench.path("out/b.pcap"));
    assert_eq!(requests[0].0, at(0), "the first request has the time of the packet");
    let gaps: Vec<_> = requests.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
    assert_eq!(gaps.len(), 2, "{gaps:?}");
    let second = Duration::from_millis(900)..Duration::from_millis(1200);
    assert!(gaps.iter().all(|gap| second.contains(gap)), "{gaps:?}");
}

/// The router accounts for every packet, whatever the captures contain.
#[test]
fn every_packet_of_many_captures_is_counted() {
    let bench = Bench::new();
    let mut frames = Vec::new();
    // Every prefix and every single-byte change of some frames: many kinds of damage.
    for frame in [udp4([10, 0, 2, 2]), udp6(), tagged(10)] {
        for cut in 0..frame.len() {
            frames.push((at(frames.len() as u64), frame[..cut].to_vec()));
        }
        for index in 0..frame.len() {
            let mut changed = frame.clone();
            changed[index] ^= 0x45;
            frames.push((at(frames.len() as u64), changed));
        }
    }
    bench.pcap("a.pcap", TsResolution::NanoSecond, &frames);
    let json = bench.replay_json(&["--in", "a=a.pcap"]);
    let number = |name: &str| json[name].as_u64().unwrap();
    assert_eq!(number("received"), frames.len() as u64);
    let parts = ["sent", "dropped", "punted", "delivered", "held"];
    assert_eq!(number("received"), parts.into_iter().map(number).sum::<u64>());
}
