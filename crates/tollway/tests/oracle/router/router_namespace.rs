//! The namespace of one of the two routers, and the far ends of its wires in the test's namespace.
//!
//! Everything runs on one CPU, where the kernel handles frames in the order in which they arrive.
//! When a marker has gone to the router's namespace and back, the kernel has handled everything
//! that was sent before it.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::config::{self, Config};
use super::draw::DeviceTypes;
use super::net::{Reply, reply};
use super::sysctl;
use super::traffic::{Packet, WAVES, did_not_fit};
use crate::kernel::{Sent, namespace, run};
use crate::namespaces::{PATIENCE, Process, queues, sh};
use crate::net::{self, DEVICES};
use crate::socket::Wire;

/// After this time the kernel has given up a silent neighbour, for which it waits 300 ms.
const GIVEN_UP: Duration = Duration::from_millis(400);
/// An answer that takes this long may be too late: the kernel may have given up.
const LATE: Duration = Duration::from_millis(150);

/// After this time the router has learnt that packets did not fit.
const LEARNT: Duration = Duration::from_millis(100);

/// The device for markers, which are frames of no protocol.
const MARKER: &str = "mark";
/// The markers' ethertype, one for experiments.
const MARKED: [u8; 2] = [0x88, 0xb5];

/// What else, apart from the kernel, may still have work in progress.
pub trait Idle {
    /// A number that stays the same while nothing is in progress.
    fn progress(&mut self) -> u64;
}

/// The kernel alone, for which markers suffice.
pub struct KernelAlone;

impl Idle for KernelAlone {
    fn progress(&mut self) -> u64 {
        0
    }
}

/// A router's namespace, and the wires to it.
pub struct RouterNamespace {
    pub namespace: Process,
    wires: Vec<Wire>,
    /// The same wires, for frames whose sender leaves work to its network card.
    offloading: Vec<Wire>,
    /// The names of the hosts' devices, and whether these take over work.
    far: Vec<String>,
    has_offloads: bool,
    /// Both ends of the marker's wire: here, and in the router's namespace.
    marker: [Wire; 2],
    markers: u32,
    /// When the router last sent a request for a silent neighbour.
    silence: Option<Instant>,
    /// When the test last read the wires, and whether that was too late for an answer.
    looked: Instant,
    pub late: bool,
    /// The applied configuration.
    applied: Option<Config>,
}

