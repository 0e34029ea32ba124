//! Tests that a database has the addresses that the kernel's bridges have learned.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use netlink_sys::protocols::NETLINK_ROUTE;
use tollway_dataplane::id::{Domain, PortId};
use tollway_dataplane::memory::Memory;
use tollway_dataplane::stages::bridge::{Fdb, FdbEntry, FdbKey, FdbKind};
use tollway_dataplane::wire::eth::MacWord;
use tollway_linux::netlink::{QuerySocket, push};
use tollway_worker::fdb::{FdbFollower, FdbSettings, FdbWatch, LOCAL_PORT};

use crate::namespaces::{PATIENCE, ifindex, sh, until};
use crate::wire::Wire;
use crate::worker::mac;

/// The number of the domain of `br0`.
const DOMAIN: u16 = 3;
/// The ports of the members `m0` and `m1`.
const PORTS: [PortId; 2] = [PortId(1), PortId(5)];

/// Makes a bridge `br0` with the members `m0` and `m1`, whose other ends are `h0` and `h1`. Nobody sends on its own.
fn bridge() {
    sh("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1");
    sh("ip link add br0 address 02:00:00:00:ff:00 type bridge mcast_snooping 0");
    sh("ip link set br0 up");
    for number in 0..2 {
        sh(&format!("ip link add m{number} type veth peer name h{number}"));
        sh(&format!("ip link set m{number} master br0 up"));
        sh(&format!("ip link set h{number} up"));
    }
}

fn watch() -> FdbWatch {
    let domain = Domain::new(DOMAIN).unwrap();
    let watch = FdbWatch::default().with_domain(ifindex("br0"), 0, domain);
    let watch = watch.with_port(ifindex("m0"), PORTS[0]);
    watch.with_port(ifindex("m1"), PORTS[1])
}

/// A database, and who keeps it as the bridge is.
struct Followed {
    fdb: Arc<Fdb>,
    follower: FdbFollower,
}

impl Followed {
    fn start(settings: FdbSettings) -> Self {
        let fdb = Arc::new(Fdb::new(&Memory::default()));
        let follower = FdbFollower::start(watch(), Arc::clone(&fdb), settings).unwrap();
        until("the first list", || follower.stats().lists > 0);
        Self { fdb, follower }
    }

    fn found(&self, mac: [u8; 6]) -> Option<FdbEntry> {
        found(&self.fdb, mac)
    }

    /// Waits until an address is what is expected.
    #[track_caller]
    fn expect(&self, mac: [u8; 6], expected: Option<FdbEntry>) {
        let what = format!("{expected:?} for {mac:x?}");
        until(&what, || self.found(mac) == expected);
    }

    /// Waits until the database has what the kernel has, and nothing else.
    fn agree(&self) {
        until("the database to have what the kernel has", || {
            let (kernel, fdb) = (kernel(), self.fdb.lock());
            let own =
                fdb.entries().map(|(key, entry)| (key.mac(), (entry.port.0, entry.kind as u8)));
            own.collect::<BTreeMap<_, _>>() == kernel
        });
    }
}

fn key(mac: [u8; 6]) -> FdbKey {
    FdbKey::new(Domain::new(DOMAIN).unwrap(), MacWord::new(mac))
}

fn found(fdb: &Fdb, mac: [u8; 6]) -> Option<FdbEntry> {
    fdb.look_up(key(mac)).map(|hit| hit.entry())
}

const fn at(member: usize) -> Option<FdbEntry> {
    Some(FdbEntry { port: PORTS[member], kind: FdbKind::Host })
}

const LOCAL: Option<FdbEntry> = Some(FdbEntry { port: LOCAL_PORT, kind: FdbKind::Local });

/// An address of a host.
const fn host(number: u32) -> [u8; 6] {
    let [_, a, b, c] = number.to_be_bytes();
    [2, 0, 0, a, b, c]
}

/// What a database of the bridge is to have: for each address, port and kind.
fn kernel() -> BTreeMap<[u8; 6], (u16, u8)> {
    let shown: serde_json::Value = serde_json::from_str(&sh("bridge -j fdb show br br0")).unwrap();
    let entry = |shown: &serde_json::Value| {
        let word = |name: &str| shown[name].as_str().unwrap_or_default();
        let is_own = shown["flags"].as_array().is_some_and(|flags| flags.contains(&"self".into()));
        let member = ["m0", "m1"].iter().position(|member| *member == word("ifname"));
        let entry = match (word("state"), member) {
            ("permanent", _) => LOCAL,
            ("stale", _) | (_, None) => None,
            (_, Some(member)) => at(member),
        };
        let entry = entry.filter(|_| !is_own)?;
        Some((mac(word("mac")), (entry.port.0, entry.kind as u8)))
    };
    shown.as_array().unwrap().iter().filter_map(entry).collect()
}

