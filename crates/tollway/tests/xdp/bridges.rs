//! Tests which frames the program of a bridge's port forwards, and why the kernel gets the others: that of XDP, and that of
//! tc.

use std::io;
use std::sync::Arc;

use tollway_dataplane::id::{BridgeId, Domain, LinkId, PortId, Vid};
use tollway_dataplane::memory::{Capacities, Capacity, Memory};
use tollway_dataplane::stages::bridge::{
    BridgePort, BridgedIp, FdbEntry, FdbKey, FdbKind, SourceRule, Tagged,
};
use tollway_dataplane::tables::Tables;
use tollway_dataplane::wire::eth::MacWord;
use tollway_net::{KernelPath, Mac, VlanProtocol};
use tollway_xdp::counts::PassReason;
use tollway_xdp::{Action, Mode, Options, Program, TableMaps, XdpLink, XdpPort, XdpPrograms};

use super::frames::{ICMP6, Packet, header};
use super::namespaces::{ifindex, sh};

/// Ports of two bridges: the last one is of the second.
pub(super) const PORTS: u16 = 4;
pub(super) const DOMAIN: Domain = Domain::new(1).unwrap();
const OTHER_DOMAIN: Domain = Domain::new(2).unwrap();
/// The bridges' own address.
pub(super) const BRIDGE: [u8; 6] = [2, 0, 0, 0, 0xb0, 0];
/// The longest packet that devices take, in bytes.
pub(super) const MTU: u32 = 1500;
/// The links of the bridges, behind those of the ports, that of a VLAN on the first one, and that of a VLAN in it.
pub(super) const LINKS: [LinkId; 2] = [LinkId(PORTS), LinkId(PORTS + 1)];
pub(super) const TAGGED_LINK: LinkId = LinkId(PORTS + 2);
const INNER_LINK: LinkId = LinkId(PORTS + 3);
pub(super) const VID: u16 = 10;
pub(super) const INNER_VID: u16 = 20;
/// A quarter of five minutes, in ticks of 67 ms.
const REFRESH_TICKS: u32 = 1117;

/// The address of a host behind a port.
pub(super) const fn host(port: u16) -> [u8; 6] {
    [2, 0, 0, 1, 0, port as u8]
}

pub(super) fn key(domain: Domain, mac: [u8; 6]) -> FdbKey {
    FdbKey::new(domain, MacWord::new(mac))
}

pub(super) fn bridge_port(port: u16) -> BridgePort {
    let is_other = port == PORTS - 1;
    BridgePort {
        bridge: BridgeId(is_other.into()),
        domain: if is_other { OTHER_DOMAIN } else { DOMAIN },
        mac: BRIDGE,
        mtu: MTU,
        refresh_ticks: REFRESH_TICKS,
        source: SourceRule::Known,
        is_isolated: false,
        ip: [BridgedIp::Plain; 2],
        tagged: Tagged::Plain,
        suppresses_nd: false,
    }
}

/// The programs of the ports, and what they decide by.
pub(super) struct Bench {
    mode: Mode,
    pub(super) tables: Tables,
    pub(super) programs: XdpPrograms,
    loaded: Vec<Program>,
}

/// Room for some entries.
fn capacities() -> Capacities {
    let fib = Capacity { roots: 16, nodes: 1 << 10, values: 1 << 16 };
    Capacities {
        fib4: fib,
        fib6: fib,
        next_hops: 1 << 6,
        groups: 1,
        rules: 0,
        sets: fib,
        processors: 0,
        fdb_buckets: 1 << 12,
    }
}

