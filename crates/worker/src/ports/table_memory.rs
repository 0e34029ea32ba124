//! Memory for tables that the XDP programs read.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tollway_dataplane::memory::{Lender, Memory};
use tollway_model::compile::CompileError;
use tollway_xdp::TableMaps;

/// How often the room is doubled at most; larger tables get memory of the process's own.
const MOST_DOUBLINGS: u32 = 5;

/// Lends memory for tables.
type Lend = fn(Room) -> io::Result<Arc<dyn Lender>>;

/// What tables have to have room for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Room {
    /// How often the room is doubled.
    doublings: u32,
    /// Whether there are ports of bridges.
    has_bridges: bool,
}

/// Where the tables of a model get their memory.
#[derive(Default)]
pub(super) struct TableMemory {
    /// Lends memory that XDP programs can read, if there are such programs.
    lend: Option<Lend>,
    /// How often the room was doubled.
    doublings: AtomicU32,
    /// Whether programs might read earlier tables.
    was_read: AtomicBool,
}

impl TableMemory {
    /// Memory of maps, if there are programs that can read it.
    pub(super) fn of(has_programs: bool) -> Self {
        let maps = |Room { doublings, has_bridges }| {
            let made = if has_bridges { TableMaps::with_bridges } else { TableMaps::new };
            Ok(Arc::new(made(doublings)?) as Arc<dyn Lender>)
        };
        Self { lend: has_programs.then_some(maps), ..Self::default() }
    }

    /// Makes tables, with more room if they had none. Their memory is lent only if programs may read it (`is_read`), or
    /// might before: the kernel takes all of it at once.
    pub(super) fn make<T>(
        &self,
        is_read: bool,
        has_bridges: bool,
        mut make: impl FnMut(&Memory) -> Result<T, CompileError>,
    ) -> Result<T, CompileError> {
        // A port that is just opened again has no path for a moment.
        let is_read = self.was_read.fetch_or(is_read, Ordering::Relaxed) || is_read;
        loop {
            let memory = if is_read { self.memory(has_bridges) } else { Memory::default() };
            match make(&memory) {
                Err(error) if error.is_for_room() && memory.is_lent() => {
                    self.grow();
                }
                made => return made,
            }
        }
    }

    /// Doubles the room of the tables that are made from now on; false if they have all that there is.
    pub(super) fn grow(&self) -> bool {
        if self.lend.is_none() || !self.was_read.load(Ordering::Relaxed) {
            return false;
        }
        let more = |doublings| (doublings <= MOST_DOUBLINGS).then_some(doublings + 1);
        let before = self.doublings.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        if before == Ok(MOST_DOUBLINGS) {
            tracing::warn!(
                "the tables are too large for BPF maps, so the user path decides about each flow from now on"
            );
        }
        before.is_ok()
    }

