//! Tests VLAN tags at a port in generic mode, where XDP sees frames again that Tollway hands back
//! to the kernel. Rules from a file drop the same tagged packets as untagged ones.

use super::closed::Router;
use super::icmp::checksum;
use super::namespaces::{Host, sh, until};
use super::running::{Net, answered};
use super::socket::Wire;

/// 10.0.2.3 is another address of host B. Packets from the VLANs may not reach 10.0.2.4 either.
const RULES: &str = "table inet f {\n chain fw {\n type filter hook forward priority 0; policy accept;\n \
                     ip daddr 10.0.2.3 drop\n iifname { \"a.10\", \"a.20\", \"a.20.7\" } ip daddr 10.0.2.4 drop\n }\n}\n";

/// The links from host A to the router: device name after `h` or `r`, parent, VLAN, protocol, and
/// net.
const VLANS: [(&str, &str, u16, &str, u8); 3] = [
    ("a.10", "a", 10, "802.1Q", 10),
    ("a.20", "a", 20, "802.1ad", 20),
    ("a.20.7", "a.20", 7, "802.1Q", 30),
];
/// Number of crafted packets of each kind.
const EACH: usize = 20;

fn config() -> String {
    let mut text = "filter = \"rules.nft\"\n".to_owned();
    for (port, net) in [("a", 1), ("b", 2)] {
        text += &format!(
            "[ports.{port}]\nkind = \"af_xdp\"\nmode = \"generic\"\ndevice = \"r{port}\"\n\
             addresses = [\"10.0.{net}.1/24\", \"fd00:{net}::1/64\"]\n"
        );
    }
    for (name, parent, vid, protocol, net) in VLANS {
        text += &format!(
            "[vlans.\"{name}\"]\nparent = \"{parent}\"\nvid = {vid}\nprotocol = \"{protocol}\"\n\
             addresses = [\"10.0.{net}.1/24\", \"fd00:{net}::1/64\"]\n"
        );
    }
    text
}

/// Sets up the VLANs at both ends of host A's cable.
fn net() -> Net {
    let net = Net::new();
    sh("ip link set ra address 02:00:00:00:00:0a");
    for last in [3, 4] {
        net.b.sh(&format!("ip address add 10.0.2.{last}/24 dev hb"));
    }
    for (name, parent, vid, protocol, subnet) in VLANS {
        for (end, last) in [("r", 1), ("h", 2)] {
            let own = |line: String| if end == "r" { sh(&line) } else { net.a.sh(&line) };
            let kind = format!("type vlan id {vid} protocol {protocol}");
            own(format!("ip link add link {end}{parent} name {end}{name} {kind}"));
            own(format!("ip address add 10.0.{subnet}.{last}/24 dev {end}{name}"));
            own(format!("ip link set {end}{name} up"));
        }
    }
    net.b.sh("nft add table ip seen");
    net.b.sh("nft add chain ip seen arrived { type filter hook prerouting priority 0 ; }");
    for last in [3, 4] {
        net.b.sh(&format!("nft add rule ip seen arrived ip daddr 10.0.2.{last} counter"));
    }
    net
}

/// Returns how many packets that rules drop have reached host B: to 10.0.2.3 and to 10.0.2.4.
fn arrived(b: &Host) -> Vec<u64> {
    let output = b.sh("nft list table ip seen");
    let counts = output.split("counter packets ").skip(1);
    counts.map(|rest| rest.split(' ').next().unwrap().parse().unwrap()).collect()
}

/// Returns how many of five pings are answered. Host A sends them from its address in a subnet,
/// with options.
fn by(net: &Net, subnet: u8, options: &str) -> usize {
    answered(&net.a, &format!("-I 10.0.{subnet}.2 {options}"))
}

