//! The setups of hosts and routers, each made when something first needs it.
//!
//! They all stay until the end: the kernel takes seconds to remove a router with a million routes, and would do so
//! while other rows are measured.

use std::cell::OnceCell;

use super::controller::router::Router;
use super::controller::table::Table;
use super::topology::Topology;
use crate::fib::Internet;

/// Two setups that differ in who forwards.
pub(super) struct Topologies {
    /// The kernel forwards.
    pub(super) kernel: Topology,
    /// Tollway forwards.
    pub(super) tollway: Topology,
}

/// Two routers with a full Internet table of both families.
pub(super) struct FullTables {
    /// The kernel forwards.
    pub(super) kernel: Router,
    /// Tollway forwards.
    pub(super) tollway: Router,
    /// The table.
    pub(super) internet: Internet,
}

/// All setups.
#[derive(Default)]
pub(super) struct Setups {
    tuned: OnceCell<Topologies>,
    plain: OnceCell<Topologies>,
    full_table: OnceCell<FullTables>,
}

impl Setups {
    /// Devices whose settings suit frames from the generator.
    pub(super) fn tuned(&self) -> Result<&Topologies, String> {
        made(&self.tuned, || Ok(Topologies { kernel: Topology::new()?, tollway: Topology::new()? }))
    }

    /// Devices as the kernel makes them.
    pub(super) fn plain(&self) -> Result<&Topologies, String> {
        let plain = Topology::with_default_devices;
        made(&self.plain, || Ok(Topologies { kernel: plain()?, tollway: plain()? }))
    }

    /// Routers with a full table.
    pub(super) fn full_table(&self) -> Result<&FullTables, String> {
        made(&self.full_table, || {
            let internet = Internet::at_hand()?;
            let table = Table::new(&internet, usize::MAX);
            let ended = |_| "a thread that fills a kernel has panicked".to_owned();
            // It takes seconds, most of them in the kernel.
            let (kernel, tollway) = std::thread::scope(|scope| {
                let other = scope.spawn(|| Router::new(&table));
                let kernel = Router::new(&table);
                other.join().map_err(ended).map(|tollway| (kernel, tollway))
            })?;
            Ok(FullTables { kernel: kernel?, tollway: tollway?, internet })
        })
    }
}

/// What is in a cell, made if it is empty.
fn made<T>(cell: &OnceCell<T>, make: impl FnOnce() -> Result<T, String>) -> Result<&T, String> {
    if cell.get().is_none() {
        let _ = cell.set(make()?);
    }
    cell.get().ok_or_else(|| "a setup is missing".to_owned())
}
