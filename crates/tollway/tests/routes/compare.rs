//! The tests, and the kernel's answers (`ip route get ... fibmatch`).

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::chance;
use crate::dice::Dice;
use crate::ip::{batch, veth_pairs};
use crate::namespaces::sh;
use crate::tables::{Answer, LINKS, Packet, Router};

/// Runs lines of `ip -batch` that the kernel may refuse.
fn attempt(lines: &[String], v6: bool) {
    let mut ip = Command::new("ip");
    ip.arg(if v6 { "-6" } else { "-4" }).args(["-force", "-batch", "-"]).stdin(Stdio::piped());
    let mut ip = ip.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    ip.stdin.take().unwrap().write_all((lines.join("\n") + "\n").as_bytes()).unwrap();
    ip.wait().unwrap();
}

/// Queries the kernel for what it does with a packet.
fn query(packet: &Packet) -> Answer {
    let Packet { iif, src, dst, mark } = packet;
    let line = format!("route get fibmatch {dst} from {src} iif {iif} mark {mark}");
    let output = Command::new("ip").args(line.split(' ')).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() {
        return match error.as_str() {
            error if error.contains("Network is unreachable") => Answer::NoRoute,
            error if error.contains("Invalid argument") => Answer::Blackhole,
            error if error.contains("No route to host") => Answer::Unreachable,
            error if error.contains("Permission denied") => Answer::Prohibit,
            error => panic!("{line}: {error}"),
        };
    }
    read(&text).unwrap_or_else(|| panic!("{line}: {text}"))
}

/// Reads the answer from a route as `ip` prints it.
fn read(text: &str) -> Option<Answer> {
    match text.split_whitespace().next()? {
        "local" | "anycast" | "broadcast" | "multicast" => return Some(Answer::Local),
        "blackhole" => return Some(Answer::Blackhole),
        "unreachable" => return Some(Answer::Unreachable),
        "prohibit" => return Some(Answer::Prohibit),
        _ => {}
    }
    let has_hops = text.contains("nexthop ");
    let parts: Vec<_> = text.split("nexthop ").skip(usize::from(has_hops)).collect();
    let alive = parts.iter().filter(|part| !part.contains(" dead"));
    let hop = |part: &&str| {
        let words: Vec<_> = part.split_whitespace().collect();
        let after = |word| words.iter().position(|of| *of == word).map(|at| words[at + 1]);
        let via = match after("via") {
            Some("inet6" | "inet") => {
                words.iter().position(|of| *of == "via").map(|at| words[at + 2])
            }
            via => via,
        };
        Some((after("dev")?.to_owned(), via.map(|via| via.parse().unwrap())))
    };
    alive.map(hop).collect::<Option<BTreeSet<_>>>().map(Answer::By)
}

/// Says whether the tables' answer is right: the same as the kernel's, or the kernel path.
fn agree(tables: &Answer, kernel: &Answer) -> bool {
    match (tables, kernel) {
        (Answer::Kernel | Answer::Local, _) => true,
        // All of these are punts.
        (Answer::NoRoute | Answer::Unreachable | Answer::Prohibit, Answer::By(_)) => false,
        (Answer::NoRoute | Answer::Unreachable | Answer::Prohibit, _) => true,
        (tables, kernel) => tables == kernel,
    }
}

fn setup() {
    veth_pairs();
    for name in ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"] {
        sh(&format!("sysctl -qw {name}=1"));
    }
    for n in 0..4 {
        // The other ends only provide the carrier.
        sh(&format!("sysctl -qw net.ipv6.conf.b{n}.disable_ipv6=1"));
        sh(&format!("sysctl -qw net.ipv4.conf.a{n}.rp_filter=0"));
        sh(&format!("sysctl -qw net.ipv6.conf.a{n}.keep_addr_on_down=1"));
    }
    sh("sysctl -qw net.ipv4.conf.all.rp_filter=0");
    for family in ["ipv4", "ipv6"] {
        sh(&format!("sysctl -qw net.{family}.conf.a1.ignore_routes_with_linkdown=1"));
    }
}

