//! The dispatcher: keeps the XDP programs of a model's ports up to date.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use ipnet::IpNet;
use tollway_dataplane::changes::Voided;
use tollway_dataplane::id::{LinkId, PortId, Vid};
use tollway_dataplane::memory::Memory;
use tollway_dataplane::router::Router;
use tollway_dataplane::tables::Tables;
use tollway_dataplane::xdp_path::XdpPath;

use super::Devices;
use super::af_xdp::{LoadedPort, OwnedProgram, Plan, Refusal, XdpPathOfPort};
use super::redirect::Watch;
use super::table_memory::TableMemory;
use tollway_linux::sync::lock;
use tollway_model::compile::CompileError;
use tollway_model::{
    Engine, FailMode, Link, LinkIndex, LinkKind, Model, PortIndex, PortKind, XdpPathMode,
};
use tollway_xdp::xdp_path::{Counted, Outdated, Ports, XdpFlows};
use tollway_xdp::{
    CountMap, Options, Preparation, Ruled, SharedTables, State, XdpError, XdpLink, XdpPort,
    XdpPrograms,
};

/// Logged at the begin of a bypass, if the kernel does not have the rules.
const CHANGE_BEGINS: &str =
    "the configuration changes; until the change is active, packets to be forwarded are dropped";
/// Logged at the end of such a bypass.
const CHANGE_ENDS: &str = "the change is active; the rules filter packets to be forwarded again";

/// The parts of the XDP path, one for each worker.
pub type XdpPathParts = Vec<Box<dyn XdpPath>>;

/// The XDP programs of a model's AF_XDP ports, if it has such ports, or the reason why there are
/// none.
pub struct Dispatcher {
    programs: Option<Result<Arc<Mutex<XdpPrograms>>, Refusal>>,
    /// The state of the ports for the XDP path.
    ports: Arc<Ports>,
    /// Whether each port is to have the XDP path.
    wanted: Vec<XdpPathMode>,
    /// Which of the XDP path's entries are void, for all who void them.
    voided: Arc<Voided>,
    plans: Vec<Arc<Mutex<Plan>>>,
    table_memory: TableMemory,
}

impl Dispatcher {
    /// Creates the maps; ports are entered when they are opened.
    #[must_use]
    pub fn load(model: &Model) -> Self {
        let wanted = model.ports.iter().any(|port| matches!(port.kind, PortKind::AfXdp { .. }));
        let programs = wanted.then(|| {
            // Without the XDP path, its maps exist but hold nothing.
            let flows = if has_xdp_path(model) { model.xdp_flows } else { 1 };
            let options = Options {
                flows4: flows,
                flows6: flows,
                connections4: flows,
                connections6: flows.div_ceil(2),
                ..Options::default()
            };
            let made = XdpPrograms::load(&[], &options).and_then(|mut programs| {
                // This comes before any program is attached: the first packet may arrive before the
                // first turn.
                programs.state().set_ruled(ruled(model));
                programs.set_locals_with(&locals(model), &translated(model)).map(|()| programs)
            });
            made.map(|programs| Arc::new(Mutex::new(programs)))
                .map_err(|error: XdpError| Refusal::from(&error))
        });
        let state = programs.as_ref().and_then(|programs| programs.as_ref().ok());
        let state = state.map(|programs| lock(programs).state());
        let table_memory = TableMemory::of(state.is_some());
        let ports = Ports::with_programs(model.ports.len(), state);
        let of_ports = || (0..model.ports.len()).map(PortIndex);
        let plans = of_ports().map(|port| Arc::new(Mutex::new(plan(model, port)))).collect();
        let wanted = of_ports().map(|port| model.xdp_path_of(port)).collect();
        // With a file, the kernel may have other routes.
        if model.kernel_rules.is_some() {
            let of_tc: Vec<_> = of_ports().filter(|port| has_tc(model, *port)).collect();
            of_tc.iter().for_each(|port| ports.leave_to_kernel(port_id(port.0)));
            if let Some(Ok(programs)) = &programs
                && !of_tc.is_empty()
            {
                lock(programs).expect_tc_exits();
            }
        }
        Self { programs, ports, wanted, voided: Arc::default(), plans, table_memory }
    }

    /// Makes the tables of a model in memory that the XDP programs can read, if some port has the XDP path or may get it, or else in the
    /// process's own. `make` may be called again if the tables had no room.
    ///
    /// # Errors
    /// That of `make`.
    pub fn make_tables<T>(
        &self,
        model: &Model,
        make: impl FnMut(&Memory) -> Result<T, CompileError>,
    ) -> Result<T, CompileError> {
        let has_bridges = !model.bridge_ports.is_empty();
        self.table_memory.make(self.may_have_xdp_path(), has_bridges, make)
    }

