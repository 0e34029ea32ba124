//! Tests which packets the XDP path takes, and what it changes in them.

use std::net::IpAddr;

use tollway_dataplane::id::{LinkId, PortId};
use tollway_dataplane::wire::{checksum, word32};
use tollway_net::KernelPath;
use tollway_xdp::counts::PassReason;
use tollway_xdp::flows::{Flow, Flow4Key, Flow6Key, TO_KERNEL};
use tollway_xdp::{Action, FlowMaps, Mode, Ruled};

use super::frames::{Bench, ICMP, ICMP6, Packet, TCP, UDP, header, port, sign};

/// Returns the new Ethernet header for packets of the XDP path, with these tags.
pub fn new_header(tags: &[(u16, u16)], ethertype: u16) -> Vec<u8> {
    header([2, 0, 0, 0, 2, 2], [2, 0, 0, 0, 0, 0x0b], tags, ethertype)
}

pub fn flow(bench: &Bench, l2: &[u8]) -> Flow {
    let mut flow = Flow {
        generation: bench.programs.state().generation(),
        mtu: 1500,
        egress_port: 0,
        l2_len: l2.len() as u8,
        ..Flow::default()
    };
    flow.l2[..l2.len()].copy_from_slice(l2);
    flow
}

/// Enters a packet's flow as one that comes in on a link.
pub fn enter(flows: &FlowMaps, link: u16, packet: &Packet, flow: &Flow) {
    let ports = if [TCP, UDP].contains(&packet.protocol) { packet.ports } else { (0, 0) };
    let link = LinkId(link);
    match (packet.src, packet.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let key = Flow4Key::new(link, packet.protocol, (src, ports.0), (dst, ports.1));
            flows.insert4(&[key], &[*flow]);
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let key = Flow6Key::new(link, packet.protocol, (src, ports.0), (dst, ports.1));
            flows.insert6(&[key], &[*flow]);
        }
        _ => panic!("one family"),
    }
}

fn entries(flows: &FlowMaps) -> Vec<Flow> {
    let mut all = Vec::new();
    flows.each4(|_, flow| all.push(*flow));
    flows.each6(|_, flow| all.push(*flow));
    all
}

/// Returns the frame as a router forwards it: a new header, a TTL less by one, a new checksum.
fn forwarded(packet: &Packet, l2: &[u8]) -> Vec<u8> {
    let mut after = packet.clone();
    after.ttl -= 1;
    let frame = after.frame();
    [l2, &frame[packet.l3()..]].concat()
}

pub fn rewrites() {
    let mut bench = Bench::new(Mode::Native, true);
    let flows = bench.programs.flows();
    let arrivals: [(&[(u16, u16)], u16); 4] =
        [(&[], 7), (&[(0x8100, 10)], 8), (&[(0x88a8, 20)], 9), (&[(0x8100, 0xe000)], 7)];
    let departures: [&[(u16, u16)]; 3] = [&[], &[(0x8100, 30)], &[(0x88a8, 40), (0x8100, 50)]];
    for (arrival, link) in arrivals {
        for departure in departures {
            for (mut packet, protocol) in [
                (Packet::v4(), TCP),
                (Packet::v4(), UDP),
                (Packet::v4(), ICMP),
                (Packet::v6(), TCP),
                (Packet::v6(), UDP),
                (Packet::v6(), ICMP6),
            ] {
                packet = packet.tagged(arrival);
                packet.protocol = protocol;
                let ethertype = if packet.src.is_ipv4() { 0x0800 } else { 0x86dd };
                let l2 = new_header(departure, ethertype);
                enter(&flows, link, &packet, &flow(&bench, &l2));
                let before = bench.programs.counts().port(PortId(0)).unwrap();
                for (payload, ttl) in [(0, 255), (18, 64), (19, 2), (1451, 3)] {
                    (packet.payload, packet.ttl) = (payload, ttl);
                    let (action, output, reason) = bench.run(&packet.frame());
                    let what = format!("{packet:?} to {departure:?}");
                    assert_eq!((action, reason), (Action::Redirect, None), "{what}");
                    assert_eq!(output, forwarded(&packet, &l2), "{what}");
                }
                let after = bench.programs.counts().port(PortId(0)).unwrap();
                let bytes = 4 * (packet.frame().len() - packet.payload) + 18 + 19 + 1451;
                let sent = bytes - 4 * packet.l3() + 4 * l2.len();
                assert_eq!(after.xdp_rx_packets - before.xdp_rx_packets, 4);
                assert_eq!(after.xdp_tx_packets - before.xdp_tx_packets, 4);
                assert_eq!(after.xdp_rx_bytes - before.xdp_rx_bytes, bytes as u64);
                assert_eq!(after.xdp_tx_bytes - before.xdp_tx_bytes, sent as u64);
                let counted = entries(&flows);
                let of_flow = |flow: &&Flow| (flow.packets, flow.bytes) == (4, bytes as u64);
                assert!(counted.iter().any(|flow| of_flow(&flow)), "{counted:?}");
            }
        }
    }
}

