//! Tests VLAN tags in packet metadata beside the frame, where XDP does not see them.

use tollway_commands::control::ShowRequest;

use super::icmp::checksum;
use super::namespaces::{Host, sh, until};
use super::running::{KernelRouter, Net, tags_in_frames};
use super::socket::Wire;

/// The router's Ethernet address at `ra`.
const ROUTER: [u8; 6] = [2, 0, 0, 0, 0, 0x0a];
/// The payload of the packets.
const MARK: &[u8] = b"a packet that is looked for";

pub fn beside() {
    let net = Net::new();
    sh("ip link set ra address 02:00:00:00:00:0a");
    net.b.sh("ip link set hb address 02:00:00:00:02:02");
    sh("ip neigh replace 10.0.2.2 lladdr 02:00:00:00:02:02 dev rb nud permanent");
    // A bridge moves the tag of a received frame into metadata for good, and a veth passes that on.
    net.a.sh("ip link add br0 type bridge");
    net.a.sh("ip link add x0 type veth peer name x1");
    for device in ["ha", "x1"] {
        net.a.sh(&format!("ip link set {device} master br0"));
    }
    for device in ["br0", "x0", "x1"] {
        net.a.sh(&format!("ip link set {device} up"));
    }
    default_offloads(&net.a);
    let (mut from, mut to) = (Wire::at(&net.a, "x0"), Wire::at(&net.b, "hb"));
    let mut arrives = |tag: &[u8]| {
        while to.receive().unwrap().is_some() {}
        from.send(&frame(tag)).unwrap();
        let mut seen = false;
        for _ in 0..40 {
            std::thread::sleep(std::time::Duration::from_millis(5));
            while let Some(frame) = to.receive().unwrap() {
                seen |= frame.windows(MARK.len()).any(|bytes| bytes == MARK);
            }
        }
        seen
    };
    let (plain, tagged) = (&[][..], &[0x81, 0, 0, 10][..]);
    until("the bridge to forward", || arrives(plain));
    assert!(!arrives(tagged), "the kernel has no such VLAN");

    let router = KernelRouter::start("ra rb");
    let offload = router.show(&ShowRequest::Offload).to_string();
    assert!(offload.contains("peer_tags"), "{offload}");
    let before = router.counts();
    until("one without a tag to arrive", || arrives(plain));
    assert!(!arrives(tagged), "its tag is not seen, and it is no frame without one");
    assert_eq!(router.counts().sent, before.sent, "all is the kernel's");

    // With `rxvlan off`, Tollway assumes that tags are in the frames, although these are not.
    sh("ethtool -K ra rxvlan off");
    router.sync();
    until("it to be believed", || arrives(tagged));

    tags_in_frames(&net.a, "a");
    router.sync();
    assert!(!arrives(tagged), "the tag is in the frame");
    // On a busy machine the worker may be late, and the kernel then forwards.
    until("the one without a tag to be forwarded", || {
        let before = router.counts();
        arrives(plain) && router.counts().sent > before.sent
    });
}

/// Sets the default offloads of a veth.
fn default_offloads(host: &Host) {
    host.sh("ethtool -K ha txvlan on tx-vlan-stag-hw-insert on");
    sh("ethtool -K ra rxvlan on");
}

/// Returns a packet from 10.0.1.2 to 10.0.2.2, with a tag or none.
fn frame(tag: &[u8]) -> Vec<u8> {
    let len = (20 + MARK.len() as u16).to_be_bytes();
    let mut header = [0x45, 0, len[0], len[1], 0, 1, 0, 0, 64, 253, 0, 0, 10, 0, 1, 2, 10, 0, 2, 2];
    let sum = checksum(&header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    [&ROUTER[..], &[2, 0, 0, 0, 1, 0x99], tag, &[8, 0], &header, MARK].concat()
}
