//! A router's configuration: lines for the kernel's tools. Each line can be left out.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net};
use serde::{Deserialize, Serialize};

use super::net;
use super::sysctl;
use crate::net::DEVICES;
use crate::rules::Rules;

/// The protocol of the cases' routes, which distinguishes them from the kernel's.
pub const PROTOCOL: u8 = 77;
/// Tables that the cases' policy rules select.
pub const TABLES: [u32; 4] = [100, 101, 102, 103];

/// A configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// Tollway's ports are this many devices, from the first on. The kernel forwards on the rest.
    pub ports: usize,
    pub lines: Vec<Line>,
    pub rules: Option<Rules>,
}

/// What a line configures. Lines run in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Kind {
    /// Links: arguments of `ip`.
    Link,
    /// A sysctl: `name=value`.
    Sysctl,
    /// IPv4: arguments of `ip -4`.
    Four,
    /// IPv6: arguments of `ip -6`.
    Six,
    /// Changes after everything else is there: arguments of `ip`.
    Last,
}

/// A line, in the syntax of the tool that reads it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    pub kind: Kind,
    pub text: String,
    /// Where a route leads, if it leads anywhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Group>,
}

/// Next hops of a route, any of which may take a packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    pub to: IpNet,
    /// Table and metric. IPv6 routes with the same key are one route. The kernel tries IPv4 default
    /// routes with the same key in turn.
    pub key: String,
    /// Device, and gateway if there is one.
    pub hops: Vec<(usize, Option<IpAddr>)>,
    /// Whether the choice of a next hop also depends on what is known about its neighbour.
    #[serde(default)]
    pub tries: bool,
}

impl Line {
    /// The tool that reads the line; none for sysctls.
    fn tool(&self) -> Option<&'static str> {
        let is_object = self.text.starts_with("nexthop ");
        match self.kind {
            Kind::Sysctl => None,
            Kind::Link | Kind::Last => Some("ip"),
            // A group has no family, and an object has its gateway's.
            Kind::Four | Kind::Six if is_object && self.text.contains(" group ") => Some("ip"),
            Kind::Four if is_object && self.text.contains(':') => Some("ip -6"),
            Kind::Four => Some("ip -4"),
            Kind::Six => Some("ip -6"),
        }
    }
}

impl Group {
    /// Whether one of the next hops sends a packet for `to` out of this device to this Ethernet
    /// address.
    pub fn has(&self, device: usize, mac: &[u8], to: IpAddr) -> bool {
        let is_it = |(own, via): &(usize, Option<IpAddr>)| {
            *own == device && net::far_mac(device, via.unwrap_or(to)) == mac
        };
        self.hops.iter().any(is_it)
    }
}

impl Config {
    /// The script that installs the configuration in a router that is as [`reset`] leaves it. It
    /// prints complaints about refused lines; the other lines are active all the same.
    pub fn script(&self) -> String {
        let mut script = String::new();
        for kind in [Kind::Link, Kind::Sysctl, Kind::Four, Kind::Six, Kind::Last] {
            let lines: Vec<_> = self.lines.iter().filter(|line| line.kind == kind).collect();
            if kind == Kind::Sysctl {
                lines.iter().for_each(|line| script += &sysctl::set(&line.text));
            }
            for lines in lines.chunk_by(|one, other| one.tool() == other.tool()) {
                let Some(tool) = lines[0].tool() else { continue };
                script += &format!("{tool} -force -batch - 2>&1 <<'END' || true\n");
                lines.iter().for_each(|line| script += &format!("{}\n", line.text));
                script += "END\n";
            }
            if kind == Kind::Link {
                made_links(self).iter().for_each(|link| script += &sysctl::neighbours(link));
            }
        }
        script
    }

    /// Next hops of the routes that a destination may match.
    pub fn groups(&self, to: IpAddr) -> Vec<Group> {
        let groups = self.lines.iter().filter_map(|line| line.group.as_ref());
        let mut merged: Vec<Group> = Vec::new();
        for group in groups.filter(|group| group.to.contains(&to)) {
            let joins = to.is_ipv6() || group.to.prefix_len() == 0;
            let is_one = |one: &&mut Group| joins && (one.to, &one.key) == (group.to, &group.key);
            match merged.iter_mut().find(is_one) {
                Some(one) => {
                    one.hops.extend(&group.hops);
                    one.tries = true;
                }
                None => merged.push(group.clone()),
            }
        }
        merged
    }

    /// Whether the kernel's list may leave out an IPv6 route: one between the next hops of another.
    pub fn hides_routes(&self) -> bool {
        let groups: Vec<_> = self.lines.iter().filter_map(|line| line.group.as_ref()).collect();
        groups.iter().filter(|group| group.to.addr().is_ipv6()).any(|group| {
            let of_key = groups.iter().filter(|one| (one.to, &one.key) == (group.to, &group.key));
            let joins: Vec<bool> =
                of_key.map(|one| one.hops.iter().any(|(_, via)| via.is_some())).collect();
            let mut rest = joins.iter().skip_while(|joins| !**joins).skip_while(|joins| **joins);
            rest.any(|joins| *joins)
        })
    }

    /// Whether a group of several next hops for a destination has one that never answers.
    pub fn waits_in_vain(&self, to: IpAddr) -> bool {
        let groups = self.groups(to).into_iter();
        !self.silent(groups.filter(|group| group.hops.len() > 1), to).is_empty()
    }

