//! How each object of the kernel changes the paths.

use std::process::{Command, Stdio};

use aya::Ebpf;
use aya::programs::links::LinkOrder;
use aya::programs::tc::TcAttachOptions;
use aya::programs::{SchedClassifier, TcAttachType, Xdp, XdpMode};
use tollway_dataplane::id::{LinkId, PortId};
use tollway_net::{KernelPath, Mac};
use tollway_xdp::{Mode, Options, XdpLink, XdpPort, XdpPrograms};

use crate::namespaces::{Host, Process, ifindex, sh, until};
use crate::scene::{expect, kernels, meanwhile, router, see, see_at, sysctl};

pub fn plain() {
    router();
    expect(&[]);
    let offload = see();
    let names: Vec<_> = offload.links.iter().map(|link| link.name.as_str()).collect();
    assert_eq!(names, ["ra", "rb"]);
    // The routes to the links' own prefixes; for IPv6 also those to multicast groups.
    assert_eq!(offload.routes.v4, 2);
    assert!(offload.parts.is_empty(), "{:?}", offload.parts);
}

pub fn qdiscs() {
    router();
    let out = ["out of ra *: qdisc"];
    let gone = "tc qdisc del dev ra root";
    meanwhile("tc qdisc add dev ra root tbf rate 10mbit burst 10k latency 10ms", &out, gone);
    meanwhile("tc qdisc add dev ra root handle 1: htb default 10", &out, gone);
    meanwhile("tc qdisc add dev ra root pfifo limit 10", &out, gone);
    // A device that comes up with several queues gets the kernel's own qdiscs.
    sh("ip link add rc numtxqueues 2 numrxqueues 2 type veth peer name rc-end");
    sh("ip link set rc up");
    expect(&[]);
}

pub fn tags() {
    router();
    let expected = ["into ra *: peer_tags", "out of ra *: peer_tags"];
    for feature in ["txvlan", "tx-vlan-stag-hw-insert"] {
        let off = format!("ethtool -K ra-end {feature} off");
        meanwhile(&format!("ethtool -K ra-end {feature} on"), &expected, &off);
    }
    // For a peer in another namespace, the port's own setting decides.
    let host = Host::new();
    sh(&format!("ip link set ra-end netns {}", host.0.0.id()));
    host.sh("ip link set ra-end up");
    sh("ethtool -K ra rx off rxvlan off");
    expect(&[]);
    meanwhile("ethtool -K ra rxvlan on", &expected, "ethtool -K ra rxvlan off");
}

pub fn checksums() {
    router();
    let expected = ["into ra *: peer_checksums", "out of ra *: peer_checksums"];
    meanwhile("ethtool -K ra-end tx on", &expected, "ethtool -K ra-end tx off");
    // For a peer in another namespace, the port's own setting decides.
    let host = Host::new();
    sh(&format!("ip link set ra-end netns {}", host.0.0.id()));
    host.sh("ip link set ra-end up");
    sh("ethtool -K ra rxvlan off");
    expect(&expected);
    sh("ethtool -K ra rx off");
    expect(&[]);
    // Only with `vnet_hdr` can the owner of a TAP device mark checksums as unfinished.
    let owner = ["into t0 4: owner_checksums", "out of t0 4: owner_checksums"];
    for (how, reasons) in [("", &[][..]), ("vnet_hdr", &owner)] {
        sh(&format!("ip tuntap add dev t0 mode tap {how}"));
        sh("ip link set t0 up");
        let ports = [ifindex("t0"), ifindex("rb")];
        let offload = see_at(&ports);
        let found = kernels(&offload);
        let found: Vec<_> = found.iter().filter(|found| found.contains("t0 4")).collect();
        assert_eq!(found, reasons.iter().collect::<Vec<_>>());
        assert_eq!(offload.idle(ports[1]).is_some(), !reasons.is_empty(), "the only way from t0");
        sh("ip link del t0");
    }
}

pub fn filters() {
    router();
    sh("tc qdisc add dev ra clsact");
    expect(&[]);
    let all = "protocol all u32 match u32 0 0 flowid 1:1";
    for (way, expected) in
        [("ingress", "into ra *: filters_in"), ("egress", "out of ra *: filters_out")]
    {
        let does = format!("tc filter add dev ra {way} {all}");
        meanwhile(&does, &[expected], &format!("tc filter del dev ra {way}"));
    }
    sh("tc qdisc del dev ra clsact");
    sh("tc qdisc add dev rb ingress");
    expect(&[]);
    sh(&format!("tc filter add dev rb parent ffff: {all}"));
    expect(&["into rb *: filters_in"]);
    sh("tc qdisc del dev rb ingress");
    sh("tc qdisc add dev rb ingress_block 7 ingress");
    expect(&["into rb *: filters_in"]);
}

