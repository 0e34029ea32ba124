//! Firewall rules in memory that the BPF programs read, and the counts of the packets that these programs decide about.

use std::ops::Range;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::gap::gap;
use crate::epoch::{Epochs, Retired};
use crate::memory::{Aligned, Memory, Part};
use crate::rule_counts::RuleCounts;
use crate::stages::filter::{Count, EngineImage, EngineSets, FIRST_COUNTER, Filter, LINE};
use crate::sync::{AtomicU32, AtomicU64};

/// Counters of rules for each processor, of all images together.
pub const MOST_ENGINE_COUNTERS: usize = 1 << 13;

/// Where the programs find the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placement {
    /// There are no rules.
    NoRules,
    /// At this line.
    At(u32),
    /// The programs cannot evaluate them, or there is no room for them.
    Nowhere,
}

/// Images of rules, and the counters of each. Memory is used again when no program reads it any more.
#[derive(Debug)]
pub(crate) struct EngineRules {
    memory: EngineMemory,
    placed: Mutex<Placed>,
}

/// The memory that the programs read, and write their counts to.
struct EngineMemory {
    lines: Aligned<AtomicU32>,
    words: usize,
    /// The elements of live sets.
    sets: Arc<EngineSets>,
    /// For each processor, and each counter: packets and bytes.
    counts: Aligned<AtomicU64>,
    processors: usize,
}

#[derive(Debug)]
struct Placed {
    images: Vec<Image>,
    /// The numbers of images that are replaced, but that links still lead to.
    replaced: Vec<u64>,
    /// The numbers of images that no link leads to.
    retired: Retired<u64>,
    current: Current,
    next: u64,
    /// Images that are gone, whose counts are not reported yet.
    gone: Vec<(u64, Vec<Count>)>,
}

/// The active rules, and whether the programs have them.
#[derive(Debug)]
enum Current {
    /// There are no rules.
    NoRules,
    /// They are in the image of this number.
    Placed(Arc<Filter>, u64),
    /// There is no room until programs have left others, or what was written of the same rules.
    Waiting(Arc<Filter>, EngineImage),
    /// The programs cannot evaluate them, or they need more room than there is.
    Unfit(Arc<Filter>),
}

/// An image of rules.
#[derive(Debug)]
struct Image {
    number: u64,
    /// Its rules, whose live sets stay as long as programs may look into them.
    _filter: Arc<Filter>,
    /// How many live sets were lost when it was made, or last compared.
    losses: u64,
    /// Its lines.
    lines: Range<u32>,
    counters: Range<u32>,
    /// The generation of its rules.
    generation: u64,
    is_reported: bool,
    /// The counts that are reported.
    reported: Vec<Count>,
}

impl EngineRules {
    pub(super) fn new(memory: &Memory, epochs: &Arc<Epochs>) -> Self {
        let capacities = memory.capacities();
        let (words, processors) = (capacities.rules * LINE, capacities.processors);
        let memory = EngineMemory {
            lines: Aligned::new(memory, Part::Rules, words),
            words,
            sets: EngineSets::new(epochs, memory),
            counts: Aligned::new(memory, Part::RuleCounts, 2 * processors * MOST_ENGINE_COUNTERS),
            processors,
        };
        let retired = Retired::new(Arc::clone(epochs));
        let placed = Placed {
            images: Vec::new(),
            replaced: Vec::new(),
            retired,
            current: Current::NoRules,
            next: 0,
            gone: Vec::new(),
        };
        Self { memory, placed: Mutex::new(placed) }
    }

    fn lock(&self) -> MutexGuard<'_, Placed> {
        // A panic under the lock ends the process, or the test.
        self.placed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Places rules for the programs, if they are others than those that are there, or once more if their live sets were
    /// lost or return. Where there is no room beside older ones, programs have none until they have left those.
    pub(super) fn place(&self, filter: Option<&Arc<Filter>>, generation: u64) -> Placement {
        let placed = &mut *self.lock();
        if !placed.current.is(filter) {
            placed.make_current(filter.map_or(Current::NoRules, |new| self.memory.prepare(new)));
        } else if placed.sets_have_changed(&self.memory.sets) {
            self.prepare_again(placed);
        }
        placed.current = match std::mem::replace(&mut placed.current, Current::NoRules) {
            Current::Waiting(filter, image) => {
                self.write_waiting(placed, (filter, image), generation)
            }
            current => current,
        };
        match placed.current {
            Current::NoRules => Placement::NoRules,
            Current::Placed(_, number) => {
                let image = placed.images.iter().find(|image| image.number == number);
                image.map_or(Placement::Nowhere, |image| Placement::At(image.lines.start))
            }
            Current::Waiting(..) | Current::Unfit(_) => Placement::Nowhere,
        }
    }

