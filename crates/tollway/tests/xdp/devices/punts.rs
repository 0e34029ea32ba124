//! Punted frames, which the router gives to the kernel as if their device had just received them.

use std::fs::File;
use std::io::Write;

use tollway_xdp::Mode;
use tollway_xdp::counts::PassReason;

use super::super::echo::counts;
use super::super::frames::{ICMP, Packet, sign};
use super::super::namespaces::{Host, sh, until};
use super::super::socket::Wire;
use super::{A, forwarding, start, two_hosts};

pub fn answered() {
    // Both modes use the same kernel, which would send only six time-exceeded errors at once.
    std::fs::write("/proc/sys/net/ipv4/icmp_ratelimit", "0").unwrap();
    for mode in Mode::ALL {
        let hosts = two_hosts();
        forwarding(true);
        let (mut programs, _worker) = start(&[mode], false);
        let mut tap = File::from(programs.punt_tap(A, 1500).unwrap());
        let echo = |dst: &str, ttl: u8, number: u16| {
            let mut packet = Packet::new("10.0.1.2", dst);
            (packet.protocol, packet.ttl, packet.ident) = (ICMP, ttl, number);
            let mut frame = packet.frame();
            // The type is echo request. The bytes of ports and length have no meaning in ICMP.
            frame[34..36].copy_from_slice(&[8, 0]);
            frame[36..38].fill(0);
            let sum = !tollway_dataplane::wire::checksum::sum(&frame[34..]);
            frame[36..38].copy_from_slice(&sum.to_be_bytes());
            sign(&mut frame[14..34]);
            frame
        };
        let answers = || icmp(&hosts.0, "InEchoReps");
        for number in 0..20 {
            tap.write_all(&echo("10.0.1.1", 64, number)).unwrap();
        }
        until("the kernel to answer", || answers() == 20);
        // In transit: the kernel routes the request, and the host behind it answers.
        for number in 0..20 {
            tap.write_all(&echo("10.0.2.2", 64, number)).unwrap();
        }
        until("the other host to answer", || answers() == 40);
        for number in 0..5 {
            tap.write_all(&echo("10.0.2.2", 1, number)).unwrap();
        }
        until("the kernel to say that time is exceeded", || icmp(&hosts.0, "InTimeExcds") == 5);
        // Generic XDP sees these frames again and recognises them. Native XDP never sees them.
        let again = if mode == Mode::Generic { 45 } else { 0 };
        assert_eq!(counts(&programs, A).passed(PassReason::Punted), again, "{mode:?}");
        assert_eq!(counts(&programs, A).to_user, 0);
        let second = programs.punt_tap(A, 1500).unwrap();
        drop((tap, second));
        assert!(!sh("ip link").contains("toll"), "a TAP device goes with its descriptor");
        for device in ["ra", "rb"] {
            sh(&format!("ip link delete {device}"));
        }
    }
}

/// In generic mode, XDP recognises the router's own frames by what no frame from outside can
/// contain. A frame with the same first bytes does not pass as one, nor an identical frame, nor one
/// with a guessed mark.
pub fn lookalikes() {
    let hosts = two_hosts();
    forwarding(true);
    let (mut programs, _worker) = start(&[Mode::Generic], false);
    let mut tap = File::from(programs.punt_tap(A, 1500).unwrap());
    let mut packet = Packet::new("10.0.1.2", "10.0.2.2");
    packet.payload = 86;
    let frame = packet.frame();
    let mut other = frame.clone();
    *other.last_mut().unwrap() ^= 1;
    let guessed = |mark: u8| {
        let mark = [[2; 12].as_slice(), &[0x88, 0xb5], &[mark; 2]].concat();
        [mark, frame.clone()].concat()
    };
    let mut wire = Wire::at(&hosts.0, "ha");
    let passed = |reason| counts(&programs, A).passed(reason);
    let before = passed(PassReason::Punted);
    // Even with the bypass set, the kernel gets the router's own frames unchanged.
    let arrived = || hosts.1.received("hb");
    let forwarded = arrived();
    programs.state().set_bypass(true);
    tap.write_all(&frame).unwrap();
    until("the frame to be forwarded by the kernel", || arrived() > forwarded);
    programs.state().set_bypass(false);
    // A late worker leaves some frames to the kernel.
    until("what comes from outside to be seen", || {
        for lookalike in [&other, &frame, &guessed(0), &guessed(0xff)] {
            wire.send(lookalike).unwrap();
        }
        passed(PassReason::NoSocket) + counts(&programs, A).to_user >= 2
            && passed(PassReason::NotOursMac) >= 2
    });
    assert_eq!(passed(PassReason::Punted) - before, 1, "the one that was handed back");
}

/// Returns an ICMP counter of a host's kernel.
fn icmp(host: &Host, name: &str) -> u64 {
    let output = host.sh("cat /proc/net/snmp");
    let mut lines = output.lines().filter(|line| line.starts_with("Icmp:"));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let at = names.split_whitespace().position(|found| found == name).unwrap();
    values.split_whitespace().nth(at).unwrap().parse().unwrap()
}
