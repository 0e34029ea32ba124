//! What the steering program needs to know of a model.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use ipnet::IpNet;
use tollway_dataplane::changes::Changes;
use tollway_dataplane::express::Express;
use tollway_dataplane::id::{LinkId, PortId, Vid};

use super::Devices;
use super::af_xdp::{Kept, LaneOfPort, Plan, Refusal, Steered};
use super::redirect::Watch;
use crate::express::{Counted, Lane, Outdated, Ports};
use crate::model::{ExpressMode, FailMode, LinkIndex, LinkKind, Model, PortIndex, PortKind};
use crate::steer::{CountMap, Options, Ruled, State, SteerError, SteerLink, SteerPort, Steering};
use crate::sync::lock;

/// The steering of a model's AF_XDP ports, if it has any, or why there is none.
pub struct ModelSteering {
    steering: Option<Result<Arc<Mutex<Steering>>, Refusal>>,
    lane: LaneOfPort,
    plans: Vec<Arc<Mutex<Plan>>>,
}

impl ModelSteering {
    /// Makes the maps; the ports follow as they are opened.
    #[must_use]
    pub fn load(model: &Model) -> Self {
        let wanted = model.ports.iter().any(|port| matches!(port.kind, PortKind::AfXdp { .. }));
        let steering = wanted.then(|| {
            // Without the lane its maps are there and hold nothing.
            let flows = if model.express == ExpressMode::Off { 1 } else { model.express_flows };
            let options = Options { flows4: flows, flows6: flows, ..Options::default() };
            let made = Steering::load(&[], &options).and_then(|mut steering| {
                // Before a program is on a device: the first packet may come before the first turn.
                steering.state().set_ruled(ruled(model));
                steering.set_locals(&locals(model)).map(|()| steering)
            });
            made.map(|steering| Arc::new(Mutex::new(steering)))
                .map_err(|error: SteerError| Refusal::from(&error))
        });
        let lane = LaneOfPort { wanted: model.express, ports: Ports::new(model.ports.len()) };
        let plans = (0..model.ports.len()).map(|port| plan(model, PortIndex(port)));
        Self { steering, lane, plans: plans.map(|plan| Arc::new(Mutex::new(plan))).collect() }
    }

    /// The program of a port.
    ///
    /// # Errors
    /// Why there is none.
    pub fn program(&self, port: PortIndex) -> Result<Box<dyn Kept>, Refusal> {
        let steering = match &self.steering {
            Some(Ok(steering)) => steering,
            Some(Err(refusal)) => return Err(refusal.clone()),
            None => return Err(Refusal::default()),
        };
        let plan = self.plans.get(port.0).ok_or_else(Refusal::default)?;
        Ok(Box::new(Steered::new(steering, port_id(port.0), plan, self.lane.clone())))
    }

    /// Says whether there are rules that have to be asked for every packet that is forwarded, and what
    /// happens while they cannot be.
    pub fn set_ruled(&self, ruled: Ruled) {
        if let Some(steering) = self.steering() {
            lock(steering).state().set_ruled(ruled);
        }
    }

    /// Lets the kernel forward everything while the configuration changes.
    pub fn hold(&self, hold: bool) {
        if let Some(steering) = self.steering() {
            let state = lock(steering).state();
            if !hold {
                // What the path has entered meanwhile may be of the tables from before.
                state.bump_generation();
            }
            state.set_hold(hold);
            if state.ruled() == Ruled::FailClosed {
                let what =
                    if hold { "is dropped until" } else { "comes to the rules again, since" };
                tracing::info!("what is to be forwarded {what} the configuration has changed");
            }
        }
    }

    /// Has the express lane repeat nothing that was decided before what has changed in tables.
    pub fn void(&self, outdated: &mut Outdated, changes: &Changes) {
        if let Some(steering) = self.steering() {
            let state = lock(steering).state();
            outdated.void(changes, &state);
        }
    }

