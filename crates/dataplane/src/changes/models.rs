//! Two workers that share what has been voided, and a writer, in every order with few preemptions.

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use loom::model::Builder;
use loom::sync::atomic::AtomicU32;
use loom::thread;

use super::Version;
use super::voided::{Basis, Voided};

/// A table of one value, how often it has changed, and the generation of the decisions that depend on it.
struct Shared {
    table: AtomicU32,
    count: AtomicU32,
    generation: AtomicU32,
    voided: Voided,
}

impl Shared {
    fn new() -> Arc<Self> {
        let [table, count, generation] = [(); 3].map(|()| AtomicU32::new(0));
        Arc::new(Self { table, count, generation, voided: Voided::new() })
    }

    /// Changes the table, then counts the change.
    fn change(&self) {
        self.table.store(1, Relaxed);
        self.count.fetch_add(1, Release);
    }
}

/// The generation that a decision was made under, and what the table held.
type Decision = (u32, u32);

/// A worker with the basis that it knows, as `XdpFlows` of `tollway-xdp`.
#[derive(Default)]
struct Side {
    basis: Option<Basis>,
    decisions: Vec<Decision>,
}

impl Side {
    /// Voids what predates a change; returns the generation for the turn.
    fn begin(&mut self, shared: &Shared) -> u32 {
        let changes = u64::from(shared.count.load(Acquire));
        let now =
            Basis { tables: Version { tables: 1, changes, next_hops: 0, routes: 0 }, ports: 0 };
        if self.basis != Some(now) {
            shared.voided.up_to(now, |_, _| _ = shared.generation.fetch_add(1, AcqRel));
            self.basis = Some(now);
        }
        shared.generation.load(Acquire)
    }

    fn turn(&mut self, shared: &Shared) {
        let generation = self.begin(shared);
        if self.basis.is_some_and(|basis| basis.tables.changes == 1) {
            assert!(!self.has_old(generation), "a worker knows of a change that is not voided yet");
        }
        self.decisions.push((generation, shared.table.load(Relaxed)));
    }

    /// Whether a decision from before the change is active.
    fn has_old(&self, generation: u32) -> bool {
        self.decisions.iter().any(|decision| *decision == (generation, 0))
    }
}

/// Takes turns of two workers while a table changes.
#[test]
fn whoever_voids_a_change_voids_it_for_all() {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let shared = Shared::new();
        let threads = [(); 2].map(|()| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let mut side = Side::default();
                (0..2).for_each(|_| side.turn(&shared));
                side
            })
        });
        shared.change();
        let [mut awake, mut asleep] = threads.map(|thread| thread.join().expect("no panic"));
        // One worker notices the change, if none has done so; that is enough for the decisions of both.
        let generation = awake.begin(&shared);
        assert!(!awake.has_old(generation) && !asleep.has_old(generation));
        // The other one voids nothing again when it wakes up.
        assert_eq!(asleep.begin(&shared), generation);
    });
}
