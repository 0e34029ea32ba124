//! Tests that the tables follow what the kernel reports about neighbours and devices.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use tollway_commands::reload::{Done, ReloadError, Reloader, Started};
use tollway_model::Model;
use tollway_worker::installer::{InstallError, Parts};
use tollway_worker::neighbours::{Follower, Settings};
use tollway_worker::ports::Facts;
use tollway_worker::ports::dispatcher::Dispatcher;

use crate::namespaces::{Host, PATIENCE, sh, until};
use crate::worker::{CONFIG, Ip, MOMENT, WorkerThread, cable, kernel_neighbours, mac, parse};

fn followed(settings: Settings) -> (WorkerThread, Follower) {
    let model = parse(CONFIG);
    let worker = WorkerThread::start(&model);
    let follower = worker.follow(&model, settings);
    until("the first list", || follower.stats().lists > 0);
    (worker, follower)
}

/// Waits, without sleeping, until packets for an address go to the expected Ethernet address.
/// Returns how long that took.
fn installed(worker: &WorkerThread, address: &str, expected: Option<[u8; 6]>) -> Duration {
    let start = Instant::now();
    while worker.mac(address) != expected {
        assert!(start.elapsed() < PATIENCE, "{address}: {:x?}", worker.mac(address));
    }
    start.elapsed()
}

/// The time starts when `ip` gets the line, so it includes that of `ip` and of the kernel.
pub fn latency() {
    cable();
    let (worker, _follower) = followed(Settings::default());
    let mut ip = Ip::new();
    // A busy machine gets another try.
    let rounds = (0..5).map(|_| {
        let mut times = Vec::new();
        for round in 0..50_u8 {
            for address in ["10.0.0.7", "fd00::7"] {
                for (what, last) in [("replace", 1), ("replace", 2), ("del", 0)] {
                    let mac = [2, 0, 0, 0, round, last];
                    let known = (last > 0).then_some(mac);
                    let lladdr = format!("lladdr 02:00:00:00:{round:02x}:{last:02x}");
                    let lladdr = if last > 0 { lladdr } else { String::new() };
                    ip.run(&format!("neigh {what} {address} {lladdr} dev ra\n"));
                    times.push(installed(&worker, address, known));
                }
            }
        }
        times.sort_unstable();
        let [median, p90, p99] = [50, 90, 99].map(|percent| times[times.len() * percent / 100]);
        println!("active after {median:?} (median), {p90:?} (p90), {p99:?} (p99)");
        (median, p99)
    });
    let ms = Duration::from_millis;
    assert!(rounds.into_iter().any(|(median, p99)| median < ms(5) && p99 < ms(10)));
}

pub fn states() {
    cable();
    let (worker, follower) = followed(Settings::default());
    let known = Some([2, 0, 0, 0, 0, 7]);
    let set = |address: &str, state: &str| {
        sh(&format!("ip neigh replace {address} lladdr 02:00:00:00:00:07 dev ra nud {state}"));
    };
    for address in ["10.0.0.7", "fd00::7"] {
        for usable in ["permanent", "noarp", "reachable", "stale"] {
            set(address, usable);
            installed(&worker, address, known);
            set(address, "failed");
            installed(&worker, address, None);
        }
    }
    // After `catch_up`, a neighbour is there without polling.
    for number in 20..60 {
        let address = format!("10.0.0.{number}");
        set(&address, "permanent");
        assert!(follower.catch_up(PATIENCE));
        assert_eq!(worker.mac(&address), known, "{address}");
    }
    // A gateway has a next hop before its neighbour is known; routes through it follow the
    // neighbour.
    assert_eq!(worker.mac("192.0.2.1"), None);
    set("10.0.0.9", "permanent");
    installed(&worker, "192.0.2.1", known);
    sh("ip neigh del 10.0.0.9 dev ra");
    installed(&worker, "192.0.2.1", None);
    // Neighbours on another device, or with a multicast Ethernet address, are ignored.
    sh("ip neigh replace 10.0.0.8 lladdr 02:00:00:00:00:07 dev ha nud permanent");
    sh("ip neigh replace 10.0.0.10 lladdr 03:00:00:00:00:07 dev ra nud permanent");
    sh("ip neigh replace 10.0.0.11 lladdr 02:00:00:00:00:07 dev ra nud permanent");
    installed(&worker, "10.0.0.11", known);
    assert_eq!((worker.mac("10.0.0.8"), worker.mac("10.0.0.10")), (None, None));
}