impl RouterNamespace {
    /// Creates a router without a configuration. `name` distinguishes its wires from others.
    pub fn new(name: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        // The kernel takes some time to remove the devices of a namespace that has gone.
        let name = format!("{name}{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let namespace = namespace();
        let mut script = String::from("set -e\nip link set lo up\n");
        script += &sysctl::fixed();
        for device in DEVICES.iter().chain([&MARKER]) {
            let queues = queues(1);
            script += &format!(
                "ip link add {device} {queues} type veth peer name {name}-{device} {queues}\n"
            );
            script += &format!("ip link set {name}-{device} netns {}\n", std::process::id());
            // Otherwise the kernel leaves checksums of its own messages to a network card that does
            // not exist.
            script += &format!("ethtool -K {device} tx off rx off rxvlan off >/dev/null\n");
        }
        for (number, device) in DEVICES.iter().enumerate() {
            script += &format!("ip link set {device} address {}\n", net::text(net::mac(number)));
        }
        // The first VRF adds a rule.
        script += "! ip link add probe type vrf table 9 2>/dev/null || ip link delete probe\n";
        run(&namespace, &script, "").unwrap();
        let wire = |device: &str| {
            let far = format!("{name}-{device}");
            sh(&format!("ip link set {far} mtu 3400 up"));
            // Without GRO the device takes no frames that XDP sends.
            // Tags stay in the frames.
            sh(&format!("ethtool -K {far} gro on tx off txvlan off tx-vlan-stag-hw-insert off"));
            // Beside it, frames are sent by another socket.
            Wire::open(number_of(&far)).and_then(Wire::without_outgoing).unwrap()
        };
        let wires = DEVICES.iter().map(|device| wire(device)).collect();
        let far: Vec<_> = DEVICES.iter().map(|device| format!("{name}-{device}")).collect();
        let offloading = far.iter().map(|far| Wire::open_offloads(number_of(far)).unwrap());
        let offloading = offloading.collect();
        let here = wire(MARKER);
        let own = format!("ip link set {MARKER} up && ip -oneline link show dev {MARKER}");
        let output = run(&namespace, &own, "").unwrap();
        let marker = [here, Wire::open_in(namespace.0.id(), number(&output)).unwrap()];
        Self {
            namespace,
            wires,
            offloading,
            far,
            has_offloads: false,
            marker,
            markers: 0,
            silence: None,
            looked: Instant::now(),
            late: false,
            applied: None,
        }
    }

    /// Sets whether the hosts leave work to their network cards. Then these do not put segments together (GRO), which
    /// they would as they find time.
    pub fn set_offloads(&mut self, on: bool) {
        if self.has_offloads != on {
            let words = if on { "tx on gro off" } else { "tx off gro on" };
            self.far.iter().for_each(|far| drop(sh(&format!("ethtool -K {far} {words}"))));
            self.has_offloads = on;
        }
    }

    /// Runs a script in the router's namespace. Returns its output.
    pub fn run(&self, script: &str, input: &str) -> Result<String, String> {
        run(&self.namespace, script, input)
    }

    /// Applies a configuration. Returns the complaints about it.
    pub fn apply(&mut self, config: &Config) -> String {
        let mut complaints = self.run(&config.script(), "").unwrap();
        if let Some(rules) = &config.rules
            && let Err(error) = self.run("nft -f -", &rules.text())
        {
            complaints += &error;
        }
        self.applied = Some(config.clone());
        complaints
    }

    /// Removes all configuration, and discards the frames that arrive meanwhile.
    pub fn reset(&mut self, device_types: DeviceTypes) {
        let none = Config { ports: 0, lines: Vec::new(), rules: None };
        let applied = self.applied.take().unwrap_or(none);
        self.run(&config::reset(&applied, device_types.vrf), "").unwrap();
        self.wait_until_quiet(&mut KernelAlone, &mut Vec::new());
    }

    /// Lists what is active, in the kernel's words, in an order that does not depend on history.
    pub fn listing(&self) -> Vec<String> {
        let all = "route show table all\nrule\naddress show\n";
        let script =
            ["-4", "-6"].map(|family| format!("ip -o {family} -batch - <<'END'\n{all}END\n"));
        let output = self.run(&script.concat(), "").unwrap();
        // The devices have other numbers in the other namespace.
        let plain = |line: &str| line.split_once(": ").map_or(line, |(_, line)| line).to_owned();
        // Tollway's own devices, through which it punts packets.
        let is_theirs = |line: &&str| line.contains(" dev toll") || line.contains(": toll");
        let mut lines: Vec<_> = output.lines().filter(|line| !is_theirs(line)).map(plain).collect();
        lines.sort_unstable();
        lines
    }

    /// Sends packets. Returns all resulting frames, including those that follow when a neighbour is
    /// silent.
    pub fn exchange(&mut self, packets: &[Packet], idle: &mut impl Idle) -> Vec<Sent> {
        let mut sent = self.send(packets, idle);
        self.give_up(idle, &mut sent);
        sent
    }

    /// Sends packets, wave by wave. Returns what comes out of any device, once everything has.
    pub fn send(&mut self, packets: &[Packet], idle: &mut impl Idle) -> Vec<Sent> {
        let mut sent = Vec::new();
        (self.looked, self.late, self.silence) = (Instant::now(), false, None);
        for wave in 0..WAVES {
            let of_wave = packets.iter().filter(|packet| packet.wave == wave);
            // A path MTU applies to the packets after it: those before it may still be on a longer
            // path.
            let (errors, others): (Vec<_>, Vec<_>) =
                of_wave.partition(|packet| did_not_fit(&packet.frame).is_some());
            for packets in [&others, &errors].into_iter().filter(|packets| !packets.is_empty()) {
                for packet in packets {
                    // A device that is down takes no frames.
                    let _ = match packet.offload {
                        None => self.wires[packet.device].send(&packet.frame),
                        Some(offload) => {
                            let frame = [&offload.header()[..], &packet.frame].concat();
                            self.offloading[packet.device].send(&frame)
                        }
                    };
                    self.drain(&mut sent);
                }
                self.wait_until_quiet(idle, &mut sent);
            }
            if !errors.is_empty() {
                std::thread::sleep(LEARNT);
            }
        }
        sent
    }

    /// Waits until the kernel has given up all silent neighbours, and takes the resulting frames.
    fn give_up(&mut self, idle: &mut impl Idle, sent: &mut Vec<Sent>) {
        let start = Instant::now();
        // An error that results from this may itself wait for a silent neighbour.
        while let Some(since) = self.silence.take() {
            // A machine under load runs the kernel's timers late.
            while since.elapsed() < GIVEN_UP || self.is_waiting() {
                assert!(start.elapsed() < PATIENCE, "the kernel waits for a neighbour for ever");
                std::thread::sleep(Duration::from_millis(5));
                // Other neighbours need answers meanwhile.
                self.drain(sent);
            }
            self.wait_until_quiet(idle, sent);
        }
    }

    /// Whether the kernel still waits for an answer of a neighbour.
    fn is_waiting(&self) -> bool {
        let output = self.run("ip neigh show nud incomplete", "").unwrap();
        output.lines().any(|line| !line.contains(" dev toll"))
    }

    /// Waits until no more frames arrive and nothing is in progress.
    pub fn wait_until_quiet(&mut self, idle: &mut impl Idle, sent: &mut Vec<Sent>) {
        let mut quiet = 0;
        let mut progress = idle.progress();
        let start = Instant::now();
        while quiet < 2 {
            assert!(start.elapsed() < PATIENCE, "the router does not come to rest");
            let before = sent.len();
            self.mark(sent);
            let now = idle.progress();
            quiet = if sent.len() == before && now == progress { quiet + 1 } else { 0 };
            progress = now;
        }
    }

    /// Sends a marker to the router's namespace and back.
    fn mark(&mut self, sent: &mut Vec<Sent>) {
        self.markers += 1;
        let number = self.markers.to_be_bytes();
        let marker = [&[0xff; 12][..], &MARKED, &number, &[0; 42]].concat();
        let start = Instant::now();
        for [from, to] in [[0, 1], [1, 0]] {
            self.marker[from].send(&marker).unwrap();
            while self.marker[to].receive().unwrap().is_none_or(|frame| frame != marker) {
                assert!(start.elapsed() < PATIENCE, "a marker is lost");
                self.drain(sent);
            }
        }
        self.drain(sent);
    }

    fn drain(&mut self, sent: &mut Vec<Sent>) {
        let since = std::mem::replace(&mut self.looked, Instant::now()).elapsed();
        for (device, wire) in self.wires.iter_mut().enumerate() {
            // A read fails once for a device that went down.
            while let Ok(Some(frame)) = wire.receive() {
                match reply(device, &frame) {
                    Reply::Nothing => {}
                    Reply::Silent => self.silence = Some(Instant::now()),
                    Reply::Answer(answer) => {
                        self.late |= since > LATE;
                        let _ = wire.send(&answer);
                    }
                }
                sent.push((device, frame));
            }
        }
    }
}

impl RouterNamespace {
    /// The command that starts a program in the router's namespace.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.namespace.0.id().to_string(), "-n", "--", program]);
        command.stdin(Stdio::null());
        command
    }
}

/// The number of a device in this namespace.
fn number_of(device: &str) -> i32 {
    number(&sh(&format!("ip -oneline link show dev {device}")))
}

/// The number of a device, from the output of `ip -oneline link`.
fn number(output: &str) -> i32 {
    output.split(':').next().unwrap().parse().unwrap()
}
