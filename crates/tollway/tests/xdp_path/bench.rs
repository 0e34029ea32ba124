//! The test network with real devices as its ports, and the XDP program for them.

use std::num::NonZeroU32;
use std::process::Command;

use tollway_dataplane::id::{PortId, Vid};
use tollway_dataplane::verdict::DropReason;
use tollway_net::{KernelPath, Mac, VlanProtocol};
use tollway_xdp::counts::PassReason;
use tollway_xdp::xdp_path::{Exit, Ports, Reading, XdpFlows};
use tollway_xdp::{Action, FlowMaps, Mode, Options, Program, State, XdpLink, XdpPort, XdpPrograms};

use crate::namespaces::{ifindex, sh};
use crate::testkit::net::Net;
use crate::testkit::packet::{DOT1AD, Tag};
use crate::testkit::wires::{LinkVariant, PORTS};

const REASONS: usize = DropReason::COUNT;

/// Both paths: the user path on memory ports, and the XDP program of each port.
pub struct Bench {
    pub net: Net,
    pub programs: XdpPrograms,
    pub loaded: Vec<Program>,
    ports: Vec<XdpPort>,
}

fn xdp_link(port: u8, variant: LinkVariant) -> XdpLink {
    let tag = |(protocol, vid): &Tag| {
        let protocol = if *protocol == DOT1AD { VlanProtocol::Dot1ad } else { VlanProtocol::Dot1q };
        (protocol, Vid::new(*vid).unwrap())
    };
    XdpLink {
        tag: variant.tags().last().map(tag),
        outer: variant.tags().split_last().and_then(|(_, before)| before.first()).map(tag),
        link: variant.link(port),
        kernel_path: KernelPath::default(),
    }
}

/// Says whether an earlier bench of this test has made a device.
fn is_there(device: &str) -> bool {
    let shown = Command::new("ip").args(["link", "show", "dev", device]).output().unwrap();
    shown.status.success()
}

/// Returns a port with a device of its own.
pub fn xdp_port(port: u8) -> XdpPort {
    let device = format!("p{port}");
    if !is_there(&device) {
        sh(&format!("ip link add {device} type veth peer name q{port}"));
    }
    let ifindex = ifindex(&device);
    XdpPort {
        port: PortId(port.into()),
        device,
        ifindex,
        mac: Mac(LinkVariant::Plain.mac(port)),
        queues: 1,
        links: LinkVariant::ALL.map(|variant| xdp_link(port, variant)).to_vec(),
        is_bridge_port: false,
    }
}

/// Returns a port's device as one that takes frames with packets of up to `mtu` bytes.
pub fn exit(port: &XdpPort, mtu: u16) -> Option<Exit> {
    NonZeroU32::new(port.ifindex).map(|ifindex| Exit { ifindex, mtu, takes_pieces: true })
}

/// Runs the program of a port while the heartbeat is fresh. On a busy machine it may become stale, but not
/// each time.
pub fn run_with_heartbeat<T>(programs: &XdpPrograms, port: u8, mut run: impl FnMut() -> T) -> T {
    let counts = || programs.counts().port(PortId(port.into())).unwrap();
    for _ in 0..10 {
        let stale = counts().passed(PassReason::Stale);
        programs.state().beat(0);
        let done = run();
        if counts().passed(PassReason::Stale) == stale {
            return done;
        }
    }
    panic!("this machine is too busy for a heartbeat");
}

/// Returns an XDP path between these ports.
pub fn flows(programs: &XdpPrograms, ports: &[XdpPort]) -> XdpFlows<(State, FlowMaps)> {
    let handle = Ports::new(ports.len());
    for port in ports {
        handle.set_entrance(port.port, true);
        handle.set_exit(port.port, exit(port, u16::MAX));
    }
    XdpFlows::new((programs.state(), programs.flows()), handle, 1 << 16)
}

