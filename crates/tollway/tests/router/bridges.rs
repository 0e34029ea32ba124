//! Tests of routers whose devices are ports of a bridge.

use std::process::Stdio;
use std::time::{Duration, Instant};

use tollway_commands::control::ShowRequest;
use tollway_model::Engine;

use super::namespaces::{Host, queues, sh, until};
use super::running::{KernelRouter, SILENCE, answered, tags_in_frames};

/// The hosts behind the ports `ra`, `rb` and `rc` of the bridge `br0`.
pub(super) struct Net {
    pub(super) a: Host,
    pub(super) b: Host,
    pub(super) c: Host,
}

impl Net {
    /// Connects hosts with the addresses 10.0.0.1 to 10.0.0.3, and fd00::1 to fd00::3.
    pub(super) fn new(engine: Engine) -> Self {
        sh("ip link set lo up");
        sh("ip link add br0 type bridge");
        sh("ip link set br0 up");
        let net =
            Self { a: plug(engine, "a", 1), b: plug(engine, "b", 2), c: plug(engine, "c", 3) };
        until("the ports to forward", || {
            let shown = sh("bridge link show");
            shown.lines().filter(|line| line.contains("state forwarding")).count() == 3
        });
        net
    }
}

fn plug(engine: Engine, cable: &str, last: u8) -> Host {
    let (host, queues) = (Host::new(), queues(1));
    let pid = host.0.0.id();
    sh(&format!("ip link add r{cable} {queues} type veth peer name h{cable} {queues} netns {pid}"));
    host.sh("ip link set lo up");
    if engine == Engine::Xdp {
        as_wire(&host, cable);
    }
    host.sh(&format!("ip link set h{cable} address 02:00:00:00:00:0{last}"));
    host.sh(&format!("ip address add 10.0.0.{last}/24 dev h{cable}"));
    host.sh(&format!("ip address add fd00::{last}/64 dev h{cable} nodad"));
    host.sh(&format!("ip link set h{cable} up"));
    sh(&format!("ip link set r{cable} master br0 up"));
    host
}

/// Has a cable carry what one between cards does.
fn as_wire(host: &Host, cable: &str) {
    // The host finishes its own checksums. With GRO it takes frames that programs redirect.
    host.sh(&format!("ethtool -K h{cable} tx off gro on"));
    sh(&format!("ethtool -K r{cable} rx off"));
    tags_in_frames(host, cable);
}

/// The arguments of a router whose ports have an engine.
fn arguments(engine: Engine) -> String {
    format!("--engine {} ra rb rc", engine.name())
}

pub(super) fn start(engine: Engine) -> KernelRouter {
    KernelRouter::start(&arguments(engine))
}

/// The port that the bridge has learned an address at, if it has.
pub(super) fn learned(last: u8) -> Option<String> {
    let shown = sh("bridge fdb show br br0");
    let start = format!("02:00:00:00:00:0{last} dev ");
    let line = shown.lines().find_map(|line| line.strip_prefix(&start).map(str::to_owned))?;
    line.split_whitespace().next().map(str::to_owned)
}

pub fn forwarded(engine: Engine) {
    let net = Net::new(engine);
    let router = start(engine);
    for address in ["10.0.0.2", "fd00::2", "10.0.0.3"] {
        router.forwards(&net.a, address);
    }
    // Somebody who is not there: the kernel floods the request.
    assert_eq!(answered(&net.a, "10.0.0.9"), 0);
    // All settings are followed.
    for port in ["ra", "rb"] {
        sh(&format!("bridge link set dev {port} isolated on"));
    }
    router.stops(&net.a, "10.0.0.2");
    router.forwards(&net.a, "10.0.0.3");
    sh("bridge link set dev rb isolated off");
    router.forwards(&net.a, "10.0.0.2");
    sh("nft add table bridge t");
    sh("nft add chain bridge t c { type filter hook forward priority 0; }");
    sh("nft add rule bridge t c ip saddr 10.0.0.2 drop");
    router.stops_there(&net.a, "10.0.0.2");
    router.passes_to_kernel(&net.a, "10.0.0.3");
    sh("nft delete table bridge t");
    router.forwards(&net.a, "10.0.0.2");
    sh("nft add table ip t");
    sh("nft add chain ip t c { type filter hook forward priority 0; }");
    sh("nft add rule ip t c ip saddr 10.0.0.2 drop");
    router.stops_there(&net.a, "10.0.0.2");
    router.forwards(&net.a, "fd00::2");
    sh("nft delete table ip t");
    router.forwards(&net.a, "10.0.0.2");
    // Ports leave the bridge, and come back.
    sh("ip link set rb nomaster");
    router.stops(&net.a, "10.0.0.2");
    router.forwards(&net.a, "10.0.0.3");
    sh("ip link set rb master br0");
    router.forwards(&net.a, "10.0.0.2");
    sh("ip link set rb down");
    router.stops(&net.a, "10.0.0.2");
    sh("ip link set rb up");
    // A port looks for its device every second; the kernel forwards meanwhile.
    until("the port to be back", || router.read("stderr").contains("rb is back"));
    router.forwards(&net.a, "10.0.0.2");
    let offload = router.show(&ShowRequest::Offload);
    assert_eq!(offload["links"][0]["bridged"]["bridge"], "br0", "{offload}");
    assert_eq!(offload["links"][0]["bridged"]["all"].as_array().unwrap().len(), 0, "{offload}");
}