/// Compares each of the 65,536 checksums of a header with the arithmetic of the user path.
pub fn checksums() {
    let mut bench = Bench::new(Mode::Native, true);
    let flows = bench.programs.flows();
    let l2 = new_header(&[], 0x0800);
    let mut packet = Packet::v4();
    enter(&flows, 7, &packet, &flow(&bench, &l2));
    for ident in 0..=u16::MAX {
        (packet.ident, packet.ttl) = (ident, 2 + (ident % 254) as u8);
        let frame = packet.frame();
        let (action, output, _) = bench.run(&frame);
        assert_eq!(action, Action::Redirect, "identifier {ident}");
        let was = word32(frame[14..34].first_chunk::<20>().unwrap(), 8);
        let is = word32(output[14..34].first_chunk::<20>().unwrap(), 8);
        assert_eq!(is, checksum::after_ttl_decrement(was), "identifier {ident}");
        assert_eq!(checksum::sum(&output[14..34]), 0xffff, "identifier {ident}");
    }
    let mut frame = packet.frame();
    let right = u16::from_be_bytes([frame[24], frame[25]]);
    for wrong in (0..=u16::MAX).filter(|sum| *sum != right) {
        frame[24..26].copy_from_slice(&wrong.to_be_bytes());
        assert_eq!(bench.passes(&frame), PassReason::NoSocket, "{wrong:#06x} for {right:#06x}");
    }
}

/// A change to a packet of a flow.
type Change = fn(&mut Packet);

/// Packets that do not belong to the flow: the lookup finds another flow, or none.
const OTHERS: [(&str, Change, PassReason); 14] = [
    ("another source", |p| p.src = other(p.src), PassReason::NoSocket),
    ("another destination", |p| p.dst = other(p.dst), PassReason::NoSocket),
    ("another source port", |p| p.ports.0 += 1, PassReason::NoSocket),
    ("another destination port", |p| p.ports.1 += 1, PassReason::NoSocket),
    ("ports exchanged", |p| p.ports = (p.ports.1, p.ports.0), PassReason::NoSocket),
    ("another protocol", |p| p.protocol = TCP, PassReason::NoSocket),
    ("a protocol without an XDP path", |p| p.protocol = 47, PassReason::NoSocket),
    ("another link", |p| p.tags = vec![(0x8100, 10)], PassReason::NoSocket),
    ("one more tag", |p| p.tags = vec![(0x8100, 10), (0x8100, 10)], PassReason::NoSocket),
    ("an unknown link", |p| p.tags = vec![(0x8100, 11)], PassReason::VlanUnknown),
    ("TTL 1", |p| p.ttl = 1, PassReason::Ttl),
    ("TTL 0", |p| p.ttl = 0, PassReason::Ttl),
    ("a byte too many for the MTU", |p| p.payload = 1500, PassReason::MtuExceeded),
    ("nine thousand bytes", |p| p.payload = 8900, PassReason::MtuExceeded),
];

