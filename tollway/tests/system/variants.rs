//! Who forwards: the kernel alone, and Tollway in its ways.

use std::process::Command;

use crate::namespaces::{Host, sh, until};
use crate::router::{Net, config};
use crate::running::Router;

/// How Tollway forwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathVariant {
    Path,
    Xdp,
}

pub const TOLLWAY: [PathVariant; 2] = [PathVariant::Path, PathVariant::Xdp];

impl PathVariant {
    /// The configuration with these ports and more.
    pub fn config(self, ports: &str) -> String {
        let xdp_path = match self {
            Self::Path => "off",
            Self::Xdp => "on",
        };
        format!("xdp = \"{xdp_path}\"\n{ports}")
    }

    /// Tollway with its ports and more.
    pub fn start(self, ports: &str) -> Router {
        Router::start(&self.config(ports))
    }
}

/// The two ports; the MTU of the second.
pub fn ports(mtu: u16) -> String {
    let both = config("auto", 1500, false);
    let (a, b) = both.split_at(both.find("[ports.b]").unwrap());
    format!("{a}{}", b.replace("mtu = 1500", &format!("mtu = {mtu}")))
}

/// Has the kernels answer each packet with an error that deserves one, and the XDP path at work.
///
/// A kernel sends one host few errors: about one a second by IPv4 and ten by IPv6, but for the first six
/// (`Icmp: OutRateLimitHost`). Who looks three times in a row, by the kernel and by two ways of Tollway,
/// would see the third hop by hop with holes. Errors for what comes by Tollway are the kernel's as well.
pub fn prepare(net: &Net) {
    let limits = "sysctl -qw net.ipv4.icmp_ratelimit=0 net.ipv6.icmp.ratelimit=0";
    sh(limits);
    for (host, device) in [(&net.a, "ha"), (&net.b, "hb")] {
        host.sh(limits);
        // A veth takes redirected frames only while its peer does.
        host.sh(&format!("ethtool -K {device} gro on"));
    }
}

/// What is seen by the kernel alone must be seen by Tollway; that it was there is seen, too.
pub fn alike(net: &Net, ports: &str, see: impl Fn(&Net) -> Vec<String>) {
    prepare(net);
    // New links drop what comes too early.
    for target in ["10.0.2.2", "fd00:2::2"] {
        until("an answer", || told(&net.a, &format!("ping -n -c 1 -W 1 {target}")).contains(" 0%"));
    }
    let by_kernel = see(net);
    for variant in TOLLWAY {
        let mut router = variant.start(ports);
        assert_eq!(see(net), by_kernel, "{variant:?}, and before by the kernel");
        for target in ["10.0.2.2", "fd00:2::2"] {
            net.a.pings(4, target);
        }
        // In the XDP path as well as before.
        assert_eq!(see(net), by_kernel, "{variant:?} again, and before by the kernel");
        let taken = xdp_path_packets(&router);
        assert_eq!(
            taken > 0,
            variant == PathVariant::Xdp,
            "{taken} packets by the XDP path, {variant:?}"
        );
        let told = router.stop();
        assert!(!told.contains("\nreceived 0"), "Tollway had none: {told}");
    }
}

/// The packets that the router's XDP path has forwarded; none where it is off.
pub fn xdp_path_packets(router: &Router) -> u64 {
    let output = Command::new(env!("CARGO_BIN_EXE_tollway"))
        .args(["show", "xdp", "--socket"])
        .arg(router.path("control.sock"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let told = String::from_utf8(output.stdout).unwrap();
    let packets = told.lines().find_map(|line| line.strip_prefix("packets "));
    assert_eq!(packets.is_some(), told.contains("is on"), "{told}");
    packets.map_or(0, |number| number.trim().replace(',', "").parse().unwrap())
}

/// Runs a command there, which may fail; all it printed.
pub fn told(host: &Host, line: &str) -> String {
    let output = host.command(&format!("timeout 20 {line}")).output().unwrap();
    let told = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&told).into_owned()
}
