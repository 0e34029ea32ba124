//! The control socket of a running router: every `show`, `top`, and access to it.

use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

use tempfile::TempDir;

use super::running::command;
use super::{CONFIG, File, Process, Router, sh, two_hosts, until};

/// More configuration to show: a TAP device, a VLAN, a VRF, routes of all kinds.
const MORE: &str = r#"
[ports.t]
kind = "tap"
device = "tt"
addresses = ["10.0.3.1/24"]
mac = "02:00:00:00:00:0c"

[vlans."a.7"]
parent = "a"
vid = 7
vrf = "red"
addresses = ["10.7.0.1/24"]

[vrfs.red]

[[routes]]
to = "10.9.0.0/16"
nexthops = [{ via = "10.0.1.2", weight = 3 }, { via = "10.0.2.2" }]

[[routes]]
to = "10.9.9.0/24"
via = "10.0.2.2"

[[routes]]
to = "10.10.0.0/16"
type = "blackhole"

[[routes]]
vrf = "red"
to = "default"
via = "10.7.0.9"
"#;

/// Runs `tollway` with arguments, in a router's directory.
pub(super) fn tollway(dir: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollway"));
    command.current_dir(dir).args(words).stdin(Stdio::null()).output().unwrap()
}

/// Returns what `tollway show` prints.
pub(super) fn show(router: &Router, words: &str) -> String {
    let words: Vec<_> =
        ["show", "--socket", "control.sock"].into_iter().chain(words.split(' ')).collect();
    let output = tollway(router.dir.path(), &words);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && error.is_empty(), "{words:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

pub(super) fn json(router: &Router, words: &str) -> Value {
    let text = show(router, &format!("{words} --json"));
    let value: Value =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!(value["v"], 2, "{text}");
    value
}

/// Asserts the count identity on an answer.
fn check(answer: &Value) {
    let totals = &answer["totals"];
    let count = |name: &str| totals[name].as_u64().unwrap_or_else(|| panic!("{name}: {totals}"));
    let kinds = ["sent", "dropped", "punted", "delivered", "held"].map(count);
    assert_eq!(count("received"), kinds.iter().sum::<u64>(), "{totals}");
    assert_eq!(count("transmitted"), count("sent") + count("originated"), "{totals}");
    assert!(totals.get("defect").is_none(), "{totals}");
}

/// Returns the sum of a list or an object of counts.
fn sum<'a>(counts: impl IntoIterator<Item = &'a Value>) -> u64 {
    counts.into_iter().map(|count| count.as_u64().unwrap()).sum()
}

pub(super) fn shows() {
    let (a, _b) = two_hosts();
    let mut router = Router::start(&format!("{CONFIG}{MORE}"));
    a.pings(300, "-i 0.002 10.0.2.2");
    a.pings(3, "10.0.1.1");
    // These pings get no reply: no route, a TTL that ends, a blackhole.
    for words in ["-c 2 192.0.2.1", "-c 1 -t 1 10.0.2.2", "-c 1 -W 1 10.10.1.1"] {
        let ping = format!("nsenter -t {} -n ping -n -i 0.01 {words}", a.0.0.id());
        let mut words = ping.split(' ');
        Command::new(words.next().unwrap()).args(words).stdout(Stdio::null()).status().unwrap();
    }
    counts(&router);
    tables(&router);
    screens(&router);
    router.stop();
}

