//! Layer-3 devices: their packets have no Ethernet header.

#![allow(unsafe_code, reason = "offloads of a TUN device are set by a request of its own")]

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;

use tollway_commands::control::ShowRequest;

use super::namespaces::{Host, sh, until};
use super::running::by_kernel;
use super::scene::{Net, arrives, carries_one, configure, start, until_forwarded};

/// The keys of both ends of a tunnel of WireGuard, private and public, which only these tests use.
const KEYS: [(&str, &str); 2] = [
    (
        "mEpjOdxmgH54IyzynGgkG+aXbyudZMv48lzTFDCJMnU=",
        "62+OUs74CA+8K00+0+B5DWOUTcpLWYwDuurkVlruKk4=",
    ),
    (
        "CCpTXb3EdBYys4iCa7YLJ4iZUs8fY2I1sBLUdKR9yHA=",
        "NXDWy2iJUz8mLBQcR+p0G9AaZsSWMMhEp0VvXZ6P4Xw=",
    ),
];
/// Bytes of the largest packet, and of what precedes it (`struct virtio_net_hdr`).
const MOST_BYTES: usize = (1 << 16) + 10;

/// Opens a TUN device whose packets may be super-frames with unfinished checksums.
fn tun(name: &str) -> File {
    /// `TUN_F_CSUM`, `TUN_F_TSO4`, `TUN_F_TSO6`.
    const OFFLOADS: libc::c_ulong = 1 | 2 | 4;
    let file = super::namespaces::tun::tun(name, libc::IFF_VNET_HDR, false);
    // SAFETY: the request takes a number.
    let set = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETOFFLOAD, OFFLOADS) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
    file
}

/// Carries packets from one device to the other, until this program ends.
fn carry(mut from: File, mut to: File) {
    std::thread::spawn(move || {
        let mut bytes = vec![0; MOST_BYTES];
        while let Ok(len) = from.read(&mut bytes) {
            // The other end may be down.
            let _ = to.write_all(&bytes[..len]);
        }
    });
}

/// Connects a device to one of the host, with addresses in another network, by which the host reaches all others.
fn connect(host: &Host, device: &str, number: u8) {
    let other = format!("{device}x");
    let (near, far) = (tun(device), tun(&other));
    sh(&format!("ip link set {other} netns {}", host.0.0.id()));
    host.sh(&format!("ip link set {other} up"));
    sh(&format!("ip link set {device} up"));
    carry(near.try_clone().unwrap(), far.try_clone().unwrap());
    carry(far, near);
    configure(host, device, &other, number);
}

/// Into a TUN device and out of it, by a route to its network and by a gateway there.
pub fn tuns() {
    let net = Net::new();
    sh("sysctl -qw net.ipv4.conf.all.rp_filter=1");
    connect(&net.b, "tunb", 22);
    let router = start("ra tunb");
    until_forwarded(&router, &net.a, "10.0.22.2");
    arrives(&router, (&net.a, &net.b), "10.0.22.2:5001");
    arrives(&router, (&net.b, &net.a), "10.0.1.2:5001");
    arrives(&router, (&net.a, &net.b), "[fd00:22::2]:5001");
    arrives(&router, (&net.b, &net.a), "[fd00:1::2]:5001");
    net.b.sh("ip address add 10.9.0.1/32 dev lo");
    sh("ip route add 10.9.0.0/16 via 10.0.22.7 dev tunb");
    until_forwarded(&router, &net.a, "10.9.0.1");
    arrives(&router, (&net.a, &net.b), "10.9.0.1:5001");
    let ports = router.show(&ShowRequest::Ports);
    let tun = &ports["ports"][1];
    assert_eq!((&tun["engine"], &tun["mac"]), (&"tc".into(), &"".into()), "{ports}");
    let neighs = router.show(&ShowRequest::Neighbours).to_string();
    assert!(!neighs.contains("tunb"), "{neighs}");
}

/// From one TUN device to another: no packet ever has a header.
pub fn between_tuns() {
    let net = Net::new();
    connect(&net.b, "tunb", 22);
    connect(&net.a, "tuna", 11);
    let router = start("tuna tunb");
    until_forwarded(&router, &net.a, "10.0.22.2");
    arrives(&router, (&net.a, &net.b), "10.0.22.2:5001");
    arrives(&router, (&net.b, &net.a), "[fd00:11::2]:5001");
}

/// Lays a tunnel of packets over the cable of host B, with addresses in another network, by which the host reaches all
/// others.
fn tunnel(host: &Host, number: u8, ends: [&str; 2]) {
    sh(&format!("ip link add l3b {}", ends[0]));
    host.sh(&format!("ip link add l3b {}", ends[1]));
    sh("ip link set l3b up");
    host.sh("ip link set l3b up");
    configure(host, "l3b", "l3b", number);
}

/// What arrives by a tunnel is forwarded by the program; what leaves by one, by the kernel, which answers for it.
#[track_caller]
fn serves(net: &Net, families: &[(&str, &str)]) {
    let router = start("ra l3b");
    let offload = || router.show(&ShowRequest::Offload).to_string();
    until("the tunnel is a port", || offload().contains("\"tunnel\""));
    for (address, stream) in families {
        until("packets by Tollway", || {
            let (before, kernel) = (router.counts().sent, by_kernel());
            net.b.pings(10, address);
            // The answers go the other way.
            router.counts().sent >= before + 8 && by_kernel() >= kernel + 8
        });
        carries_one(&router, (&net.b, &net.a), stream, |(sent, _)| sent > 100);
    }
    drop(router);
    sh("ip link del l3b");
    net.b.sh("ip link del l3b");
}

/// Out of tunnels of the kernel, which this machine may not have.
pub fn tunnels() {
    let net = Net::new();
    let both = [("10.0.1.2", "10.0.1.2:5001"), ("fd00:1::2", "[fd00:1::2]:5001")];
    for (kind, families, rp_filter) in [("gre", &both[..], 1), ("ipip", &both[..1], 2)] {
        let end = |local: u8, remote: u8| {
            format!("type {kind} local 10.0.2.{local} remote 10.0.2.{remote}")
        };
        tunnel(&net.b, 22, [&end(1, 2), &end(2, 1)]);
        // Sources are checked by routes that lead to the tunnel, by which only the kernel sends.
        sh(&format!("sysctl -qw net.ipv4.conf.all.rp_filter={rp_filter}"));
        serves(&net, families);
    }
    tunnel(&net.b, 22, ["type wireguard"; 2]);
    let files = tempfile::tempdir().unwrap();
    for own in [0, 1] {
        let (private, peer, remote) = (KEYS[own].0, KEYS[1 - own].1, 2 - own);
        let file = files.path().join(format!("{own}"));
        let text = format!(
            "[Interface]\nPrivateKey = {private}\nListenPort = 51820\n[Peer]\nPublicKey = {peer}\n\
             AllowedIPs = 0.0.0.0/0, ::/0\nEndpoint = 10.0.2.{remote}:51820\n"
        );
        std::fs::write(&file, text).unwrap();
        let line = format!("wg setconf l3b {}", file.display());
        if own == 0 {
            sh(&line)
        } else {
            net.b.sh(&line)
        };
    }
    serves(&net, &both);
}
