//! How sysctls of `all` and of devices combine. Packets or `ip route get` show what the kernel
//! does.

use std::collections::BTreeSet;

use crate::namespaces::{Host, sh, until};
use crate::scene::{kernels, see, sysctl};

const PORTS: [&str; 2] = ["ra", "rb"];

/// Hosts on the cables `a` and `b`, with routes through this namespace.
fn hosts() -> [Host; 2] {
    sh("ip link set lo up");
    let addresses = [("192.0.2", "2001:db8:a"), ("198.51.100", "2001:db8:b")];
    ["a", "b"].map(|name| {
        let host = Host::new();
        let (v4, v6) = addresses[usize::from(name == "b")];
        let mac = format!("02:00:00:00:00:0{name}");
        host.plug(name, &mac, [&format!("{v4}.2/24"), &format!("{v6}::2/64")]);
        sh(&format!("ip address add {v4}.1/24 dev r{name}"));
        sh(&format!("ip address add {v6}::1/64 dev r{name} nodad"));
        host.sh(&format!("ip route add default via {v4}.1 dev h{name}"));
        host.sh(&format!("ip route add default via {v6}::1 dev h{name}"));
        host
    })
}

/// Whether a host gets an answer from an address. If the test expects one, it waits for it, as the
/// kernel has to find neighbours first.
fn answers(host: &Host, address: &str, is_expected: bool) -> bool {
    let is_answered = || {
        let ping = host.command(&format!("ping -n -i 0.1 -c 5 -W 1 {address}")).output().unwrap();
        String::from_utf8_lossy(&ping.stdout).contains("bytes from")
    };
    let tries = if is_expected { 10 } else { 1 };
    (0..tries).any(|_| is_answered())
}

pub fn forwarding() {
    let [a, _b] = hosts();
    let fast = |family: &str| {
        let found: BTreeSet<String> = kernels(&see());
        !PORTS.iter().any(|port| found.contains(&format!("into {port} {family}: forwarding_off")))
    };
    // The value for `all`, and then that for each port; writing `all` sets the ports as well.
    for (all, ports) in [("1", ["1", "1"]), ("1", ["0", "1"]), ("0", ["1", "1"]), ("0", ["0", "1"])]
    {
        for family in ["ipv4", "ipv6"] {
            sysctl(&format!("{family}/conf/all/forwarding"), all);
            for (port, value) in PORTS.iter().zip(ports) {
                sysctl(&format!("{family}/conf/{port}/forwarding"), value);
            }
        }
        // Each family combines the values in its own way.
        let expected = (ports == ["1", "1"], all == "1");
        let v4 = answers(&a, "198.51.100.2", expected.0);
        let v6 = answers(&a, "2001:db8:b::2", expected.1);
        assert_eq!((v4, v6), expected, "all {all}, ports {ports:?}");
        assert_eq!((fast("4"), fast("6")), (v4, v6), "all {all}, ports {ports:?}");
    }
    let force = |port: &str| {
        std::path::Path::new("/proc/sys/net/ipv6/conf").join(port).join("force_forwarding")
    };
    if !force("ra").exists() {
        return;
    }
    sysctl("ipv6/conf/all/forwarding", "0");
    for ports in [["1", "0"], ["1", "1"]] {
        for (port, value) in PORTS.iter().zip(ports) {
            std::fs::write(force(port), value).unwrap();
        }
        let expected = ports == ["1", "1"];
        assert_eq!(answers(&a, "2001:db8:b::2", expected), expected, "forced: {ports:?}");
        assert_eq!(fast("6"), expected, "forced: {ports:?}");
    }
}

pub fn carrier() {
    use tollway_controller::sysctl::Sysctls;
    use tollway_linux::kept_files::KeptFiles;
    let hosts = hosts();
    sh("ip route add 203.0.113.0/24 via 192.0.2.2 dev ra");
    sh("ip route add 203.0.113.0/24 via 198.51.100.2 dev rb metric 100");
    sh("ip route add 2001:db8:c::/48 via 2001:db8:a::2 dev ra metric 10");
    sh("ip route add 2001:db8:c::/48 via 2001:db8:b::2 dev rb metric 100");
    // The peer goes down: the port is up and has no carrier.
    hosts[0].sh("ip link set ha down");
    until("no carrier", || sh("ip route show dev ra").contains("linkdown"));
    until("no carrier", || sh("ip -6 route show dev ra").contains("linkdown"));
    for [all4, own4, all6, own6] in
        [["0", "0", "0", "0"], ["1", "0", "1", "0"], ["0", "1", "0", "1"], ["1", "1", "1", "1"]]
    {
        for (family, all, own) in [("ipv4", all4, own4), ("ipv6", all6, own6)] {
            sysctl(&format!("{family}/conf/all/ignore_routes_with_linkdown"), all);
            // Writing IPv6's `all` sets the ports as well.
            sysctl(&format!("{family}/conf/ra/ignore_routes_with_linkdown"), own);
        }
        let link = Sysctls::read(&mut KeptFiles::default(), PORTS).link("ra");
        let by = |address: &str| sh(&format!("ip route get {address}")).contains("dev rb");
        let known = (link.ignore_linkdown4, link.ignore_linkdown6);
        assert_eq!(known, (by("203.0.113.1"), by("2001:db8:c::1")), "{all4}{own4} {all6}{own6}");
    }
}
