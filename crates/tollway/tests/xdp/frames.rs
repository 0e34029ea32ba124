//! Handmade frames, and ports to test them on.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tollway_dataplane::id::{LinkId, PortId, Vid};
use tollway_dataplane::wire::checksum;
use tollway_net::{KernelPath, Mac, VlanProtocol};
use tollway_xdp::counts::{PASS_REASONS, PassReason};
use tollway_xdp::{Action, Mode, Options, PortCounts, Program, XdpLink, XdpPort, XdpPrograms};

use crate::namespaces::sh;

/// The Ethernet address of the port under test.
pub const OURS: [u8; 6] = [2, 0, 0, 0, 0, 0x0a];
/// The Ethernet address of another device.
pub const THEIRS: [u8; 6] = [2, 0, 0, 0, 1, 2];

pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const ICMP: u8 = 1;
pub const ICMP6: u8 = 58;

/// Returns an Ethernet header with tags, each an ethertype and a VLAN.
pub fn header(dst: [u8; 6], src: [u8; 6], tags: &[(u16, u16)], ethertype: u16) -> Vec<u8> {
    let mut bytes = [dst, src].concat();
    for (protocol, vid) in tags {
        bytes.extend(protocol.to_be_bytes());
        bytes.extend(vid.to_be_bytes());
    }
    bytes.extend(ethertype.to_be_bytes());
    bytes
}

/// An IPv4 or IPv6 packet. Its addresses decide which.
#[derive(Clone, Debug)]
pub struct Packet {
    pub tags: Vec<(u16, u16)>,
    pub src: IpAddr,
    pub dst: IpAddr,
    pub protocol: u8,
    pub ports: (u16, u16),
    pub ttl: u8,
    pub options: usize,
    pub fragment: u16,
    pub payload: usize,
    pub ident: u16,
}

impl Packet {
    pub fn new(src: &str, dst: &str) -> Self {
        Self {
            tags: Vec::new(),
            src: src.parse().unwrap(),
            dst: dst.parse().unwrap(),
            protocol: UDP,
            ports: (1000, 2000),
            ttl: 64,
            options: 0,
            fragment: 0,
            payload: 18,
            ident: 1,
        }
    }

    pub fn v4() -> Self {
        Self::new("10.0.1.2", "10.0.2.2")
    }

    pub fn v6() -> Self {
        Self::new("fd00:1::2", "fd00:2::2")
    }

    pub fn tagged(mut self, tags: &[(u16, u16)]) -> Self {
        self.tags = tags.to_vec();
        self
    }

    /// Returns the offset of the IP header in the frame.
    pub fn l3(&self) -> usize {
        14 + 4 * self.tags.len()
    }

    pub fn frame(&self) -> Vec<u8> {
        let ethertype = if self.src.is_ipv4() { 0x0800 } else { 0x86dd };
        let mut frame = header(OURS, THEIRS, &self.tags, ethertype);
        frame.extend(self.ip());
        frame
    }

    fn ip(&self) -> Vec<u8> {
        let l4_len = 8 + self.payload;
        let mut bytes = match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => self.ip4(src, dst, l4_len),
            (IpAddr::V6(src), IpAddr::V6(dst)) => self.ip6(src, dst, l4_len),
            _ => panic!("one family"),
        };
        bytes.extend(self.ports.0.to_be_bytes());
        bytes.extend(self.ports.1.to_be_bytes());
        bytes.extend((l4_len as u16).to_be_bytes());
        bytes.extend([0, 0]);
        bytes.extend((0..self.payload).map(|byte| byte as u8));
        bytes
    }

    fn ip4(&self, src: Ipv4Addr, dst: Ipv4Addr, l4_len: usize) -> Vec<u8> {
        let header_len = 20 + self.options;
        let mut bytes = vec![0x40 | (header_len / 4) as u8, 0];
        bytes.extend(((header_len + l4_len) as u16).to_be_bytes());
        bytes.extend(self.ident.to_be_bytes());
        bytes.extend(self.fragment.to_be_bytes());
        bytes.extend([self.ttl, self.protocol, 0, 0]);
        bytes.extend(src.octets());
        bytes.extend(dst.octets());
        // No-operation options.
        bytes.extend(std::iter::repeat_n(1, self.options));
        sign(&mut bytes);
        bytes
    }

    fn ip6(&self, src: Ipv6Addr, dst: Ipv6Addr, l4_len: usize) -> Vec<u8> {
        let mut bytes = vec![0x60, 0, 0, 0];
        bytes.extend((l4_len as u16).to_be_bytes());
        bytes.extend([self.protocol, self.ttl]);
        bytes.extend(src.octets());
        bytes.extend(dst.octets());
        bytes
    }
}