impl Bench {
    pub(super) fn new(mode: Mode) -> Self {
        let maps = TableMaps::with_capacities(capacities()).unwrap();
        let mut tables = Tables::with_memory(&Memory::lent(Arc::new(maps)));
        let vrf = tables.add_vrf().unwrap();
        let ports: Vec<_> = (0..PORTS).map(xdp_port).collect();
        for port in &ports {
            let (id, _) = tables.add_port(port.mac.0, vrf, MTU as u16).unwrap();
            tables.set_bridge_port(id, Some(bridge_port(id.0))).unwrap();
        }
        for (bridge, port) in [(BridgeId(0), 0), (BridgeId(1), PORTS - 1)] {
            tables.add_bridge(bridge, BRIDGE, vrf, MTU as u16).unwrap();
            let id = PortId::of_bridge(bridge);
            tables.set_bridge_port(id, Some(bridge_port(port))).unwrap();
        }
        let vid = Vid::new(VID).unwrap();
        tables.add_vlan(LINKS[0], 0x8100, vid, BRIDGE, vrf, MTU as u16).unwrap();
        let vid = Vid::new(INNER_VID).unwrap();
        tables.add_vlan(TAGGED_LINK, 0x8100, vid, BRIDGE, vrf, MTU as u16).unwrap();
        let mut programs = XdpPrograms::load(&ports, &Options::default()).unwrap();
        programs.state().set_bypass(false);
        programs.use_tables(&tables).unwrap();
        for port in &ports {
            programs.state().set_exit_limit(port.port, 14 + MTU);
        }
        let load = |port: &XdpPort| programs.program(port.port, mode, true).unwrap();
        let loaded = ports.iter().map(load).collect();
        let bench = Self { mode, tables, programs, loaded };
        bench.tables.write_engines();
        for port in 0..PORTS {
            bench.learn(port, host(port));
        }
        bench
    }

    /// Enters a host behind a port, as the kernel has just learned it.
    pub(super) fn learn(&self, port: u16, mac: [u8; 6]) {
        self.enter(port, mac, FdbKind::Host, self.tick());
    }

    pub(super) fn enter(&self, port: u16, mac: [u8; 6], kind: FdbKind, tick: u32) {
        let domain = bridge_port(port).domain;
        let entry = FdbEntry { port: PortId(port), kind };
        self.tables.fdb.lock().set(key(domain, mac), entry, tick).unwrap();
    }

    /// The tick of the packets.
    pub(super) fn tick(&self) -> u32 {
        self.programs.state().beat(0);
        tollway_xdp::State::now_ns().checked_shr(26).unwrap_or(0) as u32
    }

    /// Changes a port.
    pub(super) fn set(&mut self, port: u16, change: impl FnOnce(&mut BridgePort)) {
        let mut record = bridge_port(port);
        change(&mut record);
        self.tables.set_bridge_port(PortId(port), Some(record)).unwrap();
        self.tables.write_engines();
    }

    /// Sends a frame to a port: the port that it leaves by, or why the kernel gets it.
    #[track_caller]
    pub(super) fn run(&self, port: u16, frame: &[u8]) -> Result<u16, PassReason> {
        let (port, output) = self.run_by(port, frame, |program| program.probe(frame))?;
        assert_eq!(output, frame, "no frame changes");
        Ok(port)
    }

    /// Sends a frame to a port: the port that it leaves by, and what has become of it, or why the kernel gets it.
    #[track_caller]
    pub(super) fn route(&self, port: u16, frame: &[u8]) -> Result<(u16, Vec<u8>), PassReason> {
        self.run_by(port, frame, |program| program.probe(frame))
    }

    /// The same of a super-frame, whose segments have so many bytes of payload.
    #[track_caller]
    fn run_super(&self, port: u16, frame: &[u8], segment: u32) -> Result<u16, PassReason> {
        let device = ifindex(&device(port));
        let probe = |program: &Program| program.probe_super((device, segment), frame);
        let (port, output) = self.run_by(port, frame, probe)?;
        assert_eq!(output, frame, "no frame changes");
        Ok(port)
    }