    /// Whether packets to a destination may leave by different devices, depending on the next hop.
    pub fn shares_devices(&self, to: IpAddr) -> bool {
        let is_one = |group: &Group| group.hops.windows(2).all(|hops| hops[0].0 == hops[1].0);
        !self.groups(to).iter().all(is_one)
    }

    /// Next hops for a destination that never answer, so packets may wait for them in vain.
    pub fn silent_hops(&self, to: IpAddr) -> BTreeSet<IpAddr> {
        self.silent(self.groups(to).into_iter(), to)
    }

    fn silent(&self, groups: impl Iterator<Item = Group>, to: IpAddr) -> BTreeSet<IpAddr> {
        let all = groups.flat_map(|group| group.hops).map(|(_, via)| via.unwrap_or(to));
        all.filter(|next| net::is_silent(*next) && !self.is_neighbour(*next)).collect()
    }

    /// Whether the configuration has a neighbour entry for an address, so that nobody sends requests.
    fn is_neighbour(&self, address: IpAddr) -> bool {
        self.lines.iter().any(|line| {
            let words: Vec<_> = line.text.split(' ').collect();
            matches!(words[..], ["neigh", "replace", own, ..] if own.parse() == Ok(address))
        })
    }

    /// Whether a route makes an address local to the router.
    pub fn is_local(&self, address: IpAddr) -> bool {
        let local = self.lines.iter().filter_map(|line| {
            let words: Vec<_> = line.text.split(' ').collect();
            match words[..] {
                ["route", _, "local", to, ..] => to.parse::<IpNet>().ok(),
                _ => None,
            }
        });
        local.into_iter().any(|local| local.contains(&address))
    }

    /// IPv4 addresses that the router may send from.
    pub fn own(&self) -> Vec<Ipv4Net> {
        let mut own: Vec<_> = net::NO_ADDRESS.map(|none| Ipv4Net::new(none, 32).unwrap()).to_vec();
        for line in self.lines.iter().filter(|line| line.kind == Kind::Four) {
            let words: Vec<_> = line.text.split(' ').collect();
            match words[..] {
                ["address", "add", address, ..] => {
                    let address = address.split('/').next().and_then(|word| word.parse().ok());
                    own.extend(address.map(|own| Ipv4Net::new(own, 32).unwrap()));
                }
                ["route", _, "local", to, ..] => own.extend(to.parse::<Ipv4Net>()),
                _ => {}
            }
        }
        own
    }

    /// The configuration as text.
    pub fn text(&self) -> Vec<String> {
        let ports = DEVICES[..self.ports].join(" ");
        let mut text = vec![format!("tollway run {ports}")];
        for line in &self.lines {
            text.push(format!("{} {}", line.tool().unwrap_or("sysctl"), line.text));
        }
        let rules = self
            .rules
            .iter()
            .flat_map(|rules| rules.text().lines().map(str::to_owned).collect::<Vec<_>>());
        text.extend(rules);
        text
    }
}

/// The script that removes a configuration from a router. It starts few processes: a virtual
/// machine starts each slowly.
pub fn reset(applied: &Config, has_vrfs: bool) -> String {
    const STATES: [&str; 8] =
        ["permanent", "stale", "reachable", "delay", "probe", "failed", "incomplete", "noarp"];
    let mut script = String::from("exec 2>/dev/null\nnft flush ruleset\n");
    for family in [Kind::Four, Kind::Six] {
        let tool = if family == Kind::Four { "ip -4" } else { "ip -6" };
        script += &format!("{tool} -force -batch - <<'END'\nrule flush\n");
        if has_vrfs {
            script += "rule add pref 1000 l3mdev\n";
        }
        script += "rule add pref 32766 lookup main\n";
        if family == Kind::Four {
            script += "rule add pref 32767 lookup default\n";
        }
        script += &format!("route flush table all proto {PROTOCOL}\nnexthop flush\n");
        for link in made_links(applied) {
            script += &format!("link delete {link}\n");
        }
        for device in DEVICES {
            script +=
                &format!("link set {device} mtu 1500 nomaster up\naddress flush dev {device}\n");
            for state in STATES {
                script += &format!("neigh flush dev {device} nud {state}\n");
            }
        }
        script += "END\n";
    }
    script += &sysctl::baseline();
    DEVICES.iter().for_each(|device| script += &sysctl::neighbours(device));
    script += "ip -6 -force -batch - <<'END'\n";
    for (number, device) in DEVICES.iter().enumerate() {
        script += &format!("address add {}/64 dev {device} nodad\n", link_local(number));
    }
    script + "END\ntrue\n"
}

/// Links that a configuration creates. Those on top of other links come first.
fn made_links(config: &Config) -> Vec<&str> {
    let made = config.lines.iter().filter(|line| line.kind == Kind::Link).filter_map(|line| {
        let mut words = line.text.strip_prefix("link add ")?.split(' ');
        let first = words.next()?;
        if first == "link" { words.nth(2) } else { Some(first) }
    });
    let mut made: Vec<_> = made.collect();
    made.reverse();
    made
}

/// The router's link-local address on a device. It never changes.
pub fn link_local(device: usize) -> std::net::Ipv6Addr {
    std::net::Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0x10, device as u16 + 1)
}
