use super::{Egress, run};
use crate::burst::{BURST, Burst, Lanes};
use crate::frame::{Descriptor, FrameAddr};
use crate::id::PortId;

/// A burst whose packet `n` has its number as address and length, and `port(n)` as egress port.
fn burst(port: impl Fn(usize) -> u16) -> Burst {
    let mut burst = Burst::new();
    for lane in 0..BURST {
        assert!(burst.push(FrameAddr(lane as u32), lane as u16));
        burst.egress[lane] = PortId(port(lane));
    }
    burst
}

fn expected(lanes: Lanes, mine: impl Fn(usize) -> bool) -> Vec<Descriptor> {
    let descriptor = |lane| Descriptor { addr: FrameAddr(lane as u32), len: lane as u32 };
    lanes.into_iter().filter(|lane| mine(*lane)).map(descriptor).collect()
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config {
        failure_persistence: None,
        cases: if cfg!(miri) { 4 } else { 256 },
        ..Default::default()
    })]

    #[test]
    fn every_port_gets_its_packets_in_order(ports in proptest::collection::vec(0_u16..4, BURST), lanes: u64) {
        let (lanes, mut egress) = (Lanes(lanes), Egress::new(4));
        run(&burst(|lane| ports[lane]), &mut egress, lanes);
        let mut drained = vec![Vec::new(); 4];
        for port in 0..4 {
            let frames = expected(lanes, |lane| ports[lane] == port);
            proptest::prop_assert_eq!(egress.frames(PortId(port)), &frames[..]);
            drained[usize::from(port)] = frames;
        }
        egress.drain(|port, frames| {
            assert_eq!(frames, std::mem::take(&mut drained[usize::from(port.0)]));
        });
        proptest::prop_assert!(drained.iter().all(Vec::is_empty));
        egress.drain(|port, _| panic!("{port:?} was drained twice"));
    }
}

#[test]
fn a_burst_for_one_port_fills_its_queue() {
    let mut egress = Egress::new(2);
    run(&burst(|_| 1), &mut egress, Lanes::first(BURST));
    assert_eq!(egress.frames(PortId(1)), expected(Lanes::first(BURST), |_| true));
    assert!(egress.frames(PortId(0)).is_empty());
    assert!(egress.frames(PortId(2)).is_empty());
}

#[test]
fn no_packet_touches_no_queue() {
    let mut egress = Egress::new(1);
    run(&burst(|_| 0), &mut egress, Lanes::NONE);
    assert!(egress.frames(PortId(0)).is_empty());
}
