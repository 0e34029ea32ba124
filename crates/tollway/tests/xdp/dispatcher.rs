//! Tests where frames go that the XDP path does not take.

#![allow(unsafe_code)]

use std::net::{TcpListener, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use tollway_dataplane::id::PortId;
use tollway_net::Mac;
use tollway_xdp::counts::PassReason;
use tollway_xdp::{Action, Mode, Ruled, XdpError};

use super::frames::{Bench, ICMP, OURS, Packet, TCP, THEIRS, header, port, sign};

/// The reason for packets of the user path: no socket is here, so they pass to the kernel.
const USER: PassReason = PassReason::NoSocket;

/// Returns the frame of a changed packet.
fn with(packet: Packet, change: impl FnOnce(&mut Packet)) -> Vec<u8> {
    let mut packet = packet;
    change(&mut packet);
    packet.frame()
}

/// Returns the changed frame of a packet.
fn edit(packet: &Packet, change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut frame = packet.frame();
    change(&mut frame);
    frame
}

/// Cases that differ in Ethernet header and tags.
fn ethernet_cases() -> Vec<(&'static str, Vec<u8>, PassReason)> {
    let to = |mac: [u8; 6]| edit(&Packet::v4(), |frame| frame[..6].copy_from_slice(&mac));
    let arp = |tags: &[(u16, u16)]| [header(OURS, THEIRS, tags, 0x0806), vec![0; 46]].concat();
    let v4 = |tags: &[(u16, u16)]| Packet::v4().tagged(tags).frame();
    let v6 = |tags: &[(u16, u16)]| Packet::v6().tagged(tags).frame();
    vec![
        ("another's", to([2, 0, 0, 0, 0, 0x0b]), PassReason::NotOursMac),
        ("another's, by its first bytes", to([2, 0, 0, 1, 0, 0x0a]), PassReason::NotOursMac),
        ("everyone's", to([0xff; 6]), PassReason::GroupMac),
        ("a group's", to([1, 0, 0x5e, 0, 0, 5]), PassReason::GroupMac),
        ("ARP", arp(&[]), PassReason::Ethertype),
        ("ARP in a VLAN", arp(&[(0x8100, 10)]), PassReason::Ethertype),
        ("no packet at all", header(OURS, THEIRS, &[], 0x0800), PassReason::Malformed),
        ("half a tag", header(OURS, THEIRS, &[], 0x8100), PassReason::Malformed),
        ("VLAN 10", v4(&[(0x8100, 10)]), USER),
        ("VLAN 10 with a priority", v4(&[(0x8100, 0x600a)]), USER),
        ("VLAN 10, IPv6", v6(&[(0x8100, 10)]), USER),
        ("VLAN 11", v4(&[(0x8100, 11)]), PassReason::VlanUnknown),
        ("VLAN 11, IPv6", v6(&[(0x8100, 11)]), PassReason::VlanUnknown),
        ("VLAN 10 of the other kind", v4(&[(0x88a8, 10)]), PassReason::VlanUnknown),
        ("802.1ad 20", v4(&[(0x88a8, 20)]), USER),
        ("a priority tag", v4(&[(0x8100, 0xe000)]), USER),
        ("a priority tag of the other kind", v4(&[(0x88a8, 0xe000)]), USER),
        ("two tags", v4(&[(0x88a8, 20), (0x8100, 99)]), USER),
        ("two tags on nothing", v4(&[(0x88a8, 21), (0x8100, 10)]), PassReason::VlanUnknown),
    ]
}

fn ipv4_cases() -> Vec<(&'static str, Vec<u8>, PassReason)> {
    let v4 = Packet::v4;
    let to = |dst| Packet::new("10.0.1.2", dst).frame();
    let byte = |at: usize, value: u8| {
        edit(&v4(), |frame| {
            frame[14 + at] = value;
            sign(&mut frame[14..34]);
        })
    };
    vec![
        ("in transit", v4().frame(), USER),
        ("ICMP in transit", with(v4(), |packet| packet.protocol = ICMP), USER),
        ("to the router", to("10.0.1.1"), PassReason::Local),
        ("to a group", to("224.0.0.5"), PassReason::Special),
        ("to everyone", to("255.255.255.255"), PassReason::Special),
        ("to class E", to("240.0.0.1"), PassReason::Special),
        ("to this host", to("127.0.0.1"), PassReason::Special),
        ("to nothing", to("0.0.0.0"), PassReason::Special),
        ("to 169.254", to("169.254.7.7"), PassReason::LinkLocal),
        ("to 169.255", to("169.255.7.7"), USER),
        ("TTL 0", with(v4(), |packet| packet.ttl = 0), PassReason::Ttl),
        ("TTL 1", with(v4(), |packet| packet.ttl = 1), PassReason::Ttl),
        ("TTL 2", with(v4(), |packet| packet.ttl = 2), USER),
        (
            "to the router, TTL 1",
            with(Packet::new("10.0.1.2", "10.0.1.1"), |packet| {
                packet.ttl = 1;
            }),
            PassReason::Local,
        ),
        ("options", with(v4(), |packet| packet.options = 4), PassReason::Options),
        (
            "options, to the router",
            with(Packet::new("10.0.1.2", "10.0.1.1"), |packet| {
                packet.options = 40;
            }),
            PassReason::Local,
        ),
        ("a first fragment", with(v4(), |packet| packet.fragment = 0x2000), USER),
        ("a last fragment", with(v4(), |packet| packet.fragment = 0x0010), USER),
        ("version 5", byte(0, 0x55), PassReason::Malformed),
        ("a header of 16 bytes", byte(0, 0x44), PassReason::Malformed),
        ("shorter than its header", byte(3, 19), PassReason::Malformed),
        ("longer than the frame", byte(3, 47), PassReason::Malformed),
        ("much longer than the frame", byte(2, 0xff), PassReason::Malformed),
        ("half a header", v4().frame()[..33].to_vec(), PassReason::Malformed),
        (
            "half a header, tagged",
            v4().tagged(&[(0x8100, 10)]).frame()[..37].to_vec(),
            PassReason::Malformed,
        ),
        // The user path drops it, with a reason that names the fault.
        ("a wrong checksum", edit(&v4(), |frame| frame[24] ^= 1), USER),
        ("padding", edit(&v4(), |frame| frame.extend([0; 4])), USER),
        ("9,000 bytes", with(v4(), |packet| packet.payload = 8972), USER),
        (
            "9,000 bytes, one missing",
            edit(&with_payload(8972), |frame| _ = frame.pop()),
            PassReason::Malformed,
        ),
    ]
}

fn with_payload(payload: usize) -> Packet {
    Packet { payload, ..Packet::v4() }
}

fn ipv6_cases() -> Vec<(&'static str, Vec<u8>, PassReason)> {
    let v6 = Packet::v6;
    let to = |dst| Packet::new("fd00:1::2", dst).frame();
    let next = |protocol| with(v6(), |packet| packet.protocol = protocol);
    vec![
        ("in transit", v6().frame(), USER),
        ("to the router", to("fd00:1::1"), PassReason::Local),
        ("beside the router", to("fd00:1::3"), USER),
        ("to a group", to("ff02::1"), PassReason::Special),
        ("to a wide group", to("ff0e::1"), PassReason::Special),
        ("to this host", to("::1"), PassReason::Special),
        ("to nothing", to("::"), PassReason::Special),
        ("nearly to nothing", to("::2"), USER),
        ("to a link-local address", to("fe80::1"), PassReason::LinkLocal),
        ("to the end of link-local", to("febf::1"), PassReason::LinkLocal),
        ("to behind link-local", to("fec0::1"), USER),
        (
            "from a link-local address",
            Packet::new("fe80::1", "fd00:2::2").frame(),
            PassReason::LinkLocal,
        ),
        ("hop limit 1", with(v6(), |packet| packet.ttl = 1), PassReason::Ttl),
        ("hop limit 2", with(v6(), |packet| packet.ttl = 2), USER),
        ("hop-by-hop options", next(0), PassReason::Options),
        ("a routing header", next(43), USER),
        ("a fragment", next(44), USER),
        ("version 5", edit(&v6(), |frame| frame[14] = 0x50), PassReason::Malformed),
        ("longer than the frame", edit(&v6(), |frame| frame[19] += 1), PassReason::Malformed),
        ("half a header", v6().frame()[..53].to_vec(), PassReason::Malformed),
        ("9,000 bytes", with(v6(), |packet| packet.payload = 8952), USER),
    ]
}

pub fn reasons() {
    for (mode, xdp_path) in [(Mode::Native, false), (Mode::Native, true), (Mode::Generic, true)] {
        let mut bench = Bench::new(mode, xdp_path);
        let mut seen = Vec::new();
        for (what, frame, reason) in
            [ethernet_cases(), ipv4_cases(), ipv6_cases()].into_iter().flatten()
        {
            // In generic mode the sender of a packet may have left its checksum to a network card.
            let reason = match what {
                "hop-by-hop options" | "a routing header" if mode == Mode::Generic => {
                    PassReason::Checksum
                }
                _ => reason,
            };
            assert_eq!(bench.passes(&frame), reason, "{what} ({mode:?}, XDP path {xdp_path})");
            seen.push(reason);
        }
        for reason in PassReason::ALL {
            use PassReason::{
                BridgeDestination, BridgePort, BridgeRefresh, BridgeSource, Bypass, Checksum,
                Connection, Crowded, KernelExit, KernelFlow, KernelRoute, KernelRule, MtuExceeded,
                NeighUnresolved, Offload, Punted, Stale, Undecided,
            };
            let has_others = matches!(
                reason,
                Bypass
                    | BridgePort
                    | BridgeSource
                    | BridgeRefresh
                    | BridgeDestination
                    | Stale
                    | Punted
                    | Offload
                    | KernelFlow
                    | Crowded
                    | MtuExceeded
                    | Checksum
                    | Connection
                    | KernelRoute
                    | KernelRule
                    | KernelExit
                    | NeighUnresolved
                    // Of the tc program.
                    | Undecided
            );
            assert!(
                seen.contains(&reason) || has_others,
                "{} has no frame here (the others have tests of their own)",
                reason.name()
            );
        }
    }
}

/// A firewall in user space evaluates packets that would otherwise take the kernel path.
pub fn ruled() {
    let mut bench = Bench::new(Mode::Native, true);
    let state = bench.programs.state();
    let options = with(Packet::v4(), |packet| packet.options = 4);
    for (ruled, reason) in [
        (Ruled::Not, PassReason::Options),
        (Ruled::FailOpen, USER),
        (Ruled::Not, PassReason::Options),
    ] {
        state.set_ruled(ruled);
        assert_eq!(bench.passes(&options), reason, "{ruled:?}");
        assert_eq!(bench.passes(&Packet::v4().frame()), USER);
    }
}

/// With rules that the kernel does not know, while no worker can evaluate them, packets to be
/// forwarded are dropped. All others take the kernel path as usual.
pub fn closed() {
    let mut bench = Bench::new(Mode::Native, true);
    let state = bench.programs.state();
    let options = with(Packet::v4(), |packet| packet.options = 4);
    let cases = [ethernet_cases(), ipv4_cases(), ipv6_cases()].concat();
    for (ruled, closed) in [(Ruled::FailOpen, false), (Ruled::FailClosed, true)] {
        state.set_ruled(ruled);
        state.set_bypass(true);
        assert_eq!(bench.run(&options).0, if closed { Action::Drop } else { Action::Pass });
        for (what, frame, reason) in &cases {
            let dropped =
                |bench: &Bench| bench.programs.counts().port(PortId(0)).unwrap().closed_packets;
            let before = dropped(&bench);
            let (action, output, _) = bench.run(frame);
            let is_dropped = closed && [USER, PassReason::Options].contains(reason);
            assert_eq!(action, if is_dropped { Action::Drop } else { Action::Pass }, "{what}");
            assert_eq!(dropped(&bench) - before, u64::from(is_dropped), "{what}");
            assert_eq!(output, *frame, "{what}");
        }
        state.set_bypass(false);
    }
    // First there is no heartbeat, then no socket.
    std::thread::sleep(Duration::from_millis(60));
    assert_eq!(bench.run_as_it_is(&Packet::v4().frame()).0, Action::Drop);
    assert_eq!(bench.run(&Packet::v4().frame()).0, Action::Drop);
    state.set_ruled(Ruled::Not);
    assert_eq!(bench.passes(&Packet::v4().frame()), USER);
}

/// Workers get what comes for own addresses that their rules translate, whatever its TTL. Without a worker, the host gets
/// what it has a socket for; it would reset the other connections.
pub fn translated() {
    let sockets = (UdpSocket::bind("[::]:2000").unwrap(), TcpListener::bind("[::]:2000").unwrap());
    let mut bench = Bench::new(Mode::Native, true);
    let state = bench.programs.state();
    let own = ["10.0.1.1", "fd00:1::1"].map(|address| address.parse().unwrap());
    let to_own = [Packet::new("10.0.1.2", "10.0.1.1"), Packet::new("fd00:1::2", "fd00:1::1")];
    state.set_ruled(Ruled::FailClosed);
    for translated in [&own[..0], &own[..1], &own[..]] {
        bench.programs.set_locals_with(&own, translated).unwrap();
        for (number, packet) in to_own.iter().enumerate() {
            let reason = if number < translated.len() { USER } else { PassReason::Local };
            assert_eq!(bench.passes(&packet.frame()), reason);
            assert_eq!(bench.passes(&with(packet.clone(), |packet| packet.ttl = 1)), reason);
        }
        // A worker would get it, but there is no socket.
        assert_eq!(bench.run(&Packet::v4().frame()).0, Action::Drop);
    }
    let mut sockets = Some(sockets);
    let kinds = to_own.iter().flat_map(|packet| {
        [TCP, packet.protocol, ICMP].map(|protocol| Packet { protocol, ..packet.clone() })
    });
    let kinds: Vec<Packet> = kinds.collect();
    for has_sockets in [true, false] {
        for packet in &kinds {
            let is_hosts = has_sockets || packet.protocol == ICMP;
            let action = if is_hosts { Action::Pass } else { Action::Drop };
            let frame = packet.frame();
            assert_eq!(bench.run(&frame).0, action, "{packet:?}: no socket of a worker");
            state.set_bypass(true);
            assert_eq!(bench.run(&frame).0, action, "{packet:?}: the bypass");
            state.set_bypass(false);
            assert_eq!(bench.run(&Packet::v4().frame()).0, Action::Drop, "what is for others");
        }
        drop(sockets.take());
    }
    std::thread::sleep(Duration::from_millis(120));
    for packet in &kinds {
        let action = if packet.protocol == ICMP { Action::Pass } else { Action::Drop };
        assert_eq!(bench.run_as_it_is(&packet.frame()).0, action, "{packet:?}: nobody");
    }
}

/// At a crowded port, packets without a flow take the kernel path, unless only user space knows the rules.
pub fn crowded() {
    let mut bench = Bench::new(Mode::Native, true);
    let state = bench.programs.state();
    for (is_crowded, v4, v6) in [
        ((true, false), PassReason::Crowded, USER),
        ((false, true), USER, PassReason::Crowded),
        ((false, false), USER, USER),
    ] {
        state.set_crowded(PortId(0), is_crowded);
        state.set_crowded(PortId(1), (true, true));
        assert_eq!(bench.passes(&Packet::v4().frame()), v4);
        assert_eq!(bench.passes(&Packet::v6().frame()), v6);
    }
    // The kernel would forward them without the rules that only user space knows.
    state.set_crowded(PortId(0), (true, true));
    state.set_ruled(Ruled::FailOpen);
    assert_eq!(bench.passes(&Packet::v4().frame()), USER);
    assert_eq!(bench.passes(&Packet::v6().frame()), USER);
}

pub fn no_heartbeat() {
    let mut bench = Bench::new(Mode::Native, true);
    let frame = Packet::v4().frame();
    let state = bench.programs.state();
    assert_eq!(bench.run_as_it_is(&frame).2, Some(PassReason::Stale), "never a heartbeat");
    assert_eq!(bench.passes(&frame), USER);
    std::thread::sleep(Duration::from_millis(60));
    assert_eq!(bench.run_as_it_is(&frame).2, Some(PassReason::Stale), "60 ms without a heartbeat");
    assert_eq!(bench.passes(&frame), USER, "alive again");
    state.set_bypass(true);
    assert_eq!(bench.passes(&frame), PassReason::Bypass);
    state.set_bypass(false);
    assert_eq!(bench.passes(&frame), USER);
    // A worker sleeps for at most this time, unless the machine makes it sleep longer.
    let mut rounds = 0;
    for _ in 0..50 {
        let start = Instant::now();
        state.beat(0);
        std::thread::sleep(Duration::from_millis(8));
        let (_, _, reason) = bench.run_as_it_is(&frame);
        if start.elapsed() < Duration::from_millis(14) {
            assert_eq!(reason, Some(USER), "8 ms old is fresh");
            rounds += 1;
        }
    }
    assert!(rounds > 0, "this machine never slept for 8 ms only");
}

/// Makes an AF_XDP socket that has only a receive ring.
pub fn xdp_socket() -> OwnedFd {
    // SAFETY: the call takes numbers only.
    let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the descriptor is new, and nothing else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let entries = 64_u32;
    let pointer: *const u32 = &raw const entries;
    let (level, option) = (libc::SOL_XDP, libc::XDP_RX_RING);
    // SAFETY: the kernel reads four bytes, which outlive the call.
    let set = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, pointer.cast(), 4) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
    socket
}

