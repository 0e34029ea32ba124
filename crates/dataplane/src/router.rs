//! The router that all workers share: the tables and the host behind a lock, and the forwarding state that
//! the workers read without one.
//!
//! Whoever changes something locks the router. When the lock is released, a changed state is published: every
//! worker takes it before its next burst. A worker only compares a number for this ([`Epochs`]), and it waits
//! for nobody. Locks and workers never wait for each other in a circle: [`Router::synchronize`] is called
//! without the lock.
//!
//! [`Epochs`]: crate::epoch::Epochs

use std::collections::VecDeque;
use std::fmt::Debug;
use std::net::IpAddr;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use crate::host::Host;
use crate::id::LinkId;
use crate::punts::Limits;
use crate::rule_counts::RuleCounts;
use crate::stages::filter::{Count, Filter};
use crate::tables::{Engines, ForwardingState, Tables};

/// How often [`Router::synchronize`] looks at the workers: a turn takes microseconds.
const LOOK_EVERY: Duration = Duration::from_micros(20);

/// A router without its workers.
#[derive(Debug)]
pub struct Router {
    control: Mutex<Control>,
    /// The number of the published state. It changes before the tables' epoch does.
    number: AtomicU64,
    published: Mutex<Published>,
    pub(crate) rule_counts: Mutex<RuleCounts>,
    /// What the BPF programs read of tables, last of the active ones.
    engines: Mutex<Vec<Arc<Engines>>>,
    /// Limits on the packets that the kernel has to answer.
    pub limits: Limits,
    /// Who has the kernel resolve neighbours.
    resolver: Mutex<Option<Box<dyn Resolver>>>,
}

/// Has the kernel behind ports resolve neighbours. What it finds enters the tables.
pub trait Resolver: Debug + Send {
    /// Requests the neighbours; never waits.
    fn resolve(&self, neighs: &[(LinkId, IpAddr)]);
}

/// What changes a router: the tables and the router as a host.
#[derive(Debug)]
pub struct Control {
    /// The tables, of which the workers have the state.
    pub tables: Tables,
    /// The router as a host.
    pub host: Host,
    generations: Generations,
    /// For the links of the tables before the last swap, their numbers now.
    links: Vec<Option<LinkId>>,
}

/// Numbers of what a state belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Generations {
    /// The number of the rules: their counters have other numbers in every generation.
    pub(crate) rules: u64,
    /// How often other tables came: links, VRFs and next hops have other numbers.
    pub(crate) tables: u64,
}

/// The state that workers take.
#[derive(Debug)]
struct Published {
    state: Arc<ForwardingState>,
    generations: Generations,
    /// States that workers may still have. [`Router::synchronize`] frees them, where time does not matter.
    replaced: VecDeque<Arc<ForwardingState>>,
}

/// A locked router; it publishes what has changed when it is dropped.
#[derive(Debug)]
pub struct Locked<'a> {
    router: &'a Router,
    control: MutexGuard<'a, Control>,
}

impl Router {
    /// Creates a router for the ports in `tables`.
    #[must_use]
    pub fn new(tables: Tables, host: Host) -> Arc<Self> {
        // No reader uses these tables yet, so every next hop can get its own record back.
        tables.routes.next_hops.restore_displaced();
        tables.write_engines();
        prepare_states(None, tables.filter.as_deref());
        let engines = Mutex::new(vec![Arc::clone(tables.engines())]);
        let state = Arc::clone(tables.state());
        let generations = Generations::default();
        let rule_counts = RuleCounts::new(state.filter.as_deref());
        let published = Published { state, generations, replaced: VecDeque::new() };
        Arc::new(Self {
            control: Mutex::new(Control { tables, host, generations, links: Vec::new() }),
            number: AtomicU64::new(0),
            published: Mutex::new(published),
            rule_counts: Mutex::new(rule_counts),
            engines,
            limits: Limits::default(),
            resolver: Mutex::default(),
        })
    }

    /// Sets who has the kernel resolve neighbours of the links whose host wants that
    /// ([`Host::have_kernel_resolve`]).
    pub fn set_resolver(&self, resolver: Box<dyn Resolver>) {
        *lock(&self.resolver) = Some(resolver);
    }

    /// Has the kernel resolve neighbours.
    pub(crate) fn ask_for(&self, neighs: &[(LinkId, IpAddr)]) {
        if let Some(resolver) = &*lock(&self.resolver) {
            resolver.resolve(neighs);
        }
    }

