//! Tollway's side: the same network as a model, compiled as in the program, on memory ports.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use tollway_dataplane::burst::BURST;
use tollway_dataplane::frame::Umem;
use tollway_dataplane::id::PortId;
use tollway_dataplane::port::MemoryPort;
use tollway_dataplane::verdict::{DropReason, PuntReason};
use tollway_dataplane::worker::Worker;
use tollway_firewall::ir::Ruleset;
use tollway_firewall::program;
use tollway_model::compile::{compile, rule_links};
use tollway_model::{
    Link, LinkIndex, LinkKind, Model, Neigh, NextHop, Port, PortIndex, PortKind, Route,
    RouteTarget, Vrf, VrfIndex,
};
use tollway_net::{KernelPath, Mac};

use crate::dice::Dice;
use crate::kernel::Sent;
use crate::net::{self, DEVICES, PEERS};

/// Chunks of memory: more than a batch has packets, fragments of them included.
const CHUNKS: u32 = 4096;
/// Time between two packets, long enough that no limit on errors applies.
const APART_NS: u64 = 10_000_000_000;

/// The same if connections are tracked, of which none may end meanwhile.
const TRACKED_APART_NS: u64 = 1_000_000;

/// What happened to one packet.
#[derive(Clone, Debug, Default)]
pub struct PacketResult {
    /// The frames that came out because of it.
    pub sent: Vec<Sent>,
    /// Whether it reached a rule that only a kernel can evaluate.
    pub needs_kernel: bool,
    /// Counts that changed, by name.
    pub why: String,
}

/// A router on memory ports.
pub struct Tollway {
    worker: Worker,
    ports: Vec<MemoryPort>,
    now_ns: u64,
    apart_ns: u64,
}

impl Tollway {
    /// Creates a router with these rules.
    pub fn new(rules: &Ruleset) -> Result<Self, String> {
        // A router that reads a file has no kernel, and refuses rules that need one. Here the
        // kernel runs beside the router, so the rules are compiled apart from the model.
        let model = model();
        let mut compiled = compile(&model).map_err(|error| error.to_string())?;
        let filter = program::compile(rules, &rule_links(&model), &compiled.tables.epochs);
        compiled.tables.filter = Some(Arc::new(filter.map_err(|error| error.to_string())?));
        let umem = Umem::new(CHUNKS, 2048).unwrap();
        Ok(Self {
            worker: Worker::alone(compiled.tables, umem, compiled.host),
            ports: DEVICES.iter().map(|_| MemoryPort::new(BURST)).collect(),
            now_ns: APART_NS,
            apart_ns: if rules.tracking.is_some() { TRACKED_APART_NS } else { APART_NS },
        })
    }

    /// Sends a packet and collects the results.
    pub fn one(&mut self, device: usize, frame: &[u8]) -> PacketResult {
        self.now_ns += self.apart_ns;
        let before = self.worker.counters.clone();
        self.inject(device, frame);
        self.turn(device);
        let now = &self.worker.counters;
        let drops = DropReason::ALL.iter().map(|one| (one.name(), *one as usize));
        let drops = drops.filter(|(_, at)| now.drops[*at] > before.drops[*at]);
        let punts = PuntReason::ALL.iter().map(|one| (one.name(), *one as usize));
        let punts = punts.filter(|(_, at)| now.punts[*at] > before.punts[*at]);
        let mut why: Vec<_> = drops.chain(punts).map(|(name, _)| name).collect();
        if now.sent > before.sent {
            why.push("sent");
        }
        let unsupported = PuntReason::FilterUnsupported as usize;
        let needs_kernel = now.punts[unsupported] > before.punts[unsupported];
        PacketResult { why: why.join(" "), needs_kernel, sent: self.take() }
    }