pub fn tags() {
    let net = net();
    let subnets = [1].into_iter().chain(VLANS.map(|(.., subnet)| subnet));
    // Host A sends each packet on the link of its source address.
    for (name, _, _, _, subnet) in VLANS {
        net.a.sh(&format!("ip rule add from 10.0.{subnet}.2 table {subnet}"));
        let way = format!("default via 10.0.{subnet}.1 dev h{name} table {subnet}");
        net.a.sh(&format!("ip route add {way}"));
    }
    for subnet in subnets.clone() {
        until("the kernel to forward", || by(&net, subnet, "10.0.2.3") == 5);
    }
    let kernels = crafted(&net);
    assert!(kernels >= VLANS.len() * EACH, "the kernel knows no rule: {kernels}");
    let router = Router::start_with(&config(), RULES);
    assert!(router.logged("generic XDP"));
    for subnet in subnets.clone() {
        until("pings to go through", || by(&net, subnet, "10.0.2.2") == 5);
        let before = arrived(&net.b);
        assert_eq!(by(&net, subnet, "10.0.2.3"), 0, "from 10.0.{subnet}.2, a rule drops them");
        if subnet == 1 {
            until("pings by another link to go through", || by(&net, subnet, "10.0.2.4") == 5);
            assert_eq!(arrived(&net.b)[0], before[0]);
        } else {
            assert_eq!(by(&net, subnet, "10.0.2.4"), 0, "from 10.0.{subnet}.2, by its link");
            assert_eq!(arrived(&net.b), before);
        }
        // Packets for the router itself, and packets that user space hands back to the kernel: an
        // unknown neighbour, IP options, an expired TTL.
        until("the router to answer", || by(&net, subnet, &format!("10.0.{subnet}.1")) == 5);
        sh("ip neigh flush dev rb");
        until("what is handed back to arrive", || by(&net, subnet, "10.0.2.2") == 5);
        until("options to be recorded", || by(&net, subnet, "-R 10.0.2.2") == 5);
        assert_eq!(by(&net, subnet, "-R 10.0.2.3"), 0, "10.0.{subnet}.2: with options");
        let line = format!("ping -n -c 1 -W 1 -t 1 -I 10.0.{subnet}.2 10.0.2.2");
        until("an error to be reported", || {
            let output = net.a.command(&line).output().unwrap();
            String::from_utf8_lossy(&output.stdout).contains("Time to live exceeded")
        });
    }
    assert_eq!(crafted(&net), 0, "to 10.0.2.3");
    for subnet in subnets {
        until("pings to go through", || by(&net, subnet, "10.0.2.2") == 5);
    }
}

/// Sends frames with tags of no link, with guessed marks, and with misleading tags. Returns how
/// many arrive of those that a rule drops.
fn crafted(net: &Net) -> usize {
    const TAGS: [&[u8]; 12] = [
        &[],
        &[0x81, 0, 0, 0],
        &[0x81, 0, 0xe0, 0],
        &[0x81, 0, 0, 10],
        &[0x81, 0, 0xf0, 10],
        &[0x81, 0, 0, 11],
        &[0x81, 0, 0, 20],
        &[0x88, 0xa8, 0, 10],
        &[0x88, 0xa8, 0, 20],
        &[0x88, 0xa8, 0, 20, 0x81, 0, 0, 7],
        &[0x81, 0, 0, 10, 0x81, 0, 0, 10],
        &[0x88, 0xa8, 0, 20, 0x81, 0, 0, 7, 0x81, 0, 0, 7],
    ];
    let mut wire = Wire::at(&net.a, "ha");
    let before = arrived(&net.b);
    for tag in TAGS {
        for subnet in [1, 10, 20, 30] {
            for options in [false, true] {
                let mark = [[2; 12].as_slice(), &[0x88, 0xb5], &[0xff; 2]].concat();
                let frame = frame(tag, subnet, options);
                for frame in [&frame, &[mark.as_slice(), &frame].concat()] {
                    (0..EACH).for_each(|_| until("room", || wire.send(frame).is_ok()));
                }
            }
        }
    }
    until("pings behind them", || by(net, 1, "10.0.2.2") == 5);
    (arrived(&net.b)[0] - before[0]) as usize
}

/// Returns a packet to 10.0.2.3, which a rule drops.
fn frame(tag: &[u8], subnet: u8, options: bool) -> Vec<u8> {
    let mut header = vec![0x45, 0, 0, 28, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, subnet, 2, 10, 0, 2, 3];
    if options {
        // Four no-operation options.
        (header[0], header[3]) = (0x46, 32);
        header.extend([1; 4]);
    }
    let sum = checksum(&header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    let udp = [0, 7, 0, 7, 0, 8, 0, 0, 0, 0];
    [&[2, 0, 0, 0, 0, 0x0a][..], &[2, 0, 0, 0, 1, 2], tag, &[8, 0], &header, &udp].concat()
}
