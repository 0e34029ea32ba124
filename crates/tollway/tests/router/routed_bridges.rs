//! Tests of routers with addresses on a bridge, whose ports are theirs.

use std::time::Duration;

use tollway_commands::control::ShowRequest;
use tollway_model::Engine;

use super::bridges::{Net, learned, start};
use super::namespaces::{Host, ready, sh, until};
use super::running::{KernelRouter, SILENCE, answered};
use super::tracked_tcp::{Asking, assert_nothing_invalid, gateway_of, until_forwarded};

/// Hosts A and B at ports of the bridge, which has addresses, and C at a port of its own.
fn net(engine: Engine) -> Net {
    for family in ["ipv4.ip_forward", "ipv6.conf.all.forwarding"] {
        sh(&format!("sysctl -qw net.{family}=1"));
    }
    let net = Net::new(engine);
    sh("ip address add 10.0.0.254/24 dev br0");
    sh("ip address add fd00::fe/64 dev br0 nodad");
    sh("ip link set rc nomaster");
    sh("ip address add 10.1.0.254/24 dev rc");
    sh("ip address add fd01::fe/64 dev rc nodad");
    net.c.sh("ip address flush dev hc");
    net.c.sh("ip address add 10.1.0.3/24 dev hc");
    net.c.sh("ip address add fd01::3/64 dev hc nodad");
    via(&net.c, 1);
    for host in [&net.a, &net.b] {
        via(host, 0);
    }
    net
}

/// Gives a host a default route by the router's address in this network.
fn via(host: &Host, network: u8) {
    host.sh(&format!("ip route add default via 10.{network}.0.254"));
    host.sh(&format!("ip -6 route add default via fd0{network}::fe"));
}

/// What arrives by the bridge is routed, and what leaves by it finds its port, by all settings of both.
pub fn routed(engine: Engine) {
    let net = net(engine);
    let router = start(engine);
    for address in ["10.1.0.3", "fd01::3"] {
        router.forwards(&net.a, address);
        router.forwards(&net.b, address);
    }
    // Between ports, the same frames are bridged.
    router.forwards(&net.a, "10.0.0.2");
    let offload = router.show(&ShowRequest::Offload);
    let links = offload["links"].as_array().unwrap();
    let bridge = links.iter().find(|link| link["link"] == "br0").unwrap();
    assert_eq!(bridge["is_bridge"], true, "{offload}");
    assert_eq!(bridge["arrives"]["ipv4"].as_array().unwrap().len(), 0, "{offload}");
    sh("sysctl -qw net.ipv4.conf.br0.forwarding=0");
    router.stops_there(&net.a, "10.1.0.3");
    router.forwards(&net.a, "fd01::3");
    sh("sysctl -qw net.ipv4.conf.br0.forwarding=1");
    router.forwards(&net.a, "10.1.0.3");
    sh("nft add table ip t");
    sh("nft add chain ip t c { type filter hook forward priority 0; }");
    sh("nft add rule ip t c iifname br0 ip saddr 10.0.0.2 drop");
    router.stops_there(&net.b, "10.1.0.3");
    router.forwards(&net.a, "10.1.0.3");
    sh("nft delete table ip t");
    router.forwards(&net.b, "10.1.0.3");
    // Who does not belong to the network does not come in by it, though there is a way back.
    sh("ip route add 10.9.0.0/24 via 10.0.0.2");
    net.b.sh("ip address add 10.9.0.2/32 dev hb");
    router.forwards(&net.b, "-I 10.9.0.2 10.1.0.3");
    sh("ip route replace 10.9.0.0/24 via 10.1.0.3");
    net.c.sh("ip route add 10.9.0.0/24 via 10.1.0.254");
    sh("sysctl -qw net.ipv4.conf.br0.rp_filter=1");
    router.forwards(&net.b, "10.1.0.3");
    let before = router.counts().dropped;
    router.stops_there(&net.b, "-I 10.9.0.2 10.1.0.3");
    assert!(router.counts().dropped > before, "its packets are dropped by their source");
    // A tap that sees all frames of the bridge leaves them to the kernel.
    sh("ip link set br0 promisc on");
    router.passes_to_kernel(&net.a, "10.1.0.3");
    sh("ip link set br0 promisc off");
    router.forwards(&net.a, "10.1.0.3");
    // The other port goes and comes back.
    sh("ip link set rc down");
    router.stops_there(&net.a, "10.1.0.3");
    sh("ip link set rc up");
    until("the port to be back", || router.read("stderr").contains("rc is back"));
    router.forwards(&net.a, "10.1.0.3");
}

