//! Model in, tables and host out: everything that can be decided once is decided here.
//!
//! Routes compete as in the kernel: the router's own addresses (the local table) beat everything,
//! then the lowest metric wins, where connected routes have metric 0 (IPv4) or 256 (IPv6); between
//! equals a connected route wins, then whatever stands first in the model. Prefixes that are never
//! forwarded (loopback, multicast, link-local) keep the standing routes that every VRF has.

mod routes;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;

use tollway_dataplane::epoch::Epochs;
use tollway_dataplane::host::Host;
use tollway_dataplane::id::{LinkId, NextHopId, Vid, VrfId};
use tollway_dataplane::stages::filter::Filter;
use tollway_dataplane::stages::route::FibError;
use tollway_dataplane::tables::{Tables, TablesError};

use crate::filter::eval;
use crate::filter::flatten::{FlattenError, flatten};
use crate::filter::hops::{self, HopError};
use crate::model::{Link, LinkIndex, LinkKind, Model, VlanProtocol, VrfIndex};
use routes::Compiler;
pub(crate) use routes::is_never_forwarded;

/// A model that can not be turned into tables: the object concerned, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{object} {}", problem(.error))]
pub struct CompileError {
    /// What it is about: a port, a link, a route.
    pub object: String,
    /// What does not fit.
    pub error: Problem,
}

/// What does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// The tables.
    Tables(TablesError),
    /// The firewall.
    Filter(FlattenError),
    /// Where a rule of the firewall sends packets.
    Hop(HopError),
    /// Packets that the firewall leaves to a kernel that knows its rules: there is none.
    Tagged,
}

impl CompileError {
    /// Whether it is the firewall's rules that do not fit.
    #[must_use]
    pub const fn is_of_rules(&self) -> bool {
        matches!(self.error, Problem::Filter(_) | Problem::Hop(_) | Problem::Tagged)
    }

    /// What a user can do about it.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        let error = match &self.error {
            Problem::Tables(error) => error,
            Problem::Filter(_) => return "Write fewer rules, or the same in other ones",
            Problem::Hop(error) => return error.remedy,
            Problem::Tagged => {
                return "Hang chains at hooks ingress and egress on the innermost VLAN links only";
            }
        };
        match error {
            TablesError::Unknown => "Name an object that the configuration has",
            TablesError::Full | TablesError::Fib(_) => "Configure fewer of them",
            TablesError::TooManyTags => "Stack at most two VLAN links",
            TablesError::GroupSize => "Give it 1 to 256 next hops",
            TablesError::Loop => "Let no VRF fall back to one that falls back to it",
        }
    }
}

fn problem(error: &Problem) -> String {
    let error = match error {
        Problem::Tables(error) => error,
        Problem::Filter(error) => return format!("do not fit: {error}"),
        Problem::Hop(error) => return format!("can not be in force: {}", error.what),
        Problem::Tagged => {
            return "would see packets of VLAN links above theirs at hook ingress or egress, which can \
                    not be done exactly"
                .to_owned();
        }
    };
    let told = match error {
        TablesError::Unknown => "refers to something that is not there",
        TablesError::Full => "is one more than there are numbers for",
        TablesError::TooManyTags => "has too many VLAN tags",
        TablesError::GroupSize => "has no next hop or too many",
        TablesError::Loop => "would fall back to itself",
        TablesError::Fib(FibError::Full) => "is one more than the routing table can hold",
        TablesError::Fib(FibError::NextHopRange) => "has a next hop beyond the last number",
    };
    told.to_owned()
}

/// What the router is built of.
pub struct Compiled {
    /// What the path reads; ports and links have the positions that they have in the model.
    pub tables: Tables,
    /// The router's own addresses.
    pub host: Host,
}

/// Turns a model into tables.
///
/// # Errors
/// The first object that does not fit.
pub fn compile(model: &Model) -> Result<Compiled, CompileError> {
    let mut tables = Tables::new();
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
    for link in &model.links {
        add_vlan(&mut tables, link).map_err(at(|| format!("the link {}", link.name)))?;
    }
    for (index, link) in model.links.iter().enumerate() {
        let id = link_id(LinkIndex(index)).map_err(at(|| format!("the link {}", link.name)))?;
        for address in &link.addresses {
            host.add_address(id, address.addr(), address.prefix_len());
        }
    }
    for neigh in &model.neighs {
        let link =
            link_id(neigh.link).map_err(at(|| format!("the neighbour {}", neigh.address)))?;
        host.add_static(link, neigh.address);
    }
    Compiler::new(model, &mut tables).run()?;
    tables.filter = filter(model, &mut tables)?;
    Ok(Compiled { tables, host })
}

