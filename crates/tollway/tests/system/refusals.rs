//! A device that accepts no frames of the XDP path, although the kernel reports that it does.

use std::process::Stdio;

use crate::drops::tollway;
use crate::namespaces::{Process, ready, until};
use crate::router::{Net, config};
use crate::variants::{self, PathVariant};

const SERVER: &str = "10.0.2.2:7000";

/// Returns a count from the output of `tollway show`.
fn count(output: &str, name: &str) -> u64 {
    let line = output.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim().replace(',', "").parse().unwrap()
}

pub fn refused() {
    let net = Net::new(1500, 1);
    variants::prepare(&net);
    let mut router = PathVariant::Xdp.start(&config("auto", 1500, true));
    let _server = ready(net.b.role("--serve", SERVER).arg("times"));
    let mut client = net.a.role("--client", SERVER);
    let _client = Process(client.arg("times").stdout(Stdio::null()).spawn().unwrap());
    let passes = |what: &str| {
        let before = variants::xdp_path_packets(&router);
        until(what, || variants::xdp_path_packets(&router) > before + 100);
    };
    passes("the flow on the XDP path");

    net.b.sh("ip link set hb down");
    until("the router to notice", || router.read("stderr").contains("rb refuses the frames"));
    let xdp_path = tollway(&router, "show xdp");
    let refused = count(&xdp_path, "packets refused");
    // One or two bursts are lost.
    assert!((1..200).contains(&refused), "{xdp_path}");
    assert!(count(&tollway(&router, "show drops"), "dev_tx_failed") >= refused);

    // The router probes after one second and after two more, with no packet of a host.
    until("two more probes", || router.read("stderr").contains("tried again in 4 s"));
    let later = count(&tollway(&router, "show xdp"), "packets refused");
    assert_eq!(later, refused, "probes cost no packets");

    net.b.sh("ip link set hb up");
    passes("the flow on the XDP path again");
    let summary = router.stop();
    assert!(count(&summary, "dev_tx_failed") >= refused, "{summary}");
}
