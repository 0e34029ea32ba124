//! What programs that decide by tables need while they run.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, Weak};

use tollway_dataplane::epoch::Epochs;
use tollway_dataplane::tables::Tables;
use tollway_linux::sync::lock;

use super::grace::Grace;
use super::tables::TableMaps;

/// Tables that lie in maps, so that programs can decide by them.
pub struct SharedTables {
    maps: Arc<TableMaps>,
    epochs: Arc<Epochs>,
    /// Waits for the programs, while there are some.
    grace: Mutex<Weak<Grace>>,
}

impl SharedTables {
    /// Tables, if they lie in maps.
    #[must_use]
    pub fn of(tables: &Tables) -> Option<Self> {
        let maps = tables.memory().lender::<TableMaps>()?;
        Some(Self { maps, epochs: Arc::clone(&tables.epochs), grace: Mutex::default() })
    }

    /// Prepares for a program that decides by the tables. Until the last program has ended, memory that programs may
    /// read waits for them.
    ///
    /// # Errors
    /// The system cannot start the thread that waits.
    pub(super) fn read(&self) -> io::Result<Reading> {
        let mut started = lock(&self.grace);
        let grace = match started.upgrade() {
            Some(grace) => grace,
            None => Arc::new(Grace::start(&self.epochs)?),
        };
        *started = Arc::downgrade(&grace);
        Ok(Reading { maps: Arc::clone(&self.maps), _grace: grace, _tracked: None })
    }
}

/// What a program reads, and what waits for it: it is dropped when the program no longer runs on new packets.
#[derive(Clone)]
pub(super) struct Reading {
    maps: Arc<TableMaps>,
    _grace: Arc<Grace>,
    /// The map with the program that this one leaves packets to.
    _tracked: Option<Arc<OwnedFd>>,
}

impl Reading {
    /// What a program reads that leaves packets to the program in a map, if there is one.
    pub(super) fn with_tracked(self, tracked: Option<OwnedFd>) -> Self {
        Self { _tracked: tracked.map(Arc::new), ..self }
    }

    /// Whether another program reads the same tables.
    pub(super) fn is_of_the_tables_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.maps, &other.maps)
    }

    /// The tables.
    pub(super) fn tables(&self) -> &TableMaps {
        &self.maps
    }
}
