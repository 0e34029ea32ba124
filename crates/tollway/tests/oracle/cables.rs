//! The namespace of one of two kernels that are compared, and the far ends of its wires in the test's namespace.
//!
//! Everything runs on one CPU, where the kernel handles frames in the order in which they arrive.
//! When a marker has gone to the kernel's namespace and back, the kernel has handled everything
//! that was sent before it.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use crate::kernel::{namespace, run};
use crate::namespaces::{PATIENCE, Process, queues, sh};
use crate::socket::Wire;

/// The device for markers, which are frames of no protocol.
const MARKER: &str = "mark";
/// The markers' ethertype, one for experiments.
const MARKED: [u8; 2] = [0x88, 0xb5];

/// A namespace, and the wires to it.
pub struct Cables {
    pub namespace: Process,
    pub wires: Vec<Wire>,
    /// The names of the hosts' devices.
    pub far: Vec<String>,
    /// Both ends of the marker's wire: here, and in the namespace.
    marker: [Wire; 2],
    markers: u32,
}

impl Cables {
    /// Creates a namespace with these devices. `name` distinguishes its wires from others, and the script runs first.
    pub fn new(name: &str, devices: &[&str], first: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        // The kernel takes some time to remove the devices of a namespace that has gone.
        let name = format!("{name}{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let namespace = namespace();
        let mut script = format!("set -e\nip link set lo up\n{first}");
        for device in devices.iter().chain([&MARKER]) {
            let queues = queues(1);
            script += &format!(
                "ip link add {device} {queues} type veth peer name {name}-{device} {queues}\n"
            );
            script += &format!("ip link set {name}-{device} netns {}\n", std::process::id());
            // Otherwise the kernel leaves checksums of its own messages to a network card that does
            // not exist.
            script += &format!("ethtool -K {device} tx off rx off rxvlan off >/dev/null\n");
        }
        run(&namespace, &script, "").unwrap();
        let far: Vec<_> = devices.iter().map(|device| format!("{name}-{device}")).collect();
        let wires = far.iter().map(|far| wire(far)).collect();
        let here = wire(&format!("{name}-{MARKER}"));
        let own = format!("ip link set {MARKER} up && ip -oneline link show dev {MARKER}");
        let output = run(&namespace, &own, "").unwrap();
        let marker = [here, Wire::open_in(namespace.0.id(), number(&output)).unwrap()];
        Self { namespace, wires, far, marker, markers: 0 }
    }

    /// Runs a script in the namespace with an input. Returns its output, or its complaint.
    pub fn run(&self, script: &str, input: &str) -> Result<String, String> {
        run(&self.namespace, script, input)
    }

    /// The command that starts a program in the namespace.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.namespace.0.id().to_string(), "-n", "--", program]);
        command.stdin(Stdio::null());
        command
    }

    /// Waits until no more frames arrive and nothing is in progress, of which a number says that it stays the same.
    /// `drain` takes the frames from the wires, and returns how many they are.
    pub fn wait_until_quiet(
        &mut self,
        mut progress: impl FnMut() -> u64,
        mut drain: impl FnMut(&mut [Wire]) -> usize,
    ) {
        let (mut quiet, mut last) = (0, progress());
        let start = Instant::now();
        while quiet < 2 {
            assert!(start.elapsed() < PATIENCE, "the kernel does not come to rest");
            let frames = self.mark(&mut drain);
            let now = progress();
            quiet = if frames == 0 && now == last { quiet + 1 } else { 0 };
            last = now;
        }
    }

    /// Sends a marker to the namespace and back. Returns the number of frames that have arrived meanwhile.
    fn mark(&mut self, drain: &mut impl FnMut(&mut [Wire]) -> usize) -> usize {
        self.markers += 1;
        let number = self.markers.to_be_bytes();
        let marker = [&[0xff; 12][..], &MARKED, &number, &[0; 42]].concat();
        let start = Instant::now();
        let mut frames = 0;
        for [from, to] in [[0, 1], [1, 0]] {
            self.marker[from].send(&marker).unwrap();
            while self.marker[to].receive().unwrap().is_none_or(|frame| frame != marker) {
                assert!(start.elapsed() < PATIENCE, "a marker is lost");
                frames += drain(&mut self.wires);
            }
        }
        frames + drain(&mut self.wires)
    }
}

/// Opens the wire at a host's device.
fn wire(far: &str) -> Wire {
    sh(&format!("ip link set {far} mtu 3400 up"));
    // Without GRO the device takes no frames that XDP sends.
    // Tags stay in the frames.
    sh(&format!("ethtool -K {far} gro on tx off txvlan off tx-vlan-stag-hw-insert off"));
    // Beside it, frames are sent by another socket.
    Wire::open(number_of(far)).and_then(Wire::without_outgoing).unwrap()
}

/// The number of a device in this namespace.
pub fn number_of(device: &str) -> i32 {
    number(&sh(&format!("ip -oneline link show dev {device}")))
}

/// The number of a device, from the output of `ip -oneline link`.
fn number(output: &str) -> i32 {
    output.split(':').next().unwrap().parse().unwrap()
}