    /// Gives the tables that are made from now on more room: the last ones were too small. False if there is no more.
    pub fn grow_tables(&self) -> bool {
        self.table_memory.grow()
    }

    /// Lets the XDP programs decide by tables, as soon as these are those of the workers.
    pub fn use_tables(&self, tables: &Tables) {
        self.use_shared(SharedTables::of(tables));
    }

    /// Lets the XDP programs decide by the tables that a router has now.
    pub fn use_active_tables(&self, router: &Router) {
        let tables = SharedTables::of(&router.lock().tables);
        self.use_shared(tables);
    }

    fn use_shared(&self, tables: Option<SharedTables>) {
        let Some(programs) = self.programs() else { return };
        let mut renewal = lock(programs).renewal(tables);
        // Without the lock: a worker may need it meanwhile.
        let loaded = renewal.load();
        let renewed = lock(programs).renew(renewal);
        if let Err(error) = loaded.and(renewed) {
            tracing::warn!(
                "XDP programs cannot read the tables, so the user path decides about each of their flows: {error}"
            );
        }
    }

    /// The program of a port.
    ///
    /// # Errors
    /// Why there is none.
    pub fn program(&self, port: PortIndex) -> Result<Box<dyn OwnedProgram>, Refusal> {
        let programs = match &self.programs {
            Some(Ok(programs)) => programs,
            Some(Err(refusal)) => return Err(refusal.clone()),
            None => return Err(Refusal::default()),
        };
        let plan = self.plans.get(port.0).ok_or_else(Refusal::default)?;
        let wanted = *self.wanted.get(port.0).ok_or_else(Refusal::default)?;
        let xdp_path = XdpPathOfPort { wanted, ports: Arc::clone(&self.ports) };
        Ok(Box::new(LoadedPort::new(programs, port_id(port.0), plan, xdp_path)))
    }

    /// Sets whether rules filter every forwarded packet, and what happens while they cannot be
    /// evaluated.
    pub fn set_ruled(&self, ruled: Ruled) {
        if let Some(programs) = self.programs() {
            lock(programs).state().set_ruled(ruled);
        }
    }

    /// Makes the kernel forward everything while the configuration changes.
    pub fn bypass(&self, bypass: bool) {
        if let Some(programs) = self.programs() {
            let state = lock(programs).state();
            if !bypass {
                // Flows that the path has entered meanwhile may come from the old tables.
                state.bump_generation();
            }
            state.set_hold(bypass);
            if state.ruled() == Ruled::FailClosed {
                tracing::info!("{}", if bypass { CHANGE_BEGINS } else { CHANGE_ENDS });
            }
        }
    }

    /// Voids the XDP path's entries for another thread than the workers.
    #[must_use]
    pub fn outdated(&self) -> Outdated {
        Outdated::new(Arc::clone(&self.voided))
    }

    /// Makes the kernel forward everything, and keeps the XDP programs on their devices for a
    /// successor.
    pub fn hand_over(&self) {
        if let Some(programs) = self.programs() {
            lock(programs).keep_attached();
        }
    }

    /// Updates the XDP programs and their maps to a model with the same number of ports. Call it
    /// during a bypass, unless the models differ only in what takes the kernel path.
    ///
    /// # Errors
    /// The system refused.
    pub fn follow(&self, model: &Model) -> Result<(), XdpError> {
        let Some(shared_programs) = self.programs() else { return Ok(()) };
        for (index, shared) in self.plans.iter().enumerate() {
            let mut programs = lock(shared_programs);
            // By now the model has adopted the devices' addresses.
            let mac = model.links.get(index).map(|link| link.mac);
            let links = links(model, PortIndex(index));
            let is_bridge_port = model.bridge_ports.contains_key(&PortIndex(index));
            *lock(shared) = Plan { links: links.clone(), mac, is_bridge_port };
            let Some(port) = programs.port(port_id(index)).cloned() else { continue };
            let mac = mac.unwrap_or(port.mac);
            // By these, another program is on the device.
            let is_moved = mac != port.mac || is_bridge_port != port.is_bridge_port;
            if !is_moved && links == port.links {
                continue;
            }
            match programs.set_port(XdpPort { mac, links, is_bridge_port, ..port }) {
                // The port itself notices this, and attaches by the plan when the device comes
                // back.
                Err(XdpError::NoDevice { .. }) => continue,
                entered => entered?,
            }
            drop(programs);
            let attached =
                if is_moved { attach_again(shared_programs, port_id(index)) } else { Ok(()) };
            // The port itself notices that its program is gone, too.
            if lock(shared_programs).is_attached(port_id(index)) {
                attached?;
            }
        }
        lock(shared_programs).set_locals_with(&locals(model), &translated(model))
    }