/// Random rules, routes, objects, devices and addresses. For every packet the tables agree with the
/// kernel, both with derived changes and with lists that are read again.
pub fn at_random() {
    setup();
    let seed = std::env::var("SEED").map_or(1, |seed| seed.parse().unwrap());
    println!("SEED={seed}");
    let mut dice = Dice(seed);
    let mut router = Router::new(&["a1"]);
    let (mut queries, mut fast, mut history) = (0, 0, Vec::new());
    for round in 0..60 {
        let (lines, v6): (Vec<_>, Vec<_>) = (0..24).map(|_| chance::line(&mut dice)).unzip();
        for (line, v6) in lines.iter().zip(v6) {
            attempt(std::slice::from_ref(line), v6);
        }
        history.push(lines);
        router.read_until_quiet(round % 2 == 1);
        for _ in 0..24 {
            let packet = chance::packet(&mut dice);
            let up =
                router.kernel.netdevs.values().any(|of| of.name == packet.iif && of.flags & 1 == 1);
            if !up {
                continue;
            }
            let (mut expected, mut found) = (query(&packet), router.query(&packet));
            queries += 1;
            fast += usize::from(matches!(found, Answer::By(_) | Answer::Blackhole));
            // The kernel makes some changes later, in a thread of its own.
            let start = Instant::now();
            while !agree(&found, &expected) && start.elapsed() < Duration::from_secs(3) {
                router.read_until_quiet(round % 2 == 1);
                (expected, found) = (query(&packet), router.query(&packet));
            }
            if !agree(&found, &expected) {
                let last = history.last().unwrap().join("\n");
                let table = |family| sh(&format!("ip {family} route show table all"));
                panic!(
                    "seed {seed}, round {round}: {packet:?}: {found:?}, the kernel: {expected:?}\n{last}\n{}{}{}{}{}",
                    sh("ip rule"),
                    sh("ip -6 rule"),
                    table("-4"),
                    table("-6"),
                    sh("ip nexthop"),
                );
            }
        }
    }
    println!("{fast} of {queries} without the kernel, tables filled {} times", router.filled);
    assert!(fast * 12 > queries, "nearly all packets take the kernel path");
}

fn by(device: &str, via: &str) -> Answer {
    Answer::By([(device.to_owned(), Some(via.parse().unwrap()))].into())
}

/// A thousand routes use one object, or a group with it. A change of the object touches no route.
pub fn in_place() {
    setup();
    let mut lines = String::from("nexthop add id 1 via 10.0.0.5 dev a0\n");
    lines += "nexthop add id 2 via 10.0.1.5 dev a1\nnexthop add id 9 group 1/2\n";
    for n in 0..1000 {
        let (object, net) = (if n % 2 == 0 { 1 } else { 9 }, n);
        lines += &format!("route add 10.{}.{}.0/24 nhid {object}\n", 100 + net / 250, net % 250);
    }
    batch(&lines);
    let mut router = Router::new(&[]);
    let packet = |dst: &str| Packet {
        iif: LINKS[0],
        src: "172.16.0.1".parse().unwrap(),
        dst: dst.parse().unwrap(),
        mark: 0,
    };
    let (single, grouped) = (packet("10.100.0.1"), packet("10.100.1.1"));
    let both = |one: Answer, other: Answer| match (one, other) {
        (Answer::By(one), Answer::By(other)) => Answer::By(one.union(&other).cloned().collect()),
        _ => unreachable!("both are routers"),
    };
    assert_eq!(router.query(&single), by("a0", "10.0.0.5"));
    assert_eq!(router.query(&grouped), both(by("a0", "10.0.0.5"), by("a1", "10.0.1.5")));
    batch("nexthop replace id 1 via 10.0.2.6 dev a2\n");
    router.read_until_quiet(false);
    assert_eq!(router.query(&single), by("a2", "10.0.2.6"));
    assert_eq!(router.query(&grouped), both(by("a2", "10.0.2.6"), by("a1", "10.0.1.5")));
    assert_eq!((router.followed.direct, router.followed.locked), (0, 0));
    batch("nexthop replace id 9 group 1\n");
    router.read_until_quiet(false);
    assert_eq!(router.query(&grouped), by("a2", "10.0.2.6"));
    assert_eq!((router.followed.direct, router.followed.locked), (0, 0));
    batch("nexthop replace id 9 group 1/2\nlink set a1 down\n");
    router.read_until_quiet(false);
    assert_eq!(router.query(&grouped), by("a2", "10.0.2.6"));
    batch("link set a2 down\n");
    router.read_until_quiet(false);
    for packet in [single, grouped] {
        assert_eq!((router.query(&packet), query(&packet)), (Answer::NoRoute, Answer::NoRoute));
    }
    assert!(router.rib.len() < 100, "{} destinations are left", router.rib.len());
    assert_eq!(router.filled, 1);
}

