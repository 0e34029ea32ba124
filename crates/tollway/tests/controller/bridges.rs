//! Bridges and their ports: what the controller knows after random changes, and while the kernel runs a
//! spanning tree protocol.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use serde_json::Value;
use tollway_controller::kernel::{
    BridgePort, BridgePortFlag, BridgePortState, BridgeSettings, Kernel, Stp,
};
use tollway_controller::netlink::Settings;

use crate::dice::Dice;
use crate::ip::{Ip, batch, veth_pairs};
use crate::model::SyncedModel;
use crate::namespaces::{ifindex, sh, until};
use crate::random::seed;

/// Creates the bridges whose ports [`line`] changes. Each is up, and keeps its carrier by a port of its own, so
/// no routes come and go with it.
pub fn add() {
    sh("sysctl -qw net.ipv6.conf.default.disable_ipv6=1");
    for n in 0..2 {
        batch(&format!(
            "link add br{n} type bridge
            link add c{n} type veth peer name d{n}
            link set c{n} master br{n} up
            link set d{n} up
            link set br{n} up\n"
        ));
    }
}

/// Draws a line for `ip` about a bridge or a port.
pub fn line(dice: &mut Dice, lines: &mut String) -> std::fmt::Result {
    let (port, bridge) = (dice.below(4), dice.below(2));
    match dice.below(4) {
        0 => writeln!(lines, "link set b{port} master br{bridge}"),
        1 => writeln!(lines, "link set b{port} nomaster"),
        2 => writeln!(lines, "link set b{port} type bridge_slave {}", flag(dice)),
        _ => writeln!(lines, "link set br{bridge} type bridge {}", setting(dice)),
    }
}

fn flag(dice: &mut Dice) -> String {
    let flag = dice.pick(&[
        "hairpin",
        "learning",
        "flood",
        "isolated",
        "neigh_suppress",
        "vlan_tunnel",
        "locked",
    ]);
    format!("{flag} {}", dice.pick(&["on", "off"]))
}

fn setting(dice: &mut Dice) -> String {
    let n = dice.below(2);
    match dice.below(5) {
        0 => format!("ageing_time {}", 1000 * (1 + n)),
        1 => format!("forward_delay {}", 200 * (1 + n)),
        2 => format!("nf_call_iptables {n}"),
        3 => format!("nf_call_ip6tables {n}"),
        _ => format!("no_linklocal_learn {n}"),
    }
}

/// Draws a line for `ip` about a device that may change the state of ports.
fn device(dice: &mut Dice, lines: &mut String) -> std::fmt::Result {
    let (n, bridge) = (dice.below(4), dice.below(2));
    let state = dice.pick(&["up", "up", "down"]);
    match dice.below(9) {
        0 | 1 => writeln!(lines, "link set a{n} {state}"),
        2 | 3 => writeln!(lines, "link set b{n} {state}"),
        4 | 5 => writeln!(lines, "link set br{bridge} {state}"),
        6 => writeln!(lines, "link set b{n} type bridge_slave state {}", dice.below(5)),
        // The same names come back at once: `ip` exits when there is none.
        7 => writeln!(lines, "link del br{bridge}\nlink add br{bridge} type bridge"),
        _ => writeln!(lines, "link del b{n}\n{}", pair(n)),
    }
}

/// Lines that create a pair of devices. The kernel notifies that the first one is tied to the other only when it
/// is up.
fn pair(n: usize) -> String {
    format!("link add a{n} type veth peer name b{n}\nlink set a{n} up\nlink set b{n} up\n")
}

/// Draws a line for `bridge`, whose changes the kernel reports in messages of another family.
fn bridge_line(dice: &mut Dice, lines: &mut String) {
    let (port, other) = (dice.below(4), dice.below(4));
    let change = match dice.below(4) {
        0 => format!("state {}", dice.below(5)),
        1 => format!("backup_port b{other}"),
        2 if other == 0 => "nobackup_port".to_owned(),
        _ => flag(dice),
    };
    writeln!(lines, "link set dev b{port} {change}").unwrap();
}

