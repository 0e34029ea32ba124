//! Tests ports without a router.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use aya::Ebpf;
use aya::programs::{Xdp, XdpMode};
use tollway_dataplane::burst::Burst;
use tollway_dataplane::frame::{Descriptor, FrameAddr, Umem};
use tollway_dataplane::id::{LinkId, PortId};
use tollway_dataplane::port::Port;
use tollway_model::{AfXdpMode, XdpPathMode};
use tollway_net::KernelPath;
use tollway_worker::ports::af_xdp::{
    AfXdp, Failure, LoadedPort, Peers, Plan, Setup, SharedUmem, XdpPathOfPort,
};
use tollway_worker::ports::{Device, State};
use tollway_xdp::counts::PassReason;
use tollway_xdp::xdp_path::Ports;
use tollway_xdp::{Options, XdpLink, XdpPrograms};

use super::namespaces::{sh, until};

const CHUNKS: u32 = 256;

/// Sends UDP frames to be forwarded, from the other end of the cable.
struct Peer {
    socket: std::net::UdpSocket,
}

impl Peer {
    /// Makes a cable with both ends in this namespace: `xa` for the port, `xb` for the sender.
    fn new() -> Self {
        sh("ip link set lo up");
        // Without IPv6, no other frames use the cable.
        sh("sysctl -qw net.ipv6.conf.default.disable_ipv6=1");
        sh("ip link add xa address 02:00:00:00:00:0a type veth peer name xb");
        sh("ip link set xa up");
        sh("ip link set xb up");
        sh("ethtool -K xb tx off");
        sh("ip address add 10.7.0.2/24 dev xb");
        sh("ip neigh add 10.7.0.1 lladdr 02:00:00:00:00:0a dev xb nud permanent");
        sh("ip route add 10.8.0.0/16 via 10.7.0.1");
        Self { socket: std::net::UdpSocket::bind("10.7.0.2:0").unwrap() }
    }

    fn send(&self, count: u64) {
        for _ in 0..count {
            self.socket.send_to(b"hello", "10.8.0.1:9").unwrap();
        }
    }

    /// Sends until `count` frames have gone to the port's socket. On a busy machine the heartbeat
    /// may become stale, but not each time. Frames that the kernel got meanwhile are sent again.
    fn deliver(&self, programs: &Mutex<XdpPrograms>, count: u64) {
        let (state, counts) = {
            let programs = programs.lock().unwrap();
            (programs.state(), programs.counts())
        };
        let seen = || {
            let counts = counts.port(PortId(0)).unwrap();
            (counts.to_user, counts.passed(PassReason::Stale))
        };
        let mut missing = count;
        for _ in 0..10 {
            let before = seen();
            state.beat(0);
            self.send(missing);
            let (mut to_user, mut stale) = (0, 0);
            until("frames to be redirected", || {
                let now = seen();
                (to_user, stale) = (now.0 - before.0, now.1 - before.1);
                to_user + stale >= missing
            });
            assert_eq!(to_user + stale, missing);
            missing = stale;
            if missing == 0 {
                return;
            }
        }
        panic!("this machine is too busy for a heartbeat");
    }
}

fn programs() -> Arc<Mutex<XdpPrograms>> {
    Arc::new(Mutex::new(XdpPrograms::load(&[], &Options::default()).unwrap()))
}

fn open(programs: &Arc<Mutex<XdpPrograms>>, memory: (&SharedUmem, &mut Umem)) -> AfXdp {
    try_open(programs, memory).unwrap_or_else(|error| panic!("{error}"))
}

fn try_open(
    programs: &Arc<Mutex<XdpPrograms>>,
    memory: (&SharedUmem, &mut Umem),
) -> Result<AfXdp, String> {
    let links = vec![XdpLink {
        tag: None,
        outer: None,
        link: LinkId(0),
        kernel_path: KernelPath::default(),
    }];
    let plan = Arc::new(Mutex::new(Plan { links, mac: None, is_bridge_port: false }));
    let xdp_path = XdpPathOfPort { wanted: XdpPathMode::Off, ports: Ports::new(1) };
    let program = Box::new(LoadedPort::new(programs, PortId(0), &plan, xdp_path));
    let (umem_of, umem) = memory;
    let setup = Setup {
        port: "p",
        id: PortId(0),
        device: "xa",
        mode: AfXdpMode::Copy,
        umem: umem_of,
        peers: &Peers::default(),
        idle: None,
    };
    AfXdp::open(setup, umem, program).map_err(|failure| match failure {
        Failure::Fatal(error) => error.to_string(),
        Failure::NotOffered(causes) => format!("{causes:?}"),
    })
}