/// Writes the correct checksum into an IPv4 header.
pub fn sign(header: &mut [u8]) {
    header[10..12].fill(0);
    let sum = !checksum::sum(header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// Returns a port on the loopback device for test frames. It is port 0: untagged frames are link 7,
/// VLAN 10 is link 8, 802.1ad VLAN 20 is link 9.
pub fn port() -> XdpPort {
    let tag = |protocol, vid| Some((protocol, Vid::new(vid).unwrap()));
    XdpPort {
        port: PortId(0),
        device: "lo".to_owned(),
        ifindex: 1,
        mac: Mac(OURS),
        queues: 1,
        links: vec![
            XdpLink { tag: None, outer: None, link: LinkId(7), kernel_path: KernelPath::default() },
            XdpLink {
                tag: tag(VlanProtocol::Dot1q, 10),
                outer: None,
                link: LinkId(8),
                kernel_path: KernelPath::default(),
            },
            XdpLink {
                tag: tag(VlanProtocol::Dot1ad, 20),
                outer: None,
                link: LinkId(9),
                kernel_path: KernelPath::default(),
            },
        ],
        is_bridge_port: false,
    }
}

/// An XDP program to test frames on.
pub struct Bench {
    pub programs: XdpPrograms,
    pub program: Program,
    counts: PortCounts,
}

impl Bench {
    pub fn new(mode: Mode, xdp_path: bool) -> Self {
        // Redirected frames need a device that is up.
        sh("ip link set lo up");
        let options = Options { flows4: 4096, flows6: 4096, ..Options::default() };
        let mut programs = XdpPrograms::load(&[port()], &options).unwrap();
        programs.set_locals(&["10.0.1.1".parse().unwrap(), "fd00:1::1".parse().unwrap()]).unwrap();
        programs.state().set_bypass(false);
        let program = programs.program(PortId(0), mode, xdp_path).unwrap();
        Self::of(programs, program)
    }

    /// Makes a bench for a program of port 0.
    pub fn of(programs: XdpPrograms, program: Program) -> Self {
        Self { programs, program, counts: PortCounts::default() }
    }

    /// Runs the program on a frame. Returns the action, the resulting frame, and the reason whose
    /// count rose.
    pub fn run(&mut self, frame: &[u8]) -> (Action, Vec<u8>, Option<PassReason>) {
        let beat_and_run = |_| {
            self.programs.state().beat(0);
            self.run_as_it_is(frame)
        };
        // On a busy machine the heartbeat may become stale in between, but not each time.
        let mut results = (0..10).map(beat_and_run);
        results.find(|(_, _, reason)| *reason != Some(PassReason::Stale)).unwrap()
    }

    /// Does the same as [`Bench::run`], but writes no heartbeat.
    pub fn run_as_it_is(&mut self, frame: &[u8]) -> (Action, Vec<u8>, Option<PassReason>) {
        let (action, output) = self.program.probe(frame).unwrap();
        (action, output, self.reason())
    }

    /// Does the same as [`Bench::run_as_it_is`], but the frame arrives by a device, which this names by
    /// its ifindex, on one of its queues.
    pub fn run_on(
        &mut self,
        ingress: (u32, u32),
        frame: &[u8],
    ) -> (Action, Vec<u8>, Option<PassReason>) {
        let (action, output) = self.program.probe_on(ingress, frame).unwrap();
        (action, output, self.reason())
    }

    /// Returns the reason whose count the last frame raised.
    fn reason(&mut self) -> Option<PassReason> {
        let counts = self.programs.counts().port(PortId(0)).unwrap();
        let before = std::mem::replace(&mut self.counts, counts);
        let rose = |index: &usize| counts.pass[*index] != before.pass[*index];
        let mut rose = (0..PASS_REASONS).filter(rose);
        let reason = rose.next().map(|index| PassReason::ALL[index]);
        assert_eq!(rose.next(), None, "one reason");
        assert_eq!(
            counts.pass.iter().sum::<u64>() - before.pass.iter().sum::<u64>(),
            u64::from(reason.is_some()),
            "counted once"
        );
        reason
    }

    /// Asserts that a frame passes to the kernel unchanged. Returns the reason.
    pub fn passes(&mut self, frame: &[u8]) -> PassReason {
        let (action, output, reason) = self.run(frame);
        assert_eq!(action, Action::Pass);
        assert_eq!(output, frame, "what is passed is not touched");
        reason.expect("a reason")
    }
}