    #[track_caller]
    fn run_by(
        &self,
        port: u16,
        frame: &[u8],
        probe: impl Fn(&Program) -> io::Result<(Action, Vec<u8>)>,
    ) -> Result<(u16, Vec<u8>), PassReason> {
        // On a busy machine the heartbeat may become stale, but not each time.
        for _ in 0..10 {
            let counts = || (0..PORTS).map(|port| self.counts(port)).collect::<Vec<_>>();
            let before = counts();
            self.programs.state().beat(0);
            let (action, output) = probe(&self.loaded[usize::from(port)]).unwrap();
            let after = counts();
            let at = usize::from(port);
            let rose =
                |reason: &&PassReason| after[at].passed(**reason) > before[at].passed(**reason);
            let reason = PassReason::ALL.iter().find(rose).copied();
            let sent = |out: &u16| {
                let (before, after) = (&before[usize::from(*out)], &after[usize::from(*out)]);
                let bytes = after.xdp_tx_bytes - before.xdp_tx_bytes;
                bytes == output.len() as u64 && after.xdp_tx_packets == before.xdp_tx_packets + 1
            };
            match (action, reason) {
                (_, Some(PassReason::Stale)) => {}
                (Action::Pass, Some(reason)) => {
                    assert_eq!(output, frame, "no frame of the kernel changes");
                    return Err(reason);
                }
                (Action::Redirect, None) => {
                    let received = after[at].xdp_rx_packets - before[at].xdp_rx_packets;
                    assert_eq!(received, 1, "the frame is counted where it arrived");
                    let port = (0..PORTS).find(sent).expect("some port has sent it");
                    return Ok((port, output));
                }
                other => panic!("{other:?} for {frame:02x?}"),
            }
        }
        panic!("this machine is too busy for a heartbeat");
    }

    /// What becomes of a frame in which a sender may have left a checksum to a card: the kernel has a flag for that, which
    /// programs of XDP do not see.
    fn doubted(&self) -> Result<u16, PassReason> {
        if self.mode.is_tc() { Ok(1) } else { Err(PassReason::Checksum) }
    }

    /// Lets the device of a port take nothing.
    pub(super) fn close(&self, port: u16) {
        let state = self.programs.state();
        match self.mode.is_tc() {
            true => state.set_exit_device(PortId(port), 0),
            false => state.set_exit_limit(PortId(port), 0),
        }
    }

    fn counts(&self, port: u16) -> tollway_xdp::PortCounts {
        self.programs.counts().port(PortId(port)).unwrap()
    }
}

fn device(port: u16) -> String {
    format!("p{port}")
}

/// A port of a bridge, with a device of its own.
fn xdp_port(number: u16) -> XdpPort {
    let device = device(number);
    sh(&format!("ip link add {device} type veth peer name q{number}"));
    XdpPort {
        port: PortId(number),
        ifindex: ifindex(&device),
        device,
        mac: Mac([2, 0, 0, 0, 0, number as u8]),
        queues: 1,
        links: links_of(number),
        is_bridge_port: true,
    }
}

/// The links of a port's bridge.
fn links_of(port: u16) -> Vec<XdpLink> {
    let link = |tag, outer, link| XdpLink { tag, outer, link, kernel_path: KernelPath::default() };
    let [tag, inner] =
        [VID, INNER_VID].map(|vid| Vid::new(vid).map(|vid| (VlanProtocol::Dot1q, vid)));
    match bridge_port(port).bridge {
        BridgeId(0) => vec![
            link(None, None, LINKS[0]),
            link(tag, None, TAGGED_LINK),
            link(inner, tag, INNER_LINK),
        ],
        _ => vec![link(None, None, LINKS[1])],
    }
}

/// A frame with a packet.
pub(super) fn framed(dst: [u8; 6], src: [u8; 6], packet: &Packet) -> Vec<u8> {
    let mut frame = packet.frame();
    frame[..6].copy_from_slice(&dst);
    frame[6..12].copy_from_slice(&src);
    frame
}

/// A frame between the hosts behind two ports.
fn between(from: u16, to: u16, packet: &Packet) -> Vec<u8> {
    framed(host(to), host(from), packet)
}