/// Returns an address next to this one.
fn other(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(v4) => IpAddr::V4((u32::from(v4) + 1).into()),
        IpAddr::V6(v6) => IpAddr::V6((u128::from(v6) + 1).into()),
    }
}

pub fn conditions() {
    let mut bench = Bench::new(Mode::Native, true);
    let flows = bench.programs.flows();
    for packet in [Packet::v4(), Packet::v6()] {
        let ethertype = if packet.src.is_ipv4() { 0x0800 } else { 0x86dd };
        let good = flow(&bench, &new_header(&[], ethertype));
        let taken = |bench: &mut Bench, frame: &[u8]| bench.run(frame).0 == Action::Redirect;
        enter(&flows, 7, &packet, &good);
        for (what, change, reason) in OTHERS {
            let mut changed = packet.clone();
            change(&mut changed);
            assert_eq!(bench.passes(&changed.frame()), reason, "{what}");
            assert!(taken(&mut bench, &packet.frame()), "{what}, undone");
        }
        for (what, bad) in [
            ("the generation before", Flow { generation: good.generation - 1, ..good }),
            ("the generation after", Flow { generation: good.generation + 1, ..good }),
            ("a device that is no way out", Flow { egress_port: 9, ..good }),
            ("a header of 15 bytes", Flow { l2_len: 15, ..good }),
            ("no header", Flow { l2_len: 0, ..good }),
        ] {
            enter(&flows, 7, &packet, &bad);
            assert_eq!(bench.passes(&packet.frame()), PassReason::NoSocket, "{what}");
        }
        // The kernel fragments the packet, or sends an error. It may not do so if it does not know
        // the rules.
        let state = bench.programs.state();
        let small = Flow { mtu: packet_len(&packet) - 1, ..good };
        let kernels = Flow { egress_port: TO_KERNEL, mtu: u16::MAX, ..good };
        for (flow, reason) in [(small, PassReason::MtuExceeded), (kernels, PassReason::KernelFlow)]
        {
            enter(&flows, 7, &packet, &flow);
            assert_eq!(bench.passes(&packet.frame()), reason);
        }
        enter(&flows, 7, &packet, &small);
        state.set_ruled(Ruled::FailClosed);
        assert_eq!(bench.run(&packet.frame()).0, Action::Drop, "user space has no socket here");
        state.set_ruled(Ruled::Not);
        // IPv4 has no flow label.
        let is_six = packet.src.is_ipv6();
        for (label, is_taken) in [(Some(5), !is_six), (Some(0), true), (None, true)] {
            enter(&flows, 7, &packet, &Flow { label, ..good });
            assert_eq!(taken(&mut bench, &packet.frame()), is_taken, "{label:?}");
            let mut other = packet.frame();
            if is_six {
                other[17] = 5;
                assert_eq!(taken(&mut bench, &other), label != Some(0), "{label:?}, another");
            }
        }
        enter(&flows, 7, &packet, &Flow { mtu: packet_len(&packet), ..good });
        assert!(taken(&mut bench, &packet.frame()), "an MTU that just fits");
        enter(&flows, 7, &packet, &Flow { mtu: 9000, ..good });
        let jumbo = Packet { payload: 8900, ..packet.clone() };
        assert!(taken(&mut bench, &jumbo.frame()), "more than a page");
        enter(&flows, 7, &packet, &good);

        // The XDP path keeps the padding of small frames. The user path cuts off what exceeds it.
        let mut padded = Packet { payload: 0, ..packet.clone() }.frame();
        let least = 14 + 4 * packet.tags.len() + 46;
        padded.resize(padded.len().max(least), 0);
        assert!(taken(&mut bench, &padded), "a padded frame");
        padded.push(0);
        assert_eq!(
            bench.passes(&padded),
            PassReason::NoSocket,
            "one byte more than Ethernet wants"
        );

        let off = bench.programs.program(PortId(0), Mode::Native, false).unwrap();
        let on = std::mem::replace(&mut bench.program, off);
        assert_eq!(bench.passes(&packet.frame()), PassReason::NoSocket, "no XDP path");
        bench.program = on;
        bench.programs.state().set_bypass(true);
        assert_eq!(bench.passes(&packet.frame()), PassReason::Bypass);
        bench.programs.state().set_bypass(false);
        assert!(taken(&mut bench, &packet.frame()));
        bench.programs.state().bump_generation();
        assert_eq!(bench.passes(&packet.frame()), PassReason::NoSocket, "the XDP path was emptied");
    }
    ipv4_conditions(&mut bench);
}

