//! Programs and filters of others at the ingress of a port's device.

use tollway_commands::control::ShowRequest;
use tollway_dataplane::id::PortId;
use tollway_net::Mac;
use tollway_xdp::counts::PassReason;
use tollway_xdp::{Mode, Options, XdpPort, XdpPrograms};

use super::namespaces::{ifindex, sh, until};
use super::running::answered;
use super::scene::{Net, start, until_forwarded};
use super::tcx;

/// A program that drops everything holds, whether it was there before Tollway's or comes later.
pub fn tcx() {
    let net = Net::new();
    let before = tcx::drop_all("ra");
    let router = start("ra rb");
    for _ in 0..3 {
        assert_eq!(answered(&net.a, "10.0.2.2"), 0);
    }
    drop(before);
    until_forwarded(&router, &net.a, "10.0.2.2");
    let behind = tcx::drop_all("ra");
    until("the kernel path", || answered(&net.a, "10.0.2.2") == 0);
    for _ in 0..3 {
        assert_eq!(answered(&net.a, "10.0.2.2"), 0);
    }
    let offload = router.show(&ShowRequest::Offload).to_string();
    assert!(offload.contains("filters_in"), "{offload}");
    drop(behind);
    until_forwarded(&router, &net.a, "10.0.2.2");
}

/// A filter runs after all programs of tcx, so its device's packets take the kernel path.
pub fn filters() {
    let net = Net::new();
    let router = start("ra rb");
    until_forwarded(&router, &net.a, "10.0.2.2");
    sh("tc qdisc add dev ra clsact");
    sh("tc filter add dev ra ingress pref 10 protocol all u32 match u32 0 0");
    let filtered = || router.show(&ShowRequest::Offload).to_string().contains("filters_in");
    until("the kernel path", filtered);
    router.sync();
    let before = router.counts().sent;
    assert_eq!(answered(&net.a, "10.0.2.2"), 5);
    assert!(router.counts().sent - before <= 5, "only the answers");
    sh("tc filter del dev ra ingress pref 10");
    until("no filter", || !filtered());
    until_forwarded(&router, &net.a, "10.0.2.2");
}

/// On a kernel without tcx, filters of others see the packets first, even if all ports have some.
pub fn filters_first() {
    let net = Net::new();
    for device in ["ra", "rb"] {
        sh(&format!("tc qdisc add dev {device} clsact"));
        sh(&format!("tc filter add dev {device} ingress pref 10 protocol all u32 match u32 0 0"));
    }
    let router = start("ra rb");
    until_forwarded(&router, &net.a, "10.0.2.2");
    assert!(!router.show(&ShowRequest::Offload).to_string().contains("filters_in"));
}

/// A program in generic mode at the peer of a port drops everything that comes there, and so what Tollway forwards.
pub fn generic_xdp() {
    let net = Net::new();
    let dir = tempfile::tempdir().unwrap();
    let (source, object) = (dir.path().join("drop.c"), dir.path().join("drop.o"));
    std::fs::write(&source, "__attribute__((section(\"xdp\"))) int all(void *c) { return 1; }\n")
        .unwrap();
    let (from, to) = (source.display(), object.display());
    sh(&format!("clang -O2 -target bpf -c {from} -o {to}"));
    let router = start("ra rb");
    until_forwarded(&router, &net.a, "10.0.2.2");
    net.b.sh(&format!("ip link set dev hb xdpgeneric obj {to} sec xdp"));
    let offload = || router.show(&ShowRequest::Offload).to_string();
    until("the kernel path", || offload().contains("peer_xdp"));
    router.sync();
    for _ in 0..3 {
        assert_eq!(answered(&net.a, "10.0.2.2"), 0);
    }
    net.b.sh("ip link set dev hb xdpgeneric off");
    until("no program", || !offload().contains("peer_xdp"));
    until_forwarded(&router, &net.a, "10.0.2.2");
}

/// Without tcx, the program is a filter behind those of others.
pub fn clsact() {
    let net = Net::new();
    sh("tc qdisc add dev ra clsact");
    sh("tc filter add dev ra ingress pref 10 protocol ipv6 u32 match u32 0 0");
    let port = XdpPort {
        port: PortId(0),
        device: "ra".to_owned(),
        ifindex: ifindex("ra"),
        mac: Mac([2, 0, 0, 0, 0, 1]),
        queues: 0,
        links: Vec::new(),
        is_bridge_port: false,
    };
    let mut programs = XdpPrograms::load(&[], &Options::default()).unwrap();
    assert!(!programs.serve(port, &[Mode::Clsact], true).unwrap().replaced);
    let filters = || sh("tc filter show dev ra ingress");
    for _ in 0..2 {
        let shown = filters();
        assert!(shown.contains("pref 10 u32") && shown.contains("pref 65535 bpf"), "{shown}");
        assert!(programs.is_attached(PortId(0)));
        net.a.pings(3, "10.0.2.2");
        let counts = programs.counts().port(PortId(0)).unwrap();
        assert!(counts.passed(PassReason::Bypass) > 2, "{counts:?}");
        // A successor replaces it between two packets; so does a change.
        assert!(programs.attach(PortId(0), &[Mode::Clsact], true).unwrap().replaced);
    }
    drop(programs);
    let shown = filters();
    assert!(shown.contains("pref 10 u32") && !shown.contains("bpf"), "{shown}");
    assert_eq!(std::fs::read_dir("/sys/fs/bpf/tollway").unwrap().count(), 0);
}
