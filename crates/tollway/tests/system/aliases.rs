//! Hosts behind an address that rules of ipfw translate to: what they begin is answered, what is redirected reaches
//! them, and nothing else does.

use std::fmt::Write as _;

use crate::datagrams::Datagrams;
use crate::drops::tollway;
use crate::namespaces::{Host, Process, ready, sh, until};
use crate::router::Net;
use crate::running::Router;
use crate::transfer::Transfer;
use crate::variants::{PathVariant, TOLLWAY, output_of, ports, prepare};

/// Translates to the router's address on the link to B.
const INSTANCE: &str = "nat 1 config if b same_ports redirect_port tcp 10.0.1.2:7002 2200";

const RULES: &str = "\
add 100 nat 1 ip4 from any to any in recv b
add 110 nat 1 ip4 from 10.0.1.0/24 to any out xmit b
add 200 allow ip from any to any
";

fn rules(options: &str, more: &str) -> String {
    format!("{INSTANCE} {options}\n{RULES}{more}")
}

/// How many of 5 pings are answered.
fn answered(host: &Host, address: &str) -> usize {
    let output = output_of(host, &format!("ping -n -c 5 -i 0.1 -W 1 {address}"));
    output.lines().filter(|line| line.contains("bytes from")).count()
}

/// Whether a connection of TCP opens.
fn connects(host: &Host, address: &str) -> bool {
    let (address, port) = address.split_once(':').unwrap();
    let mut command = host.command("timeout 2 bash -c");
    command.arg(format!("</dev/tcp/{address}/{port}")).status().unwrap().success()
}

/// Sends a megabyte from one host to a server on the other, which listens at another address.
fn transfers([from, to]: [&Host; 2], address: &str, listens: &str) {
    let mut server = ready(&mut to.role("--serve", listens));
    let mut client = from.role("--client", address);
    let mut client = Process(client.args(["1", "whole"]).spawn().unwrap());
    assert!(client.0.wait().unwrap().success(), "{address}");
    assert!(server.0.wait().unwrap().success(), "{address}");
}

fn sees(net: &Net, variant: PathVariant) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("rules.ipfw"), rules("deny_in", "")).unwrap();
    let config = variant.config(&format!("filter = \"rules.ipfw\"\n{}", ports(1500)));
    let router = Router::start_in(dir, &config);
    let set = |options: &str, more: &str| {
        std::fs::write(router.path("rules.ipfw"), rules(options, more)).unwrap();
        let report = router.reload(&config);
        assert!(report.contains("is active"), "{variant:?}: {report}");
    };

    until("pings to be answered", || answered(&net.a, "10.0.2.2") == 5);
    transfers([&net.a, &net.b], "10.0.2.2:7000", "10.0.2.2:7000");
    let datagrams = Datagrams::start(net, "10.0.2.2:7001", 1).finish();
    assert_eq!(datagrams, "500 of 500 came back, 0 twice", "{variant:?}");
    transfers([&net.b, &net.a], "10.0.2.1:2200", "10.0.1.2:7002");
    let listed = tollway(&router, "show connections");
    assert!(listed.contains("nat 1") && listed.contains("10.0.1.2"), "{variant:?}: {listed}");

    // Only the redirect lets something in.
    assert_eq!(answered(&net.b, "10.0.2.1"), 0, "{variant:?}");
    assert!(!connects(&net.b, "10.0.2.1:2201"), "{variant:?}");

    // Other rules keep the mappings of the same instance.
    let transfer = Transfer::start_paced(net, "10.0.2.2:7003", 2);
    let mut more = String::new();
    for number in 300..303 {
        let _ = writeln!(more, "add {number} count ip from any to any");
        set("deny_in", &more);
    }
    transfer.finish();

    // Without deny_in, what nobody redirects is for the router itself.
    set("", &more);
    until("the router to answer", || answered(&net.b, "10.0.2.1") == 5);
    assert_eq!(answered(&net.a, "10.0.2.2"), 5, "{variant:?}");
}

pub fn translated() {
    let net = Net::new(1500, 1);
    prepare(&net);
    sh("sysctl -qw net.ipv4.ip_forward=0");
    // B has no route to the net of A.
    net.b.sh("ip route del default");
    for variant in TOLLWAY {
        sees(&net, variant);
    }
}