/// Random changes by `ip` and `bridge`: as soon as all devices are up, what follows from messages is what is
/// listed, and what `ip` shows.
pub fn changes() {
    add();
    (0..4).for_each(|n| batch(&pair(n)));
    let up: String = (0..4)
        .map(|n| format!("link set a{n} up\nlink set b{n} up master br{}\n", n % 2))
        .collect();
    let up = up + "link set br0 up\nlink set br1 up\n";
    let mut dice = Dice(seed());
    let mut synced = SyncedModel::new(Settings::default());
    for _ in 0..12 {
        change(&mut dice);
        batch(&up);
        // The source queries a changed port once more, so what it misses shows only if it reads in between.
        synced.read_until_quiet();
        bridge_lines(&mut dice, 20).finish();
        synced.read_until_quiet();
        let mut lines = String::new();
        (0..4).for_each(|_| line(&mut dice, &mut lines).unwrap());
        let mut ip = Ip::new();
        ip.run(&lines);
        ip.finish();
        synced.assert_agrees_but_for_routes();
        assert_as_shown(&synced.model.kernel);
    }
    let stats = synced.source.stats();
    assert_eq!((stats.resyncs, stats.lost), (1, 0), "nothing was in doubt");
}

/// Settings of a bridge and of a port that are down, and change without notification: an audit corrects them,
/// and finds no fault.
pub fn silent_changes() {
    add();
    batch("link set br0 down\nlink set c1 down\n");
    let mut synced = SyncedModel::new(Settings::default());
    // The kernel may notify a second later that a carrier has gone. An audit soon after that is repeated.
    wait(&mut synced, Duration::from_millis(1800));
    batch("link set br0 type bridge ageing_time 7700\nlink set c1 type bridge_slave hairpin on\n");
    synced.read_until_quiet();
    assert!(synced.differs().is_some(), "the kernel did notify");
    synced.source.audit();
    synced.until("an audit", |synced| synced.source.stats().audits > 0);
    // A notification may explain a difference for another second.
    wait(&mut synced, Duration::from_millis(1200));
    let stats = synced.source.stats();
    assert_eq!((stats.resyncs, stats.drifts), (1, 0));
    assert_as_shown(&synced.model.kernel);
}

/// Reads for some time.
fn wait(synced: &mut SyncedModel, time: Duration) {
    let start = Instant::now();
    synced.until("some time", |_| start.elapsed() > time);
}

/// Makes random changes by `ip` and `bridge` side by side.
fn change(dice: &mut Dice) {
    let mut lines = String::new();
    for _ in 0..60 {
        line(dice, &mut lines).unwrap();
        device(dice, &mut lines).unwrap();
    }
    let mut ip = Ip::new();
    ip.run(&lines);
    bridge_lines(dice, 60).finish();
    ip.finish();
}

/// Starts random changes by `bridge`.
fn bridge_lines(dice: &mut Dice, count: usize) -> Ip {
    let mut lines = String::new();
    (0..count).for_each(|_| bridge_line(dice, &mut lines));
    let mut bridge = Ip::bridge();
    bridge.run(&lines);
    bridge
}

/// Each step of the kernel's spanning tree protocol is reported, and an audit accepts that the protocol
/// changes the ageing time silently.
pub fn spanning_tree() {
    veth_pairs();
    batch("link add br0 type bridge forward_delay 200\nlink set b1 master br0\nlink set br0 up\n");
    until("the other port to forward", || sh("bridge link show dev b1").contains("forwarding"));
    let (bridge, port) = (ifindex("br0"), ifindex("b0"));
    let settings = Settings { audit_every: Duration::from_millis(300), ..Settings::default() };
    let mut synced = SyncedModel::new(settings);
    sh("ip link set br0 type bridge stp_state 1");
    synced.model.events.clear();
    sh("ip link set b0 master br0");
    synced.until("the port to forward", |synced| {
        let port = synced.model.kernel.bridge_ports.get(&port);
        port.is_some_and(|port| port.state == BridgePortState::Forwarding)
    });
    let of_port = format!("BridgePort({port}, ");
    let events: Vec<_> =
        synced.model.events.iter().filter(|event| event.starts_with(&of_port)).collect();
    let place = |state: &str| events.iter().position(|event| event.contains(state));
    let states =
        ["Listening", "Learning,", "Forwarding"].map(|state| place(&format!("state: {state}")));
    assert!(states.is_sorted() && states[0].is_some(), "{states:?} in {events:#?}");
    // During a change of the topology, the time is twice the forward delay.
    let ageing = |kernel: &Kernel| kernel.netdevs[&bridge].bridge.unwrap().ageing_time;
    synced.until("an audit to find the ageing time", |synced| {
        ageing(&synced.model.kernel) == Duration::from_secs(4)
    });
    let audits = synced.source.stats().audits;
    synced.until("another audit", |synced| synced.source.stats().audits >= audits + 2);
    assert_eq!(synced.source.stats().drifts, 0);
    let of_bridge = format!("Link({bridge}, ");
    let is_notified =
        |event: &String| event.starts_with(&of_bridge) && event.contains("ageing_time: 4s");
    assert!(!synced.model.events.iter().any(is_notified), "{:#?}", synced.model.events);
    synced.assert_agrees_but_for_routes();
    assert_as_shown(&synced.model.kernel);
}