    /// Sends packets in bursts of any size. Returns what comes out.
    pub fn bursts(&mut self, frames: &[(usize, Vec<u8>)], dice: &mut Dice) -> Vec<Sent> {
        let mut sent = Vec::new();
        let mut rest = frames;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(1 + dice.below(100)));
            rest = later;
            for (device, frame) in now {
                self.inject(*device, frame);
            }
            for device in 0..DEVICES.len() {
                self.turn(device);
            }
            sent.append(&mut self.take());
        }
        sent
    }

    /// The counts of rules, packets and bytes, in the order of the counters' numbers.
    pub fn counts(&mut self) -> Vec<(u64, u64)> {
        self.worker.rule_counts().iter().map(|count| (count.packets, count.bytes)).collect()
    }

    fn inject(&mut self, device: usize, frame: &[u8]) {
        let frame = self.worker.umem.store(frame).unwrap();
        self.ports[device].inject(frame);
    }

    fn turn(&mut self, device: usize) {
        while self.worker.turn(PortId(device as u16), &mut self.ports, self.now_ns) > 0 {}
        self.worker.counters.check().unwrap();
    }

    fn take(&mut self) -> Vec<Sent> {
        let umem = &mut self.worker.umem;
        let mut sent = Vec::new();
        for (device, port) in self.ports.iter_mut().enumerate() {
            for frame in port.take_sent() {
                sent.push((device, umem.frame(frame.addr, frame.len as usize).to_vec()));
                umem.free(frame.addr);
            }
        }
        sent
    }
}

/// The configuration of the kernel's namespace, as a model.
pub fn model() -> Model {
    let mut model = Model { vrfs: vec![Vrf { name: "main".to_owned() }], ..Model::default() };
    for (device, name) in DEVICES.iter().enumerate() {
        model.ports.push(Port { name: (*name).to_owned(), kind: PortKind::Memory });
        model.links.push(Link {
            name: (*name).to_owned(),
            kind: LinkKind::Port(PortIndex(device)),
            mac: Mac(net::mac(device)),
            mac_given: true,
            mtu: net::MTU[device],
            vrf: VrfIndex::MAIN,
            addresses: vec![
                IpNet::new(net::address4(device).into(), 24).unwrap(),
                IpNet::new(net::address6(device).into(), 64).unwrap(),
            ],
            kernel_path: KernelPath::default(),
        });
        for peer in 0..PEERS {
            for address in [IpAddr::from(net::peer4(device, peer)), net::peer6(device, peer).into()]
            {
                let mac = Mac(net::peer_mac(device, peer));
                model.neighs.push(Neigh { link: LinkIndex(device), address, mac });
            }
        }
        let peers: [IpAddr; 2] = [net::peer4(device, 0).into(), net::peer6(device, 0).into()];
        let behind = [(net::behind4(device).into(), 16), (net::behind6(device).into(), 32)];
        for ((address, len), via) in behind.into_iter().zip(peers) {
            model.routes.push(route(IpNet::new(address, len).unwrap(), via, device));
        }
    }
    let peers: [IpAddr; 2] =
        [net::peer4(net::DEFAULT, 1).into(), net::peer6(net::DEFAULT, 1).into()];
    for (all, via) in ["0.0.0.0/0", "::/0"].into_iter().zip(peers) {
        model.routes.push(route(all.parse().unwrap(), via, net::DEFAULT));
    }
    model
}

fn route(dst: IpNet, via: IpAddr, device: usize) -> Route {
    let hop = NextHop { via: Some(via), link: LinkIndex(device), weight: 1 };
    // `ip route` sets these metrics by default.
    let metric = if dst.addr().is_ipv4() { 0 } else { 1024 };
    Route { vrf: VrfIndex::MAIN, dst, metric, target: RouteTarget::NextHops(vec![hop]) }
}

/// Counts frames by device.
pub fn tally(sent: &[Sent]) -> BTreeMap<Sent, usize> {
    let mut tally = BTreeMap::new();
    for one in sent {
        *tally.entry(one.clone()).or_default() += 1;
    }
    tally
}