fn ipv4_conditions(bench: &mut Bench) {
    let flows = bench.programs.flows();
    let packet = Packet::v4();
    enter(&flows, 7, &packet, &flow(bench, &new_header(&[], 0x0800)));
    for (fragment, is_taken) in
        [(0x4000, true), (0x8000, true), (0x2000, false), (1, false), (0x1fff, false)]
    {
        let frame = Packet { fragment, ..packet.clone() }.frame();
        assert_eq!(bench.run(&frame).0 == Action::Redirect, is_taken, "{fragment:#x}");
    }
    let options = Packet { options: 4, ..packet.clone() };
    assert_eq!(bench.passes(&options.frame()), PassReason::Options);
    // With two bytes of UDP, the ports are not part of the packet.
    let mut cut = packet.frame();
    cut[16..18].copy_from_slice(&22_u16.to_be_bytes());
    sign(&mut cut[14..34]);
    assert_eq!(bench.passes(&cut), PassReason::NoSocket);
}

fn packet_len(packet: &Packet) -> u16 {
    (packet.frame().len() - packet.l3()) as u16
}

pub fn batches() {
    let bench = Bench::new(Mode::Native, true);
    let flows = bench.programs.flows();
    let key = |index: u32| {
        let end = |at: u32, port: u16| (std::net::Ipv4Addr::from(at + index), port);
        Flow4Key::new(LinkId(7), UDP, end(0x0a00_0000, 1), end(0x0b00_0000, 2))
    };
    let keys: Vec<Flow4Key> = (0..1000).map(key).collect();
    let value = |mtu| Flow { mtu, ..flow(&bench, &new_header(&[], 0x0800)) };
    let values: Vec<Flow> = (0..1000).map(value).collect();
    assert!(flows.is_empty());
    assert_eq!(flows.insert4(&keys, &values), 1000);
    assert_eq!(flows.insert4(&[], &[]), 0);
    assert_eq!(flows.len(), (1000, 0));
    for (key, value) in keys.iter().zip(&values) {
        assert_eq!(flows.get4(key), Some(*value));
    }
    let mut seen = Vec::new();
    flows.each4(|key, flow| seen.push((key.src_be, flow.mtu)));
    seen.sort_unstable();
    let expected: Vec<_> = keys.iter().zip(&values).map(|(k, f)| (k.src_be, f.mtu)).collect();
    assert_eq!(seen, expected);
    assert!(flows.remove4(&keys[5]) && !flows.remove4(&keys[5]));
    assert_eq!(flows.get4(&keys[5]), None);

    let v6 = |port| {
        let end = |at: u128, port: u16| (std::net::Ipv6Addr::from(at), port);
        Flow6Key::new(LinkId(7), TCP, end(1, port), end(2, 80))
    };
    let keys6: Vec<Flow6Key> = (0..100).map(v6).collect();
    assert_eq!(flows.insert6(&keys6, &values), 100);
    assert_eq!(flows.get6(&keys6[99]), Some(values[99]));
    assert!(flows.remove6(&keys6[0]));
    assert_eq!(flows.len(), (999, 99));
}

