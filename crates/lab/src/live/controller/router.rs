//! The router: a kernel with a whole table, and a Tollway that follows it.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::super::program::{self, Tollway};
use super::super::topology::{B0, Topology, mac_text};
use super::table::{self, GATEWAYS, Routes, Table, gateway};

/// Tollway's control socket; the host has its own /run.
const SOCKET: &str = "/run/lab.sock";
/// The file with lines for ip(8).
const BATCH: &str = "/run/lab.batch";
/// Time limit of an answer.
const PATIENCE: Duration = Duration::from_secs(90);

/// Hosts, and a router whose kernel has routes.
pub(in crate::live) struct Router {
    pub(in crate::live) topology: Topology,
}

impl Router {
    /// Creates a router whose kernel has a whole table. All gateways are on B.
    pub(in crate::live) fn new(table: &Table) -> Result<Self, String> {
        let router = Self { topology: Topology::new()? };
        let r = &router.topology.r;
        for name in ["all", "default", "r0", "r1"] {
            r.sysctl(&format!("ipv6/conf/{name}/disable_ipv6"), "0")?;
        }
        r.sysctl("ipv6/conf/all/forwarding", "1")?;
        r.sh("ip address add fd00:2::1/64 dev r1 nodad")?;
        for number in 0..GATEWAYS {
            for v4 in [true, false] {
                let (via, mac) = (gateway(number, v4), mac_text(B0));
                r.sh(&format!("ip neigh replace {via} lladdr {mac} dev r1 nud permanent"))?;
            }
        }
        router.batch(table.lines(0..table.len(), "add", |number| number))?;
        Ok(router)
    }

    /// Passes many lines to ip(8), each of which must succeed.
    pub(super) fn batch(&self, lines: String) -> Result<(), String> {
        let write = move || std::fs::write(BATCH, lines);
        let failed = |error| format!("cannot write {BATCH}: {error}");
        self.topology.r.run(write)?.map_err(failed)?;
        self.topology.r.sh(&format!("ip -batch {BATCH}")).map(|_| ())
    }

    /// The kernel's routes with a gateway.
    pub(super) fn routes(&self) -> Result<Routes, String> {
        let mut routes = table::listed(&self.topology.r.sh("ip -4 route show table main")?);
        routes.extend(table::listed(&self.topology.r.sh("ip -6 route show table main")?));
        Ok(routes)
    }

    /// Starts a Tollway that follows the kernel, on separate processors if `own_processors`, and waits until
    /// it forwards.
    pub(super) fn start(
        &self,
        more: &[&str],
        own_processors: bool,
    ) -> Result<KernelRouter<'_>, String> {
        let mut arguments = vec!["run", "r0", "r1", "--engine", "xdp", "--socket", SOCKET];
        arguments.extend(more);
        let start = Instant::now();
        let mut tollway = Tollway::launch(&self.topology, &arguments, own_processors)?;
        tollway.until_forwarding()?;
        Ok(KernelRouter { router: self, tollway: Some(tollway), took: start.elapsed() })
    }

    /// An ip(8) on the router that reads line after line.
    pub(super) fn ip(&self) -> Result<Ip, String> {
        let mut command = Command::new("ip");
        command.args(["-force", "-batch", "-"]);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = self.topology.r.run(move || command.spawn())?;
        child.map(Ip).map_err(|error| format!("cannot start ip ({error}): install iproute2"))
    }
}

/// A Tollway that follows the kernel. Dropping this ends it.
pub(super) struct KernelRouter<'a> {
    router: &'a Router,
    tollway: Option<Tollway>,
    /// Time from its start until it forwarded.
    pub(super) took: Duration,
}