fn counts(router: &Router) {
    let answer = json(router, "ports");
    check(&answer);
    let ports = answer["ports"].as_array().unwrap();
    let column = |key: &str| ports.iter().map(|port| &port[key]).collect::<Vec<_>>();
    assert_eq!(column("name"), ["a", "b", "t"]);
    assert_eq!(column("kind"), ["af_packet", "af_packet", "tap"]);
    assert_eq!(column("device"), ["ra", "rb", "tt"]);
    assert_eq!(column("state"), ["up", "up", "up"]);
    assert_eq!(column("mac")[0], "02:00:00:00:00:0a");
    assert_eq!(column("mtu")[0], 1500);
    assert!(column("how")[0].as_str().unwrap().contains("packet socket"));
    assert_eq!(sum(ports.iter().map(|port| &port["rx"]["packets"])), answer["totals"]["received"]);
    assert_eq!(
        sum(ports.iter().map(|port| &port["tx"]["packets"])),
        answer["totals"]["transmitted"]
    );
    assert!(ports[0]["rx"]["packets"].as_u64().unwrap() >= 300);
    assert!(ports[0]["rx"]["bytes"].as_u64().unwrap() >= 300 * 98);
    let text = show(router, "ports");
    assert!(text.contains("af_packet") && text.contains("02:00:00:00:00:0c"), "{text}");

    let drops = json(router, "drops");
    check(&drops);
    assert_eq!(sum(drops["drops"].as_object().unwrap().values()), drops["totals"]["dropped"]);
    assert_eq!(drops["drops"]["blackhole"], 1);
    assert!(show(router, "drops").contains("blackhole"));
    let punts = json(router, "punts");
    check(&punts);
    assert_eq!(sum(punts["punts"].as_object().unwrap().values()), punts["totals"]["punted"]);
    assert_eq!(punts["punts"]["no_route"], 2);
    assert_eq!(punts["punts"]["ttl_expired"], 1);
    assert!(show(router, "punts").contains("ttl_expired"));

    let tolls = json(router, "tolls");
    assert!(tolls["tsc_mhz"].as_f64().unwrap() > 100.0);
    let stages: Vec<_> =
        tolls["tolls"].as_array().unwrap().iter().map(|one| &one["stage"]).collect();
    assert_eq!(stages[..3], ["bridge", "admit", "classify"]);
    assert!(show(router, "tolls").contains("rewrite"));
    let xdp_path = json(router, "xdp");
    assert_eq!(xdp_path["on"], false);
    assert!(xdp_path["why"].as_str().unwrap().contains("a is af_packet"), "{xdp_path}");
    assert!(show(router, "xdp").starts_with("the XDP path is off: "));
}