    /// Gives the workers what comes for the own addresses that the rules of some of these models translate. The models
    /// differ in nothing else that the programs know.
    ///
    /// # Errors
    /// The system refused.
    pub fn follow_rules(&self, models: [&Model; 2]) -> Result<(), XdpError> {
        let Some(programs) = self.programs() else { return Ok(()) };
        let translated: Vec<_> = models.into_iter().flat_map(translated).collect();
        lock(programs).set_locals_with(&locals(models[0]), &translated)
    }

    /// The XDP programs, if there are any.
    #[must_use]
    pub fn programs(&self) -> Option<&Arc<Mutex<XdpPrograms>>> {
        self.programs.as_ref().and_then(|programs| programs.as_ref().ok())
    }

    /// The XDP programs' counters.
    #[must_use]
    pub fn counts(&self) -> Option<CountMap> {
        self.programs().map(|programs| lock(programs).counts())
    }

    /// Lets the XDP programs send frames to ports with sockets, which so many workers serve; returns the state that
    /// expects their heartbeats from then on.
    #[must_use]
    pub fn start(&self, devices: &Devices, workers: usize) -> Option<State> {
        let programs = self.programs().filter(|_| devices.iter().any(|d| d.has_kernel()))?;
        let state = lock(programs).state();
        state.set_workers(workers);
        (0..workers).for_each(|worker| state.beat(worker));
        state.set_bypass(false);
        Some(state)
    }

    /// Whether some port has the XDP path, or may have it when it is attached.
    fn may_have_xdp_path(&self) -> bool {
        let Some(programs) = self.programs() else { return false };
        let programs = lock(programs);
        self.wanted.iter().enumerate().any(|(port, wanted)| {
            let port = port_id(port);
            let is_detached = programs.port(port).is_none() && *wanted != XdpPathMode::Off;
            self.ports.is_entrance(port) || is_detached
        })
    }

    /// The XDP path, if some port has it, a part for each of so many workers, and the watch over the devices that
    /// it sends to, until dropped. The first part also counts the packets of all.
    ///
    /// # Errors
    /// The XDP program's counters cannot be read, or the kernel cannot be queried.
    pub fn xdp_path(
        &self,
        model: &Model,
        workers: usize,
    ) -> io::Result<Option<(XdpPathParts, Watch)>> {
        let ports = model.ports.len();
        let Some(programs) = self.programs().filter(|_| self.may_have_xdp_path()) else {
            return Ok(None);
        };
        let (state, flows, counts) = {
            let programs = lock(programs);
            (programs.state(), programs.flows(), programs.counts())
        };
        if let Some(refusals) = lock(programs).refusals() {
            self.ports.set_refusals(refusals);
        }
        let (shared, most_flows) = (&self.ports, model.xdp_flows as usize);
        let parts =
            XdpFlows::of_workers(workers, &(state, flows), shared, most_flows, &self.voided);
        let parts = parts.into_iter().map(XdpFlows::in_order).enumerate().map(
            |(worker, part)| -> io::Result<Box<dyn XdpPath>> {
                Ok(match worker {
                    0 => Box::new(Counted::new(part, counts.clone(), ports)?),
                    _ => Box::new(part),
                })
            },
        );
        let parts = parts.collect::<io::Result<_>>()?;
        let watched = (0..ports).map(|port| PortId(port as u16)).collect();
        let programs = Arc::clone(programs);
        // The device of an AF_XDP port, even after a rename.
        let device_of = move |port| lock(&programs).port(port).map(|port| port.ifindex);
        let ports = (Arc::clone(&self.ports), sends_by_xdp(model));
        let watch = Watch::start(watched, device_of, ports)?;
        Ok(Some((parts, watch)))
    }
}

/// Attaches a port's program again, after a change of the port. It is loaded without the lock: a worker may need that
/// meanwhile.
fn attach_again(programs: &Mutex<XdpPrograms>, port: PortId) -> Result<(), XdpError> {
    let preparation = lock(programs).preparation_again(port);
    let prepared = preparation.map(Preparation::load);
    lock(programs).with_prepared(prepared, |programs| programs.attach_again(port))
}

/// Whether a model has rules that its kernel does not know, and what happens while they cannot be
/// evaluated.
#[must_use]
pub fn ruled(model: &Model) -> Ruled {
    // If the kernel has the rules as well, it evaluates them by itself.
    match model.fail {
        _ if model.filter.is_none() || model.kernel_rules.is_some() => Ruled::Not,
        FailMode::Closed => Ruled::FailClosed,
        FailMode::Open => Ruled::FailOpen,
    }
}