    /// Locks the router for a change or a look. The lock must not be taken twice by one thread.
    #[must_use]
    pub fn lock(&self) -> Locked<'_> {
        // A panic under the lock ends the process, or the test.
        Locked { router: self, control: lock(&self.control) }
    }

    /// Locks the router, unless somebody else has it.
    #[must_use]
    pub fn try_lock(&self) -> Option<Locked<'_>> {
        let control = match self.control.try_lock() {
            Ok(control) => control,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(Locked { router: self, control })
    }

    /// The published state.
    #[must_use]
    pub fn state(&self) -> Arc<ForwardingState> {
        Arc::clone(&lock(&self.published).state)
    }

    /// Waits until every worker that is awake works by what is published now; false if that takes longer than
    /// `patience`. Frees the states that no worker has any more, so call it after each change, where time does
    /// not matter, and without the lock.
    pub fn synchronize(&self, patience: Duration) -> bool {
        let start = Instant::now();
        let epochs: Vec<_> = {
            let published = lock(&self.published);
            let states = published.replaced.iter().chain([&published.state]);
            let mut epochs: Vec<_> = states.map(|state| Arc::clone(&state.epochs)).collect();
            epochs.dedup_by(|one, other| Arc::ptr_eq(one, other));
            epochs
        };
        let due: Vec<_> = epochs.iter().map(|epochs| (epochs, epochs.advance())).collect();
        let passed = || due.iter().all(|(epochs, epoch)| epochs.passed_by_workers() >= *epoch);
        let mut is_done = passed();
        while !is_done && start.elapsed() <= patience {
            std::thread::sleep(LOOK_EVERY);
            is_done = passed();
        }
        // Also if a worker hangs: it has one state, and all others would stay as long as it does.
        self.sweep();
        is_done
    }

    /// Frees the states that no worker has any more.
    fn sweep(&self) {
        let mut published = lock(&self.published);
        let (free, used): (VecDeque<_>, _) =
            published.replaced.drain(..).partition(|state| Arc::strong_count(state) == 1);
        published.replaced = used;
        drop(published);
        drop(free);
        self.end_engines();
    }

    /// Takes the last counts of rules whose tables are gone: no program has them.
    fn end_engines(&self) {
        let mut all = lock(&self.engines);
        let active = all.pop();
        let (gone, used) = all.drain(..).partition(|engines| Arc::strong_count(engines) == 1);
        *all = used;
        all.extend(active);
        drop(all);
        let gone: Vec<_> = gone;
        for engines in gone {
            engines.rules().end(&mut lock(&self.rule_counts));
        }
    }

    /// Adds what the BPF programs have counted.
    fn add_engine_counts(&self) {
        let all = lock(&self.engines).clone();
        for engines in all {
            engines.rules().report(&mut lock(&self.rule_counts));
        }
    }

    /// Lets the BPF programs find the elements of the live sets of rules that are to be installed, before a lock is held
    /// for that.
    pub fn fill_sets(&self, filter: &Filter) {
        let engines = {
            let control = lock(&self.control);
            control.tables.memory().is_lent().then(|| Arc::clone(control.tables.engines()))
        };
        if let Some(engines) = engines {
            engines.rules().fill(filter);
        }
    }

    /// Lets the BPF programs have rules that waited for room, and such whose live sets have lost their room or have it
    /// again; returns whether some wait still. This may take some 10 ms: call it after changes of sets and now and then,
    /// on a thread that decides about no packet.
    pub fn place_waiting_rules(&self) -> bool {
        // Nearly always there is nothing to do. Then the lock that all changes need stays free: where a processor is
        // lacking, its owner may have it for long.
        if !self.has_rules_to_place() {
            return false;
        }
        self.write_engines(&lock(&self.control));
        self.has_rules_to_place()
    }

    /// Whether [`Router::place_waiting_rules`] has something to do, now or when the programs have left other rules.
    pub(crate) fn has_rules_to_place(&self) -> bool {
        let active = lock(&self.engines).last().cloned();
        active.is_some_and(|engines| engines.are_waiting() || engines.rules().sets_have_changed())
    }

    /// Lets the BPF programs decide by the tables as they are, and adds what they have counted by other rules.
    fn write_engines(&self, control: &Control) {
        control.tables.write_engines_with(control.generations.rules);
        self.add_engine_counts();
    }

    /// Publishes the state of the tables.
    fn publish(&self, control: &Control) {
        let state = control.tables.state();
        let mut published = lock(&self.published);
        if Arc::ptr_eq(&published.state, state) && published.generations == control.generations {
            if control.tables.have_waiting_rules() {
                self.write_engines(control);
            }
            return;
        }
        self.write_engines(control);
        let old = std::mem::replace(&mut published.state, Arc::clone(state));
        published.generations = control.generations;
        let epochs = Arc::clone(&old.epochs);
        published.replaced.push_back(old);
        drop(published);
        self.number.fetch_add(1, Ordering::Release);
        // A worker that sees this epoch also sees the number.
        epochs.advance();
        // After the state: what workers decide by the old one has an old version. Other tables have another
        // version anyway.
        state.epochs.changes.note();
    }

    /// The number of the published state.
    pub(crate) fn number(&self) -> u64 {
        self.number.load(Ordering::Acquire)
    }

    /// The published state and its generations; the number is at most that of the state.
    pub(crate) fn take(&self) -> (u64, Arc<ForwardingState>, Generations) {
        let number = self.number();
        let published = lock(&self.published);
        (number, Arc::clone(&published.state), published.generations)
    }

    /// The counts of the firewall rules by counter number, as far as workers have added theirs
    /// ([`Worker::add_rule_counts`](crate::worker::Worker::add_rule_counts)).
    #[must_use]
    pub fn rule_counts(&self) -> Vec<Count> {
        self.add_engine_counts();
        lock(&self.rule_counts).totals().to_vec()
    }
}

