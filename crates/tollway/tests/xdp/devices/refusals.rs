//! Devices that refuse frames which the XDP path sends to them.

use std::path::Path;

use tollway_xdp::refusals::Cause;
use tollway_xdp::{Mode, ProbeTarget, XdpPrograms};

use super::super::echo::{BOTH, counts, pings_with_heartbeats};
use super::super::namespaces::{sh, until};
use super::{A, B, enter_both, start, two_hosts};

/// Returns port B as a device to probe.
fn probe_target(programs: &XdpPrograms) -> ProbeTarget {
    let port = programs.port(B).unwrap();
    ProbeTarget { port: B, ifindex: port.ifindex, mac: port.mac }
}

/// A device that accepts no frames any more, although the kernel reports that it does.
pub fn total() {
    let (a, b) = two_hosts();
    let (programs, _worker) = start(&[Mode::Native], false);
    let refusals = programs.refusals().unwrap();
    enter_both(&programs);
    pings_with_heartbeats(&programs, &[A, B], (&a, &BOTH, 1));
    assert_eq!((refusals.packets(A), refusals.packets(B)), (0, 0));
    assert_eq!((refusals.cause(A), refusals.cause(B)), (None, None));
    let generation = programs.state().generation();

    b.sh("ip link set hb down");
    let sent = counts(&programs, B).xdp_tx_packets;
    // One burst may be on its way when the first frame is refused.
    let _ = a.command("ping -n -q -c 20 -l 20 -i 0.01 -W 1 10.0.2.2").output().unwrap();
    let refused = counts(&programs, B).xdp_tx_packets - sent;
    assert!((1..=20).contains(&refused), "{refused}");
    assert_eq!((refusals.packets(A), refusals.packets(B)), (0, refused));
    assert_eq!((refusals.cause(A), refusals.cause(B)), (None, Some(Cause::Error(libc::ENXIO))));
    assert_eq!(programs.state().generation(), generation + 1);
    let _ = a.command("ping -n -q -c 5 -i 0.01 -W 1 10.0.2.2").output().unwrap();
    assert_eq!(refusals.packets(B), refused, "nothing is sent there any more");

    // The router probes with a frame of its own, which is no host's packet.
    refusals.forgive(B);
    assert_eq!(refusals.cause(B), Some(Cause::Unprobed), "nothing is sent before");
    assert_eq!(refusals.probe(&probe_target(&programs)), Some(Cause::Error(libc::ENXIO)));
    assert_eq!(refusals.packets(B), refused);

    b.sh("ip link set hb up");
    b.route("hb", "10.0.2.1", "02:00:00:00:00:0b");
    refusals.forgive(B);
    assert_eq!(refusals.probe(&probe_target(&programs)), None);
    assert!(refusals.takes(B));
    enter_both(&programs);
    pings_with_heartbeats(&programs, &[A, B], (&a, &BOTH[..1], 1));
    assert_eq!((refusals.packets(B), refusals.cause(B)), (refused, None));
}

/// Runs the same test on a kernel without BTF, with the tracepoint's record.
pub fn by_record() {
    hide_btf();
    // Somebody may have traced before.
    if !Path::new("/sys/kernel/tracing/events").exists() {
        sh("mount -t tracefs tracefs /sys/kernel/tracing");
    }
    total();
}

/// Without BTF and the record, nothing reports refusals. A router works all the same.
pub fn unnoticed() {
    hide_btf();
    for tracing in ["/sys/kernel/tracing", "/sys/kernel/debug"] {
        if Path::new(tracing).exists() {
            sh(&format!("mount -t tmpfs none {tracing}"));
        }
    }
    let (a, _b) = two_hosts();
    let (programs, _worker) = start(&[Mode::Native], false);
    assert!(programs.refusals().is_none());
    enter_both(&programs);
    pings_with_heartbeats(&programs, &[A, B], (&a, &BOTH, 1));
}

/// Hides the kernel's BTF.
fn hide_btf() {
    sh("mount -t tmpfs none /sys/kernel/btf");
    assert!(!Path::new("/sys/kernel/btf/vmlinux").exists());
}

/// A device accepts small frames and refuses large ones. It counts as refusing only when nothing
/// else has come for a while.
pub fn partial() {
    let (a, b) = two_hosts();
    let (mut programs, _worker) = start(&[Mode::Native], false);
    let refusals = programs.refusals().unwrap();
    enter_both(&programs);
    // The device has proven that it accepts frames.
    pings_with_heartbeats(&programs, &[A, B], (&a, &BOTH, 1));
    assert!(refusals.takes(B));
    b.sh("ip link set hb mtu 600");
    let refused = |size: u16, count: u8| {
        let before = refusals.packets(B);
        let line = format!("ping -n -q -c {count} -s {size} -i 0.02 -W 1 10.0.2.2");
        let _ = a.command(&line).output().unwrap();
        refusals.packets(B) - before
    };
    // A late worker leaves packets to the kernel.
    until("a frame to be refused", || refused(1000, 1) == 1);
    for _ in 0..3 {
        assert!(refused(100, 1) == 0 && refused(1000, 1) <= 1);
        assert_eq!(refusals.cause(B), None);
    }
    until("it to refuse", || {
        refused(1000, 3);
        refusals.cause(B).is_some()
    });
    assert_eq!(refusals.cause(B), Some(Cause::Silent));
    assert_eq!(refused(1000, 3), 0, "nothing is sent there any more");

    // The probe is a small frame, which the device accepts.
    refusals.forgive(B);
    assert_eq!(refusals.probe(&probe_target(&programs)), None);
    assert!(refusals.takes(B));

    // Without a probe, the device has to accept the first bulk, which it refuses.
    let port = programs.port(B).unwrap().clone();
    programs.set_port(port).unwrap();
    enter_both(&programs);
    until("one frame to be enough", || {
        refused(1000, 1);
        refusals.cause(B) == Some(Cause::Silent)
    });
    assert!(!refusals.takes(B));
}
