//! Measures how soon rules that drop a flow of the XDP path apply: after a reload, and after an
//! address is added to a set. Each datagram carries its send time.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, UdpSocket};
use std::process::{ChildStdout, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::namespaces::{PATIENCE, Process, sh, until};
use crate::router::{Net, config};
use crate::running::Router;
use crate::variants::{self, PathVariant};

const SERVER: &str = "10.0.2.2:7000";
/// Time between two datagrams.
const INTERVAL: Duration = Duration::from_micros(200);
/// After so long without a datagram, a flow has ended.
const SILENCE: Duration = Duration::from_millis(300);
/// A rule that drops applies within this time.
const SOON_NS: i64 = 10_000_000;
const ROUNDS: usize = 12;

/// Returns the wall-clock time, in ns.
fn now_ns() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as i64
}

/// Sends datagrams that carry their send time, until it is killed.
pub fn run_client(address: SocketAddr) -> ExitCode {
    let socket = UdpSocket::bind("0.0.0.0:5000").unwrap();
    socket.connect(address).unwrap();
    loop {
        // An ICMP error for an earlier datagram is no error of this one.
        let _ = socket.send(&now_ns().to_be_bytes());
        std::thread::sleep(INTERVAL);
    }
}

/// Prints, each time that the datagrams end, their number and the last send time.
pub fn serve(address: SocketAddr) -> ExitCode {
    let socket = UdpSocket::bind(address).unwrap();
    socket.set_read_timeout(Some(SILENCE)).unwrap();
    println!("ready");
    let (mut count, mut last_ns) = (0_u64, 0);
    loop {
        let mut bytes = [0; 8];
        if socket.recv(&mut bytes).is_ok() {
            count += 1;
            last_ns = last_ns.max(i64::from_be_bytes(bytes));
        } else if count > 0 {
            println!("{count} {last_ns}");
            count = 0;
        }
    }
}

/// Returns the server's output line by line, so that the test can wait with a timeout.
fn lines(server: ChildStdout) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        BufReader::new(server).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
    });
    receiver
}

/// Waits for the end of the datagrams. Returns their number and the last send time. Ends before
/// `start_ns` come from a busy machine and are ignored.
fn end_after(receiver: &Receiver<String>, start_ns: i64) -> (u64, i64) {
    loop {
        let line = receiver.recv_timeout(PATIENCE).unwrap();
        let (count, last_ns) = line.split_once(' ').unwrap();
        let (count, last_ns) = (count.parse().unwrap(), last_ns.parse().unwrap());
        if last_ns > start_ns {
            return (count, last_ns);
        }
    }
}

/// Returns the rules, of which `more` is the first.
fn rules(more: &str) -> String {
    format!(
        "table inet t {{\n  set bad {{ type ipv4_addr; flags dynamic; }}\n  chain c {{\n    \
         type filter hook forward priority 0; policy accept;\n    {more}\n    \
         ip saddr @bad drop\n    counter\n  }}\n}}\n"
    )
}

/// Runs a command of the router. Returns what it prints.
pub fn tollway(router: &Router, words: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollway"));
    command.args(words.split(' ')).arg("--socket").arg(router.path("control.sock"));
    let output = command.current_dir(router.dir.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Installs other rules.
fn reload(router: &Router, more: &str) {
    std::fs::write(router.path("rules.nft"), rules(more)).unwrap();
    let _ = tollway(router, "reload");
}

type Change = fn(&Router);

/// What drops the flow, and what lets it go on.
const CHANGES: [(&str, Change, Change); 2] = [
    (
        "a rule by a reload",
        |router| reload(router, "ip saddr 10.0.1.2 drop"),
        |router| reload(router, ""),
    ),
    (
        "an address in a set",
        |router| _ = tollway(router, "set bad add 10.0.1.2"),
        |router| _ = tollway(router, "set bad delete 10.0.1.2"),
    ),
];

pub fn soon() {
    let net = Net::new(1500, 1);
    variants::prepare(&net);
    // With forwarding on, the kernel would forward without rules whenever the heartbeat is late.
    sh("sysctl -qw net.ipv4.ip_forward=0");
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("rules.nft"), rules("")).unwrap();
    let ports = config("auto", 1500, true);
    let config = PathVariant::Xdp.config(&format!("filter = \"rules.nft\"\n{ports}"));
    let mut router = Router::start_in(dir, &config);
    let mut server = net.b.role("--serve", SERVER);
    let mut server = Process(server.arg("times").stdout(Stdio::piped()).spawn().unwrap());
    let receiver = lines(server.0.stdout.take().unwrap());
    assert_eq!(receiver.recv_timeout(PATIENCE).as_deref(), Ok("ready"));
    let _client = Process(net.a.role("--client", SERVER).arg("times").spawn().unwrap());
    for (what, drop, go_on) in CHANGES {
        let mut times: Vec<_> = (0..ROUNDS)
            .map(|_| {
                let before = variants::xdp_path_packets(&router);
                until("the flow on the XDP path", || {
                    variants::xdp_path_packets(&router) > before + 100
                });
                let start_ns = now_ns();
                drop(&router);
                let answered_ns = now_ns();
                let (count, last_ns) = end_after(&receiver, start_ns);
                assert!(count > 100, "{count} datagrams came");
                go_on(&router);
                last_ns - answered_ns
            })
            .collect();
        times.sort_unstable();
        println!("{what}: the last datagram was sent so many ns after the answer: {times:?}");
        // Other work keeps this machine busy too, so the median counts.
        assert!(times[ROUNDS / 2] < SOON_NS, "{what}: {times:?} ns");
    }
    router.stop();
}
