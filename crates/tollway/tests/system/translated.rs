//! Hosts behind rules of a file that translate addresses, on ports behind which a kernel is the host, and does not know
//! these rules. A is inside; B has no route to it.

use std::fmt::Write as _;

use crate::datagrams::Datagrams;
use crate::drops::tollway;
use crate::namespaces::{Host, Process, ready, sh, until};
use crate::router::{Net, config};
use crate::running::Router;
use crate::transfer::Transfer;
use crate::variants::{PathVariant, TOLLWAY, output_of, prepare};

/// The MTU of the router's links, of which the kernel's devices know nothing.
const INSIDE_MTU: u16 = 1400;
const OUTSIDE_MTU: u16 = 1300;

/// What the rules of a language do.
struct Rules {
    file: &'static str,
    /// Rules that translate A's packets to B, and what comes from B for port 2200 of the router.
    translating: &'static str,
    /// Rules that do nothing.
    plain: &'static str,
    /// One more rule that does nothing, with its number.
    more: fn(u32) -> String,
    /// Whether they translate IPv6, too.
    has_ip6: bool,
}

const NFT: Rules = Rules {
    file: "rules.nft",
    translating: "\
table ip nat {
  chain pre {
    type nat hook prerouting priority dstnat;
    iifname b tcp dport 2200 dnat to 10.0.1.2:7002
    iifname b udp dport 2201 dnat to 10.0.1.2:7005
  }
  chain post { type nat hook postrouting priority srcnat; oifname b masquerade; }
}
table ip6 nat {
  chain post { type nat hook postrouting priority srcnat; oifname b masquerade; }
}
",
    plain: "table ip f {\n chain c { type filter hook forward priority 0; counter; }\n}\n",
    more: |number| {
        format!(
            "table ip m{number} {{\n chain c {{ type filter hook forward priority 0; counter; }}\n}}\n"
        )
    },
    has_ip6: true,
};

const IPFW: Rules = Rules {
    file: "rules.ipfw",
    translating: "\
nat 1 config if b same_ports redirect_port tcp 10.0.1.2:7002 2200 redirect_port udp 10.0.1.2:7005 2201
add 100 nat 1 ip4 from any to any in recv b
add 110 nat 1 ip4 from 10.0.1.0/24 to any out xmit b
add 200 allow ip from any to any
",
    plain: "add 200 allow ip from any to any\n",
    more: |number| format!("add {} count ip from any to any\n", 300 + number),
    has_ip6: false,
};

/// Sends a megabyte from one host to a server on the other, which listens at another address.
#[track_caller]
fn transfers([from, to]: [&Host; 2], address: &str, listens: &str) {
    let mut server = ready(&mut to.role("--serve", listens));
    let mut client = from.role("--client", address);
    let mut client = Process(client.args(["1", "whole"]).spawn().unwrap());
    assert!(client.0.wait().unwrap().success(), "{address}");
    assert!(server.0.wait().unwrap().success(), "{address}");
}

/// Sends a megabyte from a host to a server on the router itself.
#[track_caller]
fn reaches_router(from: &Host, address: &str) {
    let mut server = std::process::Command::new(std::env::current_exe().unwrap());
    let mut server = ready(server.args(["--serve", address]));
    let mut client = from.role("--client", address);
    let mut client = Process(client.args(["1", "whole"]).spawn().unwrap());
    assert!(client.0.wait().unwrap().success(), "{address}");
    assert!(server.0.wait().unwrap().success(), "{address}");
}

/// How many of 5 pings are answered.
fn answered(host: &Host, address: &str) -> usize {
    let output = output_of(host, &format!("ping -n -c 5 -i 0.1 -W 1 {address}"));
    output.lines().filter(|line| line.contains("bytes from")).count()
}

/// The hosts that traceroute finds on the way.
fn hops(host: &Host, arguments: &str) -> String {
    let output = output_of(host, &format!("traceroute -n -q 1 -w 2 -m 3 {arguments}"));
    let words = output.lines().skip(1).filter_map(|line| line.split_whitespace().nth(1));
    words.collect::<Vec<_>>().join(" ")
}

struct Bench<'a> {
    net: &'a Net,
    rules: &'a Rules,
    config: String,
    router: Router,
}

