//! The variants of Tollway that the tests compare with the kernel alone.

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
    /// Returns a configuration with this variant and `ports`, which may hold more than ports.
    pub fn config(self, ports: &str) -> String {
        let xdp_path = match self {
            Self::Path => "off",
            Self::Xdp => "on",
        };
        format!("xdp = \"{xdp_path}\"\n{ports}")
    }

    /// Starts Tollway with this configuration.
    pub fn start(self, ports: &str) -> Router {
        Router::start(&self.config(ports))
    }
}

/// Returns the configuration of two ports. The second one has the MTU `mtu`.
pub fn ports(mtu: u16) -> String {
    let both = config("auto", 1500, false);
    let (a, b) = both.split_at(both.find("[ports.b]").unwrap());
    format!("{a}{}", b.replace("mtu = 1500", &format!("mtu = {mtu}")))
}

/// Has the kernels answer with every ICMP error that is due, and prepares the devices for the XDP
/// path.
///
/// A kernel limits its errors to one host: about one a second for IPv4 and ten for IPv6, after the
/// first six (`Icmp: OutRateLimitHost`). A test compares three times in a row, the kernel and two
/// variants of Tollway. With the limit, the third trace would have holes. The kernel sends the
/// errors for packets of Tollway, too.
pub fn prepare(net: &Net) {
    let limits = "sysctl -qw net.ipv4.icmp_ratelimit=0 net.ipv6.icmp.ratelimit=0";
    sh(limits);
    for (host, device) in [(&net.a, "ha"), (&net.b, "hb")] {
        host.sh(limits);
        // A veth takes redirected frames only if its peer has XDP or GRO.
        host.sh(&format!("ethtool -K {device} gro on"));
    }
}

/// Asserts that hosts see the same with Tollway as with the kernel alone, and that Tollway did
/// forward.
pub fn alike(net: &Net, ports: &str, see: impl Fn(&Net) -> Vec<String>) {
    prepare(net);
    // New links lose packets that come too early.
    for target in ["10.0.2.2", "fd00:2::2"] {
        until("an answer", || {
            output_of(&net.a, &format!("ping -n -c 1 -W 1 {target}")).contains(" 0%")
        });
    }
    let by_kernel = see(net);
    for variant in TOLLWAY {
        let mut router = variant.start(ports);
        assert_eq!(see(net), by_kernel, "{variant:?}, and before by the kernel");
        for target in ["10.0.2.2", "fd00:2::2"] {
            net.a.pings(4, target);
        }
        // The flows are now on the XDP path.
        assert_eq!(see(net), by_kernel, "{variant:?} again, and before by the kernel");
        let taken = xdp_path_packets(&router);
        assert_eq!(
            taken > 0,
            variant == PathVariant::Xdp,
            "{taken} packets by the XDP path, {variant:?}"
        );
        let summary = router.stop();
        assert!(!summary.contains("\nreceived 0"), "Tollway had none: {summary}");
    }
}

/// Returns how many packets the router's XDP path has forwarded; 0 if it is off.
pub fn xdp_path_packets(router: &Router) -> u64 {
    let output = Command::new(env!("CARGO_BIN_EXE_tollway"))
        .args(["show", "xdp", "--socket"])
        .arg(router.path("control.sock"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let packets = text.lines().find_map(|line| line.strip_prefix("packets "));
    assert_eq!(packets.is_some(), text.contains("is on"), "{text}");
    packets.map_or(0, |number| number.trim().replace(',', "").parse().unwrap())
}

/// Runs a command on a host, which may fail. Returns all it printed.
pub fn output_of(host: &Host, line: &str) -> String {
    let output = host.command(&format!("timeout 20 {line}")).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&text).into_owned()
}