fn address(number: u16) -> IpAddr {
    let [high, low] = number.to_be_bytes();
    Ipv4Addr::new(10, 0, 64 | high, low).into()
}

/// Waits until the tables have the kernel's neighbours of the first `count` addresses and no others.
fn agree(worker: &WorkerThread, count: u16) {
    let candidates: Vec<IpAddr> = (0..count).map(address).collect();
    let mut differing = 0;
    until("the tables to have what the kernel has", || {
        let kernel = kernel_neighbours();
        let expected = candidates.iter().map(|address| {
            let found = kernel.binary_search_by_key(address, |(address, _)| *address);
            found.ok().map(|index| kernel[index].1)
        });
        let known = worker.macs(candidates.clone());
        differing = known.iter().zip(expected).filter(|(known, mac)| **known != *mac).count();
        differing == 0
    });
}

/// Lines for `ip` that change some of the neighbours of the first `count` addresses.
fn changes(count: u16, round: u16) -> String {
    let mut lines = String::new();
    for number in 0..count {
        let address = address(number);
        let (high, low) = (number >> 8, number & 0xff);
        let kind = (number + round) % 3;
        let _ = writeln!(
            lines,
            "neigh replace {address} lladdr 02:00:0{kind}:{round:02x}:{high:02x}:{low:02x} dev ra \
             nud permanent"
        );
        if kind == 0 {
            let _ = writeln!(lines, "neigh del {address} dev ra");
        }
    }
    lines
}

pub fn losses() {
    const COUNT: u16 = 2000;
    cable();
    let (worker, follower) = followed(Settings { receive_buffer: 1, ..Settings::default() });
    // A follower that keeps up loses nothing, which depends on how processors are shared.
    const ROUNDS_MAX: u16 = 40;
    for round in 0..ROUNDS_MAX {
        let mut ip = Ip::new();
        ip.run(&changes(COUNT, round));
        ip.finish();
        agree(&worker, COUNT);
        if round >= 3 && follower.stats().lost > 0 {
            break;
        }
    }
    let stats = follower.stats();
    println!("{stats:?}");
    assert!(stats.lost > 0, "nothing was lost, so this test tests nothing: {stats:?}");
    assert!(stats.lists > 1);
}

/// A bridge learns more addresses than the follower has room for: it receives none of them.
pub fn of_bridges() {
    const COUNT: u32 = 20_000;
    cable();
    sh("ip link add br0 type bridge");
    sh("ip link add m0 type veth peer name m1");
    sh("ip link set m0 master br0");
    let (worker, follower) = followed(Settings { receive_buffer: 1, ..Settings::default() });
    let mut entries = String::new();
    for number in 0..COUNT {
        let [_, a, b, c] = number.to_be_bytes();
        writeln!(entries, "fdb add 02:00:01:{a:02x}:{b:02x}:{c:02x} dev m0 master static").unwrap();
    }
    let file = std::env::temp_dir().join(format!("tollway-fdb-{}", std::process::id()));
    std::fs::write(&file, entries).unwrap();
    sh(&format!("bridge -batch {}", file.display()));
    std::fs::remove_file(file).unwrap();
    sh("ip neigh replace 10.0.0.7 lladdr 02:00:00:00:00:07 dev ra nud permanent");
    installed(&worker, "10.0.0.7", Some([2, 0, 0, 0, 0, 7]));
    let stats = follower.stats();
    assert_eq!((stats.lost, stats.lists), (0, 1), "{stats:?}");
}