/// A frame of another protocol.
fn of_protocol(protocol: u16) -> Vec<u8> {
    [header(host(1), host(0), &[], protocol), vec![0; 46]].concat()
}

pub fn addresses(mode: Mode) {
    let bench = Bench::new(mode);
    for (from, to) in [(0, 1), (1, 0), (0, 2), (2, 1)] {
        for packet in [Packet::v4(), Packet::v6()] {
            assert_eq!(bench.run(from, &between(from, to, &packet)), Ok(to));
        }
    }
    let v4 = Packet::v4();
    let run = |dst, src| bench.run(0, &framed(dst, src, &v4));
    let unknown = [2, 0, 0, 9, 9, 9];
    assert_eq!(run(host(1), unknown), Err(PassReason::BridgeSource), "the kernel learns it");
    assert_eq!(run(host(1), host(2)), Err(PassReason::BridgeSource), "it has moved");
    assert_eq!(run(unknown, host(0)), Err(PassReason::BridgeDestination), "the kernel floods it");
    assert_eq!(run(host(0), host(0)), Err(PassReason::BridgeDestination), "it stays there");
    assert_eq!(run([0xff; 6], host(0)), Err(PassReason::GroupMac));
    assert_eq!(run([1, 0x80, 0xc2, 0, 0, 0], host(0)), Err(PassReason::GroupMac));
    assert_eq!(run(host(1), [3, 0, 0, 1, 0, 0]), Err(PassReason::Malformed), "a group's source");
    assert_eq!(run(host(1), [0; 6]), Err(PassReason::Malformed));
    assert_eq!(
        run(BRIDGE, host(0)),
        Err(PassReason::KernelRoute),
        "the bridge's own, without a route"
    );
    assert_eq!(run(host(3), host(0)), Err(PassReason::BridgeDestination), "another bridge's");
    // What is said of an address changes with the database, by single stores.
    bench.enter(1, unknown, FdbKind::Host, bench.tick());
    assert_eq!(run(unknown, host(0)), Ok(1));
    bench.enter(2, unknown, FdbKind::Host, bench.tick());
    assert_eq!(run(unknown, host(0)), Ok(2));
    bench.enter(0, unknown, FdbKind::Locked, bench.tick());
    assert_eq!(run(host(1), unknown), Err(PassReason::BridgeSource), "it may not send yet");
    bench.enter(0, unknown, FdbKind::Local, bench.tick());
    assert_eq!(run(unknown, host(0)), Err(PassReason::Local));
    assert_eq!(run(host(1), unknown), Err(PassReason::BridgeSource), "the bridge itself sends it");
    assert!(bench.tables.fdb.lock().remove(key(DOMAIN, unknown)));
    assert_eq!(run(unknown, host(0)), Err(PassReason::BridgeDestination));
    bench.tables.fdb.lock().pause();
    assert_eq!(run(host(1), host(0)), Err(PassReason::BridgeSource));
    bench.tables.fdb.lock().resume();
    assert_eq!(run(host(1), host(0)), Ok(1));
}

/// More entries than the small table of the database has room for.
pub fn many(mode: Mode) {
    const COUNT: u16 = 2_000;
    let bench = Bench::new(mode);
    let mac = |number: u16| {
        let [high, low] = number.to_be_bytes();
        [2, 0, 0, 7, high, low]
    };
    for number in 0..COUNT {
        bench.learn(number % 3, mac(number));
    }
    assert!(!bench.tables.fdb.lock().is_small());
    for number in 0..COUNT {
        let (from, next) = (number % 3, (number + 1) % COUNT);
        let out = bench.run(from, &framed(mac(next), mac(number), &Packet::v4()));
        assert_eq!(out.ok(), Some(next % 3).filter(|to| *to != from), "{number}");
        if next % 3 == from {
            assert_eq!(out, Err(PassReason::BridgeDestination));
        }
    }
}

