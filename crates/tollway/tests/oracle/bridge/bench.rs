//! The two bridges, and what the test does to both.

use std::collections::BTreeMap;

use super::case::Case;
use super::net::PORTS;
use crate::cables::Cables;
use crate::kernel::Sent;
use crate::router::kernel_router::{KernelRouter, Setup};
use tollway_model::Engine;

/// What a namespace has before there are devices: nothing that speaks by itself.
const FIRST: &str = "echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6\n";

/// What forwards in the second namespace.
pub enum Second {
    Tollway,
    /// The kernel as well, with a fault that this script injects.
    Kernel(&'static str),
}

/// The namespaces with the two bridges.
pub struct Bench {
    second: Second,
    running: Option<Running>,
}

struct Running {
    cables: [Cables; 2],
    router: Option<KernelRouter>,
}

impl Bench {
    pub const fn new(second: Second) -> Self {
        Self { second, running: None }
    }

    /// Makes the bridges of a case.
    pub fn begin(&mut self, case: &Case) -> Result<(), Vec<String>> {
        self.running = None;
        let cables = ["k", "t"].map(|name| Cables::new(name, &PORTS, FIRST));
        let mut running = Running { cables, router: None };
        for line in &case.config {
            running.apply(line)?;
        }
        match self.second {
            Second::Kernel(script) => drop(running.cables[1].run(script, "").unwrap()),
            Second::Tollway => {
                let setup = Setup { ports: case.ports, engine: Engine::Xdp };
                let router = KernelRouter::start(&running.cables[1], setup);
                running.router = Some(router.map_err(|error| vec![error])?);
            }
        }
        running.exchange(&[]);
        running.sync()?;
        self.running = Some(running);
        Ok(())
    }

    fn running(&mut self) -> &mut Running {
        self.running.as_mut().expect("a case has begun")
    }

    /// Changes both bridges; says whether the kernel refuses that.
    pub fn apply(&mut self, line: &str) -> Result<bool, Vec<String>> {
        let refused = self.running().apply(line)?;
        self.running().sync()?;
        Ok(refused)
    }

    /// Sends frames to both bridges. Returns what comes out of each.
    pub fn exchange(&mut self, frames: &[Sent]) -> [Vec<Sent>; 2] {
        self.running().exchange(frames)
    }

    /// Waits until Tollway knows all that its kernel does.
    pub fn sync(&mut self) -> Result<(), Vec<String>> {
        self.running().sync()
    }

    /// Compares the forwarding databases; returns the port of each address.
    pub fn compare_entries(&mut self) -> Result<BTreeMap<Vec<u8>, usize>, Vec<String>> {
        let [first, second] = self.running().cables.each_ref().map(entries);
        if first == second {
            return Ok(first.iter().filter_map(|line| home(line)).collect());
        }
        let only = |one: &[String], other: &[String], whose: &str| -> Vec<String> {
            let lines = one.iter().filter(|line| !other.contains(line));
            lines.map(|line| format!("an entry of {whose} only: {line}")).collect()
        };
        Err([only(&first, &second, "the kernel"), only(&second, &first, "Tollway")].concat())
    }

    /// How many frames Tollway's programs have forwarded in this case.
    pub fn by_xdp(&mut self) -> u64 {
        self.running().router.as_mut().map_or(0, |router| router.counts().xdp_path)
    }
}

impl Running {
    fn apply(&self, line: &str) -> Result<bool, Vec<String>> {
        let [first, second] = self.cables.each_ref().map(|cables| cables.run(line, ""));
        if first != second {
            return Err(vec![format!(
                "{line}: {first:?} of the kernel, and {second:?} of Tollway"
            )]);
        }
        Ok(first.is_err())
    }

    fn sync(&mut self) -> Result<(), Vec<String>> {
        self.router.as_mut().map_or(Ok(()), |router| router.sync().map_err(|error| vec![error]))
    }

    fn exchange(&mut self, frames: &[Sent]) -> [Vec<Sent>; 2] {
        self.cables.each_mut().map(|cables| exchange(cables, frames))
    }
}

/// Sends frames to one bridge. Returns what comes out of its ports.
fn exchange(cables: &mut Cables, frames: &[Sent]) -> Vec<Sent> {
    let mut sent = Vec::new();
    for (port, frame) in frames {
        // The device of a port that is down takes no frames.
        let _ = cables.wires[*port].send(frame);
    }
    cables.wait_until_quiet(
        || 0,
        |wires| {
            let before = sent.len();
            for (port, wire) in wires.iter_mut().enumerate() {
                while let Ok(Some(frame)) = wire.receive() {
                    sent.push((port, frame));
                }
            }
            sent.len() - before
        },
    );
    sent.retain(|(_, frame)| !is_report(frame));
    sent
}

/// Whether the bridge sent a frame by itself, whenever it found time: an IGMP report, or a BPDU.
fn is_report(frame: &[u8]) -> bool {
    let is_igmp = frame.starts_with(&[1, 0, 0x5e, 0, 0, 0x16]) && frame.get(23) == Some(&2);
    is_igmp || frame.get(14..17) == Some(&[0x42, 0x42, 3])
}

/// The address and the port of an entry.
fn home(line: &str) -> Option<(Vec<u8>, usize)> {
    let mut words = line.split(' ');
    let mac = words.next()?.split(':').map(|byte| u8::from_str_radix(byte, 16).ok());
    let port = words.nth(1)?;
    Some((mac.collect::<Option<_>>()?, PORTS.iter().position(|one| *one == port)?))
}

/// The forwarding database of a bridge.
fn entries(cables: &Cables) -> Vec<String> {
    // Not each case that has been made smaller has a bridge.
    let output = cables.run("bridge fdb show br br0", "").unwrap_or_default();
    let is_of_bridge = |line: &&str| line.contains(" master br0");
    let mut lines: Vec<_> = output.lines().filter(is_of_bridge).map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}
