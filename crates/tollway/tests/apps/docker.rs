//! Docker's rules for a container with a published port, as its daemon writes them by iptables-nft.

use std::collections::BTreeSet;

use super::namespaces::{Host, sh};
use super::running::{KernelRouter, Net};
use super::scene::{ENGINES, check, compared, entries, is_fast, is_slow, load, reaches};
use super::talk::{Talk, server};

/// Docker 20 to 27, with its proxy for connections of the host and of other containers.
const RULES_27: &str = include_str!("rules/docker-27.iptables");
/// Docker 28, without that proxy, and with rules against packets that were not translated.
const RULES_28: &str = include_str!("rules/docker-28.iptables");
/// The ports of the conversations.
const PORTS: [u16; 4] = [80, 8080, 7001, 7002];

/// What servers have seen, and the kernel's list, of each conversation; and whether the container can be reached without
/// translation.
type Outcome = (Vec<(BTreeSet<String>, Vec<String>)>, bool);

/// Talks from outside to the published port, from the container to the outside, and from the container to its own published port.
/// `looks` looks at each conversation but the last.
fn talks(
    router: Option<&KernelRouter>,
    (outside, container, address): (&Host, &Host, &str),
    looks: fn(Option<&KernelRouter>, &mut Talk),
) -> Vec<(BTreeSet<String>, Vec<String>)> {
    let _servers = [server(container, &format!("{address}:80")), server(outside, "10.0.1.2:7001")];
    let talks = [
        (outside, "tcp", "10.0.1.1:8080"),
        (container, "tcp", "10.0.1.2:7001"),
        (container, "udp", "10.0.1.2:7001"),
    ];
    let mut seen = Vec::new();
    for (host, protocol, address) in talks {
        let mut talk = Talk::start(host, protocol, address);
        looks(router, &mut talk);
        talk.is_going_on();
        // UDP is assured after two seconds.
        talk.lasts(2500);
        seen.push((talk.seen(), entries(&PORTS)));
        talk.end();
        sh("conntrack -F");
    }
    seen
}

/// Containers in a bridge: where that is a port, which only the tc engine has, their connections are fast.
pub fn bridged() {
    let outside = Net::new().a;
    let container = Host::new();
    let pid = container.0.0.id();
    sh("ip link add docker0 type bridge");
    sh("ip address add 172.17.0.1/16 dev docker0");
    sh("ip link set docker0 up");
    sh(&format!("ip link add veth1 type veth peer name eth0 netns {pid}"));
    sh("ip link set veth1 master docker0");
    // As Docker does without its proxy.
    sh("bridge link set dev veth1 hairpin on");
    sh("ip link set veth1 up");
    container.sh("ip link set lo up");
    container.sh("ip address add 172.17.0.2/16 dev eth0");
    container.sh("ip link set eth0 up");
    container.sh("ip route add default via 172.17.0.1");
    for (rules, engine) in [RULES_27, RULES_28].into_iter().zip(ENGINES) {
        let scene = |router: Option<&KernelRouter>, looks| -> Outcome {
            load("iptables-nft-restore", rules);
            router.map(KernelRouter::sync);
            let talks = talks(router, (&outside, &container, "172.17.0.2"), looks);
            (talks, reaches(&outside, "172.17.0.2:80"))
        };
        compared("ra docker0", &["tc"], |router| scene(router, is_fast));
        // The bridge is no port: all that goes to it is the kernel's.
        compared("ra", &[engine], |router| {
            let (code, answer) = check("ra");
            assert_eq!(code, 3);
            assert!(answer.to_string().contains("docker0"), "{answer}");
            scene(router, is_slow)
        });
    }
}

/// The same rules for containers with cables of their own, as the plugins `ptp` of CNI makes them.
pub fn routed() {
    let net = Net::new();
    for (rules, engine) in [RULES_27, RULES_28].into_iter().zip(ENGINES) {
        let rules = rules
            .replace("docker0", "rb")
            .replace("172.17.0.2", "10.0.2.2")
            .replace("172.17.0.0/16", "10.0.2.0/24");
        compared("ra rb", &[engine], |router| -> Outcome {
            load("iptables-nft-restore", &rules);
            router.map(KernelRouter::sync);
            let talks = talks(router, (&net.a, &net.b, "10.0.2.2"), is_fast);
            (talks, reaches(&net.a, "10.0.2.2:80"))
        });
    }
}