/// BPF programs that let every packet pass.
fn load() -> Ebpf {
    let dir = tempfile::tempdir().unwrap();
    let (source, object) = (dir.path().join("pass.c"), dir.path().join("pass.o"));
    std::fs::write(
        &source,
        "__attribute__((section(\"xdp\"))) int pass(void *c) { return 2; }\n\
         __attribute__((section(\"classifier\"))) int next(void *c) { return -1; }\n\
         char terms[] __attribute__((section(\"license\"))) = \"GPL\";\n",
    )
    .unwrap();
    let clang = ["-O2", "-g", "-target", "bpf", "-c"];
    let clang = Command::new("clang").args(clang).arg(&source).arg("-o").arg(&object).status();
    assert!(clang.unwrap().success());
    Ebpf::load_file(&object).unwrap()
}

/// Tollway's own program does not count as a foreign one.
fn own() {
    let output = sh("ip -oneline link show dev rb");
    let mac = output.split("link/ether ").nth(1).unwrap().split(' ').next().unwrap();
    let links = vec![XdpLink {
        tag: None,
        outer: None,
        link: LinkId(0),
        kernel_path: KernelPath::default(),
    }];
    let port = XdpPort {
        port: PortId(0),
        device: "rb".to_owned(),
        ifindex: ifindex("rb"),
        mac: Mac::parse(mac).unwrap(),
        queues: 1,
        links,
        is_bridge_port: false,
    };
    let mut programs = XdpPrograms::load(&[port], &Options::default()).unwrap();
    programs.attach(PortId(0), &Mode::ALL, false).unwrap();
    assert!(sh("ip link show dev rb").contains("xdp"));
    expect(&[]);
}

pub fn programs() {
    router();
    let mut loaded = load();
    let xdp: &mut Xdp = loaded.program_mut("pass").unwrap().try_into().unwrap();
    xdp.load().unwrap();
    let link = xdp.attach("rb", XdpMode::Skb).unwrap();
    expect(&["into rb *: other_xdp", "out of rb *: other_xdp"]);
    xdp.detach(link).unwrap();
    expect(&[]);
    own();
    let classifier: &mut SchedClassifier = loaded.program_mut("next").unwrap().try_into().unwrap();
    classifier.load().unwrap();
    for (way, expected) in [
        (TcAttachType::Ingress, "into rb *: filters_in"),
        (TcAttachType::Egress, "out of rb *: filters_out"),
    ] {
        let options = TcAttachOptions::TcxOrder(LinkOrder::default());
        let link = classifier.attach_with_options("rb", way, options).unwrap();
        expect(&[expected]);
        classifier.detach(link).unwrap();
        expect(&[]);
    }
}

pub fn uppers() {
    router();
    // The bridge is a link then, and no program here forwards its frames.
    let of_bridge = ["into br0 *: engine", "out of br0 *: engine"];
    let member = ["into ra *: member", "out of ra *: member", of_bridge[0], of_bridge[1]];
    sh("ip link add br0 type bridge");
    meanwhile("ip link set ra master br0", &member, "ip link set ra nomaster");
    let upper = ["into ra *: upper"];
    let gone = "ip link del up0";
    meanwhile("ip link add link ra name up0 type macvlan mode bridge", &upper, gone);
    meanwhile("ip link add link ra name up0 type macvtap", &upper, gone);
    meanwhile("ip link add up0 type vxlan id 7 dstport 4789 dev ra remote 192.0.2.9", &[], gone);
    meanwhile(
        "ip link set ra arp off",
        &["into ra *: no_arp", "out of ra *: no_arp"],
        "ip link set ra arp on",
    );
    sysctl("ipv6/conf/rb/disable_ipv6", "1");
    expect(&["into rb 6: no_family", "out of rb 6: no_family"]);
    // IPv6 needs an MTU of 1280 bytes, and IPv4 one of 68.
    sysctl("ipv6/conf/rb/disable_ipv6", "0");
    sh("ip link set rb mtu 1000");
    expect(&["into rb 6: no_family", "out of rb 6: no_family"]);
}

