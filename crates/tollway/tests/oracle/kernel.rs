//! The kernel's side: a router in a network namespace of its own, and the far ends of its wires in
//! the test's namespace.
//!
//! Everything runs on one CPU, where the kernel handles frames in the order in which they arrive
//! (`enqueue_to_backlog` in `net/core/dev.c`). When the answer to a marker has arrived, the kernel
//! has handled everything that was sent before it.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use ::tollway_rules::{self as rules, Follower, Reading};

use crate::namespaces::{PATIENCE, Process, until};
use crate::net::{self, DEVICES, PEERS};
use crate::socket::{Wire, within};

/// The device for markers; no rule names it.
const MARKER: &str = "mark";
const MARKER_MAC: [u8; 6] = [2, 0, 0, 0, 0x20, 0];
const MARKER_ADDRESS: [u8; 4] = [10, 99, 0, 1];

/// Sysctls that remove what does not follow from rules: noise, filters by source, limits on errors.
const SYSCTLS: &str = "
    net/ipv4/ip_forward=1 net/ipv6/conf/all/forwarding=1 net/ipv6/conf/default/forwarding=1
    net/ipv4/conf/all/rp_filter=0 net/ipv4/conf/default/rp_filter=0
    net/ipv4/conf/all/send_redirects=0 net/ipv4/conf/default/send_redirects=0
    net/ipv4/icmp_ratelimit=0 net/ipv4/icmp_ratemask=0 net/ipv6/icmp/ratelimit=0
    net/ipv4/icmp_msgs_per_sec=1000000 net/ipv4/icmp_msgs_burst=1000000
    net/ipv6/conf/default/accept_ra=0 net/ipv6/conf/default/autoconf=0
    net/ipv6/conf/default/accept_dad=0 net/ipv6/conf/default/dad_transmits=0
    net/ipv6/conf/default/router_solicitations=0 net/ipv6/conf/default/addr_gen_mode=1
    net/ipv6/conf/default/mldv1_unsolicited_report_interval=1
    net/ipv6/conf/default/mldv2_unsolicited_report_interval=1
    net/ipv6/auto_flowlabels=0
";

/// A frame, with the device out of which it came.
pub type Sent = (usize, Vec<u8>);

/// The router, and the wires to it.
pub struct Kernel {
    router: Process,
    wires: Vec<Wire>,
    marker: Wire,
    markers: u32,
}

impl Kernel {
    /// Creates the router and its wires.
    pub fn new() -> Self {
        on_one_processor();
        std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").unwrap();
        let router = namespace();
        let kernel = |script: &str| run(&router, script, "").unwrap();
        let mut script = String::from("set -e\nip link set lo up\n");
        for setting in SYSCTLS.split_whitespace() {
            let (name, value) = setting.split_once('=').unwrap();
            script += &format!("echo {value} > /proc/sys/{name}\n");
        }
        for device in DEVICES.iter().chain([&MARKER]) {
            script += &format!("ip link add {device} type veth peer name at-{device}\n");
            script += &format!("ip link set at-{device} netns {}\n", std::process::id());
            // Otherwise the kernel leaves checksums of its own messages to a network card that does
            // not exist.
            script += &format!("ethtool -K {device} tx off >/dev/null\n");
        }
        for device in 0..DEVICES.len() {
            script += &device_script(device);
        }
        script += &format!(
            "ip link set {MARKER} address {}\nip address add {}/24 dev {MARKER}\n",
            net::text(MARKER_MAC),
            std::net::Ipv4Addr::from(MARKER_ADDRESS)
        );
        kernel(&script);
        let wire = |device: &str| {
            let far = format!("at-{device}");
            crate::namespaces::sh(&format!("ip link set {far} mtu 9000 up"));
            let output = crate::namespaces::sh(&format!("ip -oneline link show dev {far}"));
            Wire::open(output.split(':').next().unwrap().parse().unwrap()).unwrap()
        };
        let wires = DEVICES.iter().map(|device| wire(device)).collect();
        let marker = wire(MARKER);
        let mut script = String::from("set -e\n");
        for (device, mtu) in DEVICES.iter().zip(net::MTU).chain([(&MARKER, 1500)]) {
            script += &format!("ip link set {device} mtu {mtu} up\n");
        }
        script += &routes_script();
        kernel(&script);
        let mut this = Self { router, wires, marker, markers: 0 };
        // Discard what devices send when they come up.
        std::thread::sleep(Duration::from_secs(1));
        this.send(&[]);
        this
    }

    /// Runs a script in the router's namespace with an input. Returns its output, or its complaint.
    pub fn run(&self, script: &str, input: &str) -> Result<String, String> {
        run(&self.router, script, input)
    }