/// Runs something within the time that a flow may be idle, and then checks the result. A busy
/// machine may be too slow, but not each time. All flows are void before each try.
pub fn in_time<C: FnOnce()>(bench: &Bench, mut run: impl FnMut() -> C) {
    for _ in 0..10 {
        bench.programs.state().bump_generation();
        let start = std::time::Instant::now();
        let check = run();
        if start.elapsed() < std::time::Duration::from_millis(1500) {
            return check();
        }
    }
    panic!("this machine is too busy");
}

/// The table of flows in this test has room for 4,096 flows.
pub fn room() {
    // Of 1,000.
    const NEARLY_ALL: usize = 950;
    // Odd, so no address comes twice. With one pair of seeds in a hundred, consecutive addresses share buckets.
    const SPREAD: u32 = 0x9e37_79b1;
    let bench = Bench::new(Mode::Native, true);
    let flows = bench.programs.flows();
    let key = |index: u32| {
        let end = |port: u16| (std::net::Ipv4Addr::from(index.wrapping_mul(SPREAD)), port);
        Flow4Key::new(LinkId(7), UDP, end(1), end(2))
    };
    let keys = |range: std::ops::Range<u32>| range.map(key).collect::<Vec<_>>();
    let fill = |range: std::ops::Range<u32>| {
        let value = flow(&bench, &new_header(&[], 0x0800));
        flows.insert4(&keys(range.clone()), &vec![value; range.len()])
    };
    // Flows in use keep their places, and others find none. All flows that were taken are there.
    in_time(&bench, || {
        let taken: usize = (0..40).map(|round| fill(round * 500..(round + 1) * 500)).sum();
        let (entries, again) = (flows.len(), fill(0..500));
        move || {
            assert!((4000..=4096).contains(&taken), "{taken}");
            assert!((taken..=4096).contains(&entries.0) && entries.1 == 0, "{entries:?}");
            assert_eq!(again, 500, "they are there");
        }
    });
    in_time(&bench, || {
        // Flows from before a change make room.
        let (first, entries) = (fill(50_000..51_000), flows.len().0);
        let fill = |round: u32| fill(60_000 + round * 500..60_500 + round * 500);
        let taken: usize = (0..20).map(fill).sum();
        move || {
            assert!(first >= NEARLY_ALL && entries <= 4096, "{first} {entries}");
            assert!(taken <= 4096 - first, "{taken}");
        }
    });
    // Flows that were not used for 2 s make room, too.
    std::thread::sleep(std::time::Duration::from_millis(2200));
    let taken = fill(80_000..81_000);
    assert!(taken >= NEARLY_ALL, "{taken}");
}

/// A flow changes over and over while its packets come. Each packet gets a whole header, the old or
/// the new one, or none.
pub fn torn() {
    let mut bench = Bench::new(Mode::Native, true);
    let (state, flows) = (bench.programs.state(), bench.programs.flows());
    let packet = Packet::v4();
    let headers = [new_header(&[], 0x0800), new_header(&[(0x88a8, 40), (0x8100, 50)], 0x0800)];
    let mut other = headers[1].clone();
    other[..12].iter_mut().for_each(|byte| *byte ^= 0x55);
    let values = [flow(&bench, &headers[0]), flow(&bench, &other)];
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let ordering = std::sync::atomic::Ordering::Relaxed;
    let writer = std::thread::spawn({
        let (stop, packet, flows) = (stop.clone(), packet.clone(), flows.clone());
        move || {
            let mut writes = 0_u64;
            while !stop.load(ordering) {
                state.beat(0);
                values.iter().for_each(|value| enter(&flows, 7, &packet, value));
                writes += 2;
            }
            writes
        }
    });
    let expected = [forwarded(&packet, &headers[0]), forwarded(&packet, &other)];
    let mut seen = [0_u32; 3];
    let start = std::time::Instant::now();
    while start.elapsed() < std::time::Duration::from_secs(2) {
        let (action, output, _) = bench.run_as_it_is(&packet.frame());
        if action == Action::Redirect {
            let which = expected.iter().position(|expected| *expected == output);
            seen[which.expect("a header of one flow or the other")] += 1;
        } else {
            seen[2] += 1;
        }
    }
    stop.store(true, ordering);
    let writes = writer.join().unwrap();
    println!("{seen:?} of {writes} writes");
    assert!(seen[0] > 100 && seen[1] > 100, "{seen:?}");
}

