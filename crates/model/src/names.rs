//! The names of what the active tables hold by number.

use std::sync::{Arc, Mutex};

use crate::Model;
use tollway_firewall::ir::Ruleset;
use tollway_linux::sync::lock;

/// The names of ports, links and VRFs, and the text of the rules, which the tables do not hold.
/// Positions are those of the tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// The ports.
    pub ports: Vec<crate::Port>,
    /// The links.
    pub links: Vec<crate::Link>,
    /// The VRFs.
    pub vrfs: Vec<crate::Vrf>,
    /// The firewall's rules, if there are any.
    pub filter: Option<Arc<Ruleset>>,
}

impl From<&Model> for Names {
    fn from(model: &Model) -> Self {
        let Model { ports, links, vrfs, filter, .. } = model;
        Self {
            ports: ports.clone(),
            links: links.clone(),
            vrfs: vrfs.clone(),
            filter: filter.clone(),
        }
    }
}

/// The current [`Names`]. A job that installs other tables also sets their names here, so that no
/// reader sees one without the other.
#[derive(Clone, Debug, Default)]
pub struct NameTable(Arc<Mutex<Arc<Names>>>);

impl NameTable {
    /// Makes a table with these names.
    #[must_use]
    pub fn new(names: Names) -> Self {
        Self(Arc::new(Mutex::new(Arc::new(names))))
    }

    /// The current names.
    #[must_use]
    pub fn names(&self) -> Arc<Names> {
        Arc::clone(&lock(&self.0))
    }

    /// Replaces the names.
    pub fn set(&self, names: Names) {
        *lock(&self.0) = Arc::new(names);
    }
}
