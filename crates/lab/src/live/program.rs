//! Tollway as a child process: its configuration, start and end.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::topology::{A0, B0, DESTINATIONS, LEFT, RIGHT, Topology, VIDS, mac_text};
use crate::sys;

/// Path of the configuration; the host has its own /run.
const CONFIG: &str = "/run/lab.toml";
/// Path of its rules, if it has any.
const RULES: &str = "/run/lab.rules";
/// Number of rules.
const RULE_COUNT: u8 = 100;
/// Where Tollway pins what outlives it.
const PINS: &str = "/sys/fs/bpf/tollway";
/// Time limit of a start and of an end.
const PATIENCE: Duration = Duration::from_secs(20);

/// The configuration of a Tollway.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Setup {
    /// The type of its ports.
    pub(super) kind: &'static str,
    /// Whether flows may take the XDP path.
    pub(super) xdp_path: bool,
    /// Whether there are VLANs on both sides, a VRF and a firewall of [`RULE_COUNT`] rules.
    pub(super) features: bool,
    /// Whether it avoids the generator's processor, if there is another.
    pub(super) own_processors: bool,
    /// Value of `xdp_flows`, if the default does not suffice.
    pub(super) xdp_flows: Option<u32>,
}

impl Setup {
    /// The configuration file.
    fn config(self) -> String {
        let xdp_path = if self.xdp_path { "on" } else { "off" };
        let mut text = if self.kind == "af_xdp" {
            let xdp_flows = self.xdp_flows.map(|flows| format!("xdp_flows = {flows}\n"));
            format!("xdp = \"{xdp_path}\"\n{}", xdp_flows.unwrap_or_default())
        } else {
            String::new()
        };
        let sides = [("r0", LEFT, A0, VIDS[0]), ("r1", RIGHT, B0, VIDS[1])];
        let vrf = if self.features { "vrf = \"red\"\n" } else { "" };
        for (port, [peer, own], mac, vid) in sides {
            let (mac, kind) = (mac_text(mac), self.kind);
            let addresses = format!("addresses = [\"{own}/24\"]\n");
            text += &format!("[ports.{port}]\nkind = \"{kind}\"\n");
            let mut dev = port.to_owned();
            if self.features {
                dev = format!("{port}.{vid}");
                text += &format!("[vlans.\"{dev}\"]\nparent = \"{port}\"\nvid = {vid}\n{vrf}");
            }
            text += &addresses;
            text += &format!(
                "[[neighbours]]\ndev = \"{dev}\"\naddress = \"{peer}\"\nmac = \"{mac}\"\n"
            );
        }
        if self.features {
            text += "[vrfs.red]\n";
            text = format!("filter = \"{RULES}\"\n{text}");
        }
        text + &format!("[[routes]]\n{vrf}to = \"{DESTINATIONS}\"\nvia = \"{}\"\n", RIGHT[0])
    }
}

/// Rules of several shapes in iptables-save format, none of which matches the generator's frames.
fn rules() -> String {
    let rule = |number: u8| {
        let source = format!("-A FORWARD -s 10.{number}.0.0/16");
        match number % 4 {
            0 => format!("{source} -j DROP\n"),
            1 => format!("{source} -d 198.19.{number}.0/24 -j DROP\n"),
            2 => format!("{source} -p tcp -m tcp --dport {number} -j DROP\n"),
            _ => format!("{source} -p udp -m udp --sport 1024:65535 --dport {number} -j DROP\n"),
        }
    };
    let rules: String = (0..RULE_COUNT).map(rule).collect();
    format!("*filter\n:FORWARD ACCEPT [0:0]\n{rules}COMMIT\n")
}

/// A running Tollway. Dropping this kills it; see [`clear`].
pub(super) struct Tollway {
    child: Child,
    lines: Receiver<String>,
}

impl Tollway {
    /// Starts Tollway on the router and waits until it forwards. With `replace` it takes over from
    /// the running one.
    pub(super) fn start(topology: &Topology, setup: Setup, replace: bool) -> Result<Self, String> {
        let more: &[&str] = if replace { &["--replace"] } else { &[] };
        let processors = setup.own_processors.then(program_processors);
        Self::start_with(topology, setup, more, processors)
    }

    /// The same with more arguments and on these processors, if there are any.
    pub(super) fn start_with(
        topology: &Topology,
        setup: Setup,
        more: &[&str],
        processors: Option<Vec<usize>>,
    ) -> Result<Self, String> {
        let write = move || {
            std::fs::write(CONFIG, setup.config())?;
            std::fs::write(RULES, rules())
        };
        let failed = |error| format!("cannot write {CONFIG}: {error}");
        topology.r.run(write)?.map_err(failed)?;
        let arguments = [&["run", "--config", CONFIG], more].concat();
        let mut tollway = Self::launch_on(topology, &arguments, processors)?;
        let start = tollway.until_forwarding()?;
        for port in ["r0", "r1"].iter().filter(|_| setup.kind == "af_xdp") {
            // If Tollway fell back to another mode, this would not measure the requested one.
            if !topology.r.sh(&format!("ip -json link show dev {port}"))?.contains("\"xdp\"") {
                let named = start.iter().find(|line| line.contains(port));
                let named = named.map_or("it did not say why", String::as_str);
                return Err(format!("Tollway has no XDP program on {port}: {named}"));
            }
        }
        Ok(tollway)
    }