pub fn devices() {
    cable();
    let model = parse(CONFIG);
    let worker = WorkerThread::start(&model);
    let (sender, receiver) = mpsc::channel::<Facts>();
    let on_device = Box::new(move |port: tollway_model::PortIndex, facts| {
        assert_eq!(port.0, 0);
        sender.send(facts).unwrap();
    });
    let _follower = worker.follow_with(&model, Settings::default(), on_device);
    let first = receiver.recv_timeout(PATIENCE).unwrap();
    assert_eq!(first.mtu, Some(1500));
    sh("ip link set ra mtu 1400");
    assert_eq!(receiver.recv_timeout(PATIENCE).unwrap(), Facts { mtu: Some(1400), ..first });
    sh("ip link set ra address 02:00:00:00:00:aa");
    let facts = receiver.recv_timeout(PATIENCE).unwrap();
    assert_eq!(facts.mac.map(|mac| mac.0), Some([2, 0, 0, 0, 0, 0xaa]));

    let known = Some([2, 0, 0, 0, 0, 7]);
    let add = |device: &str| {
        for address in ["10.0.0.7", "fd00::7"] {
            let lladdr = "lladdr 02:00:00:00:00:07";
            sh(&format!("ip neigh replace {address} {lladdr} dev {device} nud permanent"));
        }
    };
    let expect = |known| {
        for address in ["10.0.0.7", "fd00::7"] {
            installed(&worker, address, known);
        }
    };
    add("ra");
    expect(known);
    // The kernel forgets neighbours when their device goes down.
    sh("ip link set ra down");
    expect(None);
    sh("ip link set ra up");
    add("ra");
    expect(known);
    sh("ip link delete ra");
    expect(None);
    cable();
    add("ra");
    expect(known);
    // A renamed device is still the same device, and a new one with the old name is not ours.
    sh("ip link set ra down");
    sh("ip link set ra name rz");
    sh("ip link set rz up");
    sh("ip link add ra type veth peer name hb");
    sh("ip link set ra up");
    add("rz");
    expect(known);
    add("ra");
    sh("ip link delete rz");
    expect(known);
    sh("ip link delete ra");
    expect(None);
}

pub fn confirmation() {
    sh("ip link set lo up");
    let host = Host::new();
    host.plug("a", "02:00:00:00:01:02", ["10.0.0.2/16", "fd00::2/64"]);
    sh("ip address add 10.0.0.1/16 dev ra");
    sh("ip address add fd00::1/64 dev ra nodad");
    for family in ["ipv4", "ipv6"] {
        sh(&format!("sysctl -qw net.{family}.neigh.ra.delay_first_probe_time=1"));
    }
    let settings = Settings { confirm_every: Duration::from_millis(200), ..Settings::default() };
    let (worker, follower) = followed(settings);
    let state = |address: &str| sh(&format!("ip neigh show {address} dev ra"));
    for address in ["10.0.0.2", "fd00::2"] {
        // A reachable neighbour would need no confirmation.
        sh(&format!("ip neigh replace {address} lladdr 02:00:00:00:01:02 dev ra nud stale"));
        until("it to be confirmed", || state(address).contains("REACHABLE"));
        assert_eq!(worker.mac(address), Some([2, 0, 0, 0, 1, 2]));
    }
    assert!(follower.stats().confirmed > 0);
    // The neighbour moves without an announcement. The follower notices that, and the next packet
    // finds the new address.
    host.sh("ip link set ha address 02:00:00:00:01:03");
    let address = "10.0.0.2";
    sh(&format!("ip neigh replace {address} lladdr 02:00:00:00:01:02 dev ra nud stale"));
    until("the old address to go", || worker.mac(address) != Some([2, 0, 0, 0, 1, 2]));
    sh(&format!("ping -n -c 1 -W 5 {address}"));
    installed(&worker, address, Some([2, 0, 0, 0, 1, 3]));
}

/// A reloader of a file for a worker whose neighbours are followed.
fn reloader(worker: &WorkerThread, configured: &Model, file: PathBuf) -> Reloader {
    let started = Started {
        file,
        configured: configured.clone(),
        facts: vec![Facts::default()],
        largest_mtu: 3900,
        parts: Parts {
            model: configured.clone(),
            kernel: vec![true],
            name_table: tollway_model::names::NameTable::default(),
            dispatcher: std::sync::Arc::new(Dispatcher::load(configured)),
            journal: Default::default(),
            updater: worker.updater.clone(),
        },
    };
    let follow = |_: &_| Ok(Some(worker.follow(configured, Settings::default())));
    Reloader::start(started, follow).unwrap()
}