    /// The rules as a router without a file reads them from the kernel.
    pub fn reading(&self) -> Result<Arc<Reading>, String> {
        let read = || {
            let (sender, events) = channel();
            let follower = Follower::start(Box::new(move |event| drop(sender.send(event))))?;
            let first = rules::first(&events, PATIENCE).map_err(std::io::Error::other)?;
            drop(follower);
            first.map_err(std::io::Error::other)
        };
        within(self.router.0.id(), read).map_err(|error| error.to_string())
    }

    /// Sends frames one after the other. Returns what comes out of any device, once everything has.
    pub fn send(&mut self, frames: &[(usize, Vec<u8>)]) -> Vec<Sent> {
        let mut sent = Vec::new();
        for (device, frame) in frames {
            self.wires[*device].send(frame).unwrap();
            self.drain(&mut sent);
        }
        self.markers += 1;
        let start = Instant::now();
        self.marker.send(&marker(self.markers)).unwrap();
        while !self.is_done() {
            assert!(start.elapsed() < PATIENCE, "the kernel's router answers no marker");
            self.drain(&mut sent);
        }
        self.drain(&mut sent);
        sent
    }

    fn drain(&mut self, sent: &mut Vec<Sent>) {
        for (device, wire) in self.wires.iter_mut().enumerate() {
            while let Some(frame) = wire.receive().unwrap() {
                sent.push((device, frame));
            }
        }
    }

    /// Whether the last marker's answer has come.
    fn is_done(&mut self) -> bool {
        let mut done = false;
        while let Some(frame) = self.marker.receive().unwrap() {
            let answers = frame.get(12..14) == Some(&[8, 6]) && frame.get(21) == Some(&2);
            done |= answers && frame.get(34..38) == Some(&self.markers.to_be_bytes());
        }
        done
    }
}

/// Restricts this process to one CPU: the kernel has one backlog for each.
pub fn on_one_processor() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    let first: String = allowed.trim().chars().take_while(char::is_ascii_digit).collect();
    crate::namespaces::sh(&format!("taskset -pc {first} {}", std::process::id()));
}

/// Creates a network namespace that ends with its process.
pub fn namespace() -> Process {
    let child = Command::new("unshare").args(["-n", "sleep", "100000"]).spawn().unwrap();
    let of = |who: &str| std::fs::read_link(format!("/proc/{who}/ns/net")).ok();
    let id = child.id().to_string();
    let process = Process(child);
    until("a namespace for the router", || of(&id).is_some_and(|it| Some(it) != of("self")));
    process
}

pub fn run(router: &Process, script: &str, input: &str) -> Result<String, String> {
    let id = router.0.id().to_string();
    let mut child = Command::new("nsenter")
        .args(["-t", &id, "-n", "--", "sh", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

fn device_script(device: usize) -> String {
    let name = DEVICES[device];
    let (four, six) = (net::address4(device), net::address6(device));
    format!(
        "ip link set {name} address {}\n\
         ip address add {four}/24 dev {name}\n\
         ip -6 address add {six}/64 dev {name} nodad\n",
        net::text(net::mac(device))
    )
}

fn routes_script() -> String {
    let mut script = String::new();
    for (device, name) in DEVICES.iter().enumerate() {
        for peer in 0..PEERS {
            let mac = net::text(net::peer_mac(device, peer));
            let (four, six) = (net::peer4(device, peer), net::peer6(device, peer));
            for address in [four.to_string(), six.to_string()] {
                script +=
                    &format!("ip neigh replace {address} lladdr {mac} dev {name} nud permanent\n");
            }
        }
        script += &format!(
            "ip route add {}/16 via {} dev {name}\nip -6 route add {}/32 via {} dev {name}\n",
            net::behind4(device),
            net::peer4(device, 0),
            net::behind6(device),
            net::peer6(device, 0)
        );
    }
    let (four, six) = (net::peer4(net::DEFAULT, 1), net::peer6(net::DEFAULT, 1));
    script + &format!("ip route add default via {four}\nip -6 route add default via {six}\n")
}

/// An ARP request with a number, which the router's answer repeats.
fn marker(number: u32) -> Vec<u8> {
    let own = [6, 0, 0, 0, 0x20, 0];
    let mut frame = [MARKER_MAC, own].concat();
    frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    // The number is part of the sender's Ethernet address, which the answer repeats.
    frame.extend([6, 0]);
    frame.extend(number.to_be_bytes());
    frame.extend([10, 99, 0, 2, 0, 0, 0, 0, 0, 0]);
    frame.extend(MARKER_ADDRESS);
    frame
}
