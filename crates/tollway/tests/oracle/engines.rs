//! The programs of XDP and tc, with the rules of a case. The kernel runs them on frames in memory
//! (BPF_PROG_TEST_RUN), with no device behind them.

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use tollway_dataplane::id::{LinkId, PortId};
use tollway_dataplane::memory::Memory;
use tollway_dataplane::stages::filter::Count;
use tollway_dataplane::tables::Tables;
use tollway_firewall::ir::{Counter, Ruleset};
use tollway_firewall::program;
use tollway_model::Model;
use tollway_model::compile::{compile_in, rule_links};
use tollway_net::{KernelPath, Mac};
use tollway_xdp::counts::PassReason;
use tollway_xdp::xdp_path::{Exit, Ports};
use tollway_xdp::{Action, Mode, Options, Program, TableMaps, XdpLink, XdpPort, XdpPrograms};

use crate::namespaces::{ifindex, sh, until};
use crate::net::{self, DEVICES};

/// Bytes of a frame that the kernel takes for a test run: a whole IPv6 header, and less than a page.
const TAKEN: std::ops::RangeInclusive<usize> = 54..=3000;

/// What a program does with a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Sends it: the frame as it leaves.
    Forwards(Vec<u8>),
    Drops,
    /// Leaves it to the kernel.
    Leaves,
}

/// The programs of the router's devices.
pub struct Engines {
    model: Model,
    tables: Tables,
    programs: XdpPrograms,
    /// By engine and device, with the name of the engine.
    loaded: [(&'static str, Vec<Program>); 2],
    ifindexes: Vec<u32>,
    // While it exists, programs know which device takes what.
    _exits: Arc<Ports>,
}

fn port(device: usize) -> XdpPort {
    let (name, mac) = (format!("in{device}"), net::mac(device));
    sh(&format!("ip link add {name} address {} type veth peer name out{device}", net::text(mac)));
    let link = XdpLink {
        tag: None,
        outer: None,
        link: LinkId(device as u16),
        kernel_path: KernelPath::default(),
    };
    let (port, ifindex) = (PortId(device as u16), ifindex(&name));
    XdpPort {
        port,
        device: name,
        ifindex,
        mac: Mac(mac),
        queues: 0,
        links: vec![link],
        is_bridge_port: false,
    }
}

impl Engines {
    /// Loads the programs of a router without rules.
    pub fn new(model: Model) -> Self {
        let maps = TableMaps::new(0).unwrap();
        let tables = compile_in(&Memory::lent(Arc::new(maps)), &model).unwrap().tables;
        let ports: Vec<_> = (0..DEVICES.len()).map(port).collect();
        let mut programs = XdpPrograms::load(&ports, &Options::default()).unwrap();
        let addresses = model.links.iter().flat_map(|link| &link.addresses);
        programs.set_locals(&addresses.map(|net| net.addr()).collect::<Vec<IpAddr>>()).unwrap();
        programs.state().set_bypass(false);
        programs.use_tables(&tables).unwrap();
        tables.write_engines();
        let exits = Ports::with_programs(ports.len(), Some(programs.state()));
        for port in &ports {
            let ifindex = NonZeroU32::new(port.ifindex).unwrap();
            exits.set_exit(port.port, Some(Exit { ifindex, mtu: u16::MAX, takes_pieces: true }));
        }
        let load = |mode| {
            let program = |port: &XdpPort| programs.program(port.port, mode, true).unwrap();
            ports.iter().map(program).collect()
        };
        let loaded = [("XDP", load(Mode::Native)), ("tc", load(Mode::Tcx))];
        let ifindexes = ports.iter().map(|port| port.ifindex).collect();
        Self { model, tables, programs, loaded, ifindexes, _exits: exits }
    }

    /// Has the programs decide by these rules.
    pub fn set_rules(&mut self, rules: &Ruleset) -> Result<(), String> {
        let mut rules = rules.clone();
        // The test sees by their counters that programs have the rules.
        rules.add_counter(Counter::default());
        let links = rule_links(&self.model);
        let filter = program::compile(&rules, &links, &self.tables.epochs);
        self.tables.filter = Some(Arc::new(filter.map_err(|error| error.to_string())?));
        // Earlier rules may be in the way until no program reads them any more.
        until("room for the rules", || {
            self.tables.write_engines();
            self.tables.engine_counts().len() == rules.counters.len()
        });
        Ok(())
    }

    /// The names of the engines.
    pub fn names(&self) -> [&'static str; 2] {
        self.loaded.each_ref().map(|(name, _)| *name)
    }

    /// What one engine's program decides about a packet.
    pub fn decide(&self, engine: usize, device: usize, frame: &[u8]) -> Decision {
        if !TAKEN.contains(&frame.len()) {
            return Decision::Leaves;
        }
        let (name, programs) = &self.loaded[engine];
        let stale = || {
            let counts = self.programs.counts().port(PortId(device as u16)).unwrap();
            counts.passed(PassReason::Stale)
        };
        // On a busy machine the heartbeat may become stale, but not each time.
        for _ in 0..10 {
            let before = stale();
            self.programs.state().beat(0);
            let program = &programs[device];
            let run = match *name {
                "tc" => program.probe_on((self.ifindexes[device], 0), frame),
                _ => program.probe(frame),
            };
            let (action, output) = run.unwrap();
            if stale() == before {
                return match action {
                    Action::Redirect => Decision::Forwards(output),
                    Action::Drop => Decision::Drops,
                    Action::Pass => Decision::Leaves,
                    Action::Other(code) => panic!("{code} for {frame:02x?}"),
                };
            }
        }
        panic!("this machine is too busy for a heartbeat");
    }

    /// What the programs of both engines have counted since the rules are there, by counter.
    pub fn counts(&self) -> Vec<(u64, u64)> {
        let counts = self.tables.engine_counts();
        let own = counts.len().saturating_sub(1);
        counts[..own].iter().map(|Count { packets, bytes }| (*packets, *bytes)).collect()
    }
}