impl KernelRouter<'_> {
    /// Sends a signal to its process.
    pub(super) fn signal(&self, signal: i32) -> Result<(), String> {
        self.tollway.as_ref().map_or(Ok(()), |tollway| tollway.signal(signal))
    }

    /// Its process id.
    pub(super) fn process(&self) -> u32 {
        self.tollway.as_ref().map_or(0, Tollway::process)
    }

    /// A memory value of its process from /proc, MB.
    pub(super) fn memory_mb(&self, line: &str) -> Result<f64, String> {
        let text = self.read("status")?;
        let line = text.lines().find_map(|text| text.strip_prefix(line));
        let kb = line.and_then(|rest| rest.trim_matches([':', '\t', ' ']).split(' ').next());
        let kb: Option<f64> = kb.and_then(|kb| kb.parse().ok());
        // 1 MB is 1024 kB, as `ps` and the bar count.
        kb.map(|kb| kb / 1024.0).ok_or_else(|| "its status does not say how much it has".to_owned())
    }

    /// Reads a file of its process in /proc.
    fn read(&self, file: &str) -> Result<String, String> {
        let path = format!("/proc/{}/{file}", self.process());
        std::fs::read_to_string(&path).map_err(|error| format!("cannot read {path}: {error}"))
    }

    /// The id of its thread with that name.
    pub(super) fn thread(&self, name: &str) -> Result<i32, String> {
        let path = format!("/proc/{}/task", self.process());
        let tasks = std::fs::read_dir(&path);
        let tasks = tasks.map_err(|error| format!("cannot read {path}: {error}"))?;
        let is_meant = |task: &std::fs::DirEntry| {
            let comm = std::fs::read_to_string(task.path().join("comm"));
            comm.is_ok_and(|comm| comm.trim_end() == name)
        };
        let task =
            tasks.flatten().find(is_meant).and_then(|task| task.file_name().into_string().ok());
        let number = task.and_then(|task| task.parse().ok());
        number.ok_or_else(|| format!("Tollway has no thread {name}"))
    }

    /// Processor time of one of its threads.
    pub(super) fn spent(&self, thread: i32) -> Result<Duration, String> {
        let text = self.read(&format!("task/{thread}/schedstat"))?;
        let ns = text.split(' ').next().and_then(|ns| ns.parse().ok());
        ns.map(Duration::from_nanos)
            .ok_or_else(|| format!("schedstat of thread {thread} has no time: {text}"))
    }

    /// Connects to its control socket.
    pub(super) fn control(&self) -> Result<ControlClient, String> {
        let connect = || {
            let stream = UnixStream::connect(SOCKET)?;
            stream.set_read_timeout(Some(PATIENCE)).map(|()| stream)
        };
        let failed = |error| format!("Tollway does not listen at {SOCKET}: {error}");
        Ok(ControlClient(BufReader::new(self.router.topology.r.run(connect)?.map_err(failed)?)))
    }

    /// Ends it, and removes what it left in the kernel.
    pub(super) fn stop(mut self) -> Result<(), String> {
        match self.tollway.take() {
            Some(tollway) => tollway.stop(),
            None => Ok(()),
        }
    }
}

impl Drop for KernelRouter<'_> {
    fn drop(&mut self) {
        self.tollway = None;
        // If this fails, the next Tollway finds the remains and reports them.
        let _ = program::clear(&self.router.topology);
    }
}

/// A connection to the control socket.
pub(super) struct ControlClient(BufReader<UnixStream>);

impl ControlClient {
    /// Sends a request and waits for the answer.
    pub(super) fn request(&mut self, request: &str) -> Result<Value, String> {
        self.send(request)?;
        self.receive()
    }

    fn send(&mut self, request: &str) -> Result<(), String> {
        let line = format!("{{\"v\":2,{request}}}\n");
        let sent = self.0.get_mut().write_all(line.as_bytes());
        sent.map_err(|error| format!("cannot send the request to Tollway: {error}"))
    }

    fn receive(&mut self) -> Result<Value, String> {
        let mut line = String::new();
        let failed = |why: &dyn std::fmt::Display| format!("Tollway does not answer: {why}");
        self.0.read_line(&mut line).map_err(|error| failed(&error))?;
        let answer: Value = serde_json::from_str(&line).map_err(|error| failed(&error))?;
        match answer["error"].as_str() {
            Some(error) => Err(format!("Tollway refuses: {error}")),
            None => Ok(answer),
        }
    }

    /// Waits until everything that the kernel has notified of is active.
    pub(super) fn sync(&mut self) -> Result<(), String> {
        let answer = self.request(r#""do":"sync""#)?;
        match answer["bypassed"].as_str() {
            Some(reason) => Err(format!("the kernel forwards everything: {reason}")),
            None => Ok(()),
        }
    }

    /// A counter of the controller.
    pub(super) fn count(&mut self, name: &str) -> Result<u64, String> {
        let answer = self.request(r#""show":"controller""#)?;
        answer[name].as_u64().ok_or_else(|| format!("Tollway does not say how many {name}"))
    }

    /// The route of packets to an address; null if there is none.
    pub(super) fn route(&mut self, address: &str) -> Result<Value, String> {
        let mut answer = self.request(&format!(r#""show":"route","address":"{address}""#))?;
        Ok(answer["route"].take())
    }

    /// The active routes with a gateway.
    pub(super) fn routes(&mut self) -> Result<Routes, String> {
        let mut routes = Routes::new();
        self.send(r#""show":"routes","vrf":"main""#)?;
        loop {
            let page = self.receive()?;
            for route in page["routes"].as_array().into_iter().flatten() {
                let via = route["nexthops"][0]["via"].as_str();
                if let (Some("unicast"), Some(dst), Some(via)) =
                    (route["kind"].as_str(), route["prefix"].as_str(), via)
                {
                    routes.insert(dst.to_owned(), via.to_owned());
                }
            }
            if page["more"].as_bool() != Some(true) {
                return Ok(routes);
            }
        }
    }
}

/// A running ip(8) that reads commands. Dropping this ends it.
pub(super) struct Ip(Child);

impl Ip {
    /// Passes a command to ip(8); the kernel has the change a moment later.
    pub(super) fn send(&mut self, line: &str) -> Result<(), String> {
        let written =
            self.0.stdin.as_mut().map(|stdin| stdin.write_all(format!("{line}\n").as_bytes()));
        match written {
            Some(Ok(())) => Ok(()),
            _ => Err(format!("ip takes no more lines: {line}")),
        }
    }
}

impl Drop for Ip {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}