    /// Lets the kernel forward everything, and leaves the steering programs on their devices for a
    /// successor.
    pub fn leave(&self) {
        if let Some(steering) = self.steering() {
            lock(steering).leave();
        }
    }

    /// Brings the steering programs and what they look up to what a model says that has as many
    /// ports; to be called while they are on hold, unless it differs by what is left to the kernel
    /// only.
    ///
    /// # Errors
    /// The system refused.
    pub fn follow(&self, model: &Model) -> Result<(), SteerError> {
        let Some(steering) = self.steering() else { return Ok(()) };
        let mut steering = lock(steering);
        for (index, shared) in self.plans.iter().enumerate() {
            // By now the model has adopted the devices' addresses.
            let mac = model.links.get(index).map(|link| link.mac);
            let links = links(model, PortIndex(index));
            *lock(shared) = Plan { links: links.clone(), mac };
            let Some(port) = steering.port(port_id(index)).cloned() else { continue };
            let mac = mac.unwrap_or(port.mac);
            let is_moved = mac != port.mac;
            if !is_moved && links == port.links {
                continue;
            }
            match steering.set_port(SteerPort { mac, links, ..port }) {
                // Whoever looks after the port notices, and attaches what comes back by the plan.
                Err(SteerError::NoDevice { .. }) => continue,
                entered => entered?,
            }
            if is_moved {
                steering.attach_again(port_id(index))?;
            }
        }
        steering.set_locals(&locals(model))
    }

    /// The steering itself.
    #[must_use]
    pub fn steering(&self) -> Option<&Arc<Mutex<Steering>>> {
        self.steering.as_ref().and_then(|steering| steering.as_ref().ok())
    }

    /// What the program counts.
    #[must_use]
    pub fn counts(&self) -> Option<CountMap> {
        self.steering().map(|steering| lock(steering).counts())
    }

    /// Lets the program give frames to those of the ports that have sockets; what it wants to hear
    /// of from then on.
    #[must_use]
    pub fn start(&self, devices: &Devices) -> Option<State> {
        let steering = self.steering().filter(|_| devices.iter().any(|d| d.has_kernel()))?;
        let state = lock(steering).state();
        state.beat();
        state.set_bypass(false);
        Some(state)
    }

    /// Whether some port has the express lane, or may have it when it is attached.
    fn may_have_lane(&self, model: &Model) -> bool {
        let Some(steering) = self.steering() else { return false };
        let steering = lock(steering);
        (0..model.ports.len()).map(|port| PortId(port as u16)).any(|port| {
            let is_detached = steering.port(port).is_none() && model.express != ExpressMode::Off;
            self.lane.ports.is_entrance(port) || is_detached
        })
    }

    /// The express lane, where some port has it; and whoever watches where it can send, until
    /// dropped.
    ///
    /// # Errors
    /// The steering program's counts can not be read, or the kernel can not be asked.
    pub fn lane(&self, model: &Model) -> io::Result<Option<(Box<dyn Express>, Watch)>> {
        let ports = model.ports.len();
        let Some(steering) = self.steering().filter(|_| self.may_have_lane(model)) else {
            return Ok(None);
        };
        let (state, flows, counts) = {
            let steering = lock(steering);
            (steering.state(), steering.flows(), steering.counts())
        };
        if let Some(refusals) = lock(steering).refusals() {
            self.lane.ports.set_refusals(refusals);
        }
        let most_flows = model.express_flows as usize;
        let lane = Lane::new((state, flows), Arc::clone(&self.lane.ports), most_flows).in_order();
        let watched = (0..ports).map(|port| PortId(port as u16)).collect();
        let steering = Arc::clone(steering);
        // The device that an AF_XDP port has, whatever either is called by now.
        let device_of = move |port| lock(&steering).port(port).map(|port| port.ifindex);
        let watch = Watch::start(watched, device_of, Arc::clone(&self.lane.ports))?;
        Ok(Some((Box::new(Counted::new(lane, counts, ports)?), watch)))
    }
}

