//! A worker in this process. Its ports are memory, but the worker takes them for devices.

use std::io::Write;
use std::net::IpAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tollway_dataplane::frame::Umem;
use tollway_dataplane::id::VrfId;
use tollway_dataplane::next_hops::{Action, HEADER_ROOM};
use tollway_dataplane::port::MemoryPort;
use tollway_dataplane::router::Router;
use tollway_dataplane::worker::Worker;
use tollway_model::Model;
use tollway_model::compile::compile;
use tollway_net::Mac;
use tollway_worker::neighbours::{Follower, OnReport, Settings, Watch};
use tollway_worker::ports::Devices;
use tollway_worker::{self, Duties, First, Stop, Updater, WorkerMailbox};
use tollway_xdp::xdp_path::Outdated;

use crate::namespaces::{PATIENCE, Process, sh};

/// One port on the device `ra`, with a gateway behind it.
pub const CONFIG: &str = r#"
[ports.a]
kind = "af_packet"
device = "ra"
addresses = ["10.0.0.1/16", "fd00::1/64"]

[[routes]]
to = "192.0.2.0/24"
via = "10.0.0.9"
"#;

/// Creates a cable between `ra` and `ha`, both in this namespace.
pub fn cable() {
    sh("ip link set lo up");
    sh("ip link add ra type veth peer name ha");
    sh("ip link set ra up");
    sh("ip link set ha up");
}

pub fn parse(config: &str) -> Model {
    tollway_model::config::parse(config, "test.toml").unwrap().model
}

/// A worker on a thread of its own.
pub struct WorkerThread {
    pub mailbox: WorkerMailbox,
    pub updater: Updater,
    thread: Option<JoinHandle<()>>,
}

impl WorkerThread {
    pub fn start(model: &Model) -> Self {
        let stop = Stop::on_signals().unwrap();
        let (mailbox, mut mailbox_receiver) = tollway_worker::mailbox().unwrap();
        let compiled = compile(model).unwrap();
        let count = model.ports.len();
        let router = Router::new(compiled.tables, compiled.host);
        let updater = Updater::new(&router, mailbox.clone(), Outdated::new(Arc::default()));
        let thread = std::thread::spawn(move || {
            let mut worker = Worker::new(&router, Umem::new(256, 4096).unwrap());
            let mut devices = Devices::new();
            devices.resize_with(count, || Box::new(MemoryPort::new(64)));
            let first = First {
                worker: &mut worker,
                devices: &mut devices,
                mailbox: &mut mailbox_receiver,
                handed_over: &mut [],
            };
            tollway_worker::run(first, &mut Vec::new(), &stop, Duties::default()).unwrap();
            worker.counters.check().unwrap();
        });
        Self { mailbox, updater, thread: Some(thread) }
    }

    pub fn follow(&self, model: &Model, settings: Settings) -> Follower {
        self.follow_with(model, settings, Box::new(drop))
    }

    pub fn follow_with(&self, model: &Model, settings: Settings, on_report: OnReport) -> Follower {
        let watch = Watch::of(model, |_| true);
        Follower::start(watch, self.updater.clone(), on_report, settings).unwrap()
    }

    /// The Ethernet addresses to which packets for these addresses go, if they go anywhere.
    pub fn macs(&self, addresses: Vec<IpAddr>) -> Vec<Option<[u8; 6]>> {
        let look = move |worker: &mut Worker, _: &mut Devices| {
            let tables = worker.state();
            let mac = |address: &IpAddr| {
                let next = tables.next_hop(tables.lookup(VrfId(0), *address));
                let start = HEADER_ROOM - usize::from(next.header_len);
                let header = &next.header[start..];
                (next.action == Action::Forward).then(|| *header.first_chunk().unwrap())
            };
            addresses.iter().map(mac).collect()
        };
        self.mailbox.call(PATIENCE, look).unwrap()
    }

    pub fn mac(&self, address: &str) -> Option<[u8; 6]> {
        self.macs(vec![address.parse().unwrap()])[0]
    }
}

impl Drop for WorkerThread {
    fn drop(&mut self) {
        sh(&format!("kill -TERM {}", std::process::id()));
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking());
    }
}

/// An `ip` process that runs each line as it is written.
pub struct Ip(Process);

impl Ip {
    pub fn new() -> Self {
        let mut ip = Command::new("ip");
        ip.args(["-batch", "-"]).stdin(Stdio::piped());
        Self(Process(ip.spawn().unwrap()))
    }

    pub fn run(&mut self, lines: &str) {
        let Child { stdin, .. } = &mut self.0.0;
        stdin.as_mut().unwrap().write_all(lines.as_bytes()).unwrap();
    }

    /// Waits until `ip` has run all lines.
    pub fn finish(mut self) {
        drop(self.0.0.stdin.take());
        assert!(self.0.0.wait().unwrap().success());
    }
}

/// The neighbours on `ra` whose Ethernet addresses the kernel has.
pub fn kernel_neighbours() -> Vec<(IpAddr, [u8; 6])> {
    let output = sh("ip neigh show dev ra") + &sh("ip -6 neigh show dev ra");
    let mut neighbours: Vec<_> = output
        .lines()
        .filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let at = words.iter().position(|word| *word == "lladdr")?;
            Some((words[0].parse().ok()?, mac(words[at + 1])))
        })
        .collect();
    neighbours.sort_unstable();
    neighbours.dedup();
    neighbours
}

pub fn mac(text: &str) -> [u8; 6] {
    Mac::parse(text).unwrap().0
}

/// Time between two looks.
pub const MOMENT: Duration = Duration::from_millis(1);