/// The firewall's rules, for the links by the names that the model has for them.
fn filter(model: &Model, tables: &mut Tables) -> Result<Option<Arc<Filter>>, CompileError> {
    let hops = rule_hops(model, tables)?;
    rules(model, hops, &tables.epochs)
}

/// The next hops that a model's rules name, in tables that they are to be in force with.
///
/// # Errors
/// The first that there is no way to.
pub fn rule_hops(model: &Model, tables: &mut Tables) -> Result<Vec<NextHopId>, CompileError> {
    let Some(rules) = &model.filter else { return Ok(Vec::new()) };
    hops::resolve(rules, tables, &rule_links(model)).map_err(|error| CompileError {
        object: format!("the firewall's rule at {}", error.place),
        error: Problem::Hop(error),
    })
}

/// A model's rules as tables have them, `epochs` being those of the tables and `hops` from
/// [`rule_hops`]; none where the model has none.
///
/// # Errors
/// They do not fit.
pub fn rules(
    model: &Model,
    hops: Vec<NextHopId>,
    epochs: &Arc<Epochs>,
) -> Result<Option<Arc<Filter>>, CompileError> {
    let Some(rules) = &model.filter else { return Ok(None) };
    let compiled = flatten(rules, &rule_links(model), epochs).map_err(|error| CompileError {
        object: "the rules of the firewall".to_owned(),
        error: Problem::Filter(error),
    })?;
    // Where no kernel has the rules, each that wants one has been refused; what is left are tagged links.
    if model.kernel_rules.is_none() && compiled.leaves_to_kernel() {
        let object = "the rules of the firewall".to_owned();
        return Err(CompileError { object, error: Problem::Tagged });
    }
    Ok(Some(Arc::new(compiled.with_hops(hops))))
}

/// The links of a model as rules know them, by number.
#[must_use]
pub fn rule_links(model: &Model) -> Vec<eval::Link> {
    let vrf_devices = model.kernel_rules.as_ref().map(|kernel| &kernel.vrf_devices[..]);
    let vrf_device = |index: usize| vrf_devices?.get(index)?.clone();
    let link = |(index, link): (usize, &Link)| eval::Link {
        name: link.name.clone(),
        vrf: model.vrfs.get(link.vrf.0).map(|vrf| vrf.name.clone()).unwrap_or_default(),
        on: match link.kind {
            LinkKind::Vlan { parent, .. } => {
                model.links.get(parent.0).map(|parent| parent.name.clone())
            }
            LinkKind::Port(_) => None,
        },
        vrf_device: vrf_device(index),
    };
    model.links.iter().enumerate().map(link).collect()
}

/// Links follow each other in the tables as in the model, because each port has made its own.
fn add_vlan(tables: &mut Tables, link: &Link) -> Result<(), TablesError> {
    let LinkKind::Vlan { parent, vid, protocol } = link.kind else { return Ok(()) };
    let vid = Vid::new(vid).ok_or(TablesError::Unknown)?;
    let protocol = match protocol {
        VlanProtocol::Dot1q => 0x8100,
        VlanProtocol::Dot1ad => 0x88a8,
    };
    let vrf = vrf_id(link.vrf)?;
    tables.add_vlan(link_id(parent)?, protocol, vid, link.mac.0, vrf, link.mtu)?;
    Ok(())
}

fn vrf_id(vrf: VrfIndex) -> Result<VrfId, TablesError> {
    u16::try_from(vrf.0).map(VrfId).map_err(|_| TablesError::Unknown)
}

fn link_id(link: LinkIndex) -> Result<LinkId, TablesError> {
    u16::try_from(link.0).map(LinkId).map_err(|_| TablesError::Unknown)
}

/// Says what an error of the tables is about.
fn at(what: impl Fn() -> String) -> impl Fn(TablesError) -> CompileError {
    move |error| CompileError { object: what(), error: Problem::Tables(error) }
}
