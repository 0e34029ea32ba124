//! Tests which packets the XDP path drops, and how it counts them.

use tollway_dataplane::id::{LinkId, PortId};
use tollway_dataplane::verdict::DropReason;
use tollway_xdp::counts::PassReason;
use tollway_xdp::flows::{Flow, Flow4Key};
use tollway_xdp::{Action, Mode, PortCounts, Ruled};

use super::frames::{Bench, ICMP, ICMP6, Packet, TCP, UDP};
use super::xdp_path::{enter, flow, in_time, new_header};

fn counts(bench: &Bench) -> PortCounts {
    bench.programs.counts().port(PortId(0)).unwrap()
}

fn dropping(bench: &Bench, reason: DropReason, counts_frames: bool) -> Flow {
    let generation = bench.programs.state().generation();
    Flow { generation, ..Flow::dropping(reason, counts_frames) }
}

/// Each reason has counts of its own, and a tally has the bytes of packets or of frames.
pub fn counted() {
    let mut bench = Bench::new(Mode::Native, true);
    let flows = bench.programs.flows();
    let arrivals: [(&[(u16, u16)], u16); 2] = [(&[], 7), (&[(0x8100, 10)], 8)];
    for (number, reason) in DropReason::ALL.iter().enumerate() {
        let (tags, link) = arrivals[number % 2];
        let packet = if number % 3 == 0 { Packet::v6() } else { Packet::v4() };
        let protocol = [TCP, UDP, if packet.src.is_ipv6() { ICMP6 } else { ICMP }][number / 2 % 3];
        let packet = Packet { protocol, ..packet }.tagged(tags);
        let (tally, counts_frames) = (number as u16 + 1, number % 4 < 2);
        let value = Flow { tally, ..dropping(&bench, *reason, counts_frames) };
        assert_eq!(value.drop_reason(), Some(*reason));
        enter(&flows, link, &packet, &value);
        let (mut before, tally_before) = (counts(&bench), flows.tally(tally).unwrap());
        let (mut bytes, mut of_packets) = (0, 0);
        for padding in [0, 3, 100] {
            let mut frame = packet.frame();
            of_packets += (frame.len() - packet.l3()) as u64;
            frame.resize(frame.len() + padding, 0);
            bytes += frame.len() as u64;
            let (action, output, passed) = bench.run(&frame);
            assert_eq!((action, passed), (Action::Drop, None), "{reason:?}");
            assert_eq!(output, frame);
        }
        before.drops[number][0] += 3;
        before.drops[number][1] += bytes;
        assert_eq!(before, counts(&bench), "nothing else is counted");
        let of_tally = if counts_frames { bytes - 3 * packet.l3() as u64 } else { of_packets };
        assert_eq!(flows.tally(tally).unwrap(), (tally_before.0 + 3, tally_before.1 + of_tally));
        let mut seen = Vec::new();
        flows.each4(|_, flow| seen.push(*flow));
        flows.each6(|_, flow| seen.push(*flow));
        let of_flow = |flow: &&Flow| flow.tally == tally;
        let seen = seen.iter().find(of_flow).unwrap();
        assert_eq!((seen.packets, seen.bytes, seen.drop_reason()), (3, bytes, Some(*reason)));
        bench.programs.state().bump_generation();
    }
    assert_eq!(flow(&bench, &new_header(&[], 0x0800)).drop_reason(), None);
}

/// What is unlike the flow is not dropped.
pub fn conditions() {
    let mut bench = Bench::new(Mode::Native, true);
    let flows = bench.programs.flows();
    for packet in [Packet::v4(), Packet::v6()] {
        let good = dropping(&bench, DropReason::NetfilterDrop, false);
        enter(&flows, 7, &packet, &good);
        assert_eq!(bench.run(&packet.frame()).0, Action::Drop);
        let other = |change: &dyn Fn(&mut Packet)| {
            let mut changed = packet.clone();
            change(&mut changed);
            changed.frame()
        };
        for (frame, reason) in [
            (other(&|p| p.ports.0 += 1), PassReason::NoSocket),
            (other(&|p| p.ttl = 1), PassReason::Ttl),
            (other(&|p| p.protocol = 47), PassReason::NoSocket),
        ] {
            assert_eq!(bench.passes(&frame), reason);
        }
        assert_eq!(bench.run(&other(&|p| p.payload = 8900)).0, Action::Drop, "any length");
        let mtu = (packet.frame().len() - packet.l3()) as u16;
        enter(&flows, 7, &packet, &Flow { mtu, ..good });
        let longer = other(&|p| p.payload += 1);
        assert_eq!(bench.run(&packet.frame()).0, Action::Drop);
        assert_eq!(bench.passes(&longer), PassReason::MtuExceeded);
        // The kernel does not know the rules, so the user path gets it.
        bench.programs.state().set_ruled(Ruled::FailOpen);
        assert_eq!(bench.passes(&longer), PassReason::NoSocket);
        bench.programs.state().set_ruled(Ruled::Not);
        for generation in [good.generation - 1, good.generation + 1] {
            enter(&flows, 7, &packet, &Flow { generation, ..good });
            assert_eq!(bench.passes(&packet.frame()), PassReason::NoSocket, "another generation");
        }
        let mut unknown = good;
        unknown.l2[0] = DropReason::COUNT as u8;
        enter(&flows, 7, &packet, &unknown);
        assert_eq!(bench.passes(&packet.frame()), PassReason::NoSocket, "no reason");
        enter(&flows, 7, &packet, &good);
        bench.programs.state().set_bypass(true);
        assert_eq!(bench.passes(&packet.frame()), PassReason::Bypass);
        bench.programs.state().set_bypass(false);
    }
    let packet = Packet::v4();
    let mut wrong = packet.frame();
    wrong[24] ^= 1;
    assert_eq!(bench.passes(&wrong), PassReason::NoSocket, "the checksum");
    for fragment in [0x2000, 1] {
        let frame = Packet { fragment, ..packet.clone() }.frame();
        assert_eq!(bench.passes(&frame), PassReason::NoSocket, "a fragment");
    }
}

/// Flows that are dropped give their places to others at once, and take none from them. The table has
/// room for 4,096 flows.
pub fn room() {
    let bench = Bench::new(Mode::Native, true);
    let flows = bench.programs.flows();
    let key = |index: u32| {
        let end = |port: u16| (std::net::Ipv4Addr::from(0x0a00_0000 + index), port);
        Flow4Key::new(LinkId(7), UDP, end(1), end(2))
    };
    let fill = |range: std::ops::Range<u32>, value: Flow| {
        let keys: Vec<_> = range.map(key).collect();
        flows.insert4(&keys, &vec![value; keys.len()])
    };
    in_time(&bench, || {
        let good = flow(&bench, &new_header(&[], 0x0800));
        let bad = dropping(&bench, DropReason::NetfilterDrop, false);
        let blocked = fill(0..20_000, bad);
        let (entries, taken) = (flows.len().0, fill(50_000..51_000, good));
        let (more, again) = (fill(60_000..80_000, bad), fill(50_000..51_000, good));
        move || {
            assert!((4000..=4096).contains(&blocked) && blocked <= entries, "{blocked}");
            // With some seeds, consecutive addresses share buckets.
            assert!(taken >= 950 && again >= taken, "{taken} and {again} of 1000");
            assert!(more <= 4096 - blocked, "{more}");
        }
    });
}
