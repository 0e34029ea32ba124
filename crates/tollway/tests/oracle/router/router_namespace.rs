//! The namespace of one of the two routers, and the hosts at the far ends of its wires.

use std::time::{Duration, Instant};

use super::config::{self, Config};
use super::draw::DeviceTypes;
use super::net::{Reply, reply};
use super::sysctl;
use super::traffic::{Packet, WAVES, did_not_fit};
use crate::cables::{Cables, number_of};
use crate::kernel::Sent;
use crate::namespaces::{PATIENCE, sh};
use crate::net::{self, DEVICES};
use crate::socket::Wire;

/// After this time the kernel has given up a silent neighbour, for which it waits 300 ms.
const GIVEN_UP: Duration = Duration::from_millis(400);
/// An answer that takes this long may be too late: the kernel may have given up.
const LATE: Duration = Duration::from_millis(150);

/// After this time the router has learnt that packets did not fit.
const LEARNT: Duration = Duration::from_millis(100);

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
    pub cables: Cables,
    /// The wires once more, for frames whose sender leaves work to its network card.
    offloading: Vec<Wire>,
    has_offloads: bool,
    hosts: Hosts,
    /// The applied configuration.
    applied: Option<Config>,
}

/// The hosts at the far ends, which answer requests of the router.
struct Hosts {
    /// When the router last sent a request for a silent neighbour.
    silence: Option<Instant>,
    /// When the test last read the wires, and whether that was too late for an answer.
    looked: Instant,
    late: bool,
}

impl RouterNamespace {
    /// Creates a router without a configuration. `name` distinguishes its wires from others.
    pub fn new(name: &str) -> Self {
        let cables = Cables::new(name, &DEVICES, &sysctl::fixed());
        let mut script = String::new();
        for (number, device) in DEVICES.iter().enumerate() {
            script += &format!("ip link set {device} address {}\n", net::text(net::mac(number)));
        }
        // The first VRF adds a rule.
        script += "! ip link add probe type vrf table 9 2>/dev/null || ip link delete probe\n";
        cables.run(&script, "").unwrap();
        let offloading = cables.far.iter().map(|far| Wire::open_offloads(number_of(far)).unwrap());
        let offloading = offloading.collect();
        let hosts = Hosts { silence: None, looked: Instant::now(), late: false };
        Self { cables, offloading, has_offloads: false, hosts, applied: None }
    }

    /// Whether a neighbour was last answered so late that the router may have given up.
    pub fn is_late(&self) -> bool {
        self.hosts.late
    }

    /// Sets whether the hosts leave work to their network cards. Then these do not put segments together (GRO), which
    /// they would as they find time.
    pub fn set_offloads(&mut self, on: bool) {
        if self.has_offloads != on {
            let words = if on { "tx on gro off" } else { "tx off gro on" };
            self.cables.far.iter().for_each(|far| drop(sh(&format!("ethtool -K {far} {words}"))));
            self.has_offloads = on;
        }
    }

    /// Runs a script in the router's namespace. Returns its output.
    pub fn run(&self, script: &str, input: &str) -> Result<String, String> {
        self.cables.run(script, input)
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
        self.hosts = Hosts { silence: None, looked: Instant::now(), late: false };
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
                        None => self.cables.wires[packet.device].send(&packet.frame),
                        Some(offload) => {
                            let frame = [&offload.header()[..], &packet.frame].concat();
                            self.offloading[packet.device].send(&frame)
                        }
                    };
                    self.hosts.drain(&mut self.cables.wires, &mut sent);
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
        while let Some(since) = self.hosts.silence.take() {
            // A machine under load runs the kernel's timers late.
            while since.elapsed() < GIVEN_UP || self.is_waiting() {
                assert!(start.elapsed() < PATIENCE, "the kernel waits for a neighbour for ever");
                std::thread::sleep(Duration::from_millis(5));
                // Other neighbours need answers meanwhile.
                self.hosts.drain(&mut self.cables.wires, sent);
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
        let hosts = &mut self.hosts;
        self.cables.wait_until_quiet(|| idle.progress(), |wires| hosts.drain(wires, sent));
    }
}

impl Hosts {
    /// Takes the frames that have arrived, and answers them; returns how many they are.
    fn drain(&mut self, wires: &mut [Wire], sent: &mut Vec<Sent>) -> usize {
        let before = sent.len();
        let since = std::mem::replace(&mut self.looked, Instant::now()).elapsed();
        for (device, wire) in wires.iter_mut().enumerate() {
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
        sent.len() - before
    }
}