pub fn refreshes(mode: Mode) {
    let bench = Bench::new(mode);
    let frame = between(0, 1, &Packet::v4());
    let tick = bench.tick();
    // The time from which on an entry is due, and the last one before, with a tick to spare.
    bench.enter(0, host(0), FdbKind::Host, tick.wrapping_sub(REFRESH_TICKS - 10));
    assert_eq!(bench.run(0, &frame), Ok(1));
    bench.enter(0, host(0), FdbKind::Host, tick.wrapping_sub(REFRESH_TICKS));
    assert_eq!(bench.run(0, &frame), Err(PassReason::BridgeRefresh), "the kernel sees one frame");
    assert_eq!(bench.run(0, &frame), Ok(1), "and no more for a while");
    // Where the other entry is from does not matter.
    bench.enter(1, host(1), FdbKind::Host, tick.wrapping_sub(REFRESH_TICKS));
    assert_eq!(bench.run(0, &frame), Ok(1));
}

pub fn settings(mode: Mode) {
    let mut bench = Bench::new(mode);
    let (v4, v6) = (between(0, 1, &Packet::v4()), between(0, 1, &Packet::v6()));
    let unknown = framed(host(1), [2, 0, 0, 9, 9, 9], &Packet::v4());
    bench.set(0, |port| port.source = SourceRule::Any);
    assert_eq!(bench.run(0, &unknown), Ok(1), "the port does not learn");
    bench.set(0, |port| port.is_isolated = true);
    assert_eq!(bench.run(0, &v4), Ok(1));
    bench.set(1, |port| port.is_isolated = true);
    assert_eq!(bench.run(0, &v4), Err(PassReason::BridgePort), "both are isolated");
    assert_eq!(bench.run(2, &between(2, 1, &Packet::v4())), Ok(1));
    bench.set(0, |port| port.ip = [BridgedIp::Kernel, BridgedIp::Plain]);
    assert_eq!((bench.run(0, &v4), bench.run(0, &v6)), (Err(PassReason::Offload), Ok(1)));
    bench.set(0, |port| port.ip = [BridgedIp::Plain, BridgedIp::Kernel]);
    assert_eq!((bench.run(0, &v4), bench.run(0, &v6)), (Ok(1), Err(PassReason::Offload)));
    bench.set(0, |port| port.mac = host(1));
    assert_eq!(bench.run(0, &v4), Err(PassReason::KernelRoute), "the bridge has this address now");
    bench.set(0, |_| {});
    bench.set(1, |port| port.bridge = BridgeId(7));
    assert_eq!(bench.run(0, &v4), Err(PassReason::BridgePort), "it has gone to another bridge");
    bench.set(1, |_| {});
    for gone in [0, 1] {
        bench.tables.set_bridge_port(PortId(gone), None).unwrap();
        bench.tables.write_engines();
        assert_eq!(bench.run(0, &v4), Err(PassReason::BridgePort), "{gone} does not forward");
        bench.set(gone, |_| {});
        assert_eq!(bench.run(0, &v4), Ok(1));
    }
    bench.close(1);
    assert_eq!(bench.run(0, &v4), Err(PassReason::BridgePort), "its device takes nothing");
}

