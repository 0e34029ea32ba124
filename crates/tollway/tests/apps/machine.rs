//! What this machine's kernel may not have: WireGuard, VLAN and VRF devices, flowtables. These tests run in a virtual machine.

use super::machines::Part;
use super::namespaces::{Host, sh, until};
use super::running::KernelRouter;
use super::scene::{check, compared, entries, is_fast, is_half_fast, is_slow, load, paths};
use super::talk::{Talk, server};
use super::traffic::Net;

/// The tests in the machine.
pub const PARTS: [Part; 5] = [
    ("WireGuard through the router", wireguard_through),
    ("WireGuard from the router", wireguard_from),
    ("VLANs", vlans),
    ("VRFs", vrfs),
    ("flowtables", flowtables),
];

/// A kernel without tcx has no XDP programs for connections.
const ENGINES: [&str; 1] = ["tc"];

/// A firewall that lets host A begin connections.
const FIREWALL: &str = "
table inet fw {
    chain forward {
        type filter hook forward priority filter; policy drop;
        ct state established,related accept
        ip saddr { 10.0.1.0/24, 10.0.11.0/24 } accept
    }
}";

/// Translates what leaves by these devices.
fn masquerade(devices: &str) {
    load("nft -f -", FIREWALL);
    let rules = format!(
        "table ip nat {{
            chain post {{ type nat hook postrouting priority srcnat; oifname {{ {devices} }} masquerade; }}
        }}"
    );
    load("nft -f -", &rules);
}

/// Lays a tunnel of WireGuard between the router, or a host, and host B, with the addresses 10.8.0.1 and, at host B, 10.8.0.2.
fn tunnel(near: Option<&Host>, far: &Host) {
    let keys = [(); 2].map(|()| {
        let private = sh("wg genkey").trim().to_owned();
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("key");
        std::fs::write(&file, &private).unwrap();
        let output = std::process::Command::new("wg")
            .arg("pubkey")
            .stdin(std::fs::File::open(&file).unwrap())
            .output()
            .unwrap();
        (private, String::from_utf8(output.stdout).unwrap().trim().to_owned())
    });
    let files = tempfile::tempdir().unwrap();
    for (number, host) in [near, Some(far)].into_iter().enumerate() {
        let run = |line: String| host.map_or_else(|| sh(&line), |host| host.sh(&line));
        let (private, peer) = (&keys[number].0, &keys[1 - number].1);
        // Host B learns where the other end is.
        let endpoint = if number == 0 { "Endpoint = 10.0.2.2:51820\n" } else { "" };
        let text = format!(
            "[Interface]\nPrivateKey = {private}\nListenPort = 51820\n[Peer]\nPublicKey = {peer}\n\
             AllowedIPs = 0.0.0.0/0\n{endpoint}"
        );
        let file = files.path().join(number.to_string());
        std::fs::write(&file, text).unwrap();
        run("ip link add wg0 type wireguard".to_owned());
        run(format!("wg setconf wg0 {}", file.display()));
        run(format!("ip address add 10.8.0.{}/24 dev wg0", number + 1));
        run("ip link set wg0 up".to_owned());
    }
}

/// A tunnel whose packets the router translates: to it, they are datagrams.
fn wireguard_through() {
    let net = Net::new();
    tunnel(Some(&net.a), &net.b);
    let _server = server(&net.b, "10.8.0.2:7001");
    compared("ra rb", &ENGINES, |router| {
        masquerade("rb");
        router.map(KernelRouter::sync);
        let mut talk = Talk::start(&net.a, "tcp", "10.8.0.2:7001");
        is_fast(router, &mut talk);
        talk.lasts(4000);
        talk.is_going_on();
        // A packet of the other end may come before the tunnel's first one, and take the port.
        let own = entries(&[]).into_iter().filter(|entry| entry.starts_with("udp src=10.0.1.2 "));
        (talk.seen(), own.collect::<Vec<_>>())
    });
}

/// A tunnel of the router's own: packets into it are the kernel's, since only that can tell senders what the tunnel cannot
/// carry. Those that come out of it are fast if it is a port.
fn wireguard_from() {
    let net = Net::new();
    tunnel(None, &net.b);
    let _server = server(&net.b, "10.8.0.2:7001");
    for devices in ["ra rb", "ra rb wg0"] {
        compared(devices, &ENGINES, |router| {
            masquerade("wg0");
            router.map(KernelRouter::sync);
            let mut talk = Talk::start(&net.a, "tcp", "10.8.0.2:7001");
            match devices {
                "ra rb" => is_slow(router, &mut talk),
                _ => is_half_fast(router, &mut talk),
            }
            talk.is_going_on();
            // The connection around the tunnel belongs to whichever end has sent first.
            let inner = entries(&[7001]).into_iter().filter(|entry| entry.starts_with("tcp "));
            (talk.seen(), inner.collect::<Vec<_>>())
        });
    }
}

/// Conversations of host A, whose addresses are translated on these devices, are fast.
fn masqueraded(net: &Net, devices: &str) {
    let _server = server(&net.b, "10.0.2.2:7001");
    for protocol in ["tcp", "udp"] {
        compared("ra rb", &ENGINES, |router| {
            masquerade(devices);
            router.map(KernelRouter::sync);
            let mut talk = Talk::start(&net.a, protocol, "10.0.2.2:7001");
            is_fast(router, &mut talk);
            talk.lasts(4000);
            talk.is_going_on();
            (talk.seen(), entries(&[7001]))
        });
    }
}

/// From a VLAN to the outside.
fn vlans() {
    let net = Net::new();
    Net::tag(&net.a, "a", 10, 11);
    masqueraded(&net, "rb");
}

/// Both sides in a VRF.
fn vrfs() {
    let net = Net::new();
    sh("ip link add red type vrf table 10");
    sh("ip link set red up");
    for device in ["ra", "rb"] {
        sh(&format!("ip link set {device} master red"));
    }
    masqueraded(&net, "rb, red");
}

/// A flowtable forwards the connections that a rule adds; they stay on the kernel path.
fn flowtables() {
    let net = Net::new();
    let _server = server(&net.b, "10.0.2.2:7001");
    for protocol in ["tcp", "udp"] {
        compared("ra rb", &ENGINES, |router| {
            load(
                "nft -f -",
                "table inet fw {
                    flowtable ft { hook ingress priority filter; devices = { ra, rb }; }
                    chain forward {
                        type filter hook forward priority filter; policy drop;
                        ct state established,related flow add @ft
                        ct state established,related accept
                        ip saddr 10.0.1.0/24 accept
                    }
                }",
            );
            router.map(KernelRouter::sync);
            let mut talk = Talk::start(&net.a, protocol, "10.0.2.2:7001");
            talk.lasts(5000);
            talk.is_going_on();
            until("the flowtable", || sh("conntrack -L").contains("[OFFLOAD]"));
            if let Some(router) = router {
                assert_eq!(
                    paths(router, "--port 7001"),
                    [("kernel".into(), "offload".into())].into()
                );
                let answer = check("ra rb").1.to_string();
                assert!(answer.contains("flowtable ft"), "{answer}");
                let before = router.counts().sent;
                talk.is_going_on();
                assert_eq!(router.counts().sent, before, "the flowtable forwards");
            }
            talk.seen()
        });
    }
}