impl<'a> Bench<'a> {
    fn start(net: &'a Net, rules: &'a Rules, variant: PathVariant) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(rules.file), rules.translating).unwrap();
        let ports = config("auto", INSIDE_MTU, false);
        let (a, b) = ports.split_at(ports.find("[ports.b]").unwrap());
        let b = b.replace(&INSIDE_MTU.to_string(), &OUTSIDE_MTU.to_string());
        let config = variant.config(&format!("filter = \"{}\"\n{a}{b}", rules.file));
        let router = Router::start_in(dir, &config);
        Self { net, rules, config, router }
    }

    /// Installs other rules.
    fn set(&self, rules: &str) {
        std::fs::write(self.router.path(self.rules.file), rules).unwrap();
        let report = self.router.reload(&self.config);
        assert!(report.contains("is active"), "{report}");
    }

    /// Forgets a neighbour of the router.
    fn forget(&self, address: &str, device: &str) {
        sh(&format!("ip neigh flush to {address} dev {device}"));
        until("the neighbour to be forgotten", || {
            let listed = tollway(&self.router, "show neighbours --json");
            !listed.contains(&format!("\"{address}\""))
        });
    }

    fn conversations(&self) {
        let Net { a, b, .. } = self.net;
        until("pings to be answered", || answered(a, "10.0.2.2") == 5);
        transfers([a, b], "10.0.2.2:7000", "10.0.2.2:7000");
        transfers([b, a], "10.0.2.1:2200", "10.0.1.2:7002");
        let datagrams = Datagrams::start(self.net, "10.0.2.2:7001", 1).finish();
        assert_eq!(datagrams, "500 of 500 came back, 0 twice");
        if self.rules.has_ip6 {
            until("pings to be answered", || answered(a, "fd00:2::2") == 5);
            transfers([a, b], "[fd00:2::2]:7000", "[fd00:2::2]:7000");
        }
    }

    /// The router itself can be reached meanwhile.
    fn router_itself(&self) {
        let Net { a, b, .. } = self.net;
        let transfer = Transfer::start_paced(self.net, "10.0.2.2:7003", 1);
        reaches_router(b, "10.0.2.1:2222");
        reaches_router(a, "10.0.1.1:2222");
        reaches_router(b, "[fd00:2::1]:2222");
        assert_eq!(answered(b, "10.0.2.1"), 5);
        // It is for the router, so its TTL does not matter.
        assert!(output_of(b, "ping -n -c 1 -t 1 -W 2 10.0.2.1").contains("bytes from"));
        assert!(sh("ping -n -c 2 -i 0.1 -W 2 10.0.2.2").contains(" 0% packet loss"));
        transfer.finish();
    }

    fn errors(&self) {
        let Net { a, b, .. } = self.net;
        assert_eq!(hops(a, "-I 10.0.2.2"), "10.0.1.1 10.0.2.2");
        assert_eq!(hops(a, "-U -p 53 10.0.2.2"), "10.0.1.1 10.0.2.2");
        // The second hop is A, by the address that B asks.
        assert_eq!(hops(b, "-T -p 2200 10.0.2.1"), "10.0.2.1 10.0.2.1");
        // Of what the streams have found.
        a.sh("ip route flush cache");
        let ping = output_of(a, "ping -n -M do -s 1400 -c 3 -i 0.2 -W 1 10.0.2.2");
        let mtu = format!("From 10.0.1.1 icmp_seq=1 Frag needed and DF set (mtu = {OUTSIDE_MTU})");
        assert!(ping.contains(&mtu), "{ping}");
        // Without DF, it is fragmented behind the translation: B puts it together. The answer comes whole.
        a.sh("ip route flush cache");
        let ping = output_of(a, "ping -n -M dont -s 1350 -c 3 -i 0.2 -W 1 10.0.2.2");
        assert!(ping.contains("1358 bytes from 10.0.2.2"), "{ping}");
        let ping = output_of(a, "ping -n -c 1 -W 9 10.0.2.9");
        assert!(ping.contains("From 10.0.1.1 icmp_seq=1 Destination Host Unreachable"), "{ping}");
    }

    /// The first packet to a neighbour that is not known waits for it, on the way there and back.
    fn neighbours(&self) {
        for _ in 0..3 {
            self.forget("10.0.2.2", "rb");
            self.forget("10.0.1.2", "ra");
            let ping = output_of(&self.net.a, "ping -n -c 1 -W 3 10.0.2.2");
            assert!(ping.contains("bytes from"), "{ping}");
        }
    }

    fn reloads(&self) {
        let Net { a, b, .. } = self.net;
        // Other rules keep the connections.
        let transfer = Transfer::start_paced(self.net, "10.0.2.2:7004", 2);
        let mut more = self.rules.translating.to_owned();
        for number in 0..3 {
            let _ = more.write_str(&(self.rules.more)(number));
            self.set(&more);
        }
        transfer.finish();
        assert_eq!(leaked(b), 0, "packets have left as they came");
        self.set(self.rules.plain);
        assert_eq!(answered(a, "10.0.2.2"), 0);
        assert_ne!(leaked(b), 0);
        reaches_router(b, "10.0.2.1:2222");
        self.set(&more);
        until("pings to be answered", || answered(a, "10.0.2.2") == 5);
        reaches_router(b, "10.0.2.1:2222");
    }
}

/// Has B count what comes from an address inside.
fn watch(b: &Host) {
    b.sh("nft flush ruleset");
    b.sh("nft add table ip leaks");
    b.sh("nft add chain ip leaks in { type filter hook prerouting priority -400 ; }");
    b.sh("nft add rule ip leaks in ip saddr 10.0.1.0/24 counter");
}

/// What has come to B from an address inside.
fn leaked(b: &Host) -> u64 {
    let listed = b.sh("nft list table ip leaks");
    let at = listed.find("counter packets ").unwrap();
    listed[at..].split_whitespace().nth(2).unwrap().parse().unwrap()
}

fn sees(rules: &Rules) {
    let net = Net::new(1500, 1);
    prepare(&net);
    net.b.sh("ip route del default");
    net.b.sh("ip -6 route del default");
    for variant in TOLLWAY {
        println!("{variant:?}");
        watch(&net.b);
        let mut bench = Bench::start(&net, rules, variant);
        bench.conversations();
        bench.router_itself();
        bench.errors();
        bench.neighbours();
        bench.reloads();
        let _ = bench.router.stop();
    }
}

pub fn by_nft() {
    sees(&NFT);
}

pub fn by_ipfw() {
    sees(&IPFW);
}
