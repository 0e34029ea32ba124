//! Tests how the router starts and stops.

use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::namespaces::{PATIENCE, sh, until};
use super::running::{KernelRouter, Net, SILENCE, answered};

pub fn refused() {
    let _net = Net::new();
    sh("ip link add br0 type bridge");
    sh("ip link add br1 type bridge");
    sh("ip link add x0 type veth peer name x1");
    sh("ip link set x0 master br0");
    for (devices, code, part) in [
        ("ra rz --engine xdp", 2, "there is no network device rz; there are ra, rb, x1 and x0"),
        ("ra ra", 2, "ra is named twice"),
        ("lo", 2, "lo is the loopback device"),
        ("br0 --engine br0=xdp", 2, "br0 is a bridge; name the devices that belong to it"),
        ("br1", 2, "br1 is a bridge without devices"),
        ("x0 --engine user", 2, "x0 belongs to the bridge br0"),
        ("", 2, "DEVICE"),
        ("ra --config x.toml", 2, "cannot be used with"),
        ("ra --xdp maybe", 2, "invalid value"),
        ("ra --audit 0", 2, "invalid value"),
    ] {
        // One that is not refused would run for good.
        let mut command = Command::new("timeout");
        command.args(["20", env!("CARGO_BIN_EXE_tollway"), "run"]);
        command.args(devices.split_whitespace()).stdin(Stdio::null());
        let output = command.output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{devices}: {error}");
        assert!(error.contains(part), "{devices}: {error}");
    }
}

pub fn kill() {
    let net = Net::new();
    let mut router = KernelRouter::start("ra rb");
    router.forwards(&net.a, "10.0.2.2");
    // Before duplicate address detection has ended, the devices resolve no neighbours.
    until("neighbours by IPv6", || answered(&net.a, "fd00:2::2") == 5);
    // A process that hangs counts as dead, but may come back.
    sh(&format!("kill -STOP {}", router.process.0.id()));
    std::thread::sleep(SILENCE);
    assert_eq!(answered(&net.a, "10.0.2.2"), 5, "stopped");
    sh(&format!("kill -CONT {}", router.process.0.id()));
    router.forwards(&net.a, "10.0.2.2");
    router.process.0.kill().unwrap();
    router.process.0.wait().unwrap();
    std::thread::sleep(SILENCE);
    for address in ["10.0.2.2", "fd00:2::2"] {
        assert_eq!(answered(&net.a, address), 5, "{address}: killed");
    }
    // The next process takes over what this one has left.
    let next = KernelRouter::start("ra rb");
    next.forwards(&net.a, "10.0.2.2");
}

/// A successor takes the ports over, and no packet is lost meanwhile.
pub fn takeover() {
    let net = Net::new();
    let router = KernelRouter::start("ra rb");
    router.forwards(&net.a, "10.0.2.2");
    let _router = router.replaced_beside_pings((&net.a, "10.0.2.2"), "ra rb", |router| {
        router.forwards(&net.a, "10.0.2.2");
    });
}

/// In a time namespace, the router's clock differs from that of the BPF programs.
pub fn clock() {
    let net = Net::new();
    for offset in ["86400", "-5"] {
        let mut command = Command::new("unshare");
        command.args(["--time", "--monotonic", offset, "--fork", "--kill-child", "--"]);
        command.arg(env!("CARGO_BIN_EXE_tollway"));
        let router = KernelRouter::start_by(command, "ra rb");
        router.forwards(&net.a, "10.0.2.2");
        // Before duplicate address detection has ended, the devices resolve no neighbours.
        until("neighbours by IPv6", || answered(&net.a, "fd00:2::2") == 5);
        let unshare = router.process.0.id();
        let children = format!("/proc/{unshare}/task/{unshare}/children");
        let child = std::fs::read_to_string(children).unwrap();
        sh(&format!("kill -9 {}", child.trim()));
        std::thread::sleep(SILENCE);
        for address in ["10.0.2.2", "fd00:2::2"] {
            assert_eq!(answered(&net.a, address), 5, "{offset} s: killed");
        }
    }
}

