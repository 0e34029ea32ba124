//! Compiles the model into tables and host. Every decision that can be made once is made here.
//!
//! Routes compete as in the kernel:
//!
//! - The router's own addresses (the local table) win over all routes.
//! - Then the lowest metric wins. Connected routes have metric 0 (IPv4) or 256 (IPv6).
//! - At equal metric a connected route wins, then the first one in the model.
//!
//! Prefixes that are never forwarded (loopback, multicast, link-local) keep the standing routes
//! that every VRF has.

mod bridges;
mod routes;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;

use tollway_dataplane::epoch::Epochs;
use tollway_dataplane::fib::FibError;
use tollway_dataplane::host::Host;
use tollway_dataplane::id::{BridgeId, LinkId, NextHopId, PortId, Vid, VrfId};
use tollway_dataplane::memory::Memory;
use tollway_dataplane::stages::filter::Filter;
use tollway_dataplane::tables::{Tables, TablesError};

use crate::{Link, LinkIndex, LinkKind, Model, PortKind, VrfIndex};
use routes::Compiler;
pub use routes::is_never_forwarded;
use tollway_firewall::hops::{self, HopError};
use tollway_firewall::links::Link as RuleLink;
use tollway_firewall::program::{self, ProgramError};

/// Why a model does not compile: the object concerned, and its problem.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{object} {}", problem(.error))]
pub struct CompileError {
    /// The object: a port, a link, a route.
    pub object: String,
    /// Its problem.
    pub error: Problem,
}

/// Why an object does not compile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// The tables refuse it.
    Tables(TablesError),
    /// The firewall's rules do not fit.
    Filter(ProgramError),
    /// The next hop of a rule is not usable.
    Hop(HopError),
    /// The rules leave packets to a kernel that has the same rules, but no such kernel exists.
    Tagged,
}

impl CompileError {
    /// Whether the firewall's rules are the problem.
    #[must_use]
    pub const fn is_of_rules(&self) -> bool {
        matches!(self.error, Problem::Filter(_) | Problem::Hop(_) | Problem::Tagged)
    }

    /// Whether the tables have no room for it: with more memory, it may compile.
    #[must_use]
    pub const fn is_for_room(&self) -> bool {
        matches!(self.error, Problem::Tables(TablesError::Full | TablesError::Fib(FibError::Full)))
    }

    /// What the user can do about it.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        let error = match &self.error {
            Problem::Tables(error) => error,
            Problem::Filter(_) => return "Write fewer rules, or the same in other ones",
            Problem::Hop(error) => return error.remedy,
            Problem::Tagged => {
                return "Attach chains at hooks ingress and egress to the innermost VLAN links only";
            }
        };
        match error {
            TablesError::Unknown => "Name an object that the configuration has",
            TablesError::Full | TablesError::Fib(_) => "Configure fewer of them",
            TablesError::TooManyTags => "Stack at most two VLAN links",
            TablesError::GroupSize => "Give it 1 to 256 next hops",
            TablesError::Loop => "Remove a fallback, so that no VRF falls back to itself",
        }
    }
}

fn problem(error: &Problem) -> String {
    let error = match error {
        Problem::Tables(error) => error,
        Problem::Filter(error) => return format!("do not fit: {error}"),
        Problem::Hop(error) => return format!("cannot be installed: {}", error.what),
        Problem::Tagged => {
            return "would see packets of VLAN links above theirs at hook ingress or egress, which can \
                    not be done exactly"
                .to_owned();
        }
    };
    let text = match error {
        TablesError::Unknown => "refers to an object that does not exist",
        TablesError::Full => "is one too many: all numbers of its kind are in use",
        TablesError::TooManyTags => "has too many VLAN tags",
        TablesError::GroupSize => "has no next hop or too many",
        TablesError::Loop => "would fall back to itself",
        TablesError::Fib(FibError::Full) => "does not fit: the routing table is full",
        TablesError::Fib(FibError::NextHopRange) => "needs more next hops than there are numbers",
    };
    text.to_owned()
}

/// The parts of a router.
pub struct Compiled {
    /// The tables that the path reads. Ports and links have the same positions as in the model.
    pub tables: Tables,
    /// The host, with the router's own addresses.
    pub host: Host,
}

/// Compiles a model into tables and host.
///
/// # Errors
/// The first object that does not compile.
pub fn compile(model: &Model) -> Result<Compiled, CompileError> {
    compile_in(&Memory::default(), model)
}

/// As [`compile`], with memory for the tables.
///
/// # Errors
/// As [`compile`].
pub fn compile_in(memory: &Memory, model: &Model) -> Result<Compiled, CompileError> {
    let mut tables = Tables::with_memory(memory);
    let mut host = Host::new();
    for vrf in &model.vrfs {
        tables.add_vrf().map_err(at(|| format!("the VRF {}", vrf.name)))?;
    }
    for (index, port) in model.ports.iter().enumerate() {
        let what = || format!("the port {}", port.name);
        let link = model.links.get(index).ok_or(TablesError::Unknown).map_err(at(what))?;
        let vrf = vrf_id(link.vrf).map_err(at(what))?;
        tables.add_port(link.mac.0, vrf, link.mtu).map_err(at(what))?;
    }
    bridges::set(model, &mut tables)?;
    for link in &model.links {
        add_upper(model, &mut tables, link).map_err(at(|| format!("the link {}", link.name)))?;
    }
    for (index, link) in model.links.iter().enumerate() {
        let id = link_id(LinkIndex(index)).map_err(at(|| format!("the link {}", link.name)))?;
        for address in &link.addresses {
            host.add_address(id, address.addr(), address.prefix_len());
        }
        if has_kernel(model, tables.link(id).port) {
            host.have_kernel_resolve(id);
        }
    }
    for neigh in &model.neighs {
        let link =
            link_id(neigh.link).map_err(at(|| format!("the neighbour {}", neigh.address)))?;
        host.add_static(link, neigh.address);
    }
    Compiler::new(model, &mut tables).run()?;
    tables.filter = filter(model, &mut tables)?;
    tables.fill_sets();
    Ok(Compiled { tables, host })
}