/// Asserts that bridges and ports are as `ip` shows them.
pub fn assert_as_shown(kernel: &Kernel) {
    let shown: Vec<Value> = serde_json::from_str(&sh("ip -j -d link show")).unwrap();
    let is_port = |link: &&Value| link["linkinfo"]["info_slave_kind"] == "bridge";
    assert_eq!(kernel.bridge_ports.len(), shown.iter().filter(is_port).count());
    for link in &shown {
        let (index, netdev) = kernel.named(link["ifname"].as_str().unwrap()).unwrap();
        let info = &link["linkinfo"];
        assert_eq!(netdev.bridge.is_some(), info["info_kind"] == "bridge", "{link}");
        if let Some(settings) = &netdev.bridge {
            assert_settings(settings, &info["info_data"]);
        }
        if is_port(&link) {
            assert_port(kernel, &kernel.bridge_ports[&index], &info["info_slave_data"]);
        }
    }
}

fn assert_settings(own: &BridgeSettings, shown: &Value) {
    let number = |name: &str| shown[name].as_u64().unwrap_or_default();
    let hundredths = |time: Duration| (time.as_millis() / 10) as u64;
    assert_eq!(hundredths(own.ageing_time), number("ageing_time"), "{shown}");
    assert_eq!(hundredths(own.forward_delay), number("forward_delay"), "{shown}");
    let stp = [Stp::Off, Stp::Kernel, Stp::User][number("stp_state") as usize];
    assert_eq!(own.stp, stp, "{shown}");
    for (own, name) in [
        (own.vlan_filtering, "vlan_filtering"),
        (own.nf_call_iptables, "nf_call_iptables"),
        (own.nf_call_ip6tables, "nf_call_ip6tables"),
        (own.bool_options & 1 != 0, "no_linklocal_learn"),
    ] {
        assert_eq!(u64::from(own), number(name), "{name} of {shown}");
    }
}

fn assert_port(kernel: &Kernel, own: &BridgePort, shown: &Value) {
    let state = format!("{:?}", own.state).to_lowercase();
    assert_eq!(shown["state"], state, "{shown}");
    for (flag, name) in [
        (BridgePortFlag::Hairpin, "hairpin"),
        (BridgePortFlag::Learning, "learning"),
        (BridgePortFlag::UnicastFlood, "flood"),
        (BridgePortFlag::ProxyArp, "proxy_arp"),
        (BridgePortFlag::ProxyArpWifi, "proxy_arp_wifi"),
        (BridgePortFlag::VlanTunnel, "vlan_tunnel"),
        (BridgePortFlag::NeighSuppress, "neigh_suppress"),
        (BridgePortFlag::Isolated, "isolated"),
        (BridgePortFlag::Locked, "locked"),
    ] {
        // An older `ip` does not show all of them.
        if let Some(on) = shown[name].as_bool() {
            assert_eq!(own.flags.has(flag), on, "{name} of {shown}");
        }
    }
    let backup = own.backup_port.map(|index| kernel.netdevs[&index].name.as_str());
    assert_eq!(backup, shown["backup_port"].as_str(), "{shown}");
}