impl Bench {
    pub fn new() -> Self {
        let ports: Vec<_> = (0..PORTS).map(xdp_port).collect();
        let programs = XdpPrograms::load(&ports, &Options::default()).unwrap();
        programs.state().set_bypass(false);
        let program = |port: &XdpPort| programs.program(port.port, Mode::Native, true).unwrap();
        let loaded = ports.iter().map(program).collect();
        let mut net = Net::with_memory(256, 16_384);
        net.worker.xdp_path = Some(Box::new(flows(&programs, &ports)));
        Self { net, programs, loaded, ports }
    }

    /// Sets another Ethernet address for a port's XDP program.
    pub fn set_mac(&mut self, port: u8, mac: [u8; 6]) {
        let index = usize::from(port);
        self.ports[index].mac = Mac(mac);
        self.programs.set_port(self.ports[index].clone()).unwrap();
        let id = self.ports[index].port;
        self.loaded[index] = self.programs.program(id, Mode::Native, true).unwrap();
    }

    /// Returns what the XDP path makes of a frame, which is empty if it drops the frame, or `None` if it
    /// does not take the frame.
    pub fn xdp_path(&self, port: u8, frame: &[u8]) -> Option<Vec<u8>> {
        let program = &self.loaded[usize::from(port)];
        let run = || program.probe(frame).unwrap();
        let (action, output) = run_with_heartbeat(&self.programs, port, run);
        match action {
            Action::Redirect => Some(output),
            Action::Pass => {
                assert_eq!(output, frame, "the kernel gets the frame unchanged");
                None
            }
            Action::Drop => Some(Vec::new()),
            Action::Other(code) => panic!("{code} for {frame:02x?}"),
        }
    }

    /// Sends a frame on the user path. Returns the frames that leave, with their ports.
    pub fn path(&mut self, port: u8, frame: &[u8]) -> Vec<(u8, Vec<u8>)> {
        self.net.send(port, frame)
    }

    /// Runs the XDP program on a frame, and sends the frame on the user path. Both must have the
    /// same result, except that only the user path cuts off padding. Says whether the XDP path took
    /// it.
    pub fn both(&mut self, port: u8, frame: &[u8]) -> bool {
        let before = self.drops();
        let by_xdp_path = self.xdp_path(port, frame);
        let dropped = self.drops();
        let by_path = self.path(port, frame);
        let Some(by_xdp_path) = by_xdp_path else { return false };
        if by_xdp_path.is_empty() {
            assert_eq!(by_path, [], "the path forwards what the XDP path drops: {frame:02x?}");
            let grown = |after: [[u64; REASONS]; 2], path: usize| {
                std::array::from_fn::<_, REASONS, _>(|reason| {
                    after[path][reason] - before[path][reason]
                })
            };
            let (xdp, path) = (grown(dropped, 0), grown(self.drops(), 1));
            assert_eq!((xdp.iter().sum::<u64>(), xdp), (1, path), "{frame:02x?}");
            return true;
        }
        assert_eq!(by_path.len(), 1, "the XDP path forwards what the path does not: {frame:02x?}");
        let (_, by_path) = &by_path[0];
        let (same, padding) = by_xdp_path.split_at(by_path.len().min(by_xdp_path.len()));
        assert_eq!(same, by_path, "of {frame:02x?}");
        assert!(padding.is_empty() || frame.len() <= 14 + 2 * 4 + 46, "{by_xdp_path:02x?}");
        true
    }

    /// Returns how many packets were dropped by the XDP path and by the user path, by reason.
    fn drops(&self) -> [[u64; REASONS]; 2] {
        let mut by_xdp_path = [0; REASONS];
        for port in 0..PORTS {
            let counts = self.programs.counts().port(PortId(port.into())).unwrap();
            by_xdp_path
                .iter_mut()
                .zip(counts.drops)
                .for_each(|(sum, [packets, _])| *sum += packets);
        }
        [by_xdp_path, self.net.counters().drops]
    }

    pub fn reading(&self) -> Reading {
        Reading::of(&self.programs.counts(), None, usize::from(PORTS)).unwrap()
    }
}