/// Receives all frames that have come by now.
fn receive(port: &mut AfXdp, umem: &mut Umem, held: &mut Vec<FrameAddr>) {
    let mut burst = Burst::new();
    loop {
        burst.reset(PortId(0));
        port.receive(umem, &mut burst);
        held.extend(&burst.addr[..burst.count]);
        if burst.count == 0 {
            return;
        }
    }
}

/// Receives until `held` has `count` frames.
fn collect(port: &mut AfXdp, umem: &mut Umem, held: &mut Vec<FrameAddr>, count: usize) {
    until("frames to come", || {
        receive(port, umem, held);
        held.len() >= count
    });
    assert_eq!(held.len(), count);
}

/// A program that holds all frames gets no more, and the kernel counts the loss. Once it frees
/// them, frames come again.
pub fn starvation() {
    let peer = Peer::new();
    let mut umem = Umem::new(CHUNKS, 2048).unwrap();
    let programs = programs();
    let mut port = open(&programs, (&SharedUmem::new(&umem), &mut umem));
    let state = programs.lock().unwrap().state();
    let mut held = Vec::new();
    state.set_bypass(false);
    receive(&mut port, &mut umem, &mut held);
    assert_eq!((umem.available(), held.len()), (0, 0), "all chunks are the kernel's");
    for _ in 0..10 {
        peer.deliver(&programs, 50);
        receive(&mut port, &mut umem, &mut held);
    }
    collect(&mut port, &mut umem, &mut held, CHUNKS as usize);
    until("the others to be counted", || port.missed() >= 500 - u64::from(CHUNKS));
    assert_eq!(port.missed(), 500 - u64::from(CHUNKS));
    for _ in 0..3 {
        held.drain(..).for_each(|addr| umem.free(addr));
        receive(&mut port, &mut umem, &mut held);
        peer.deliver(&programs, 100);
        collect(&mut port, &mut umem, &mut held, 100);
    }
    held.drain(..).for_each(|addr| umem.free(addr));
    port.retire(&mut umem);
    assert_eq!(umem.available(), CHUNKS as usize);
}

/// A port waits for a queue that another socket frees late. It fails on a queue that stays in use.
pub fn lateness() {
    let peer = Peer::new();
    let mut umem = Umem::new(CHUNKS, 2048).unwrap();
    let (shared, programs) = (SharedUmem::new(&umem), programs());
    let leave_behind = |port: AfXdp, umem: &mut Umem| {
        let mut sockets = Vec::new();
        port.each_fd(&mut |fd| sockets.push(fd.try_clone_to_owned().unwrap()));
        port.retire(umem);
        assert_eq!(sockets.len(), 1);
        sockets
    };
    let port = open(&programs, (&shared, &mut umem));
    let late = leave_behind(port, &mut umem);
    let closes = Arc::new(AtomicBool::new(false));
    let closing = std::thread::spawn({
        let closes = Arc::clone(&closes);
        move || {
            std::thread::sleep(Duration::from_millis(300));
            closes.store(true, Ordering::Release);
            drop(late);
        }
    });
    let mut port = open(&programs, (&shared, &mut umem));
    assert!(closes.load(Ordering::Acquire), "it was bound while the queue was another's");
    closing.join().unwrap();
    let state = programs.lock().unwrap().state();
    state.set_bypass(false);
    let mut held = Vec::new();
    receive(&mut port, &mut umem, &mut held);
    peer.deliver(&programs, 20);
    collect(&mut port, &mut umem, &mut held, 20);
    held.drain(..).for_each(|addr| umem.free(addr));
    let never = leave_behind(port, &mut umem);
    let error = try_open(&programs, (&shared, &mut umem)).err().unwrap();
    assert!(error.contains("xa already has AF_XDP sockets of another program"), "{error}");
    drop(never);
    let port = open(&programs, (&shared, &mut umem));
    port.retire(&mut umem);
    assert_eq!(umem.available(), CHUNKS as usize);
}

