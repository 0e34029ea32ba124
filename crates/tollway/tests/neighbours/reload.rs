//! Reloads of changed configurations while `tollway run` forwards.

use std::fmt::Write as _;
use std::net::{SocketAddr, UdpSocket};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use crate::namespaces::{PATIENCE, Process, ready};
use crate::running::{CONFIG, Router, two_hosts};

/// Packets in flight at once: fewer than the most that may wait for a neighbour.
const WINDOW: u64 = 64;
/// How long the test sends packets.
const TRAFFIC: Duration = Duration::from_secs(6);

/// Sends back each packet that arrives, until the sender stops.
pub fn serve(address: SocketAddr) -> ExitCode {
    let socket = UdpSocket::bind(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    println!("ready");
    let mut bytes = [0; 64];
    loop {
        let (len, from) = socket.recv_from(&mut bytes).unwrap();
        if len == 0 {
            return ExitCode::SUCCESS;
        }
        socket.send_to(&bytes[..len], from).unwrap();
    }
}

/// Sends numbered packets and checks that each comes back, in order.
pub fn run_client(address: SocketAddr) -> ExitCode {
    let socket = UdpSocket::bind(if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }).unwrap();
    socket.connect(address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let start = Instant::now();
    let (mut sent, mut back) = (0_u64, 0_u64);
    let mut bytes = [0; 64];
    while back < sent || start.elapsed() < TRAFFIC {
        while sent < back + WINDOW && start.elapsed() < TRAFFIC {
            socket.send(&sent.to_be_bytes()).unwrap();
            sent += 1;
        }
        let len = socket.recv(&mut bytes);
        let len = len.unwrap_or_else(|error| panic!("{back} of {sent} are back: {error}"));
        assert_eq!(bytes[..len], back.to_be_bytes(), "{back} of {sent} are back");
        back += 1;
    }
    socket.send(&[]).unwrap();
    println!("{back}");
    ExitCode::SUCCESS
}

/// Variants of the configuration, each of which forwards between the hosts.
fn shape(number: usize) -> String {
    let learned = CONFIG.split("[[neighbours]]").next().unwrap().to_owned();
    let mut more = String::new();
    for index in 0..500 {
        let _ = write!(
            more,
            "\n[[routes]]\nto = \"172.{}.{}.0/24\"\nvia = \"10.0.2.2\"\n",
            16 + index / 256,
            index % 256
        );
    }
    match number % 4 {
        0 => CONFIG.to_owned(),
        1 => CONFIG.to_owned() + &more,
        2 => learned.replace("[ports.b]", "[vlans.\"a.9\"]\nparent = \"a\"\nvid = 9\n[ports.b]"),
        _ => learned.replace("device = \"rb\"", "device = \"rb\"\nmtu = 1400") + &more,
    }
}

pub fn traffic() {
    let (a, b) = two_hosts();
    let mut router = Router::start(CONFIG);
    let mut pairs = Vec::new();
    for address in ["10.0.2.2:7000", "[fd00:2::2]:7000"] {
        let server = ready(&mut b.role("--serve", address));
        let client = a.role("--client", address).stdout(Stdio::piped()).spawn().unwrap();
        pairs.push((Process(client), server));
    }
    let (start, mut reloads) = (Instant::now(), 0);
    while start.elapsed() < TRAFFIC - Duration::from_secs(1) {
        reloads += 1;
        let report = router.reload(&shape(reloads));
        assert!(report.contains("is active"), "{report}");
    }
    for (mut client, mut server) in pairs {
        let status = client.0.wait().unwrap();
        assert!(status.success(), "{}{}", router.read("stderr"), router.stop());
        let crossed = std::io::read_to_string(client.0.stdout.take().unwrap()).unwrap();
        println!("{} there and back during {reloads} reloads", crossed.trim());
        assert!(crossed.trim().parse::<u64>().unwrap() > 1000);
        assert!(server.0.wait().unwrap().success());
    }
    // The counts continue from table to table, and add up; otherwise the router ends with an error.
    let summary = router.stop();
    for lost in ["neigh_failed", "neigh_queuefull", "dev_tx_failed"] {
        assert!(!summary.contains(lost), "{summary}");
    }
    assert!(reloads >= 8, "{reloads} reloads only");
}

pub fn mistakes() {
    let (a, _b) = two_hosts();
    let mut router = Router::start(CONFIG);
    let ping = || {
        a.pings(2, "10.0.2.2");
    };
    ping();
    assert!(router.reload(CONFIG).contains("has not changed"));
    for (config, sentence) in [
        (CONFIG.replace("10.0.2.1/24", "10.0.2.1/44"), "router.toml:12: "),
        (
            CONFIG.replace("\"rb\"", "\"rc\""),
            "router.toml:10: port b is the interface rb, and a reload cannot make it the interface rc; restart tollway",
        ),
        (
            CONFIG.replace("[ports.b]", "[ports.c]").replace("dev = \"b\"", "dev = \"c\""),
            "port b is missing, and a reload closes no port; restart tollway",
        ),
        ("nonsense".to_owned(), "router.toml:1: "),
    ] {
        let report = router.reload(&config);
        assert!(report.contains(sentence), "{sentence:?} is missing: {report}");
        assert!(report.contains("stays active") && !report.contains("is active"), "{report}");
        ping();
    }
    assert!(router.reload(CONFIG).contains("has not changed"));
    // Over the control socket, the client gets the result.
    let reload = |config: &str| {
        std::fs::write(router.path("router.toml"), config).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollway"));
        let socket = router.path("control.sock");
        let output = command.arg("reload").arg("--socket").arg(socket).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    };
    let (code, text) = reload(&CONFIG.replace("\"rb\"", "\"rc\""));
    assert!(code == Some(1) && text.contains("router.toml:10: port b is"), "{text}");
    assert!(text.contains("the old configuration stays active"), "{text}");
    let (code, text) = reload(CONFIG);
    assert!(code == Some(0) && text.contains("has not changed"), "{text}");
    let (code, text) = reload(&CONFIG.replace("10.0.1.1/24", "10.0.1.9/24"));
    assert!(code == Some(0) && text.contains("2 links, 0 routes"), "{text}");
    router.stop();
}

pub fn effects() {
    let (a, _b) = two_hosts();
    let mut router = Router::start(CONFIG);
    a.sh("ping -n -c 1 -W 5 10.0.2.2");
    let blackhole = "\n[[routes]]\nto = \"10.0.2.2/32\"\ntype = \"blackhole\"\nmetric = 1\n";
    let no_neighbour = CONFIG.split("[[neighbours]]").next().unwrap();
    let shows = |config: &str, device: &str, words: &str| {
        let report = router.reload(config);
        assert!(report.contains("is active"), "{report}");
        let output = Command::new("nsenter")
            .args(["-t", &a.0.0.id().to_string(), "-n", "ping", "-n", "-c", "1", "-W", "1"])
            .args(["-M", "do", "-s", "1300", device])
            .output()
            .unwrap();
        let output = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.contains(words), "{words:?} is missing: {output}");
    };
    shows(&(no_neighbour.to_owned() + blackhole), "10.0.2.2", "100% packet loss");
    shows(CONFIG, "10.0.2.2", " 0% packet loss");
    shows(&CONFIG.replace("10.0.1.1/24", "10.0.1.9/24"), "10.0.1.9", " 0% packet loss");
    // This one is the last, because the host remembers the path MTU.
    shows(&CONFIG.replace("device = \"rb\"", "device = \"rb\"\nmtu = 1280"), "10.0.2.2", "1280");
    let summary = router.stop();
    assert!(summary.contains("blackhole") && summary.contains("mtu_exceeded"), "{summary}");
}