/// Whether some port is to have the XDP path.
fn has_xdp_path(model: &Model) -> bool {
    (0..model.ports.len()).any(|port| model.xdp_path_of(PortIndex(port)) != XdpPathMode::Off)
}

/// Whether some port is to have the XDP path, by an XDP program.
fn sends_by_xdp(model: &Model) -> bool {
    (0..model.ports.len())
        .map(PortIndex)
        .any(|port| model.xdp_path_of(port) != XdpPathMode::Off && !has_tc(model, port))
}

/// Whether a port has a tc program.
fn has_tc(model: &Model, port: PortIndex) -> bool {
    let kind = model.ports.get(port.0).map(|port| &port.kind);
    matches!(kind, Some(PortKind::AfXdp { engine: Engine::Tc, .. }))
}

/// The plan for a port's program.
fn plan(model: &Model, port: PortIndex) -> Plan {
    let mac = model.links.get(port.0).filter(|link| link.mac_given).map(|link| link.mac);
    Plan { links: links(model, port), mac, is_bridge_port: model.bridge_ports.contains_key(&port) }
}

fn port_id(index: usize) -> PortId {
    PortId(u16::try_from(index).unwrap_or(u16::MAX))
}

/// The router's own addresses, and the broadcast addresses of its links.
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

/// The router's own addresses for which rules that the kernel does not know translate what comes.
fn translated(model: &Model) -> Vec<IpAddr> {
    let rules = model.filter.as_ref().filter(|_| ruled(model) != Ruled::Not);
    let [v4, v6] = rules.map_or([false; 2], |rules| rules.translates());
    let addresses = model.links.iter().flat_map(|link| &link.addresses).map(IpNet::addr);
    addresses.filter(|address| if address.is_ipv4() { v4 } else { v6 }).collect()
}

/// A port's links: its own, the VLAN links on it, and those on top of them. A port of a bridge has the links of the bridge.
fn links(model: &Model, port: PortIndex) -> Vec<XdpLink> {
    let bottom = model.bridge_ports.get(&port).and_then(|member| {
        let is_bridge = |link: &Link| link.kind == LinkKind::Bridge { device: member.bridge };
        model.links.iter().position(is_bridge)
    });
    let bottom = LinkIndex(bottom.unwrap_or(port.0));
    let known = model.links.iter().enumerate().filter_map(|(index, link)| {
        let (tag, outer) = match link.kind {
            LinkKind::Port(_) | LinkKind::Bridge { .. } => {
                (index == bottom.0).then_some((None, None))?
            }
            LinkKind::Vlan { parent, vid, protocol } => {
                let tag = Some((protocol, Vid::new(vid)?));
                match model.links.get(parent.0)?.kind {
                    _ if parent == bottom => (tag, None),
                    LinkKind::Vlan { parent: under, vid, protocol } if under == bottom => {
                        (tag, Some((protocol, Vid::new(vid)?)))
                    }
                    _ => return None,
                }
            }
        };
        let link_id = LinkId(u16::try_from(index).ok()?);
        Some(XdpLink { tag, outer, link: link_id, kernel_path: link.kernel_path })
    });
    known.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollway_net::VlanProtocol::{Dot1ad, Dot1q};

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
    fn links_are_known_by_their_tags() {
        let model = tollway_model::config::parse(TEXT, "t.toml").unwrap().model;
        let links_of_p = links(&model, PortIndex(0));
        let tags: Vec<_> = links_of_p.iter().map(|link| (link.tag, link.outer)).collect();
        let [five, seven] = [5, 7].map(|vid| Vid::new(vid).unwrap());
        let inner = (Some((Dot1q, seven)), Some((Dot1ad, five)));
        let on_port = [None, Some((Dot1q, five)), Some((Dot1ad, five))].map(|tag| (tag, None));
        assert_eq!(tags, [&on_port[..], &[inner]].concat());
        let tags = links(&model, PortIndex(1));
        assert_eq!(tags.len(), 2);
        let index = model.links.iter().position(|link| link.name == "d").unwrap();
        assert_eq!(tags[1].link, LinkId(index as u16));
    }

    #[test]
    fn own_addresses_come_with_their_broadcasts() {
        let model = tollway_model::config::parse(TEXT, "t.toml").unwrap().model;
        let locals: Vec<String> = locals(&model).iter().map(ToString::to_string).collect();
        let expected = ["10.0.0.1", "10.0.0.255", "10.9.0.1", "fd00::1", "10.1.0.1", "10.1.0.3"];
        assert_eq!(locals, expected);
    }
}