pub fn sockets() {
    let mut bench = Bench::new(Mode::Native, true);
    let (socket, frame) = (xdp_socket(), Packet::v4().frame());
    bench.programs.set_socket(PortId(0), 1, socket.as_fd()).unwrap();
    assert_eq!(bench.passes(&frame), USER, "another queue's socket");
    bench.programs.set_socket(PortId(0), 0, socket.as_fd()).unwrap();
    for (what, frame, reason) in [ethernet_cases(), ipv4_cases(), ipv6_cases()].concat() {
        let to_user = bench.programs.counts().port(PortId(0)).unwrap().to_user;
        let (action, output, passed) = bench.run(&frame);
        let got = bench.programs.counts().port(PortId(0)).unwrap().to_user - to_user;
        if reason == USER {
            assert_eq!((action, passed, got), (Action::Redirect, None, 1), "{what}");
        } else {
            assert_eq!((action, passed, got), (Action::Pass, Some(reason), 0), "{what}");
        }
        assert_eq!(output, frame, "{what}");
    }
    bench.programs.clear_socket(PortId(0), 0).unwrap();
    assert_eq!(bench.passes(&frame), USER, "no socket any more");
    assert!(matches!(
        bench.programs.set_socket(PortId(0), 128, socket.as_fd()),
        Err(XdpError::TooMany { .. })
    ));
    assert!(matches!(
        bench.programs.set_socket(PortId(9), 0, socket.as_fd()),
        Err(XdpError::NoPort(9))
    ));
}