    /// Prepares the current rules once more. If the same words would come of it, or no rules that fit, those that are
    /// there stay: by them, programs ask about what needs a set that is lost.
    fn prepare_again(&self, placed: &mut Placed) {
        self.reclaim(placed);
        let Current::Placed(filter, _) = &placed.current else { return };
        // As long as programs may read others, these are the second ones at most.
        let [image] = placed.images.as_mut_slice() else { return };
        image.losses = self.memory.sets.losses();
        let new = self.memory.prepare(filter);
        if let Current::Waiting(_, words) = &new
            && !self.memory.has(&image.lines, &words.words)
        {
            placed.make_current(new);
        }
    }

    /// Writes rules where there is room beside others that programs may still read.
    fn write_waiting(
        &self,
        placed: &mut Placed,
        (filter, image): (Arc<Filter>, EngineImage),
        generation: u64,
    ) -> Current {
        self.reclaim(placed);
        let has_lost = image.losses != self.memory.sets.losses();
        let current =
            if has_lost { self.memory.prepare(&filter) } else { Current::Waiting(filter, image) };
        let Current::Waiting(filter, image) = current else { return current };
        match placed.add(&self.memory, (&filter, &image), generation) {
            Some(number) => Current::Placed(filter, number),
            None => Current::Waiting(filter, image),
        }
    }

    /// Lets programs find the elements of a filter's live sets, before the filter is placed under a lock.
    pub(crate) fn fill(&self, filter: &Filter) {
        filter.fill(&self.memory.sets);
    }

    /// Gives up the rules that were replaced: no link leads to them any more.
    pub(super) fn retire(&self) {
        let mut placed = self.lock();
        let replaced = std::mem::take(&mut placed.replaced);
        replaced.into_iter().for_each(|number| placed.retired.push(number));
        placed.retired.mark();
    }

    /// Whether the active rules wait for room.
    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.lock().current, Current::Waiting(..))
    }

    /// Whether the active rules have to be placed again for their live sets.
    pub(crate) fn sets_have_changed(&self) -> bool {
        self.lock().sets_have_changed(&self.memory.sets)
    }

    /// Frees the images that no program reads any more.
    fn reclaim(&self, placed: &mut Placed) {
        let (images, gone) = (&mut placed.images, &mut placed.gone);
        placed.retired.reclaim(|number| {
            let Some(at) = images.iter().position(|image| image.number == number) else { return };
            let mut image = images.swap_remove(at);
            if image.is_reported {
                gone.push((image.generation, image.news(&self.memory)));
            }
            self.memory.clear_counts(&image.counters);
        });
    }

    /// What the programs have counted by the rules that they have now, by counter.
    pub(crate) fn counts(&self) -> Vec<Count> {
        let placed = self.lock();
        let Current::Placed(_, number) = placed.current else { return Vec::new() };
        let image = placed.images.iter().find(|image| image.number == number);
        let counters = image.map_or(0..0, |image| image.counters.clone());
        counters.map(|counter| self.memory.count(counter)).collect()
    }

    /// Adds what the programs have counted since the last report.
    pub(crate) fn report(&self, counts: &mut RuleCounts) {
        let mut placed = self.lock();
        self.reclaim(&mut placed);
        for image in &mut placed.images {
            if !std::mem::replace(&mut image.is_reported, true) {
                counts.join(image.generation);
            }
            counts.add(image.generation, &image.news(&self.memory));
        }
        for (generation, news) in placed.gone.drain(..) {
            counts.leave(generation, &news);
        }
    }

    /// Adds the last counts: no program uses the rules any more.
    pub(crate) fn end(&self, counts: &mut RuleCounts) {
        self.report(counts);
        for image in self.lock().images.drain(..) {
            counts.leave(image.generation, &[]);
        }
    }
}

impl Current {
    /// Whether these are the rules of a filter.
    fn is(&self, filter: Option<&Arc<Filter>>) -> bool {
        match (self, filter) {
            (Self::NoRules, None) => true,
            (Self::Placed(now, _) | Self::Waiting(now, _) | Self::Unfit(now), Some(filter)) => {
                Arc::ptr_eq(now, filter)
            }
            _ => false,
        }
    }
}

