//! Random bridges, and random changes to them, as lines for a shell.

use super::net::{BRIDGE, HOSTS, PORTS, host, port_mac};
use crate::dice::Dice;
use crate::net::text;

const FLAGS: [&str; 9] = [
    "learning",
    "isolated",
    "hairpin",
    "locked",
    "flood",
    "mcast_flood",
    "bcast_flood",
    "neigh_suppress",
    "mcast_to_unicast",
];
/// Flags that a port has unless somebody takes them from it.
const USUAL: [&str; 4] = ["learning", "flood", "mcast_flood", "bcast_flood"];
const MTUS: [u32; 5] = [1500, 1500, 1400, 1280, 2000];
const RULES: [&str; 8] = [
    "bridge t { chain c { type filter hook forward priority 0; ether daddr 02:00:00:00:01:01 drop; }; }",
    "bridge t { chain c { type filter hook prerouting priority 0; ip protocol udp drop; }; }",
    "bridge t { chain c { type filter hook input priority 0; drop; }; }",
    "ip t { chain c { type filter hook forward priority 0; udp dport 7 drop; }; }",
    "ip t { chain c { type filter hook prerouting priority 0; tcp dport 9 drop; }; }",
    "ip6 t { chain c { type filter hook forward priority 0; udp dport 53 drop; }; }",
    "inet t { chain c { type filter hook postrouting priority 0; meta l4proto { icmp, icmpv6 } drop; }; }",
    "netdev t { chain c { type filter hook ingress device lan0 priority 0; ether saddr 02:00:00:00:01:02 drop; }; }",
];
const STATES: [u8; 4] = [0, 1, 2, 4];

/// Has ports listen, for so long that a case ends before.
pub const SPANNING_TREE: &str = "ip link set br0 type bridge forward_delay 1500 stp_state 1";

fn on_or_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

/// Waits until a port forwards: its carrier is a matter of some milliseconds.
fn forwards(port: &str) -> String {
    format!(
        "for i in $(seq 500); do bridge link show dev {port} | grep -q 'state forwarding' && break; sleep 0.01; done"
    )
}

/// The lines that configure a bridge with the first ports.
pub fn draw(dice: &mut Dice, ports: usize) -> Vec<String> {
    let ageing = dice.pick(&[6000, 30000, 30000]);
    let delay = dice.pick(&[200, 1500, 1500]);
    let snooping = dice.below(2);
    let mut lines = vec![format!(
        "ip link add br0 type bridge ageing_time {ageing} forward_delay {delay} mcast_snooping {snooping}"
    )];
    for number in 0..2 {
        let family = ["iptables", "ip6tables"][number];
        let (global, own) = (dice.below(2), u8::from(dice.one_in(4)));
        lines.push(format!("echo {global} > /proc/sys/net/bridge/bridge-nf-call-{family}"));
        lines.push(format!("ip link set br0 type bridge nf_call_{family} {own}"));
    }
    for (number, port) in PORTS.iter().enumerate().take(ports) {
        let (mac, mtu) = (text(port_mac(number)), dice.pick(&MTUS));
        lines.push(format!("ip link set {port} address {mac} mtu {mtu} master br0 up"));
    }
    if dice.one_in(2) {
        lines.push(format!("ip link set br0 address {}", text(BRIDGE)));
    }
    lines.push("ip link set br0 up".to_owned());
    if dice.one_in(2) {
        lines.push("ip address add 10.0.0.254/24 dev br0".to_owned());
    }
    // For these the bridge answers ARP, at ports that suppress it.
    for number in 0..3 {
        let (last, mac) = (number + 1, text(host(number)));
        lines.push(format!("ip neigh add 10.0.0.{last} lladdr {mac} dev br0 nud permanent"));
    }
    lines.extend(PORTS[..ports].iter().map(|port| forwards(port)));
    for _ in 0..dice.below(4) {
        lines.push(flag(dice, ports));
    }
    if dice.one_in(3) {
        // Only two isolated ports are isolated from each other.
        let isolated = PORTS[..ports].iter().filter(|_| !dice.one_in(3));
        lines.extend(isolated.map(|port| format!("bridge link set dev {port} isolated on")));
    }
    for _ in 0..dice.below(3) {
        lines.push(entry(dice, ports));
    }
    lines
}

