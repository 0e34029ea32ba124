//! A router with the ports `ra` and `rb`, and what offload reports about it.

use std::collections::BTreeSet;
use std::path::Path;

use tollway_controller::offload::{KernelSnapshot, Offload, PerFamily, Reason};
use tollway_model::Engine;
use tollway_worker::ports::MOST_MTU;

use crate::namespaces::{ifindex, sh, until};

/// Creates two cables with their ends in this namespace, and enables forwarding on both.
pub fn router() {
    sh("ip link set lo up");
    for port in ["ra", "rb"] {
        sh(&format!("ip link add {port} type veth peer name {port}-end"));
        sh(&format!("ethtool -K {port}-end tx off txvlan off tx-vlan-stag-hw-insert off"));
        sh(&format!("ip link set {port} up"));
        sh(&format!("ip link set {port}-end up"));
    }
    sh("ip address add 192.0.2.1/24 dev ra");
    sh("ip address add 198.51.100.1/24 dev rb");
    sysctl("ipv4/ip_forward", "1");
    sysctl("ipv6/conf/all/forwarding", "1");
    until("carriers", || see().notes.is_empty());
}

/// Sets a sysctl.
pub fn sysctl(file: &str, value: &str) {
    std::fs::write(Path::new("/proc/sys/net").join(file), value).unwrap();
}

/// What offload reports now.
pub fn see() -> Offload {
    see_at(&[ifindex("ra"), ifindex("rb")])
}

/// What offload reports now if these devices are the ports.
pub fn see_at(ports: &[u32]) -> Offload {
    let ports: Vec<_> = ports.iter().map(|port| (*port, Engine::Auto)).collect();
    KernelSnapshot::take().unwrap().offload(&ports, MOST_MTU)
}

/// What takes the kernel path, each as `where family: reason`.
pub fn kernels(offload: &Offload) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    let mut note = |place: String, reasons: &PerFamily<Vec<Reason>>| {
        for (family, reasons) in [("4", &reasons.v4), ("6", &reasons.v6)] {
            all.extend(reasons.iter().map(|reason| format!("{place} {family}: {}", reason.key())));
        }
    };
    note("all".to_owned(), &offload.general);
    note("groups".to_owned(), &offload.groups);
    for link in &offload.links {
        note(format!("into {}", link.name), &link.arrives);
        note(format!("out of {}", link.name), &link.leaves);
    }
    all
}

/// Asserts what takes the kernel path now; `*` stands for both families.
#[track_caller]
pub fn expect(wanted: &[&str]) {
    let wanted = wanted.iter().flat_map(|line| match line.contains('*') {
        true => vec![line.replace('*', "4"), line.replace('*', "6")],
        false => vec![(*line).to_owned()],
    });
    let offload = see();
    assert_eq!(kernels(&offload), wanted.collect(), "{offload:#?}");
}

/// Asserts what takes the kernel path between one command and another that undoes it.
#[track_caller]
pub fn meanwhile(does: &str, wanted: &[&str], undoes: &str) {
    sh(does);
    expect(wanted);
    sh(undoes);
    expect(&[]);
}