/// Returns the kernel's whole configuration, as its tools print it.
fn configuration() -> String {
    let mut all = String::new();
    for line in [
        "ip -d address",
        "ip route show table all",
        "ip -6 route show table all",
        "ip rule",
        "ip -6 rule",
        "ip nexthop",
        "tc qdisc",
        "nft list ruleset",
        "sysctl -a --pattern ^net.ipv[46].conf",
    ] {
        all += &sh(line);
    }
    // Leaves out lifetimes, which count down, and secrets, which the kernel draws again.
    let stays = |line: &&str| !line.contains("stable_secret");
    let lines: Vec<_> = all.lines().filter(stays).map(without_lifetimes).collect();
    lines.join("\n")
}

fn without_lifetimes(line: &str) -> String {
    let lasts = |word: &&str| !word.ends_with("sec") && !matches!(*word, "tentative" | "");
    let words = line.split(' ').filter(lasts);
    words.collect::<Vec<_>>().join(" ")
}

pub fn stop() {
    // Devices make no addresses themselves, since these would come with a delay.
    sh("sysctl -qw net.ipv6.conf.default.addr_gen_mode=1");
    let net = Net::new();
    sh("ip rule add pref 500 from 10.7.0.0/16 lookup 77");
    sh("ip route add 10.8.0.0/16 via 10.0.2.2 table 77");
    sh("ip nexthop add id 3 via 10.0.1.2 dev ra");
    sh("nft add table ip t");
    // The kernel reports a new carrier with a delay.
    until("carriers", || !configuration().contains(" linkdown"));
    let before = configuration();
    let mut router = KernelRouter::start("ra rb");
    router.forwards(&net.a, "10.0.2.2");
    let summary = router.stop();
    assert!(summary.contains("received"), "{summary}");
    let after = configuration();
    let beyond = |of: &str, other: &str| -> Vec<String> {
        of.lines().filter(|line| !other.contains(line)).map(str::to_owned).collect()
    };
    assert_eq!(beyond(&before, &after), [""; 0], "what is no more");
    assert_eq!(beyond(&after, &before), [""; 0], "what was not there");
    assert_eq!(before.lines().count(), after.lines().count());
    assert_eq!(answered(&net.a, "10.0.2.2"), 5, "the kernel forwards");
}

pub fn service() {
    let _net = Net::new();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollway"));
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "300000");
    let mut router = KernelRouter::start_by(command, "ra rb");
    let receive = || {
        let mut bytes = [0; 64];
        let len = manager.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..len]).into_owned()
    };
    assert_eq!(receive(), "READY=1");
    only_needed_privileges(router.process.0.id());
    let start = Instant::now();
    for _ in 0..10 {
        assert_eq!(receive(), "WATCHDOG=1");
    }
    assert!(start.elapsed() < Duration::from_secs(3), "three for each that is due");
    router.stop();
    let last = std::iter::repeat_with(receive).find(|state| state != "WATCHDOG=1");
    assert_eq!(last.as_deref(), Some("STOPPING=1"));
}

/// Asserts that each thread has only the capabilities it needs, and cannot gain others.
fn only_needed_privileges(pid: u32) {
    // CAP_NET_ADMIN, CAP_NET_RAW, CAP_PERFMON, CAP_BPF.
    let mut needed = [12, 13, 38, 39].map(|number| 1_u64 << number).iter().sum::<u64>();
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let limit = limits.lines().find(|line| line.starts_with("Max locked memory")).unwrap();
    if !limit.contains("unlimited") {
        // CAP_IPC_LOCK, if the limit could not be lifted.
        needed |= 1 << 14;
    }
    let nice = limits.lines().find(|line| line.starts_with("Max nice priority")).unwrap();
    if !nice.contains("40") {
        // CAP_SYS_NICE, likewise.
        needed |= 1 << 23;
    }
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let mut count = 0;
    for thread in threads {
        let path = thread.unwrap().path().join("status");
        // A thread that has served a client may have ended.
        let Ok(status) = std::fs::read_to_string(&path) else { continue };
        let value = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim().to_owned()
        };
        let mask = |name: &str| u64::from_str_radix(&value(name), 16).unwrap();
        for (name, expected) in
            [("CapEff:", needed), ("CapPrm:", needed), ("CapBnd:", needed), ("CapInh:", 0)]
        {
            assert_eq!(mask(name), expected, "{name} of {}", path.display());
        }
        assert_eq!(value("NoNewPrivs:"), "1");
        count += 1;
    }
    assert!(count > 4, "{count} threads");
}