fn flag(dice: &mut Dice, ports: usize) -> String {
    let (port, flag) = (PORTS[dice.below(ports)], dice.pick(&FLAGS));
    // Mostly not what is usual.
    let on = USUAL.contains(&flag) == dice.one_in(3);
    format!("bridge link set dev {port} {flag} {}", on_or_off(on))
}

fn entry(dice: &mut Dice, ports: usize) -> String {
    let (mac, port) = (text(host(dice.below(HOSTS))), PORTS[dice.below(ports)]);
    let kind = dice.pick(&["static", "static", "dynamic", "permanent", "sticky static"]);
    format!("bridge fdb replace {mac} dev {port} master {kind}")
}

/// Draws changes.
pub struct Changes {
    pub ports: usize,
    /// What reverts those that keep frames from the fast path.
    undo: Vec<String>,
}

impl Changes {
    pub fn new(ports: usize) -> Self {
        Self { ports, undo: Vec::new() }
    }

    /// The next change.
    pub fn draw(&mut self, dice: &mut Dice) -> String {
        if !self.undo.is_empty() && !dice.one_in(4) {
            return self.undo.swap_remove(dice.below(self.undo.len()));
        }
        let port = PORTS[dice.below(self.ports)];
        match dice.below(13) {
            0 | 1 => self.flag(dice),
            2 | 3 => entry(dice, self.ports),
            4 => Self::no_entry(dice, port),
            5 => format!("ip link set {port} mtu {}", dice.pick(&MTUS)),
            6 => Self::of_bridge(dice),
            7 => self.reverted(
                format!("ip link set {port} down"),
                format!("ip link set {port} up; {}", forwards(port)),
            ),
            8 => {
                let back = format!("ip link set {port} master br0; {}", forwards(port));
                self.reverted(format!("ip link set {port} nomaster"), back)
            }
            9 => {
                let state = dice.pick(&STATES);
                let back = format!("bridge link set dev {port} state 3");
                self.reverted(format!("bridge link set dev {port} state {state}"), back)
            }
            10 => {
                let table = dice.pick(&RULES);
                let family = table.split(' ').next().unwrap_or_default();
                self.reverted(
                    format!("nft 'add table {table}'"),
                    format!("nft delete table {family} t"),
                )
            }
            11 => {
                // Not all kernels have these devices.
                let add = format!("ip link add link {port} name {port}.10 type vlan id 10");
                let add = format!("{add} && ip link set {port}.10 up");
                self.reverted(add, format!("ip link delete {port}.10"))
            }
            _ => {
                let set = |what: &str| format!("ip link set br0 type bridge {what}");
                self.reverted(set("vlan_filtering 1"), set("vlan_filtering 0"))
            }
        }
    }

    fn reverted(&mut self, change: String, back: String) -> String {
        self.undo.push(back);
        change
    }

    /// A flag, which another change mostly takes back.
    fn flag(&mut self, dice: &mut Dice) -> String {
        let line = flag(dice, self.ports);
        let back = match line.strip_suffix(" on") {
            Some(other) => format!("{other} off"),
            None => format!("{} on", line.trim_end_matches(" off")),
        };
        self.reverted(line, back)
    }

    fn no_entry(dice: &mut Dice, port: &str) -> String {
        match dice.below(3) {
            0 => format!("ip link set {port} type bridge_slave fdb_flush"),
            _ => format!("bridge fdb delete {} dev {port} master", text(host(dice.below(HOSTS)))),
        }
    }

    fn of_bridge(dice: &mut Dice) -> String {
        let bit = dice.below(2);
        match dice.below(6) {
            0 => format!(
                "ip link set br0 address {}",
                text(dice.pick(&[BRIDGE, host(3), port_mac(0)]))
            ),
            1 => format!("ip link set br0 type bridge nf_call_iptables {bit}"),
            2 => format!("ip link set br0 type bridge nf_call_ip6tables {bit}"),
            3 => format!("ip link set br0 type bridge mcast_snooping {bit}"),
            4 => format!("ip link set br0 type bridge group_fwd_mask {}", bit * 0x4000),
            _ => format!("echo {bit} > /proc/sys/net/bridge/bridge-nf-call-iptables"),
        }
    }
}