/// The XDP path takes no traffic that a link leaves to the kernel, even if its flow is active.
pub fn kernel_path() {
    let mut bench = Bench::new(Mode::Native, true);
    let (v4, v6) = (Packet::v4(), Packet::v6());
    let tagged = Packet::v4().tagged(&[(0x8100, 10)]);
    let mut run = |kernel_path: KernelPath| {
        let mut changed = port();
        changed.links[0].kernel_path = kernel_path;
        bench.programs.set_port(changed).unwrap();
        let flows = bench.programs.flows();
        for (link, packet, ethertype) in [(7, &v4, 0x0800), (7, &v6, 0x86dd), (8, &tagged, 0x0800)]
        {
            enter(&flows, link, packet, &flow(&bench, &new_header(&[], ethertype)));
        }
        [&v4, &v6, &tagged].map(|packet| {
            let (action, output, reason) = bench.run(&packet.frame());
            assert_eq!(reason.is_some(), action == Action::Pass);
            assert_eq!(reason.is_some(), output == packet.frame());
            reason
        })
    };
    let kernel = Some(PassReason::Offload);
    let of = |v4, v6| KernelPath { v4, v6, ..KernelPath::default() };
    assert_eq!(run(of(false, false)), [None, None, None]);
    assert_eq!(run(of(true, false)), [kernel, None, None]);
    assert_eq!(run(of(false, true)), [None, kernel, None]);
    assert_eq!(run(of(true, true)), [kernel, kernel, None]);
    let fragments = KernelPath { fragments4: true, fragments6: true, ..KernelPath::default() };
    assert_eq!(run(fragments), [None, None, None], "what is in a flow is no fragment");
    assert_eq!(run(KernelPath::default()), [None, None, None]);
    // Fragments of this link alone, whether first, middle or last. For IPv6, any header that may
    // precede one.
    let user = PassReason::NoSocket;
    let fragment = |fragment| Packet { fragment, ..Packet::v4() }.frame();
    let behind = |protocol| Packet { protocol, ..Packet::v6() }.frame();
    for (frame, reason) in [
        (fragment(0x2000), PassReason::Offload),
        (fragment(0x2010), PassReason::Offload),
        (fragment(0x0010), PassReason::Offload),
        (fragment(0x4000), user),
        (Packet { fragment: 0x2000, ..Packet::v4() }.tagged(&[(0x8100, 10)]).frame(), user),
        (behind(44), PassReason::Offload),
        (behind(43), PassReason::Offload),
        (behind(60), PassReason::Offload),
        (behind(51), PassReason::Offload),
        (behind(0), PassReason::Offload),
        (behind(50), user),
    ] {
        let mut changed = port();
        changed.links[0].kernel_path = fragments;
        bench.programs.set_port(changed).unwrap();
        bench.programs.state().bump_generation();
        assert_eq!(bench.passes(&frame), reason, "{frame:x?}");
        bench.programs.set_port(port()).unwrap();
        let other = if frame[12..21] == [0x86, 0xdd, 0x60, 0, 0, 0, 0, 26, 0] {
            PassReason::Options
        } else {
            user
        };
        assert_eq!(bench.passes(&frame), other, "{frame:x?}");
    }
}