/// A VLAN device on top of the bridge is a link as well, unless the bridge has VLANs itself.
pub fn tagged() {
    let net = net(Engine::Tc);
    sh("ip link add link br0 name br0.7 type vlan id 7");
    sh("ip address add 10.2.0.254/24 dev br0.7");
    sh("ip link set br0.7 up");
    net.a.sh("ip link add link ha name ha.7 type vlan id 7");
    net.a.sh("ip address add 10.2.0.1/24 dev ha.7");
    net.a.sh("ip link set ha.7 up");
    let router = start(Engine::Tc);
    router.forwards(&net.c, "10.2.0.1");
    // From one network of the bridge to the other one, by one port or two.
    router.forwards(&net.b, "10.2.0.1");
    router.forwards(&net.a, "10.1.0.3");
    sh("ip link set br0 type bridge vlan_filtering 1");
    router.passes_to_kernel(&net.a, "10.1.0.3");
    sh("ip link set br0 type bridge vlan_filtering 0");
    router.forwards(&net.a, "10.1.0.3");
}

/// Packets for a host that moves to another port leave by that at once.
pub fn moves(engine: Engine) {
    let net = net(engine);
    let router = start(engine);
    router.forwards(&net.c, "10.0.0.1");
    router.forwards(&net.c, "10.0.0.2");
    net.a.sh("ip link set ha down");
    net.b.sh("ip link set hb down");
    net.b.sh("ip address flush dev hb");
    net.b.sh("ip link set hb address 02:00:00:00:00:01 up");
    net.b.sh("ip address add 10.0.0.1/24 dev hb");
    net.b.sh("ip route add default via 10.0.0.254");
    until("the host to be found again", || answered(&net.b, "10.0.0.254") == 5);
    assert_eq!(learned(1).as_deref(), Some("rb"));
    router.forwards(&net.c, "10.0.0.1");
    // The bridge forgets it, and floods until the host has said something.
    let left = || {
        let offload = router.show(&ShowRequest::Offload);
        offload["counts"]["ports"][2]["kernel"]["bridge_destination"].as_u64().unwrap_or(0)
    };
    let before = left();
    sh("bridge fdb del 02:00:00:00:00:01 dev rb master");
    assert_eq!(answered(&net.c, "10.0.0.1"), 5);
    assert!(left() > before, "the kernel has got what nobody knew the port of");
    router.forwards(&net.c, "10.0.0.1");
}

/// Connections of TCP go on, whose windows the programs follow, though the kernel has to see some of their frames.
pub fn tracked(engines: [Engine; 2]) {
    /// As long as several of the times after which the kernel sees a frame of each host.
    const ASKS: Duration = Duration::from_secs(4);
    let [of_bridge, of_exit] = engines;
    let net = net(of_bridge);
    sh("ip link set br0 type bridge ageing_time 240");
    net.c.sh("ip address add 10.0.2.2/24 dev hc");
    let _server = ready(&mut net.c.role("--role", "tcp-server"));
    sh("ip route add 10.0.2.0/24 via 10.1.0.3");
    gateway_of("ip", "rc");
    sh("nft add rule inet fw input ct state invalid counter drop");
    for calls in ["0", "1"] {
        sh(&format!("ip link set br0 type bridge nf_call_iptables {calls}"));
        let (of_bridge, of_exit) = (of_bridge.name(), of_exit.name());
        let engines = format!("--engine {of_bridge} --engine rc={of_exit}");
        let mut router = KernelRouter::start(&format!("{engines} ra rb rc"));
        let asking = Asking::start(&net.a, 4, "fin");
        until_forwarded(&router, 200);
        std::thread::sleep(ASKS);
        until_forwarded(&router, 200);
        let offload = router.show(&ShowRequest::Offload);
        let seen = &offload["counts"]["ports"][0]["kernel"]["bridge_refresh"];
        assert!(seen.as_u64().is_some_and(|seen| seen > 3), "{offload}");
        assert!(asking.end() > 50);
        assert_nothing_invalid();
        let input = sh("nft list chain inet fw input");
        assert!(input.contains("invalid counter packets 0 "), "{input}");
        router.stop();
    }
}

/// Whatever becomes of the process, the kernel routes.
pub fn kill(engine: Engine) {
    let net = net(engine);
    let mut router = KernelRouter::start(&format!("--engine {} br0 rc", engine.name()));
    router.forwards(&net.a, "10.1.0.3");
    sh(&format!("kill -STOP {}", router.process.0.id()));
    std::thread::sleep(SILENCE);
    assert_eq!(answered(&net.a, "10.1.0.3"), 5, "stopped");
    sh(&format!("kill -CONT {}", router.process.0.id()));
    router.forwards(&net.a, "10.1.0.3");
    router.process.0.kill().unwrap();
    router.process.0.wait().unwrap();
    std::thread::sleep(SILENCE);
    assert_eq!(answered(&net.a, "10.1.0.3"), 5, "killed");
}