    /// Starts Tollway on the router with these arguments, on separate processors if `own_processors`.
    pub(super) fn launch(
        topology: &Topology,
        arguments: &[&str],
        own_processors: bool,
    ) -> Result<Self, String> {
        Self::launch_on(topology, arguments, own_processors.then(program_processors))
    }

    fn launch_on(
        topology: &Topology,
        arguments: &[&str],
        processors: Option<Vec<usize>>,
    ) -> Result<Self, String> {
        let program = std::env::current_exe()
            .map_err(|error| format!("this program cannot find itself: {error}"))?;
        let mut command = Command::new(program);
        command.args(arguments).env("RUST_LOG", "info").env("NO_COLOR", "1");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        if let Some(processors) = processors {
            sys::bind(&mut command, processors);
        }
        // The host's own thread spawns it: Tollway has to end with that thread, and no sooner.
        let child = topology.r.run(move || command.spawn())?;
        let mut child = child.map_err(|error| format!("cannot start Tollway: {error}"))?;
        let lines = listen(child.stderr.take());
        Ok(Self { child, lines })
    }

    /// Its process id.
    pub(super) fn process(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it forwards. Returns its output until then.
    pub(super) fn until_forwarding(&mut self) -> Result<Vec<String>, String> {
        let (start, mut output) = (Instant::now(), Vec::new());
        loop {
            let left = PATIENCE.saturating_sub(start.elapsed());
            let last = || output.last().cloned().unwrap_or_default();
            match self.lines.recv_timeout(left) {
                Ok(line) if line.trim_end().ends_with("forwarding") => return Ok(output),
                Ok(line) => output.push(line),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(format!("Tollway ended at its start: {}", last()));
                }
                Err(RecvTimeoutError::Timeout) => {
                    return Err(format!("Tollway does not get to forwarding: {}", last()));
                }
            }
        }
    }

    /// Sends a signal to its process.
    pub(super) fn signal(&self, signal: i32) -> Result<(), String> {
        let sent = sys::signal(self.child.id(), signal);
        sent.map_err(|error| format!("cannot send signal {signal} to Tollway: {error}"))
    }

    /// Ends it as an administrator does.
    pub(super) fn stop(mut self) -> Result<(), String> {
        self.signal(libc::SIGTERM)?;
        self.until_ended()
    }

    /// Waits until it has ended by itself.
    pub(super) fn until_ended(&mut self) -> Result<(), String> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            match self.child.try_wait() {
                Ok(None) => std::thread::sleep(Duration::from_millis(5)),
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => {
                    let last = self.lines.try_iter().last().unwrap_or_default();
                    return Err(format!("Tollway failed ({status}): {last}"));
                }
                Err(error) => return Err(format!("cannot wait for Tollway: {error}")),
            }
        }
        Err("Tollway does not end".to_owned())
    }
}

impl Drop for Tollway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts Tollway with these arguments on processors of its own, measures, and ends it.
pub(super) fn behind_tollway<T>(
    topology: &Topology,
    arguments: &[&str],
    measure: impl FnOnce() -> Result<T, String>,
) -> Result<T, String> {
    let mut tollway = Tollway::launch(topology, arguments, true)?;
    tollway.until_forwarding()?;
    let measured = measure()?;
    tollway.stop()?;
    clear(topology)?;
    Ok(measured)
}

/// Removes what a killed Tollway left in the kernel.
pub(super) fn clear(topology: &Topology) -> Result<(), String> {
    match topology.r.run(|| std::fs::remove_dir_all(PINS))? {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("cannot remove {PINS}: {error}"))
        }
        _ => Ok(()),
    }
}

/// Reads its output, so that it never blocks on a full pipe.
fn listen(stderr: Option<ChildStderr>) -> Receiver<String> {
    let (sender, lines) = channel();
    if let Some(stderr) = stderr {
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
    }
    lines
}

/// Moves the calling thread to the generator's processor, where the kernel handles the generator's
/// frames, and gives it priority there. If this is the only processor, Tollway needs a share of it.
pub(super) fn run_on_generator_processor() -> std::io::Result<()> {
    let processors = sys::processors();
    if let [first, _, ..] = processors[..] {
        sys::pin(&[first])?;
        sys::set_realtime()?;
    }
    Ok(())
}

/// Tollway's processors: all but the generator's, if there is another.
fn program_processors() -> Vec<usize> {
    let mut processors = sys::processors();
    if processors.len() > 1 {
        processors.remove(0);
    }
    processors
}
