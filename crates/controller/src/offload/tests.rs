//! Tests every reason, one change at a time, from a router where everything is fast.

use std::collections::BTreeSet;

use super::*;
use tollway_linux::kept_files::KeptFiles;

use crate::kernel::{Netdev, Rule, RuleAction};

mod bridges;
mod general;
mod links;
mod parts;

const UP: u32 = 1 | 1 << 16;

/// A router with two ports, 2 and 3, and VLAN 10 on the first, with number 4.
struct Router {
    engine: Engine,
    /// That of port 3, if it has another.
    engine_of_3: Option<Engine>,
    kernel: Kernel,
    files: Vec<(String, String)>,
    probes: Probes,
    routes: RouteTally,
    firewall: Firewall,
    rooms: BTreeMap<Ifindex, u32>,
    spread: Spread,
}

fn netdev(name: &str, kind: Option<&str>) -> Netdev {
    Netdev {
        name: name.to_owned(),
        kind: kind.map(str::to_owned),
        mac: Some([2, 0, 0, 0, 0, 1]),
        mtu: 1500,
        flags: UP,
        ..Netdev::default()
    }
}

impl Router {
    fn new() -> Self {
        let mut router = Self {
            engine: Engine::Auto,
            engine_of_3: None,
            kernel: Kernel::default(),
            files: [("ipv6/conf/all/forwarding", "1"), ("ipv4/fib_multipath_hash_seed", "9")]
                .map(|(file, text)| (file.to_owned(), text.to_owned()))
                .into(),
            probes: Probes::default(),
            routes: RouteTally::default(),
            firewall: Firewall::Read(Rules::default()),
            rooms: BTreeMap::new(),
            spread: Spread::default(),
        };
        router.add(2, netdev("eth0", None));
        router.add(3, netdev("eth1", Some("veth")));
        let mut vlan = netdev("eth0.10", Some("vlan"));
        (vlan.vlan, vlan.lower) = (Some((10, 0x8100)), Some(2));
        router.add(4, vlan);
        router
    }

    /// Adds a device with nothing on it, where IP is forwarded.
    fn add(&mut self, ifindex: Ifindex, netdev: Netdev) {
        for (family, file, text) in
            [("ipv4", "forwarding", "1".to_owned()), ("ipv6", "mtu", netdev.mtu.to_string())]
        {
            self.files.push((format!("{family}/conf/{}/{file}", netdev.name), text));
        }
        self.probes.devices.insert(ifindex, Device::default());
        self.kernel.netdevs.insert(ifindex, netdev);
    }

    fn set(&mut self, file: &str, text: &str) {
        self.files.push((file.to_owned(), text.to_owned()));
    }

    fn netdev(&mut self, ifindex: Ifindex) -> &mut Netdev {
        self.kernel.netdevs.get_mut(&ifindex).unwrap()
    }

    fn found(&mut self, ifindex: Ifindex) -> &mut Device {
        self.probes.devices.get_mut(&ifindex).unwrap()
    }

    fn offload(&self) -> Offload {
        let root = tempfile::tempdir().unwrap();
        for (file, text) in &self.files {
            let file = root.path().join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        let names = self.kernel.netdevs.values().map(|netdev| netdev.name.as_str());
        let sysctls = Sysctls::read_at(root.path(), &mut KeptFiles::default(), names);
        Offload::of(&Facts {
            ports: &[(2, self.engine), (3, self.engine_of_3.unwrap_or(self.engine))],
            kernel: &self.kernel,
            sysctls: &sysctls,
            probes: &self.probes,
            routes: &self.routes,
            firewall: &self.firewall,
            most_mtu: 9000,
            rooms: &self.rooms,
            spread: self.spread,
        })
    }
}

/// What takes the kernel path according to an offload, each as `where family: key`.
fn kernels(offload: &Offload) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    let mut note = |place: &str, reasons: &PerFamily<Vec<Reason>>| {
        for (family, reasons) in [("4", &reasons.v4), ("6", &reasons.v6)] {
            all.extend(reasons.iter().map(|reason| format!("{place} {family}: {}", reason.key())));
        }
    };
    note("all", &offload.general);
    note("groups", &offload.groups);
    for link in &offload.links {
        note(&format!("into {}", link.name), &link.arrives);
        note(&format!("out of {}", link.name), &link.leaves);
    }
    all
}

/// Asserts what takes the kernel path after a change; `*` means both families.
#[track_caller]
fn expect(change: impl FnOnce(&mut Router), wanted: &[&str]) {
    let mut router = Router::new();
    change(&mut router);
    let wanted = wanted.iter().flat_map(|line| match line.contains('*') {
        true => vec![line.replace('*', "4"), line.replace('*', "6")],
        false => vec![(*line).to_owned()],
    });
    let offload = router.offload();
    assert_eq!(kernels(&offload), wanted.collect(), "{offload:#?}");
}

#[test]
fn a_plain_router_is_all_fast() {
    expect(|_| {}, &[]);
    let offload = Router::new().offload();
    let links: Vec<_> = offload.links.iter().map(|link| (link.name.as_str(), link.port)).collect();
    assert_eq!(links, [("eth0", 2), ("eth0.10", 2), ("eth1", 3)]);
    assert!(offload.parts.is_empty() && offload.notes.is_empty(), "{offload:?}");
    for family in [Family::V4, Family::V6] {
        assert_eq!(
            (offload.arrives(4, family), offload.leaves(4, family)),
            (PathKind::Fast, PathKind::Fast)
        );
        assert_eq!(offload.leaves(1, family), PathKind::Kernel, "no link of the router's");
    }
}

#[test]
fn a_family_on_the_kernel_path_is_so_on_every_link() {
    let mut router = Router::new();
    router.set("ipv4/ip_forward_use_pmtu", "1");
    let offload = router.offload();
    assert_eq!(offload.arrives(2, Family::V4), PathKind::Kernel);
    assert_eq!(offload.leaves(4, Family::V4), PathKind::Kernel);
    assert_eq!(offload.arrives(2, Family::V6), PathKind::Fast);
}

#[test]
fn every_reason_is_a_part_of_a_sentence() {
    let (text, why) = (|| "eth0".to_owned(), || "Operation not permitted".to_owned());
    for reason in [
        Reason::ForwardingOff(text()),
        Reason::NoFamily(Family::V6, text()),
        Reason::Member { device: text(), kind: "bridge".to_owned(), master: "br0".to_owned() },
        Reason::Upper { device: text(), kind: "macvlan".to_owned(), upper: "mac0".to_owned() },
        Reason::UpperElsewhere {
            device: text(),
            kind: "ipvlan".to_owned(),
            upper: "eth0".to_owned(),
            namespace: 3,
        },
        Reason::Xfrm(1),
        Reason::Xfrm(2),
        Reason::Conntrack(Some("a rule".to_owned())),
        Reason::Legacy(vec!["filter FORWARD".to_owned(), "raw PREROUTING".to_owned()]),
        Reason::Unknown("IPsec policies", why()),
    ] {
        let sentence = reason.to_string();
        assert!(
            !sentence.ends_with('.') && !sentence.contains("  ") && sentence.len() > 15,
            "{sentence}"
        );
    }
}