/// Upper devices that are moved to another namespace, or created there, still take frames.
pub fn elsewhere() {
    router();
    let host = Host::new();
    let pid = host.0.0.id();
    let upper = ["into ra *: upper"];
    let mut tried = 0;
    for kind in ["macvlan mode bridge", "macvlan mode passthru", "macvtap", "ipvlan", "ipvtap"] {
        let mut made = Command::new("ip");
        made.args(["link", "add", "link", "ra", "name", "up0", "type"]);
        if !made.args(kind.split(' ')).stderr(Stdio::null()).status().unwrap().success() {
            println!("this kernel has no {kind}");
            continue;
        }
        tried += 1;
        expect(&upper);
        sh(&format!("ip link set up0 netns {pid}"));
        expect(&upper);
        let reason = see().links[0].arrives.v4[0].to_string();
        let kind = kind.split(' ').next().unwrap();
        let words = format!("up0, a {kind} on ra that is in another network namespace");
        assert!(reason.starts_with(&words), "{reason}");
        let (status, output, _) = crate::words::check(&["ra", "rb"]);
        assert_eq!(status, Some(3), "part of the traffic is fast: {output}");
        let output = output.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(output.contains(&words), "{output}");
        host.sh("ip link del up0");
        expect(&[]);
        // The namespace has an id by now, so devices that were never here are visible as well.
        let there = format!("ip link add link ra netns {pid} name up1 type {kind}");
        let gone = format!("nsenter -t {pid} -n ip link del up1");
        meanwhile(&there, &upper, &gone);
    }
    assert!(tried > 0, "a kernel with macvlan or ipvlan is needed");
    // An upper device there, on another device with the same ifindex, is not on the port.
    let same = ifindex("ra");
    host.sh(&format!("ip link add name x0 index {same} type veth peer name x1 index 77"));
    host.sh("ip link add link x0 name up0 type macvlan mode bridge");
    host.sh("ip link add link x1 name up1 type macvlan mode bridge");
    expect(&[]);
    sh(&format!("ip link set rb-end netns {pid}"));
    host.sh("ip link set rb-end up");
    host.sh("ethtool -K rb-end tx off txvlan off tx-vlan-stag-hw-insert off");
    sh("ethtool -K rb rx off rxvlan off");
    // At the other end of a port's cable, an upper device takes what the port sends.
    host.sh("ip link add link rb-end name up2 type macvlan mode bridge");
    expect(&[]);
}

pub fn ipsec() {
    router();
    let flush = "ip xfrm policy flush";
    let policy = "src 10.0.0.0/8 dst 10.1.0.0/16";
    for direction in ["fwd", "out", "in"] {
        let does = format!("ip xfrm policy add dir {direction} {policy}");
        meanwhile(&does, &["all 4: xfrm"], flush);
    }
    let does = "ip xfrm policy add dir out src 2001:db8::/32 dst 2001:db9::/32 action block";
    meanwhile(does, &["all 6: xfrm"], flush);
    meanwhile(&format!("ip xfrm policy add dir fwd {policy} if_id 7"), &[], flush);
    meanwhile(
        "ip xfrm policy setdefault fwd block",
        &["all *: xfrm_blocks"],
        "ip xfrm policy setdefault fwd accept",
    );
}

pub fn legacy() {
    router();
    for (family, name) in [("4", "iptables-legacy"), ("6", "ip6tables-legacy")] {
        let chain = format!("all {family}: legacy");
        sh(&format!("{name} -nL"));
        expect(&[]);
        for rule in ["FORWARD -p tcp -j DROP", "FORWARD", "PREROUTING -t mangle -p udp"] {
            let (add, del) = (format!("{name} -w -A {rule}"), format!("{name} -w -D {rule}"));
            meanwhile(&add, &[&chain], &del);
        }
        let (drop, accept) =
            (format!("{name} -P FORWARD DROP"), format!("{name} -P FORWARD ACCEPT"));
        meanwhile(&drop, &[&chain], &accept);
        let (add, flush) = (format!("{name} -A INPUT -p tcp -j DROP"), format!("{name} -F"));
        meanwhile(&add, &[], &flush);
        let state = "INPUT -m conntrack --ctstate INVALID -j DROP";
        let tracked = format!("all {family}: conntrack");
        meanwhile(&format!("{name} -A {state}"), &[&tracked], &flush);
    }
    let nat = "POSTROUTING -t nat -o rb -j MASQUERADE";
    let both = ["all 4: conntrack", "all 4: legacy"];
    meanwhile(&format!("iptables-legacy -A {nat}"), &both, &format!("iptables-legacy -D {nat}"));
}

fn nft(rules: &str) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rules.nft");
    std::fs::write(
        &file,
        format!("flush ruleset\n{}\n", rules.replace("; ", "\n").replace("} }", "}\n}")),
    )
    .unwrap();
    sh(&format!("nft -f {}", file.display()));
}