impl Locked<'_> {
    /// Replaces tables and host, and returns the old ones, which may be large: drop them where time does not
    /// matter. `links` has for each old link its number in the new tables, if it still exists. To continue a
    /// counter of the rules, `carried` has for each counter of the new rules its number in the old ones.
    pub(crate) fn replace(
        &mut self,
        mut tables: Tables,
        mut host: Host,
        links: &[Option<LinkId>],
        carried: &[Option<u32>],
    ) -> (Tables, Host) {
        // No reader uses these tables yet, so every next hop can get its own record back.
        tables.routes.next_hops.restore_displaced();
        let control = &mut *self.control;
        prepare_states(control.tables.filter.as_deref(), tables.filter.as_deref());
        std::mem::swap(&mut control.tables, &mut tables);
        // A program that could not be replaced must not follow what nobody updates.
        tables.end_engines();
        lock(&self.router.engines).push(Arc::clone(control.tables.engines()));
        std::mem::swap(&mut control.host, &mut host);
        links.clone_into(&mut control.links);
        control.generations.tables += 1;
        self.renew_rules(carried);
        (tables, host)
    }

    /// Replaces the active rules, or removes them. `carried` has for each counter of the new rules its number
    /// in the old ones, if its count continues.
    ///
    /// Returns the previous rules, which may be large: drop them where time does not matter.
    pub fn set_filter(
        &mut self,
        filter: Option<Arc<Filter>>,
        carried: &[Option<u32>],
    ) -> Option<Arc<Filter>> {
        prepare_states(self.control.tables.filter.as_deref(), filter.as_deref());
        let old = std::mem::replace(&mut self.control.tables.filter, filter);
        self.renew_rules(carried);
        old
    }

    fn renew_rules(&mut self, carried: &[Option<u32>]) {
        let control = &mut *self.control;
        control.generations.rules += 1;
        let filter = control.tables.filter.as_deref();
        lock(&self.router.rule_counts).renew(control.generations.rules, filter, carried);
    }
}

/// Lets rules take over what the active ones remember, or makes room for it: no packet should have to.
fn prepare_states(before: Option<&Filter>, filter: Option<&Filter>) {
    if let Some(tracker) = filter.and_then(Filter::tracker) {
        tracker.prepare(before.and_then(Filter::tracker));
    }
    if let Some(states) = filter.and_then(Filter::states) {
        states.prepare(before.and_then(Filter::states));
    }
    if let Some(aliases) = filter.and_then(Filter::aliases) {
        aliases.prepare(before.and_then(Filter::aliases));
    }
}

impl Control {
    /// The number that the next rules get, if they come while the router is locked. The first rules have number 0.
    #[must_use]
    pub const fn next_rules(&self) -> u64 {
        self.generations.rules + 1
    }

    /// The number that a link has now, if it had `link` in tables of an earlier generation. None if it has
    /// gone, or other tables came more than once.
    pub(crate) fn link_now(&self, generations: Generations, link: LinkId) -> Option<LinkId> {
        match self.generations.tables - generations.tables {
            0 => Some(link),
            1 => self.links.get(usize::from(link.0)).copied().flatten(),
            _ => None,
        }
    }

    /// Says whether links, VRFs and next hops have the numbers that they had in that generation.
    pub(crate) fn has_tables_of(&self, generations: Generations) -> bool {
        self.generations.tables == generations.tables
    }
}

impl Deref for Locked<'_> {
    type Target = Control;

    fn deref(&self) -> &Control {
        &self.control
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Control {
        &mut self.control
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // A change that a panic has interrupted is not published.
        if !std::thread::panicking() {
            self.router.publish(&self.control);
        }
    }
}

/// Locks data that are whole at every moment, so that a panic elsewhere cannot have damaged them.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