/// A device comes back with another program's XDP program on it. The port is refused each second,
/// while its worker does other work and the XDP path keeps its flows.
pub fn refusals() {
    let mut other = Ebpf::load(&tollway_xdp::port_program()).unwrap();
    let program: &mut Xdp = other.program_mut("dispatch").unwrap().try_into().unwrap();
    program.load().unwrap();

    let peer = Peer::new();
    let mut umem = Umem::new(CHUNKS, 2048).unwrap();
    let programs = programs();
    let mut port = open(&programs, (&SharedUmem::new(&umem), &mut umem));
    let state = programs.lock().unwrap().state();
    state.set_bypass(false);
    sh("ip link delete xa");
    port.maintain(1_000_000_000);
    assert!(matches!(port.state(), State::Gone(_)), "{:?}", port.state());
    drop(peer);
    let peer = Peer::new();
    let link = program.attach("xa", XdpMode::Driver).unwrap();

    let generation = state.generation();
    let mut held_up = Vec::new();
    for second in 2..12 {
        let start = Instant::now();
        port.maintain(second * 1_000_000_000);
        receive(&mut port, &mut umem, &mut Vec::new());
        held_up.push(start.elapsed());
        until("an answer", || {
            port.maintain(second * 1_000_000_000);
            receive(&mut port, &mut umem, &mut Vec::new());
            matches!(port.state(), State::Down(_))
        });
        // Waits until the answer to the second's attempt is there; the next second begins with a
        // new attempt.
        std::thread::sleep(Duration::from_millis(50));
        port.maintain(second * 1_000_000_000);
    }
    assert_eq!(port.state(), State::Down("xa already carries another XDP program".to_owned()));
    assert_eq!(state.generation(), generation, "nothing was emptied");
    // Other work keeps this machine busy too, so the median counts.
    held_up.sort();
    println!("held up for {held_up:?}");
    assert!(held_up[5] < Duration::from_millis(2), "{held_up:?}");

    program.detach(link).unwrap();
    let mut now_ns = 12_000_000_000;
    until("the port to be back", || {
        now_ns += 100_000_000;
        port.maintain(now_ns);
        receive(&mut port, &mut umem, &mut Vec::new());
        port.state() == State::Up
    });
    let mut held = Vec::new();
    receive(&mut port, &mut umem, &mut held);
    peer.deliver(&programs, 20);
    collect(&mut port, &mut umem, &mut held, 20);
    held.drain(..).for_each(|addr| umem.free(addr));
    port.retire(&mut umem);
    assert_eq!(umem.available(), CHUNKS as usize);
}

/// Returns counts of what a process may leak: descriptors, memory of sockets and BPF maps, pins,
/// devices.
fn left() -> [usize; 4] {
    let entries = |path: &str| std::fs::read_dir(path).unwrap().count();
    let lines = |path: &str, holds: fn(&str) -> bool| {
        std::fs::read_to_string(path).unwrap().lines().filter(|line| holds(line)).count()
    };
    [
        entries("/proc/self/fd"),
        lines("/proc/self/maps", |line| line.contains("socket:") || line.contains("bpf")),
        entries("/sys/fs/bpf/tollway"),
        lines("/proc/self/net/dev", |line| line.contains(':')),
    ]
}

/// Opens, uses and closes ports, 200 times or as many times as `TOLLWAY_CYCLES`.
pub fn cycles() {
    // With a BPF file system of its own, the test sees no pins of other routers.
    sh("mount -t bpf none /sys/fs/bpf");
    let peer = Peer::new();
    let cycles = std::env::var("TOLLWAY_CYCLES").ok().and_then(|text| text.parse().ok());
    let mut umem = Umem::new(4 * CHUNKS, 2048).unwrap();
    let shared = SharedUmem::new(&umem);
    let programs = programs();
    programs.lock().unwrap().state().set_bypass(false);
    let (mut before, start) = (None, Instant::now());
    for cycle in 1..=cycles.unwrap_or(200) {
        let mut port = open(&programs, (&shared, &mut umem));
        let mut held = Vec::new();
        receive(&mut port, &mut umem, &mut held);
        peer.deliver(&programs, 20);
        collect(&mut port, &mut umem, &mut held, 20);
        // The port sends some frames. Others are still unread when it ends.
        let frames: Vec<_> = held.iter().map(|addr| Descriptor { addr: *addr, len: 47 }).collect();
        assert_eq!(port.transmit(&mut umem, &frames), 20);
        peer.deliver(&programs, 5);
        assert_eq!(port.how(), "AF_XDP copy mode, native XDP");
        port.retire(&mut umem);
        assert_eq!(umem.available(), 4 * CHUNKS as usize, "cycle {cycle}");
        let now = left();
        assert_eq!(*before.get_or_insert(now), now, "cycle {cycle}");
        if cycle % 1000 == 0 {
            println!("{cycle} cycles in {:.0?}: {now:?}", start.elapsed());
        }
    }
}