pub fn changes() {
    let mut bench = Bench::new(Mode::Native, true);
    let generation = bench.programs.state().generation();
    bench.programs.set_locals(&["10.0.2.2".parse().unwrap()]).unwrap();
    assert_ne!(bench.programs.state().generation(), generation, "flows to there are void");
    assert_eq!(bench.passes(&Packet::v4().frame()), PassReason::Local);
    assert_eq!(bench.passes(&Packet::new("10.0.1.2", "10.0.1.1").frame()), USER);
    assert_eq!(bench.passes(&Packet::new("fd00:1::2", "fd00:1::1").frame()), USER);

    let mut changed = port();
    changed.links.remove(1);
    bench.programs.set_port(changed.clone()).unwrap();
    let tagged = Packet::new("10.0.1.2", "10.9.9.9").tagged(&[(0x8100, 10)]).frame();
    assert_eq!(bench.passes(&tagged), PassReason::VlanUnknown);
    bench.programs.set_port(port()).unwrap();
    assert_eq!(bench.passes(&tagged), USER);

    changed.mac = Mac([2, 0, 0, 0, 0, 0x0c]);
    bench.programs.set_port(changed).unwrap();
    bench.program = bench.programs.program(PortId(0), Mode::Native, true).unwrap();
    assert_eq!(bench.passes(&Packet::v4().frame()), PassReason::NotOursMac);
    bench.programs.remove_port(PortId(0));
    assert!(bench.programs.program(PortId(0), Mode::Native, true).is_err());

    let mut many = port();
    many.port = PortId(64);
    assert!(matches!(bench.programs.set_port(many), Err(XdpError::TooMany { .. })));
    let mut lost = port();
    (lost.ifindex, lost.device) = (4711, "eth99".to_owned());
    let error = bench.programs.set_port(lost).unwrap_err().to_string();
    assert_eq!(error, "there is no network interface eth99");
}