/// A frame to all from an address.
fn from(mac: [u8; 6]) -> Vec<u8> {
    let mut frame = [[0xff; 6], mac].concat();
    // An ethertype for experiments (IEEE 802).
    frame.extend([0x88, 0xb5]);
    frame.resize(60, 0);
    frame
}

/// Runs lines by `bridge`.
fn run_batch(lines: &str) {
    let mut command = Command::new("bridge");
    let mut child = command.args(["-batch", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}

fn lines(what: &str, numbers: impl Iterator<Item = u32>, end: &str) -> String {
    let mut lines = String::new();
    for number in numbers {
        let [_, a, b, c] = number.to_be_bytes();
        writeln!(lines, "fdb {what} 02:00:00:{a:02x}:{b:02x}:{c:02x} {end}").unwrap();
    }
    lines
}

pub fn changes() {
    bridge();
    let wires = ["h0", "h1"].map(Wire::open);
    let scene = Followed::start(FdbSettings::default());
    scene.expect(mac("02:00:00:00:ff:00"), LOCAL);
    for number in 0..20 {
        let from = from(host(number));
        wires[0].send(&from);
        scene.expect(host(number), at(0));
        wires[1].send(&from);
        scene.expect(host(number), at(1));
    }
    wires[0].send(&from(host(1)));
    scene.expect(host(1), at(0));
    sh("ip link set m1 down");
    scene.expect(host(2), None);
    assert_eq!(scene.found(host(1)), at(0), "the other member's");
    sh("ip link set m1 up");
    sh("bridge fdb add 02:00:00:00:00:63 dev m1 master static");
    sh("bridge fdb add 02:00:00:00:00:64 dev m1 master permanent");
    scene.expect(host(0x63), at(1));
    scene.expect(host(0x64), LOCAL);
    // After `catch_up`, an entry is there without polling.
    for number in 200..230 {
        run_batch(&lines("add", number..=number, "dev m0 master static"));
        assert!(scene.follower.catch_up(PATIENCE));
        assert_eq!(scene.found(host(number)), at(0), "{number}");
    }
    scene.agree();
    sh("ip link set br0 type bridge fdb_flush");
    scene.expect(host(1), None);
    assert_eq!(scene.found(host(0x63)), at(1), "it is static");
    sh("ip link set m1 nomaster");
    scene.expect(host(0x63), None);
    scene.agree();
    sh("ip link delete br0");
    until("everything to go", || scene.fdb.lock().is_empty());
    let stats = scene.follower.stats();
    assert_eq!((stats.lost, stats.left_out), (0, 0), "{stats:?}");
}

pub fn ageing() {
    bridge();
    // In hundredths of a second.
    sh("ip link set br0 type bridge ageing_time 200");
    let wire = Wire::open("h0");
    let scene = Followed::start(FdbSettings::default());
    let start = Instant::now();
    wire.send(&from(host(1)));
    scene.expect(host(1), at(0));
    scene.expect(host(1), None);
    assert!(start.elapsed() >= Duration::from_secs(2), "{:?}", start.elapsed());
    // A list may have expired ones.
    for number in 1..200 {
        wire.send(&from(host(number)));
    }
    let audits = FdbSettings { audit_every: Duration::from_millis(20), ..FdbSettings::default() };
    let audited = Followed::start(audits);
    let least = audited.follower.stats().lists + 10;
    until("the lists", || audited.follower.stats().lists >= least);
    until("all to age", || audited.fdb.lock().entries().all(|(_, entry)| Some(entry) == LOCAL));
    scene.agree();
    audited.agree();
}

/// Entries of other devices are not those of the bridge.
pub fn tunnels() {
    bridge();
    sh("ip link set lo up");
    sh("ip link add vx0 type vxlan id 5 dstport 4789 local 127.0.0.1");
    sh("ip link set vx0 master br0 up");
    let wire = Wire::open("h0");
    let scene = Followed::start(FdbSettings::default());
    wire.send(&from(host(1)));
    scene.expect(host(1), at(0));
    sh("bridge fdb add 02:00:00:00:00:01 dev vx0 self dst 127.0.0.2");
    sh("bridge fdb add 02:00:00:00:00:02 dev vx0 self dst 127.0.0.2");
    sh("bridge fdb add 02:00:00:00:00:03 dev m1 self");
    // The device is a member, but no port.
    sh("bridge fdb add 02:00:00:00:00:04 dev vx0 master static");
    assert!(scene.follower.catch_up(PATIENCE));
    let all = [1, 2, 3, 4].map(|number| scene.found(host(number)));
    assert_eq!(all, [at(0), None, None, None]);
    scene.agree();
    // A list has them, too.
    let other = Followed::start(FdbSettings::default());
    other.agree();
    // Another watch finds what was there before.
    let port = FdbEntry { port: PortId(9), kind: FdbKind::Host };
    let watch = watch().with_port(ifindex("vx0"), port.port);
    scene.follower.rebind(watch, Arc::clone(&scene.fdb));
    let all = [1, 2, 3, 4].map(|number| scene.found(host(number)));
    assert_eq!(all, [at(0), None, None, Some(port)]);
}

/// A host that a member has not yet admitted (MAC authentication bypass).
pub fn locked() {
    bridge();
    // `IFLA_PROTINFO` with `IFLA_BRPORT_LEARNING`, `IFLA_BRPORT_LOCKED` and `IFLA_BRPORT_MAB`.
    let mut settings = Vec::new();
    for kind in [8, 39, 40] {
        push(&mut settings, kind, &[1]);
    }
    let mut body = vec![libc::AF_BRIDGE as u8, 0, 0, 0];
    body.extend(ifindex("m0").to_ne_bytes());
    body.extend([0; 8]);
    push(&mut body, 12 | 0x8000, &settings);
    let mut netlink = QuerySocket::open(NETLINK_ROUTE).unwrap();
    netlink.change(libc::RTM_SETLINK, 0, &body).unwrap();
    let scene = Followed::start(FdbSettings::default());
    Wire::open("h0").send(&from(host(1)));
    let locked = FdbEntry { port: PORTS[0], kind: FdbKind::Locked };
    scene.expect(host(1), Some(locked));
    sh("bridge fdb replace 02:00:00:00:00:01 dev m0 master dynamic");
    scene.expect(host(1), at(0));
}

pub fn switches() {
    bridge();
    let wire = Wire::open("h0");
    let scene = Followed::start(FdbSettings::default());
    let send = |number| wire.send(&from(host(number)));
    send(1);
    scene.expect(host(1), at(0));
    let other = Arc::new(Fdb::new(&Memory::default()));
    scene.follower.rebind(watch(), Arc::clone(&other));
    assert_eq!((found(&other, host(1)), scene.found(host(1))), (at(0), None));
    send(2);
    until("an entry in the other one", || found(&other, host(2)) == at(0));
    // A switch that is given up, during which an address is learned: both are paused until it ends.
    let given_up = Arc::new(Fdb::new(&Memory::default()));
    let watch_elsewhere = FdbWatch::default();
    let swapped = scene.follower.hand_over(watch_elsewhere, Arc::clone(&given_up), || {
        assert_eq!(found(&other, host(2)), at(0), "as long as nothing changes");
        send(3);
        until("a pause", || found(&other, host(2)).is_none());
        None::<()>
    });
    assert!(swapped.is_none());
    until("the change", || found(&other, host(3)) == at(0));
    assert_eq!((found(&other, host(2)), given_up.lock().len()), (at(0), 0));
    // One that takes place.
    let next = Arc::new(Fdb::new(&Memory::default()));
    let swapped = scene.follower.hand_over(watch(), Arc::clone(&next), || {
        assert_eq!(found(&next, host(3)), at(0), "before the swap");
        send(4);
        until("a pause", || found(&next, host(3)).is_none());
        Some(7)
    });
    assert_eq!(swapped, Some(7));
    until("the change", || found(&next, host(4)) == at(0));
    assert_eq!([2, 3].map(|number| found(&next, host(number))), [at(0); 2]);
    assert!(found(&other, host(2)).is_none(), "it is followed no more");
    drop(scene.follower);
    assert!(found(&next, host(2)).is_none(), "nor this one");
}

/// After the router was paused, readers find no entry that may be old.
pub fn pauses() {
    bridge();
    let wire = Wire::open("h0");
    let scene = Followed::start(FdbSettings::default());
    wire.send(&from(host(1)));
    scene.expect(host(1), at(0));
    let reporter = scene.follower.pause_reporter();
    for _ in 0..100 {
        reporter.paused();
        scene.expect(host(1), at(0));
    }
    // While the thread cannot go on, because the tables are swapped.
    let Followed { fdb, follower } = &scene;
    let swapped = follower.hand_over(watch(), Arc::clone(fdb), || {
        assert_eq!(found(fdb, host(1)), at(0));
        wire.send(&from(host(2)));
        until("a pause", || found(fdb, host(1)).is_none());
        reporter.paused();
        assert!(!follower.catch_up(Duration::from_millis(1)));
        assert_eq!(found(fdb, host(1)), None);
        Some(())
    });
    assert!(swapped.is_some());
    scene.expect(host(2), at(0));
    assert_eq!(scene.found(host(1)), at(0));
}

/// The time starts when the frame is sent, so it includes that of the kernel.
pub fn latency() {
    const MOVES: usize = 400;
    bridge();
    let wires = ["h0", "h1"].map(Wire::open);
    let scene = Followed::start(FdbSettings::default());
    let frame = from(host(1));
    // A busy machine gets another try.
    let medians = (0..5).map(|_| {
        let mut times = Vec::new();
        for number in 0..MOVES {
            let member = number % 2;
            let start = Instant::now();
            wires[member].send(&frame);
            while scene.found(host(1)) != at(member) {
                assert!(start.elapsed() < PATIENCE, "{:?}", scene.found(host(1)));
            }
            times.push(start.elapsed());
            // As between two moves of a host, the thread sleeps.
            std::thread::sleep(Duration::from_micros(300));
        }
        times.sort_unstable();
        let [median, p90, p99] = [50, 90, 99].map(|percent| times[times.len() * percent / 100]);
        println!("a move is followed after {median:?} (median), {p90:?} (p90), {p99:?} (p99)");
        median
    });
    assert!(medians.into_iter().any(|median| median < Duration::from_millis(5)));
    assert_eq!(scene.follower.stats().lost, 0);
}

pub fn many() {
    const COUNT: u32 = 20_000;
    bridge();
    let scene = Followed::start(FdbSettings::default());
    let start = Instant::now();
    run_batch(&lines("add", 0..COUNT, "dev m0 master static"));
    run_batch(&lines("replace", 0..COUNT / 2, "dev m1 master static"));
    scene.agree();
    println!("{COUNT} entries after {:?}", start.elapsed());
    let other = Arc::new(Fdb::new(&Memory::default()));
    let start = Instant::now();
    scene.follower.rebind(watch(), Arc::clone(&other));
    println!("in another database after {:?}", start.elapsed());
    scene.follower.rebind(watch(), Arc::clone(&scene.fdb));
    // One that starts now has them from a list.
    let start = Instant::now();
    let listed = Followed::start(FdbSettings::default());
    println!("listed after {:?}", start.elapsed());
    listed.agree();
    // Removes all that are not local.
    let start = Instant::now();
    sh("bridge fdb flush dev br0 nopermanent");
    scene.agree();
    listed.agree();
    println!("removed after {:?}", start.elapsed());
    assert!(scene.found(host(1)).is_none());
    let stats = scene.follower.stats();
    assert_eq!((stats.lost, stats.left_out), (0, 0), "{stats:?}");
}

pub fn losses() {
    const COUNT: u32 = 4000;
    const ROUNDS: u32 = 6;
    bridge();
    let wires = ["h0", "h1"].map(Wire::open);
    let settings = FdbSettings { receive_buffer: 1, ..FdbSettings::default() };
    let scene = Followed::start(settings);
    for round in 0..ROUNDS {
        // Two thirds are learned or move while the thread waits for the end of a swap.
        let wire = &wires[round as usize % 2];
        let some = (0..COUNT).filter(|number| (number + round) % 3 > 0);
        let lost = scene.follower.stats().lost;
        scene.follower.hand_over(watch(), Arc::clone(&scene.fdb), || {
            some.for_each(|number| wire.send(&from(host(number))));
            Some(())
        });
        scene.agree();
        assert!(scene.follower.stats().lost > lost, "{:?}", scene.follower.stats());
        let third = (0..COUNT).filter(|number| (number + round) % 3 == 0);
        run_batch(&lines("replace", third, "dev m0 master static"));
        scene.agree();
        if round % 3 == 2 {
            // All at once: faster than the thread reads.
            sh("bridge fdb flush dev br0 nopermanent");
            scene.agree();
        }
    }
    let stats = scene.follower.stats();
    println!("{stats:?}");
    assert!(stats.lists > 1);
    let some = scene.fdb.lock().entries().next().unwrap().0;
    until("an end of the pause", || scene.fdb.look_up(some).is_some());
}
