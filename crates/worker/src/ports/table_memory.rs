//! Memory for tables that the XDP programs read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tollway_dataplane::memory::Memory;
use tollway_model::compile::CompileError;
use tollway_xdp::TableMaps;

/// How often the room is doubled at most; larger tables get memory of the process's own.
const MOST_DOUBLINGS: u32 = 5;

/// Where the tables of a model get their memory.
pub(super) struct TableMemory {
    /// Whether XDP programs can read tables.
    is_read: bool,
    /// How often the room was doubled.
    doublings: AtomicU32,
}

impl TableMemory {
    pub(super) const fn of(is_read: bool) -> Self {
        Self { is_read, doublings: AtomicU32::new(0) }
    }

    /// Makes tables, with more room if they had none.
    pub(super) fn make<T>(
        &self,
        mut make: impl FnMut(&Memory) -> Result<T, CompileError>,
    ) -> Result<T, CompileError> {
        loop {
            let memory = self.memory();
            match make(&memory) {
                Err(error) if error.is_for_room() && memory.lender::<TableMaps>().is_some() => {
                    self.grow();
                }
                made => return made,
            }
        }
    }

    /// Doubles the room of the tables that are made from now on.
    pub(super) fn grow(&self) {
        self.doublings.fetch_add(1, Ordering::Relaxed);
    }

    fn memory(&self) -> Memory {
        let doublings = self.doublings.load(Ordering::Relaxed);
        if !self.is_read || doublings > MOST_DOUBLINGS {
            return Memory::default();
        }
        match TableMaps::new(doublings) {
            Ok(maps) => Memory::lent(Arc::new(maps)),
            Err(error) => {
                tracing::warn!(
                    "the tables cannot lie in BPF maps, so the user path decides about each flow: {error}"
                );
                Memory::default()
            }
        }
    }
}