pub fn content(mode: Mode) {
    let mut bench = Bench::new(mode);
    let tagged = |tags: &[(u16, u16)]| between(0, 1, &Packet::v4().tagged(tags));
    assert_eq!(bench.run(0, &tagged(&[(0x8100, 10)])), Ok(1));
    assert_eq!(bench.run(0, &tagged(&[(0x88a8, 10)])), Ok(1));
    let two = tagged(&[(0x88a8, 10), (0x8100, 11)]);
    assert_eq!(bench.run(0, &two), bench.doubted());
    for of_bridge in [0x0806, 0x8035, 0x88e3, 0x8902] {
        assert_eq!(bench.run(0, &of_protocol(of_bridge)), Err(PassReason::Ethertype));
    }
    // A veth may have left a checksum in it to its peer.
    assert_eq!(bench.run(0, &of_protocol(0x8847)), bench.doubted());
    let sized = |payload| between(0, 1, &Packet { payload, ..Packet::v4() });
    assert_eq!(bench.run(0, &sized(MTU as usize - 28)), Ok(1));
    assert_eq!(bench.run(0, &sized(MTU as usize - 27)), Err(PassReason::BridgePort));
    bench.set(0, |port| port.tagged = Tagged::Kernel);
    assert_eq!(bench.run(0, &tagged(&[(0x8100, 10)])), Err(PassReason::Offload));
    bench.set(0, |port| port.suppresses_nd = true);
    let nd = between(0, 1, &Packet { protocol: ICMP6, ..Packet::v6() });
    assert_eq!(bench.run(0, &nd), Err(PassReason::Offload), "the bridge may answer it");
    assert_eq!(bench.run(0, &between(0, 1, &Packet::v6())), Ok(1));
    // As br_netfilter: what it would drop or cut off is the kernel's, which does so.
    bench.set(0, |port| port.ip = [BridgedIp::Validated; 2]);
    let padded = |packet: &Packet| [between(0, 1, packet), vec![0]].concat();
    let broken = |packet: &Packet, at: usize| {
        let mut frame = between(0, 1, packet);
        frame[at] ^= 0x10;
        frame
    };
    for packet in [Packet::v4(), Packet::v6()] {
        assert_eq!(bench.run(0, &between(0, 1, &packet)), Ok(1));
        assert_eq!(bench.run(0, &padded(&packet)), Err(PassReason::Offload));
        assert_eq!(bench.run(0, &broken(&packet, 14)), Err(PassReason::Offload), "its version");
    }
    assert_eq!(bench.run(0, &broken(&Packet::v4(), 24)), Err(PassReason::Offload), "its sum");
    let options = between(0, 1, &Packet { options: 4, ..Packet::v4() });
    assert_eq!(bench.run(0, &options), Err(PassReason::Offload));
    let hop_by_hop = between(0, 1, &Packet { protocol: 0, ..Packet::v6() });
    assert_eq!(bench.run(0, &hop_by_hop), Err(PassReason::Offload));
    assert_eq!(bench.run(0, &padded(&Packet::v4().tagged(&[(0x8100, 10)]))), Ok(1), "not in VLANs");
    // The kernel hands no such frames to programs of tc here.
    let lens = if mode.is_tc() { &[][..] } else { &[14, 17, 33] };
    for &len in lens {
        let cut = &between(0, 1, &Packet::v4())[..len];
        assert_eq!(bench.run(0, cut), Err(PassReason::Malformed), "{len} bytes");
    }
}

/// A super-frame leaves whatever its length is (`is_skb_forwardable`).
pub fn super_frames() {
    let mut bench = Bench::new(Mode::Tcx);
    let long = between(0, 1, &Packet { payload: 3000, ..Packet::v4() });
    assert_eq!(bench.run(0, &long), Err(PassReason::BridgePort));
    assert_eq!(bench.run_super(0, &long, 1400), Ok(1));
    bench.set(0, |port| port.ip = [BridgedIp::Validated; 2]);
    assert_eq!(bench.run_super(0, &long, 1400), Ok(1));
    bench.set(1, |port| port.is_isolated = true);
    bench.set(0, |port| port.is_isolated = true);
    assert_eq!(bench.run_super(0, &long, 1400), Err(PassReason::BridgePort));
}

/// What leaves by a device whose frames the kernel makes is the kernel's, where it arrives by XDP.
pub fn between_engines() {
    let bench = Bench::new(Mode::Native);
    bench.programs.state().set_exit_limit(PortId(1), u32::MAX);
    let frame = between(0, 1, &Packet::v4());
    assert_eq!(bench.run(0, &frame), Err(PassReason::KernelExit), "no tc program is beside");
}