/// An IPv6 next hop on a device that was down stays dead until the device has a carrier.
pub fn without_carrier() {
    setup();
    batch("link set b2 down\n");
    attempt(
        &["route add 2001:db8::/64 nexthop via fd00:1::4 dev a1 nexthop via fd00:2::2 dev a2"
            .to_owned()],
        true,
    );
    let mut router = Router::new(&[]);
    let packet = Packet {
        iif: LINKS[0],
        src: "fd99::5".parse().unwrap(),
        dst: "2001:db8::1".parse().unwrap(),
        mark: 0,
    };
    let a1 = by("a1", "fd00:1::4");
    let Answer::By(a2) = by("a2", "fd00:2::2") else { unreachable!() };
    let Answer::By(both) = a1.clone() else { unreachable!() };
    let both = Answer::By(both.union(&a2).cloned().collect());
    for (line, listed, expected) in [
        ("", false, &both),
        ("link set a2 down", false, &a1),
        ("link set a2 up", false, &a1),
        ("", true, &a1),
        ("link set b2 up", false, &both),
        ("link set b2 down", true, &both),
        ("link set a2 down", true, &a1),
        ("link set a2 up", false, &a1),
        ("link set b2 up", true, &both),
    ] {
        batch(&format!("{line}\n"));
        router.read_until_quiet(listed);
        assert_eq!(
            (&router.query(&packet), &query(&packet)),
            (expected, expected),
            "after {line:?}"
        );
    }
}

/// With ten thousand routes active, a changed route is active soon after the kernel has it.
pub fn latency() {
    setup();
    let routes = (0..10_000)
        .map(|n| format!("route add 10.{}.{}.0/24 via 10.0.0.5 dev a0\n", 100 + n / 250, n % 250));
    batch(&routes.collect::<String>());
    let mut router = Router::new(&[]);
    let mut slowest = Duration::ZERO;
    for n in 0..50 {
        let via = 6 + n % 2;
        batch(&format!("route replace 10.100.0.0/24 via 10.0.0.{via} dev a0\n"));
        let start = Instant::now();
        let packet = Packet {
            iif: LINKS[1],
            src: "172.16.0.1".parse().unwrap(),
            dst: "10.100.0.1".parse().unwrap(),
            mark: 0,
        };
        while router.query(&packet) != by("a0", &format!("10.0.0.{via}")) {
            router.turn();
            assert!(start.elapsed() < Duration::from_secs(5), "it never came");
        }
        slowest = slowest.max(start.elapsed());
    }
    println!("slowest of 50: {slowest:?}");
    assert!(slowest < Duration::from_millis(250), "{slowest:?}, even on a busy machine");
    assert_eq!(router.filled, 1);
}