impl Placed {
    /// Replaces the current rules.
    fn make_current(&mut self, new: Current) {
        if let Current::Placed(_, number) = std::mem::replace(&mut self.current, new) {
            self.replaced.push(number);
        }
    }

    /// Whether a live set was lost since the current image was made, so that programs decide nothing by that any more,
    /// or a lost one may return.
    fn sets_have_changed(&self, sets: &EngineSets) -> bool {
        let Current::Placed(filter, number) = &self.current else { return false };
        if filter.has_busy_sets() {
            // Whoever changes them looks here afterwards.
            return false;
        }
        let image = self.images.iter().find(|image| image.number == *number);
        image.is_some_and(|image| image.losses != sets.losses()) || filter.a_set_may_return()
    }

    /// Writes an image of a filter where there is room; returns its number.
    fn add(
        &mut self,
        memory: &EngineMemory,
        (filter, image): (&Arc<Filter>, &EngineImage),
        generation: u64,
    ) -> Option<u64> {
        let size = image.words.len().div_ceil(LINE) as u32;
        // A link's line 0 means that there are no rules.
        let lines = gap(
            self.images.iter().map(|image| &image.lines),
            1,
            (memory.words / LINE) as u32,
            size,
        )?;
        let count = u32::try_from(image.counters).ok()?;
        let used = self.images.iter().map(|image| &image.counters);
        let counters = gap(used, 0, MOST_ENGINE_COUNTERS as u32, count)?;
        memory.write(lines.start, &image.words, counters.start);
        let number = self.next;
        self.next += 1;
        let reported = vec![Count::default(); image.counters];
        self.images.push(Image {
            number,
            _filter: Arc::clone(filter),
            losses: image.losses,
            lines,
            counters,
            generation,
            is_reported: false,
            reported,
        });
        Some(number)
    }
}

impl EngineMemory {
    /// Prepares rules, which wait for room then.
    fn prepare(&self, filter: &Arc<Filter>) -> Current {
        let filter = Arc::clone(filter);
        let fits = |image: &EngineImage| {
            image.words.len() + LINE <= self.words && image.counters <= MOST_ENGINE_COUNTERS
        };
        match EngineImage::of(&filter, &self.sets).filter(fits) {
            Some(image) => Current::Waiting(filter, image),
            None => Current::Unfit(filter),
        }
    }

    fn write(&self, line: u32, words: &[u32], first_counter: u32) {
        let places = self.lines.get().iter().skip(line as usize * LINE);
        for (place, word) in places.clone().zip(words) {
            place.store(*word, Relaxed);
        }
        if let Some(place) = places.clone().nth(FIRST_COUNTER) {
            place.store(first_counter, Release);
        }
    }

    /// Whether these lines have the words of an image, but for the number of the first counter.
    fn has(&self, lines: &Range<u32>, words: &[u32]) -> bool {
        let places = self.lines.get().iter().skip(lines.start as usize * LINE);
        lines.len() == words.len().div_ceil(LINE)
            && places
                .zip(words)
                .enumerate()
                .all(|(at, (place, word))| at == FIRST_COUNTER || place.load(Relaxed) == *word)
    }

    /// The places of a counter, one for each processor.
    fn places(&self, counter: u32) -> impl Iterator<Item = &[AtomicU64; 2]> {
        let all = self.counts.get().as_chunks().0;
        (0..self.processors).filter_map(move |processor| {
            all.get(processor * MOST_ENGINE_COUNTERS + counter as usize)
        })
    }

    fn count(&self, counter: u32) -> Count {
        self.places(counter).fold(Count::default(), |sum, [packets, bytes]| Count {
            packets: sum.packets.wrapping_add(packets.load(Relaxed)),
            bytes: sum.bytes.wrapping_add(bytes.load(Relaxed)),
        })
    }

    fn clear_counts(&self, counters: &Range<u32>) {
        for word in counters.clone().flat_map(|counter| self.places(counter)).flatten() {
            word.store(0, Relaxed);
        }
    }
}

impl Image {
    /// What was counted since the last call.
    fn news(&mut self, memory: &EngineMemory) -> Vec<Count> {
        let counters = self.counters.clone().zip(&mut self.reported);
        let news = counters.map(|(counter, reported)| {
            let now = memory.count(counter);
            let last = std::mem::replace(reported, now);
            Count { packets: now.packets - last.packets, bytes: now.bytes - last.bytes }
        });
        news.collect()
    }
}

impl std::fmt::Debug for EngineMemory {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("EngineMemory").field("words", &self.words).finish_non_exhaustive()
    }
}