/// Whether a model has rules that its kernel does not know, and what happens while they cannot be asked.
#[must_use]
pub fn ruled(model: &Model) -> Ruled {
    // What the kernel has rules for as well, it is asked for by itself.
    match model.fail {
        _ if model.filter.is_none() || model.kernel_rules.is_some() => Ruled::Not,
        FailMode::Closed => Ruled::FailClosed,
        FailMode::Open => Ruled::FailOpen,
    }
}

/// What the program of a port is to know.
fn plan(model: &Model, port: PortIndex) -> Plan {
    let mac = model.links.get(port.0).filter(|link| link.mac_given).map(|link| link.mac);
    Plan { links: links(model, port), mac }
}

fn port_id(index: usize) -> PortId {
    PortId(u16::try_from(index).unwrap_or(u16::MAX))
}

/// The router's own addresses, and those for broadcasts on its links.
fn locals(model: &Model) -> Vec<IpAddr> {
    let addresses = model.links.iter().flat_map(|link| &link.addresses);
    let both = addresses.flat_map(|address| {
        let broadcast = match address {
            IpNet::V4(net) if net.prefix_len() < 31 => Some(IpAddr::V4(net.broadcast())),
            _ => None,
        };
        std::iter::once(address.addr()).chain(broadcast)
    });
    both.chain(model.own.iter().copied()).collect()
}

/// A port's links by their outermost tag: its own, and the VLAN links on that.
fn links(model: &Model, port: PortIndex) -> Vec<SteerLink> {
    let known = model.links.iter().enumerate().filter_map(|(index, link)| {
        let tag = match link.kind {
            LinkKind::Port(own) => (own == port).then_some(None)?,
            LinkKind::Vlan { parent, vid, protocol } => {
                let on_port = parent == LinkIndex(port.0);
                on_port.then(|| Vid::new(vid).map(|vid| (protocol, vid))).flatten().map(Some)?
            }
        };
        Some(SteerLink { tag, link: LinkId(u16::try_from(index).ok()?), left: link.left })
    });
    known.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::VlanProtocol::{Dot1ad, Dot1q};

    const TEXT: &str = r#"
        [ports.p]
        kind = "af_xdp"
        addresses = ["10.0.0.1/24", "10.9.0.1/31", "fd00::1/64"]
        [ports.q]
        kind = "memory"
        addresses = ["10.1.0.1/30"]
        [vlans.a]
        parent = "p"
        vid = 5
        [vlans.b]
        parent = "p"
        vid = 5
        protocol = "802.1ad"
        [vlans.c]
        parent = "b"
        vid = 7
        [vlans.d]
        parent = "q"
        vid = 9
    "#;

    #[test]
    fn links_are_known_by_their_outermost_tag() {
        let model = crate::config::parse(TEXT, "t.toml").unwrap().model;
        let tags: Vec<_> = links(&model, PortIndex(0)).iter().map(|link| link.tag).collect();
        let vid = Vid::new(5).unwrap();
        assert_eq!(tags, [None, Some((Dot1q, vid)), Some((Dot1ad, vid))]);
        let tags = links(&model, PortIndex(1));
        assert_eq!(tags.len(), 2);
        let index = model.links.iter().position(|link| link.name == "d").unwrap();
        assert_eq!(tags[1].link, LinkId(index as u16));
    }

    #[test]
    fn own_addresses_come_with_their_broadcasts() {
        let model = crate::config::parse(TEXT, "t.toml").unwrap().model;
        let locals: Vec<String> = locals(&model).iter().map(ToString::to_string).collect();
        let expected = ["10.0.0.1", "10.0.0.255", "10.9.0.1", "fd00::1", "10.1.0.1", "10.1.0.3"];
        assert_eq!(locals, expected);
    }
}
