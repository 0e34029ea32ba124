//! Tests to which ports Tollway attaches its XDP program: those where some traffic can take the
//! fast path. The measure is bulk TCP between hosts with default offloads.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use tollway_commands::control::ShowRequest;

use super::namespaces::{Host, PATIENCE, Process, ready, sh, until};
use super::running::{KernelRouter, Net};

const MEGABYTE: usize = 1 << 20;
/// Duration for which one reading sends.
const READING: Duration = Duration::from_millis(300);
const SERVER: &str = "10.0.2.2:5001";

/// Accepts TCP streams, one after the other, and answers each with its length.
pub fn serve(address: &str) -> ExitCode {
    let listener = TcpListener::bind(address).unwrap();
    println!("ready");
    let mut bytes = vec![0; MEGABYTE];
    loop {
        let (mut stream, _) = listener.accept().unwrap();
        let mut len = 0_u64;
        // The sender reports a stream that ends badly.
        while let Ok(more @ 1..) = stream.read(&mut bytes) {
            len += more as u64;
        }
        let _ = stream.write_all(&len.to_be_bytes());
    }
}

/// Sends a stream. Prints its rate in bytes per second once the server has received all of it.
pub fn run_client(address: &str) -> ExitCode {
    let mut stream = TcpStream::connect_timeout(&address.parse().unwrap(), PATIENCE).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let (bytes, start, mut len) = (vec![7; MEGABYTE / 4], Instant::now(), 0_u64);
    while start.elapsed() < READING {
        stream.write_all(&bytes).unwrap();
        len += bytes.len() as u64;
    }
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = [0; 8];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(u64::from_be_bytes(answer), len);
    println!("{}", len as f64 / start.elapsed().as_secs_f64());
    ExitCode::SUCCESS
}

/// Hosts with default offloads: they leave checksums and segmentation to a network card.
struct Hosts {
    net: Net,
    _server: Process,
}

impl Hosts {
    fn new() -> Self {
        let net = Net::new();
        for (host, device) in [(&net.a, "ha"), (&net.b, "hb")] {
            host.sh(&format!("ethtool -K {device} tx on gro off"));
            host.sh(&format!("ethtool -K {device} tso on gso on"));
        }
        let server = ready(&mut net.b.role("--serve", SERVER));
        Self { net, _server: server }
    }

    /// Returns the rate of one stream, in bytes per second.
    fn rate(&self) -> f64 {
        let output = self.net.a.role("--client", SERVER).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        text.trim().parse().unwrap()
    }

    /// Returns the median rate of five streams.
    fn median(&self) -> f64 {
        let mut rates: Vec<_> = (0..5).map(|_| self.rate()).collect();
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    }

    /// Asserts that one of twelve streams reaches 80% of the kernel's rate. A busy machine slows
    /// some.
    #[track_caller]
    fn keeps(&self, kernel: f64) {
        let tried: Vec<_> = (0..12).map(|_| self.rate() / kernel).collect();
        assert!(tried.iter().any(|ratio| *ratio >= 0.8), "{tried:?} of the kernel's");
    }
}

/// Says whether an XDP program is attached to a device.
fn is_attached(device: &str) -> bool {
    sh(&format!("ip -d link show dev {device}")).contains("prog/xdp")
}

/// Returns the state of each port as the router reports it, in a word each.
fn states(router: &KernelRouter) -> Vec<String> {
    let ports = router.show(&ShowRequest::Ports);
    let ports = ports["ports"].as_array().unwrap();
    ports.iter().map(|port| port["state"].as_str().unwrap().to_owned()).collect()
}

fn until_attached(router: &KernelRouter, wanted: bool) {
    let state = if wanted { "up" } else { "not attached" };
    until(if wanted { "programs" } else { "no program" }, || {
        let devices = ["ra", "rb"].map(is_attached);
        devices == [wanted; 2] && states(router) == [state; 2]
    });
}

/// Flushes the rules, and waits until conntrack has forgotten their connections.
fn flush() {
    sh("nft flush ruleset");
    until("no connections", || {
        // Reading the list makes the kernel remove expired entries.
        std::fs::read("/proc/thread-self/net/nf_conntrack").unwrap();
        let count = std::fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_count").unwrap();
        count.trim() == "0"
    });
}