/// A reload swaps the tables while neighbours change, and no change is lost.
pub fn handover() {
    const COUNT: u16 = 500;
    cable();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("router.toml");
    let configured = parse(CONFIG);
    let worker = WorkerThread::start(&configured);
    let reloader = reloader(&worker, &configured, file.clone());
    let fixed =
        "[[neighbours]]\ndev = \"a\"\naddress = \"10.0.0.77\"\nmac = \"02:00:00:00:00:4d\"\n";
    for round in 0..6 {
        let mut ip = Ip::new();
        ip.run(&changes(COUNT, round));
        // Each file is another: with a VLAN link that moves no other link, and a neighbour from the
        // file.
        let more = format!("{fixed}[vlans.v]\nparent = \"a\"\nvid = {}\n", round + 1);
        std::fs::write(&file, CONFIG.to_owned() + &more).unwrap();
        let done = reloader.reload().unwrap();
        assert!(matches!(done, Done::Installed { links: 2, .. }), "{done}");
        println!("{done}");
        ip.finish();
        agree(&worker, COUNT);
        // The kernel's neighbours do not replace those from the file.
        sh("ip neigh replace 10.0.0.77 lladdr 02:00:00:00:00:07 dev ra nud permanent");
        sh("ip neigh replace 10.0.0.78 lladdr 02:00:00:00:00:07 dev ra nud permanent");
        installed(&worker, "10.0.0.78", Some(mac("02:00:00:00:00:07")));
        assert_eq!(worker.mac("10.0.0.77"), Some(mac("02:00:00:00:00:4d")));
        sh("ip neigh del 10.0.0.78 dev ra");
        installed(&worker, "10.0.0.78", None);
        std::thread::sleep(MOMENT);
    }
    assert_eq!(reloader.reload().unwrap(), Done::Unchanged);
}

/// The worker does not answer for so long that the reload gives up; neighbours change meanwhile.
pub fn given_up() {
    cable();
    sh("ip link add v type veth peer name w");
    sh("ip link set v up");
    sh("ip link set w up");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("router.toml");
    // A device with the link's name has the neighbours, so this test needs no kernel with VLANs.
    let vlan = "[vlans.v]\nparent = \"a\"\nvid = 5\naddresses = [\"10.1.0.1/16\"]\n";
    let configured = parse(&format!("{CONFIG}{vlan}"));
    let worker = WorkerThread::start(&configured);
    let reloader = reloader(&worker, &configured, file.clone());
    let neigh = |what: &str| sh(&format!("ip neigh {what} dev v"));
    let set = |address: &str| neigh(&format!("replace {address} lladdr 02:00:00:00:00:07"));
    let known = Some([2, 0, 0, 0, 0, 7]);
    for address in ["10.1.0.7", "10.1.0.8"] {
        set(address);
        installed(&worker, address, known);
    }

    assert!(worker.mailbox.post(|_, _| std::thread::sleep(Duration::from_millis(11_500))));
    std::fs::write(&file, CONFIG).unwrap();
    let reloading = std::thread::spawn(move || (reloader.reload(), reloader));
    std::thread::sleep(Duration::from_secs(5));
    neigh("del 10.1.0.7");
    set("10.1.0.9");
    let (outcome, reloader) = reloading.join().unwrap();
    assert!(matches!(outcome, Err(ReloadError::Installer(InstallError::Gone))), "{outcome:?}");
    installed(&worker, "10.1.0.7", None);
    installed(&worker, "10.1.0.8", known);
    installed(&worker, "10.1.0.9", known);
    // The follower works as before, until a reload is active.
    neigh("del 10.1.0.8");
    installed(&worker, "10.1.0.8", None);
    assert!(matches!(reloader.reload(), Ok(Done::Installed { links: 1, .. })));
    installed(&worker, "10.1.0.9", None);
}