/// What hosts and the bridge itself say to each other goes on.
pub fn bridge_itself(engine: Engine) {
    let net = Net::new(engine);
    sh("ip address add 10.0.0.254/24 dev br0");
    let router = start(engine);
    router.forwards(&net.a, "10.0.0.2");
    assert_eq!(answered(&net.a, "10.0.0.254"), 5);
    sh("ip link set br0 address 02:00:00:00:00:0f");
    net.a.sh("ip neigh flush dev ha");
    assert_eq!(answered(&net.a, "10.0.0.254"), 5, "at its new address");
    router.forwards(&net.a, "10.0.0.2");
}

/// A host moves to another port: its frames, and those for it, take the new way.
pub fn moves(engine: Engine) {
    let net = Net::new(engine);
    let router = start(engine);
    router.forwards(&net.a, "10.0.0.2");
    net.b.sh("ip link set hb down");
    net.c.sh("ip link set hc down");
    net.c.sh("ip link set hc address 02:00:00:00:00:02 up");
    net.c.sh("ip address add 10.0.0.2/24 dev hc");
    until("the host to be found again", || answered(&net.c, "10.0.0.1") == 5);
    assert_eq!(learned(2).as_deref(), Some("rc"));
    router.forwards(&net.a, "10.0.0.2");
}

/// The kernel keeps hosts that go on, and forgets those that do not.
pub fn ages(engine: Engine) {
    /// As long as several ageing times, in seconds.
    const PINGS_S: u64 = 10;
    let net = Net::new(engine);
    sh("ip link set br0 type bridge ageing_time 300");
    let router = start(engine);
    router.forwards(&net.a, "10.0.0.2");
    let mut ping = net.a.command(&format!("ping -n -i 0.01 -w {PINGS_S} 10.0.0.2"));
    let ping = ping.stdout(Stdio::piped()).spawn().unwrap();
    let (start, before) = (Instant::now(), router.counts().sent);
    while start.elapsed() < Duration::from_secs(PINGS_S - 1) {
        assert_eq!(learned(1).as_deref(), Some("ra"), "after {:?}", start.elapsed());
        assert_eq!(learned(2).as_deref(), Some("rb"), "after {:?}", start.elapsed());
        std::thread::sleep(Duration::from_millis(100));
    }
    let output = ping.wait_with_output().unwrap();
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.contains(" 0% packet loss"), "{output}");
    let forwarded = router.counts().sent - before;
    assert!(forwarded > PINGS_S * 50, "{forwarded} frames of {PINGS_S} s");
    until("the bridge to forget both", || learned(1).is_none() && learned(2).is_none());
}

/// Whatever becomes of the process, the bridge forwards.
pub fn kill(engine: Engine) {
    let net = Net::new(engine);
    let mut router = start(engine);
    router.forwards(&net.a, "10.0.0.2");
    sh(&format!("kill -STOP {}", router.process.0.id()));
    std::thread::sleep(SILENCE);
    assert_eq!(answered(&net.a, "10.0.0.2"), 5, "stopped");
    // The host moves while nobody is told.
    net.b.sh("ip link set hb down");
    net.c.sh("ip link set hc down");
    net.c.sh("ip link set hc address 02:00:00:00:00:02 up");
    net.c.sh("ip address add 10.0.0.2/24 dev hc");
    until("the kernel to know where the host is", || answered(&net.c, "10.0.0.1") == 5);
    sh(&format!("kill -CONT {}", router.process.0.id()));
    assert_eq!(answered(&net.a, "10.0.0.2"), 5, "continued");
    router.forwards(&net.a, "10.0.0.2");
    router.process.0.kill().unwrap();
    router.process.0.wait().unwrap();
    std::thread::sleep(SILENCE);
    assert_eq!(answered(&net.a, "10.0.0.2"), 5, "killed");
    let next = start(engine);
    next.forwards(&net.a, "10.0.0.2");
}

/// A successor takes the ports over, and no frame is lost meanwhile.
pub fn takeover(engine: Engine) {
    let net = Net::new(engine);
    let router = start(engine);
    router.forwards(&net.a, "10.0.0.2");
    let _router =
        router.replaced_beside_pings((&net.a, "10.0.0.2"), &arguments(engine), |router| {
            router.forwards(&net.a, "10.0.0.2");
        });
}

/// From a card to devices whose frames the kernel makes, and back.
pub fn between_engines() {
    let net = Net::new(Engine::Tc);
    as_wire(&net.a, "a");
    let router = KernelRouter::start("--engine tc --engine ra=xdp ra rb rc");
    for address in ["10.0.0.2", "fd00::3"] {
        router.forwards(&net.a, address);
    }
    router.forwards(&net.b, "10.0.0.3");
    sh("bridge link set dev ra isolated on");
    sh("bridge link set dev rb isolated on");
    router.stops(&net.a, "10.0.0.2");
    router.forwards(&net.a, "10.0.0.3");
}