/// Compiles the firewall's rules, for the links by their names in the model.
fn filter(model: &Model, tables: &mut Tables) -> Result<Option<Arc<Filter>>, CompileError> {
    let hops = rule_hops(model, tables)?;
    rules(model, hops, &tables.epochs)
}

/// Resolves the next hops that the model's rules name, in the tables that will be active with them.
///
/// # Errors
/// The first next hop that cannot be reached.
pub fn rule_hops(model: &Model, tables: &mut Tables) -> Result<Vec<NextHopId>, CompileError> {
    let Some(rules) = &model.filter else { return Ok(Vec::new()) };
    hops::resolve(rules, tables, &rule_links(model)).map_err(|error| CompileError {
        object: format!("the firewall's rule at {}", error.place),
        error: Problem::Hop(error),
    })
}

/// Compiles the model's rules; none if it has none. `epochs` are those of the tables, `hops` come
/// from [`rule_hops`].
///
/// # Errors
/// The rules do not fit.
pub fn rules(
    model: &Model,
    hops: Vec<NextHopId>,
    epochs: &Arc<Epochs>,
) -> Result<Option<Arc<Filter>>, CompileError> {
    let Some(rules) = &model.filter else { return Ok(None) };
    let refused = |error| CompileError {
        object: "the rules of the firewall".to_owned(),
        error: Problem::Filter(error),
    };
    let links = rule_links(model);
    let mut compiled = program::compile(rules, &links, epochs).map_err(refused)?;
    if let Some(connections) = &model.connections {
        let connections = program::compile_for_flows(connections, &links, epochs);
        compiled.set_connections(connections.map_err(refused)?);
    }
    // Without a kernel that has the rules, earlier checks refused every rule that needs one. Only
    // chains on links with tagged traffic above them remain.
    if model.kernel_rules.is_none() && compiled.leaves_to_kernel() {
        let object = "the rules of the firewall".to_owned();
        return Err(CompileError { object, error: Problem::Tagged });
    }
    Ok(Some(Arc::new(compiled.with_hops(hops))))
}

/// Whether a port has a kernel behind it; each bridge has.
fn has_kernel(model: &Model, port: PortId) -> bool {
    if port.bridge().is_some() {
        return true;
    }
    let port = model.ports.get(usize::from(port.0));
    port.is_some_and(|port| matches!(port.kind, PortKind::AfXdp { .. }))
}

/// The links of a model in the form that rules need, by number.
#[must_use]
pub fn rule_links(model: &Model) -> Vec<RuleLink> {
    let vrf_devices = model.kernel_rules.as_ref().map(|kernel| &kernel.vrf_devices[..]);
    let vrf_device = |index: usize| vrf_devices?.get(index)?.clone();
    let link = |(index, link): (usize, &Link)| RuleLink {
        name: link.name.clone(),
        vrf: model.vrfs.get(link.vrf.0).map(|vrf| vrf.name.clone()).unwrap_or_default(),
        on: match link.kind {
            LinkKind::Vlan { parent, .. } => {
                model.links.get(parent.0).map(|parent| parent.name.clone())
            }
            LinkKind::Port(_) | LinkKind::Bridge { .. } => None,
        },
        vrf_device: vrf_device(index),
        // With a kernel that has the rules, it translates.
        addresses: match model.kernel_rules {
            Some(_) => Vec::new(),
            None => link.addresses.iter().map(|own| (own.addr(), own.prefix_len())).collect(),
        },
    };
    model.links.iter().enumerate().map(link).collect()
}

/// Adds a link of a bridge, or a VLAN link. Links have the same order in the tables as in the model, because each port has
/// already added its own link.
fn add_upper(model: &Model, tables: &mut Tables, link: &Link) -> Result<(), TablesError> {
    let (mac, vrf) = (link.mac.0, vrf_id(link.vrf)?);
    match link.kind {
        LinkKind::Port(_) => {}
        LinkKind::Bridge { device } => {
            let bridge = model.bridge_number(device).map(BridgeId).ok_or(TablesError::Unknown)?;
            tables.add_bridge(bridge, mac, vrf, link.mtu)?;
        }
        LinkKind::Vlan { parent, vid, protocol } => {
            let vid = Vid::new(vid).ok_or(TablesError::Unknown)?;
            tables.add_vlan(link_id(parent)?, protocol.ethertype(), vid, mac, vrf, link.mtu)?;
        }
    }
    Ok(())
}

fn vrf_id(vrf: VrfIndex) -> Result<VrfId, TablesError> {
    u16::try_from(vrf.0).map(VrfId).map_err(|_| TablesError::Unknown)
}

fn link_id(link: LinkIndex) -> Result<LinkId, TablesError> {
    u16::try_from(link.0).map(LinkId).map_err(|_| TablesError::Unknown)
}

/// Names the object that an error of the tables concerns.
fn at(what: impl Fn() -> String) -> impl Fn(TablesError) -> CompileError {
    move |error| CompileError { object: what(), error: Problem::Tables(error) }
}