fn tables(router: &Router) {
    let links = json(router, "links");
    let vlan = &links["links"][3];
    assert_eq!((&vlan["name"], &vlan["parent"]), (&"a.7".into(), &"a".into()));
    assert_eq!((&vlan["vid"], &vlan["vrf"]), (&7.into(), &"red".into()));
    assert_eq!(vlan["addresses"][0], "10.7.0.1/24");
    assert!(show(router, "links").contains("fd00:1::1/64"));

    let neighs = json(router, "neighbours");
    let of_b = neighs["neighbours"].as_array().unwrap().iter();
    let of_b = of_b.filter(|neigh| neigh["dev"] == "b").collect::<Vec<_>>();
    assert_eq!(of_b[0]["address"], "10.0.2.2");
    assert_eq!(of_b[0]["mac"], "02:00:00:00:02:02");
    assert_eq!(of_b[0]["state"], "permanent");
    assert!(show(router, "neighbors").contains("02:00:00:00:01:02"));

    let routes = json(router, "routes");
    let find = |prefix: &str| {
        let routes = routes["routes"].as_array().unwrap();
        let found = routes.iter().find(|route| route["prefix"] == prefix);
        found.unwrap_or_else(|| panic!("{prefix}: {routes:?}")).clone()
    };
    let group = find("10.9.0.0/16");
    assert_eq!((&group["vrf"], &group["kind"]), (&"main".into(), &"unicast".into()));
    let shares = group["nexthops"].as_array().unwrap().iter().map(|hop| &hop["share"]);
    assert_eq!(sum(shares), 256);
    assert_eq!(group["nexthops"][0]["via"], "10.0.1.2");
    assert_eq!(group["nexthops"][0]["share"], 192);
    assert_eq!(find("10.10.0.0/16")["kind"], "blackhole");
    assert_eq!(find("10.0.2.0/24")["kind"], "connected");
    assert_eq!(find("10.0.2.2/32")["kind"], "neighbour");
    assert_eq!(find("0.0.0.0/0")["vrf"], "red");
    assert_eq!(find("fd00:2::/64")["nexthops"][0]["dev"], "b");
    let all = json(router, "routes --all --vrf red 10.7.0.0/24");
    let kinds: Vec<_> = all["routes"].as_array().unwrap().iter().map(|r| &r["kind"]).collect();
    assert_eq!(kinds, ["connected", "local", "local"], "the router's address, the broadcast");
    let text = show(router, "routes 10.9.0.0/16");
    assert!(text.starts_with("IPv4 routes of the VRF main\nprefix "), "{text}");
    assert_eq!(text.lines().count(), 5, "{text}");
    assert_eq!(show(router, "routes 172.16.0.0/12"), "there is no such route\n");
    assert_eq!(json(router, "routes 172.16.0.0/12")["routes"], Value::Array(vec![]));

    let taken = json(router, "routes get 10.9.9.1");
    assert_eq!(taken["route"]["prefix"], "10.9.9.0/24");
    assert_eq!(taken["route"]["nexthops"][0]["mac"], "02:00:00:00:02:02");
    assert_eq!(json(router, "routes 10.9.9.1 --vrf red")["route"]["prefix"], "0.0.0.0/0");
    assert_eq!(json(router, "routes get 192.0.2.1")["route"], Value::Null);
    let text = show(router, "routes get fd00:2::2");
    assert!(text.starts_with("fd00:2::2 takes fd00:2::2/128 in the VRF main"), "{text}");
    let output =
        tollway(router.dir.path(), &["show", "--socket=control.sock", "routes", "--vrf=x"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        error,
        "error: there is no VRF x; there are main, red. See `tollway show --help`.\n"
    );
}

fn screens(router: &Router) {
    for size in ["80x24", "200x60"] {
        let words = ["top", "--once", "--interval=0.2", "--size", size, "--socket=control.sock"];
        let output = tollway(router.dir.path(), &words);
        let text = String::from_utf8_lossy(&output.stdout);
        for word in ["received", "rx pkt/s", "blackhole", "ttl_expired", "admit"] {
            assert!(text.contains(word), "{word}: {text}");
        }
    }
}

/// Says whether this is root of the machine, and not of a user namespace only.
fn can_be_others() -> bool {
    std::fs::read_to_string("/proc/self/uid_map").unwrap().contains("4294967295")
}

/// Runs a command that must fail. Returns its error.
fn refused(dir: &Path, words: &[&str]) -> String {
    let output = tollway(dir, words);
    assert_eq!(output.status.code(), Some(1), "{words:?}");
    String::from_utf8(output.stderr).unwrap()
}

pub(super) fn sockets() {
    sh("ip link add ra type veth peer name rb");
    sh("ip link set ra up");
    sh("ip link set rb up");
    let config = "[ports.t]\nkind = \"af_packet\"\ndevice = \"ra\"\n";
    let mut router = Router::start(config);
    let socket = router.path("control.sock");
    let facts = socket.symlink_metadata().unwrap();
    assert!(facts.file_type().is_socket());
    assert_eq!(facts.mode() & 0o777, 0o600);

    let dir = router.dir.path();
    let other = config.replace("ra", "rb");
    std::fs::write(dir.join("other.toml"), other).unwrap();
    let run = ["--log-level=error", "run", "--config=other.toml", "--socket=control.sock"];
    let error = refused(dir, &run);
    let words = "another tollway answers at the control socket control.sock. End that one, or";
    assert!(error.starts_with(&format!("error: {words}")), "{error}");
    let request = ["show", "ports", "--socket=control.sock"];
    assert!(tollway(dir, &request).status.success(), "the first still answers");

    if can_be_others() {
        std::fs::set_permissions(dir, Permissions::from_mode(0o755)).unwrap();
        let output = as_nobody(dir).args(request).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(
            error.contains("permission denied. Run this as the user that runs the router"),
            "{error}"
        );
    }

    sh(&format!("kill -STOP {}", router.process.0.id()));
    let error = refused(dir, &request);
    assert!(error.contains("so it hangs or is stopped"), "{error}");
    sh(&format!("kill -KILL {}", router.process.0.id()));
    router.process.0.wait().unwrap();
    let error = refused(dir, &request);
    assert!(error.starts_with("error: no tollway runs at control.sock: "), "{error}");
    assert!(socket.exists(), "no process was left to remove it");
    let mut next = Router::start_in(router.dir, config);
    assert!(tollway(next.dir.path(), &request).status.success());
    next.stop();
    assert!(!socket.exists());
    usual_place(config);
}

/// A router refuses to start without enough address space.
pub(super) fn address_space() {
    let dir = tempfile::tempdir().unwrap();
    let output = command("prlimit --as=1200000000 tollway", &dir, CONFIG).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    let expected =
        "error: a router takes 1600 MiB of address space, and this process may have 1144. Raise";
    assert!(error.starts_with(expected) && error.lines().count() == 1, "{error}");
}

/// No descriptor is left for clients. Each client gets an error, and the router logs it once.
pub(super) fn shortage() {
    sh("ip link add ra type veth peer name rb");
    sh("ip link set ra up");
    let mut router = Router::start("[ports.t]\nkind = \"af_packet\"\ndevice = \"ra\"\n");
    let pid = router.process.0.id();
    let numbers = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let numbers = numbers.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let used: Vec<u32> = numbers.map(|name| name.parse().unwrap()).collect();
    // Fewer descriptors are left than the router serves clients at once.
    let limit = (0..).filter(|number| !used.contains(number)).nth(8).unwrap();
    sh(&format!("prlimit --pid {pid} --nofile={limit}:"));
    let path = router.path("control.sock");
    let is_turned_away = |client: &UnixStream| {
        client.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        let mut line = String::new();
        // A client that is served receives nothing until it sends a request.
        let received = BufReader::new(client).read_line(&mut line).is_ok();
        assert!(!received || line.contains("lacks descriptors"), "{line}");
        received
    };
    let mut clients = Vec::new();
    until("the last descriptor to be taken", || {
        clients.push(UnixStream::connect(&path).unwrap());
        is_turned_away(clients.last().unwrap())
    });
    for _ in 0..20 {
        assert!(is_turned_away(&UnixStream::connect(&path).unwrap()));
    }
    drop(clients);
    sh(&format!("prlimit --pid {pid} --nofile=1024:"));
    let request = ["show", "ports", "--socket=control.sock"];
    until("clients to be served", || tollway(router.dir.path(), &request).status.success());
    router.stop();
    let log = router.read("stderr");
    assert_eq!(log.matches("cannot accept clients").count(), 1, "{log}");
}

/// Returns `tollway` as a user who may open packet sockets, and nothing else.
fn as_nobody(dir: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    command.args(["--inh-caps=+net_raw", "--ambient-caps=+net_raw"]);
    command.arg(env!("CARGO_BIN_EXE_tollway")).current_dir(dir);
    command
}

/// An ordinary user runs and queries a router without naming its socket.
fn usual_place(config: &str) {
    let dir: TempDir = tempfile::tempdir().unwrap();
    if can_be_others() {
        std::os::unix::fs::chown(dir.path(), Some(65_534), Some(65_534)).unwrap();
    }
    std::fs::write(dir.path().join("router.toml"), config).unwrap();
    let command = || {
        let mut command = if can_be_others() {
            as_nobody(dir.path())
        } else {
            Command::new(env!("CARGO_BIN_EXE_tollway"))
        };
        command.current_dir(dir.path()).env("XDG_RUNTIME_DIR", dir.path());
        command
    };
    let stderr = dir.path().join("stderr");
    let mut run = command();
    run.args(["run", "--config=router.toml"]).stderr(File::create(&stderr).unwrap());
    let _process = Process(run.stdout(Stdio::null()).spawn().unwrap());
    let log = || std::fs::read_to_string(&stderr).unwrap();
    until("the router to start", || {
        assert!(!log().contains("error:"), "{}", log());
        log().contains("forwarding")
    });
    let socket = dir.path().join("tollway.sock");
    assert_eq!(socket.symlink_metadata().unwrap().mode() & 0o777, 0o600, "{}", log());
    let output = command().args(["show", "ports"]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains(" ra "), "{}", log());
}