/// Waits until Tollway forwards most of a host's pings.
fn forwarded(router: &KernelRouter, host: &Host) {
    until("packets by Tollway", || {
        let before = router.counts().sent;
        host.pings(10, "10.0.2.2");
        // Tollway counts packets of the XDP path with a delay.
        std::thread::sleep(Duration::from_millis(20));
        router.counts().sent >= before + 16
    });
}

/// Tests a gateway that needs all packets in the kernel, then one that does not, then the first again.
pub fn gateway() {
    let nat = |rule: &str| sh(&format!("nft add {rule}"));
    let translate = || {
        nat("table ip nat");
        nat("chain ip nat out { type nat hook postrouting priority 100 ; }");
        nat("rule ip nat out oifname rb masquerade");
        // Timeouts of its own: of no connection the programs know how long it lives.
        nat("ct timeout ip nat own { protocol tcp ; policy = { established : 9 } ; }");
        nat("chain ip nat own { type filter hook prerouting priority 0 ; }");
        nat("rule ip nat own tcp dport 9 ct timeout set own");
    };
    let hosts = Hosts::new();
    // It forwards IPv4 only, as most gateways do.
    sh("sysctl -qw net.ipv6.conf.all.forwarding=0");
    translate();
    // With short timeouts, conntrack soon forgets connections that have ended.
    for state in ["close", "close_wait", "fin_wait", "last_ack", "time_wait", "established"] {
        sh(&format!("sysctl -qw net.netfilter.nf_conntrack_tcp_timeout_{state}=2"));
    }
    sh("sysctl -qw net.netfilter.nf_conntrack_icmp_timeout=1");
    let kernel = hosts.median();
    let mut router = KernelRouter::start("ra rb");
    assert_eq!((is_attached("ra"), is_attached("rb")), (false, false));
    assert_eq!(states(&router), ["not attached"; 2]);
    let log = router.read("stderr");
    for port in ["ra", "rb"] {
        assert!(log.contains(&format!("port {port}: {port} has no XDP program")), "{log}");
    }
    let offload = router.show(&ShowRequest::Offload);
    assert_eq!(offload["not_attached"], serde_json::json!(["ra", "rb"]));
    hosts.keeps(kernel);
    let before = router.counts();
    hosts.net.a.pings(5, "10.0.2.2");
    assert_eq!(router.counts(), before, "nothing comes to Tollway");

    flush();
    until_attached(&router, true);
    forwarded(&router, &hosts.net.a);
    let log = router.read("stderr");
    for port in ["ra", "rb"] {
        let line = format!("port {port}: {port} is back (AF_XDP copy mode, native XDP");
        assert!(log.contains(&line), "{log}");
    }
    translate();
    // The kernel path takes over at once. A while later Tollway detaches its programs.
    router.sync();
    hosts.net.a.pings(5, "10.0.2.2");
    until_attached(&router, false);
    for change in ["down", "name rx", "up"] {
        sh(&format!("ip link set {} {change}", if change == "up" { "rx" } else { "ra" }));
    }
    flush();
    until("the renamed device to be attached", || is_attached("rx") && is_attached("rb"));
    router.stop();
    assert!(!is_attached("rx") && !is_attached("rb"));
}

/// Follows the advice of `tollway check`: first on VLAN tags, then on checksums.
pub fn offloads() {
    let hosts = Hosts::new();
    let kernel = hosts.median();
    for device in ["ra", "rb"] {
        sh(&format!("ethtool -K {device} rx on"));
    }
    let router = KernelRouter::start("ra rb");
    let offload = router.show(&ShowRequest::Offload).to_string();
    assert!(offload.contains("peer_checksums") && !offload.contains("peer_tags"), "{offload}");
    assert!(!is_attached("ra") && !is_attached("rb"));
    hosts.keeps(kernel);

    // With `rx off`, Tollway takes all checksums as complete, although these are not.
    for device in ["ra", "rb"] {
        sh(&format!("ethtool -K {device} rx off"));
    }
    until_attached(&router, true);
    forwarded(&router, &hosts.net.a);
    let (rate, counts) = (hosts.rate(), router.show(&ShowRequest::Offload)["counts"].clone());
    assert!(rate > 10e6, "{rate} bytes a second");
    let left = counts["ports"][0]["kernel"]["checksum"].as_u64();
    assert!(left > Some(100), "{counts}");
}