pub fn nftables() {
    router();
    let forward = "type filter hook forward priority 0; ";
    nft(&format!(
        "table inet t {{ chain f {{ {forward}tcp dport 80 drop; udp dport 53 drop; }} }}"
    ));
    expect(&[]);
    let offload = see();
    assert_eq!(offload.compiled, 2);
    // About rules on ports: kernels treat later fragments in different ways.
    let rules = || {
        let mut parts = see().parts;
        parts.retain(|part| !part.what.contains("(later fragments)"));
        parts
    };
    assert!(rules().is_empty(), "{:?}", rules());
    nft(&format!("table inet t {{ chain f {{ {forward}tcp dport 80 log drop; }} }}"));
    expect(&[]);
    let parts = rules();
    assert_eq!(parts.len(), 1, "{parts:?}");
    assert!(parts[0].what.contains("tcp dport 80"), "{parts:?}");
    // Where programs can ask the kernel for connections, they forward some.
    let tracked = if tollway_xdp::has_conntrack() { &[][..] } else { &["all 4: conntrack"] };
    nft(&format!("table ip t {{ chain f {{ {forward}ct state invalid drop; }} }}"));
    expect(tracked);
    assert_eq!(see().tracked.v4.is_some(), tracked.is_empty());
    let timeout = "ct timeout s { protocol udp; policy = { replied : 9 }; };";
    nft(&format!(
        "table ip t {{ {timeout} chain f {{ {forward}udp dport 9 ct timeout set \"s\"; }} }}"
    ));
    expect(&["all 4: conntrack"]);
    let nat = "type nat hook postrouting priority 100; oifname rb masquerade;";
    nft(&format!("table ip6 t {{ chain n {{ {nat} }} }}"));
    let tracked = if tollway_xdp::has_conntrack() { &[][..] } else { &["all 6: conntrack"] };
    expect(tracked);
    assert_eq!(see().tracked.v6.is_some(), tracked.is_empty());
    nft(&format!(
        "table ip6 t {{ {timeout} chain f {{ {forward}udp dport 9 ct timeout set \"s\"; }} }}"
    ));
    expect(&["all 6: conntrack"]);
    // All packets come to a rule that only the kernel can evaluate, or those that a rule before it leaves.
    let set = "set s { type ipv4_addr; timeout 1h; };";
    nft(&format!("table ip t {{ {set} chain f {{ {forward}ip saddr @s drop; }} }}"));
    expect(&["all 4: rules"]);
    nft(&format!(
        "table ip t {{ {set} chain f {{ {forward}tcp dport 80 drop; ip saddr @s drop; }} }}"
    ));
    expect(&[]);
    nft("");
    expect(&[]);
}

pub fn routes() {
    router();
    let parts = || {
        let parts = see().parts.into_iter();
        parts.map(|part| format!("{}: {}", part.what, part.why)).collect::<Vec<_>>()
    };
    sh("ip tuntap add dev tun0 mode tun");
    sh("ip link set tun0 up");
    sh("ip route add 203.0.113.0/25 dev tun0");
    sh("ip route add 203.0.113.128/25 dev tun0");
    assert_eq!(parts(), ["2 routes by tun0: tun0 is of kind tun, and not a port"]);
    sh("ip link del tun0");
    assert_eq!(parts(), [""; 0]);
    sh("ip rule add ipproto tcp dport 80 table 100 priority 9");
    let found = parts();
    assert_eq!(found.len(), 1);
    assert!(found[0].starts_with("packets that ip rule 9 may match: "), "{found:?}");
    sh("ip rule del priority 9");
    let hops = "nexthop via 192.0.2.2 dev ra nexthop via 198.51.100.2 dev rb";
    sh(&format!("ip route add 203.0.113.0/24 {hops}"));
    expect(&[]);
    sysctl("ipv4/fib_multipath_hash_policy", "2");
    expect(&["groups 4: multipath"]);
    let found = parts();
    assert!(found[0].starts_with("1 IPv4 route with several next hops: "), "{found:?}");
}

pub fn captures() {
    router();
    let notes = || see().notes;
    for (device, count) in [("rb", 1), ("any", 2)] {
        let mut command = Command::new("tcpdump");
        command.args(["-p", "-n", "-i", device]).stdout(Stdio::null()).stderr(Stdio::null());
        let tap = Process(command.spawn().unwrap());
        until("the note that a program captures", || notes().len() == count);
        expect(&[]);
        drop(tap);
        until("nobody captures", || notes().is_empty());
    }
    assert_eq!(ifindex("rb"), see().links[1].ifindex);
}
