//! Whether readers find entries in a database, which several threads decide.

use std::sync::{Arc, Mutex};

use tollway_dataplane::stages::bridge::Fdb;
use tollway_linux::sync::lock;

/// The databases that are followed, and whether readers find entries there.
pub(super) struct Gate(Mutex<Gated>);

struct Gated {
    /// One, and while tables are swapped also the other one.
    fdbs: Vec<Arc<Fdb>>,
    access: Access,
    /// How often somebody has reported that the router was paused.
    reports: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Open,
    Paused,
}

impl Gate {
    /// Pauses a database.
    pub(super) fn new(fdb: Arc<Fdb>) -> Self {
        fdb.lock().pause();
        Self(Mutex::new(Gated { fdbs: vec![fdb], access: Access::Paused, reports: 0 }))
    }

    /// Has readers find nothing.
    pub(super) fn pause(&self) {
        lock(&self.0).pause();
    }

    /// The same after the router was paused; returns the number of this report.
    pub(super) fn report(&self) -> u64 {
        let mut gated = lock(&self.0);
        gated.pause();
        gated.reports += 1;
        gated.reports
    }

    /// Has readers find the entries, unless there was a report since the one with this number.
    pub(super) fn resume(&self, report: u64) {
        let mut gated = lock(&self.0);
        if gated.access == Access::Paused && gated.reports == report {
            gated.access = Access::Open;
            gated.fdbs.iter().for_each(|fdb| fdb.lock().resume());
        }
    }

    /// Includes another database.
    pub(super) fn add(&self, fdb: &Arc<Fdb>) {
        let mut gated = lock(&self.0);
        if gated.access == Access::Paused {
            fdb.lock().pause();
        }
        gated.fdbs.push(Arc::clone(fdb));
    }

    /// Includes no other database any more, and pauses those.
    pub(super) fn keep(&self, fdb: &Arc<Fdb>) {
        let mut gated = lock(&self.0);
        let before = std::mem::replace(&mut gated.fdbs, vec![Arc::clone(fdb)]);
        let others = before.iter().filter(|other| !Arc::ptr_eq(other, fdb));
        others.for_each(|other| other.lock().pause());
    }
}

impl Gated {
    fn pause(&mut self) {
        if self.access == Access::Open {
            self.access = Access::Paused;
            self.fdbs.iter().for_each(|fdb| fdb.lock().pause());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollway_dataplane::id::{Domain, PortId};
    use tollway_dataplane::memory::Memory;
    use tollway_dataplane::stages::bridge::{FdbEntry, FdbKey, FdbKind};
    use tollway_dataplane::wire::eth::MacWord;

    fn key() -> FdbKey {
        FdbKey::new(Domain::new(1).unwrap(), MacWord::new([2, 0, 0, 0, 0, 1]))
    }

    fn database() -> Arc<Fdb> {
        let fdb = Fdb::new(&Memory::default());
        fdb.lock().set(key(), FdbEntry { port: PortId(1), kind: FdbKind::Host }, 0).unwrap();
        Arc::new(fdb)
    }

    #[test]
    fn a_database_is_open_when_all_reports_have_been_seen() {
        let fdb = database();
        let is_open = || fdb.look_up(key()).is_some();
        let gate = Gate::new(Arc::clone(&fdb));
        assert!(!is_open());
        gate.resume(0);
        assert!(is_open());
        let first = gate.report();
        let second = gate.report();
        for report in [0, first] {
            gate.resume(report);
            assert!(!is_open(), "{report}");
        }
        gate.resume(second);
        assert!(is_open());
        gate.pause();
        assert!(!is_open());
        gate.resume(second);
        assert!(is_open());
    }

    #[test]
    fn two_databases_are_paused_and_one_is_kept() {
        let [one, other] = [database(), database()];
        let are_open = || [&one, &other].map(|fdb| fdb.look_up(key()).is_some());
        let gate = Gate::new(Arc::clone(&one));
        gate.add(&other);
        assert_eq!(are_open(), [false, false]);
        gate.resume(0);
        assert_eq!(are_open(), [true, true]);
        gate.pause();
        assert_eq!(are_open(), [false, false]);
        gate.resume(0);
        gate.keep(&other);
        assert_eq!(are_open(), [false, true]);
        gate.pause();
        gate.resume(0);
        assert_eq!(are_open(), [false, true]);
    }
}