    fn memory(&self, has_bridges: bool) -> Memory {
        let doublings = self.doublings.load(Ordering::Relaxed);
        let lend = self.lend.filter(|_| doublings <= MOST_DOUBLINGS);
        let Some(lend) = lend else { return Memory::default() };
        match lend(Room { doublings, has_bridges }) {
            Ok(lender) => Memory::lent(lender),
            Err(error) => {
                tracing::warn!(
                    "the tables cannot lie in BPF maps, so the user path decides about each flow: {error}"
                );
                Memory::default()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tollway_dataplane::id::VrfId;
    use tollway_dataplane::memory::{Capacities, Capacity, Part, Words};
    use tollway_model::Model;
    use tollway_model::compile::{Compiled, compile_in};
    use tollway_model::config;

    use super::*;

    /// Limits tables, and lends nothing: the memory is the process's own.
    struct Limit(Capacities);

    impl Lender for Limit {
        fn capacities(&self) -> Capacities {
            self.0
        }

        fn lend(&self, _: Part) -> Option<Box<dyn Words>> {
            None
        }
    }

    fn limit(Room { doublings, .. }: Room) -> io::Result<Arc<dyn Lender>> {
        let fib = |nodes: usize| Capacity {
            roots: 8,
            nodes: nodes << doublings,
            values: 8192 << doublings,
        };
        let next_hops = 64 << doublings;
        Ok(Arc::new(Limit(Capacities {
            fib4: fib(64),
            fib6: fib(64),
            next_hops,
            groups: 16,
            rules: 0,
            sets: fib(64),
            processors: 0,
            fdb_buckets: 0,
        })))
    }

    fn refused(_: Room) -> io::Result<Arc<dyn Lender>> {
        Err(io::ErrorKind::PermissionDenied.into())
    }

    fn memory(lend: Lend) -> TableMemory {
        TableMemory { lend: Some(lend), ..TableMemory::default() }
    }

    /// A model with so many routes, each in a node of its own.
    fn model(routes: usize) -> Model {
        let mut text = "[ports.p]\nkind = \"memory\"\naddresses = [\"10.0.0.1/24\"]\n".to_owned();
        for number in 0..routes {
            let (high, low) = (number / 256, number % 256);
            text += &format!("[[routes]]\nto = \"20.{high}.{low}.0/30\"\nvia = \"10.0.0.2\"\n");
        }
        config::parse(&text, "router.toml").unwrap().model
    }

    /// Compiles in the memory; returns the result and the number of attempts.
    fn made(memory: &TableMemory, model: &Model) -> (Result<Compiled, CompileError>, u32) {
        let mut attempts = 0;
        let made = memory.make(true, false, |memory| {
            attempts += 1;
            compile_in(memory, model)
        });
        (made, attempts)
    }

    #[test]
    fn tables_without_room_get_more() {
        let memory = memory(limit);
        let (few, many) = (model(10), model(400));
        let (compiled, attempts) = made(&memory, &few);
        assert_eq!(attempts, 1);
        assert_eq!(compiled.unwrap().tables.memory().lender::<Limit>().unwrap().0.fib4.nodes, 64);
        let (compiled, attempts) = made(&memory, &many);
        assert!((3..=5).contains(&attempts), "{attempts}");
        let tables = compiled.unwrap().tables;
        assert!(tables.memory().is_lent());
        let address = "20.1.143.1".parse().unwrap();
        assert_ne!(tables.lookup(VrfId(0), address), tables.lookup(VrfId(0), [9, 9, 9, 9].into()));
        // Whatever is made later begins with this room.
        assert_eq!(made(&memory, &many).1, 1);
        memory.grow();
        let larger = made(&memory, &few).0.unwrap().tables.memory().lender::<Limit>().unwrap();
        assert_eq!(larger.0.fib4.nodes, 64 << attempts);
    }

    #[test]
    fn tables_beyond_all_room_are_not_lent() {
        let (compiled, attempts) = made(&memory(limit), &model(5000));
        assert_eq!(attempts, MOST_DOUBLINGS + 2);
        assert!(!compiled.unwrap().tables.memory().is_lent());
    }

    #[test]
    fn tables_nobody_else_reads_have_the_processes_memory() {
        for memory in [TableMemory::of(false), memory(refused)] {
            let (compiled, attempts) = made(&memory, &model(10));
            assert_eq!(attempts, 1);
            assert!(!compiled.unwrap().tables.memory().is_lent());
        }
        let unread = memory(limit).make(false, false, |memory| compile_in(memory, &model(400)));
        assert!(!unread.unwrap().tables.memory().is_lent());
    }

    #[test]
    fn room_ends() {
        let memory = memory(limit);
        assert!(!memory.grow(), "tables that no program reads have all that there is");
        assert_eq!(made(&memory, &model(10)).1, 1);
        assert!((0..=MOST_DOUBLINGS).all(|_| memory.grow()));
        assert!(!memory.grow());
    }
}
