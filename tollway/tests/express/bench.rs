//! The test network with real devices below its ports, and the steering program for them.

use std::num::NonZeroU32;

use tollway::express::{Lane, Ports, Reading};
use tollway::model::{Left, Mac, VlanProtocol};
use tollway::steer::maps::PassReason;
use tollway::steer::{
    Action, FlowMaps, Mode, Options, Program, State, SteerLink, SteerPort, Steering,
};
use tollway_dataplane::id::{PortId, Vid};

use crate::namespaces::{ifindex, sh};
use crate::testkit::net::Net;
use crate::testkit::packet::{DOT1AD, Tag};
use crate::testkit::wires::{PORTS, Way};

/// Both roads: the path over memory ports, and the steering program of each port.
pub struct Bench {
    pub net: Net,
    pub steering: Steering,
    pub programs: Vec<Program>,
    ports: Vec<SteerPort>,
}

fn steer_link(port: u8, way: Way) -> SteerLink {
    let tag = |(protocol, vid): &Tag| {
        let protocol = if *protocol == DOT1AD { VlanProtocol::Dot1ad } else { VlanProtocol::Dot1q };
        (protocol, Vid::new(*vid).unwrap())
    };
    SteerLink { tag: way.tags().first().map(tag), link: way.link(port), left: Left::default() }
}

/// A port with a device of its own.
fn steer_port(port: u8) -> SteerPort {
    let device = format!("p{port}");
    sh(&format!("ip link add {device} type veth peer name q{port}"));
    let ifindex = ifindex(&device);
    let links = Way::ALL.into_iter().filter(|way| way.tags().len() < 2);
    SteerPort {
        port: PortId(port.into()),
        device,
        ifindex,
        mac: Mac(Way::Plain.mac(port)),
        queues: 1,
        links: links.map(|way| steer_link(port, way)).collect(),
    }
}

/// A lane between these ports.
pub fn lane(steering: &Steering, ports: &[SteerPort]) -> Lane<(State, FlowMaps)> {
    let handle = Ports::new(ports.len());
    for port in ports {
        handle.set_entrance(port.port, true);
        handle.set_exit(port.port, NonZeroU32::new(port.ifindex));
    }
    Lane::new((steering.state(), steering.flows()), handle, 1 << 16)
}

impl Bench {
    pub fn new() -> Self {
        let ports: Vec<_> = (0..PORTS).map(steer_port).collect();
        let steering = Steering::load(&ports, &Options::default()).unwrap();
        steering.state().set_bypass(false);
        let program = |port: &SteerPort| steering.program(port.port, Mode::Native, true).unwrap();
        let programs = ports.iter().map(program).collect();
        let mut net = Net::with_memory(256, 16_384);
        net.router.express = Some(Box::new(lane(&steering, &ports)));
        Self { net, steering, programs, ports }
    }

    /// Gives a port's steering program another address.
    pub fn set_mac(&mut self, port: u8, mac: [u8; 6]) {
        let index = usize::from(port);
        self.ports[index].mac = Mac(mac);
        self.steering.set_port(self.ports[index].clone()).unwrap();
        let id = self.ports[index].port;
        self.programs[index] = self.steering.program(id, Mode::Native, true).unwrap();
    }

    /// What the lane makes of a frame; none where it leaves the frame to others.
    pub fn lane(&self, port: u8, frame: &[u8]) -> Option<Vec<u8>> {
        let (action, output) = self.alive(port, frame);
        match action {
            Action::Redirect => Some(output),
            Action::Pass => {
                assert_eq!(output, frame, "who gets it next gets it as it was");
                None
            }
            Action::Other(code) => panic!("{code} for {frame:02x?}"),
        }
    }

    /// Tries a frame while the heartbeat is fresh: a busy machine may look away for too long, but not
    /// each time.
    fn alive(&self, port: u8, frame: &[u8]) -> (Action, Vec<u8>) {
        let counts = || self.steering.counts().port(PortId(port.into())).unwrap();
        for _ in 0..10 {
            let stale = counts().passed(PassReason::Stale);
            self.steering.state().beat();
            let done = self.programs[usize::from(port)].probe(frame).unwrap();
            if counts().passed(PassReason::Stale) == stale {
                return done;
            }
        }
        panic!("this machine is too busy for a heartbeat");
    }

    /// Sends a frame by the path; what came out.
    pub fn path(&mut self, port: u8, frame: &[u8]) -> Vec<(u8, Vec<u8>)> {
        self.net.send(port, frame)
    }

    /// Tries a frame on the lane, and sends it by the path, which must make the same of it: but for
    /// a small frame's padding, which only the path cuts off. Says if the lane took it.
    pub fn both(&mut self, port: u8, frame: &[u8]) -> bool {
        let by_lane = self.lane(port, frame);
        let by_path = self.path(port, frame);
        let Some(by_lane) = by_lane else { return false };
        assert_eq!(by_path.len(), 1, "the lane forwards what the path does not: {frame:02x?}");
        let (_, by_path) = &by_path[0];
        let (same, padding) = by_lane.split_at(by_path.len().min(by_lane.len()));
        assert_eq!(same, by_path, "of {frame:02x?}");
        assert!(padding.is_empty() || frame.len() <= 14 + 2 * 4 + 46, "{by_lane:02x?}");
        true
    }

    pub fn reading(&self) -> Reading {
        Reading::of(&self.steering.counts(), None, usize::from(PORTS)).unwrap()
    }
}
