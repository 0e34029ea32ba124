//! The simplest model of the kernel's configuration that follows from the events.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tollway_controller::event::{Change, Event, Place};
use tollway_controller::kernel::{DEAD, Family, Hop, Hops, Kernel, LINK_DOWN, Route, RouteKey};
use tollway_controller::netlink::{Settings, Source};

use crate::namespaces::PATIENCE;

/// The routes of one key, each with the number of the last list that contained it.
type Aliases = Vec<(Route, u8)>;

/// The kernel's configuration, as the events report it.
#[derive(Default)]
pub struct Model {
    pub kernel: Kernel,
    pub routes: BTreeMap<RouteKey, Aliases>,
    generation: [u8; 2],
    audit: bool,
    pub complete: usize,
    pub lost: usize,
    /// The keys of routes that an audit changed.
    pub drifts: Vec<RouteKey>,
    /// All events except listed routes, as text.
    pub events: Vec<String>,
}

impl Model {
    pub fn apply(&mut self, event: Event) {
        self.kernel.apply(&event);
        if !matches!(event, Event::Route(_, _, Change::Listed)) && self.events.len() < 1000 {
            self.events.push(format!("{event:?}"));
        }
        match event {
            Event::Route(key, route, change) => {
                let generation = self.generation[key.family() as usize];
                let aliases = self.routes.entry(key).or_default();
                let changed = apply(key.family(), aliases, route, change, generation);
                if self.audit && changed && change == Change::Listed {
                    self.drifts.push(key);
                }
                if aliases.is_empty() {
                    self.routes.remove(&key);
                }
            }
            Event::Listing { family, audit } => {
                let generation = &mut self.generation[family as usize];
                *generation = generation.wrapping_add(1);
                self.audit = audit;
            }
            Event::Listed { family, lists } => self.sweep(family, lists),
            Event::Complete => self.complete += 1,
            Event::Lost => self.lost += 1,
            _ => {}
        }
    }

    fn sweep(&mut self, family: Family, lists: u8) {
        let generation = self.generation[family as usize];
        let (audit, drifts) = (self.audit, &mut self.drifts);
        self.routes.retain(|key, aliases| {
            if key.family() != family {
                return true;
            }
            let before = aliases.len();
            aliases.retain(|(_, stamp)| generation.wrapping_sub(*stamp) < lists);
            if audit && aliases.len() < before {
                drifts.push(*key);
            }
            !aliases.is_empty()
        });
    }

    /// The routes without stamps, and without the flags that the kernel changes without a message.
    pub fn plain(&self) -> BTreeMap<RouteKey, Vec<Route>> {
        let plain = |aliases: &Aliases| aliases.iter().map(|(route, _)| lasting(route)).collect();
        self.routes.iter().map(|(key, aliases)| (*key, plain(aliases))).collect()
    }
}

/// The route without the flags that the kernel changes without a message.
fn lasting(route: &Route) -> Route {
    let lasting = |hop: &Hop| Hop { flags: hop.flags & !(DEAD | LINK_DOWN), ..*hop };
    let hops = match &route.hops {
        Hops::One(hop) => Hops::One(lasting(hop)),
        Hops::Many(hops) => Hops::Many(hops.iter().map(lasting).collect()),
        other => other.clone(),
    };
    Route { hops, ..route.clone() }
}

/// Applies a change. Returns whether anything but stamps and order has changed.
fn apply(
    family: Family,
    aliases: &mut Aliases,
    route: Route,
    change: Change,
    generation: u8,
) -> bool {
    if family == Family::V6 && route.joins() {
        return apply_siblings(aliases, route, change, generation);
    }
    let same = aliases.iter().position(|(old, _)| old.is_same(&route));
    let fresh = (route, generation);
    match (change, same) {
        (Change::Listed, Some(at)) if aliases[at].1 == generation => return false,
        (Change::Listed, same) => {
            same.map(|at| aliases.remove(at));
            let place = aliases.iter().take_while(|(_, stamp)| *stamp == generation).count();
            aliases.insert(place, fresh);
            return same.is_none();
        }
        (Change::Del, Some(at)) => drop(aliases.remove(at)),
        (Change::Del, None) => return false,
        (Change::Add(_), Some(at)) => aliases[at].1 = generation,
        (Change::Add(place), None) => add(family, aliases, fresh, place),
    }
    true
}

fn add(family: Family, aliases: &mut Aliases, fresh: (Route, u8), place: Place) {
    let alike = |(old, _): &(Route, u8)| family == Family::V4 || old.joins() == fresh.0.joins();
    let first = aliases.iter().position(alike).or((!aliases.is_empty()).then_some(0));
    match (place, first) {
        (Place::Only, _) => *aliases = vec![fresh],
        (Place::First, _) => aliases.insert(0, fresh),
        (Place::Instead, Some(at)) => aliases[at] = fresh,
        (Place::Last | Place::Instead, _) => aliases.push(fresh),
    }
}

/// Applies a change of IPv6 siblings: all siblings of a key are one route.
fn apply_siblings(aliases: &mut Aliases, route: Route, change: Change, generation: u8) -> bool {
    let group = aliases.iter().position(|(old, _)| old.joins());
    let is_reported = |hop: &Hop| route.hops.list().iter().any(|other| other.leads_alike(hop));
    match (change, group) {
        (Change::Del, None) => false,
        (Change::Del, Some(at)) => {
            let mut left = aliases[at].0.hops.list().to_vec();
            left.retain(|hop| !is_reported(hop));
            if left.is_empty() {
                aliases.remove(at);
            } else {
                aliases[at].0.hops = hops(left);
            }
            true
        }
        (Change::Add(Place::Only), _) => {
            *aliases = vec![(route, generation)];
            true
        }
        (Change::Add(place), None) => {
            add(Family::V6, aliases, (route, generation), place);
            true
        }
        (Change::Listed, None) => {
            let place = aliases.iter().take_while(|(_, stamp)| *stamp == generation).count();
            aliases.insert(place, (route, generation));
            true
        }
        (Change::Add(_), Some(at)) => {
            // Next hops that stay keep their order.
            let old = aliases[at].0.hops.list();
            let place = |hop: &Hop| old.iter().position(|other| other.leads_alike(hop));
            let mut all = route.hops.list().to_vec();
            if change == Change::Add(Place::Last) {
                all.sort_by_key(|hop| place(hop).unwrap_or(usize::MAX));
            }
            let all = Route { hops: hops(all), ..route };
            aliases[at] = (all, generation);
            true
        }
        (Change::Listed, Some(at)) if aliases[at].1 == generation => false,
        (Change::Listed, Some(at)) => {
            let (old, _) = aliases.remove(at);
            let changed = !old.is_same(&route);
            let place = aliases.iter().take_while(|(_, stamp)| *stamp == generation).count();
            aliases.insert(place, (route, generation));
            changed
        }
    }
}

fn hops(hops: Vec<Hop>) -> Hops {
    match hops[..] {
        [hop] => Hops::One(Hop { weight: 1, ..hop }),
        _ => Hops::Many(hops.into()),
    }
}

/// A source, and the model that follows from its events.
pub struct SyncedModel {
    pub source: Source,
    pub model: Model,
}

impl SyncedModel {
    /// Opens a source and reads the whole configuration.
    pub fn new(settings: Settings) -> Self {
        let source = Source::open(settings).unwrap();
        let mut synced = Self { source, model: Model::default() };
        synced.until("the first list", |synced| synced.model.complete > 0);
        synced
    }

    /// Reads what is available now. Returns whether there is more.
    pub fn read(&mut self) -> bool {
        let Self { source, model } = self;
        let more = source.read(&mut |event| model.apply(event)).unwrap();
        for key in model.drifts.drain(..) {
            source.drifted(key.table, key.dst);
        }
        more
    }

    /// Reads until `holds` is true. Returns how long that took.
    pub fn until(&mut self, what: &str, holds: impl Fn(&Self) -> bool) -> Duration {
        let start = Instant::now();
        while !holds(self) {
            assert!(start.elapsed() < PATIENCE * 2, "waited in vain: {what}");
            if !self.read() {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        start.elapsed()
    }

    /// Reads until nothing has arrived for a moment and nothing is in doubt.
    pub fn read_until_quiet(&mut self) {
        let mut quiet = Instant::now();
        let start = quiet;
        while quiet.elapsed() < Duration::from_millis(30) {
            assert!(start.elapsed() < PATIENCE, "events keep arriving");
            if self.read() {
                quiet = Instant::now();
            } else {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    }

    /// Compares the model with that of a source that opens only now. Returns the first difference.
    pub fn differs(&self) -> Option<String> {
        let fresh = Self::new(Settings::default());
        let (own, others) = (self.model.plain(), fresh.model.plain());
        if self.model.kernel != fresh.model.kernel {
            return Some(format!("{:#?}\nnot\n{:#?}", self.model.kernel, fresh.model.kernel));
        }
        let keys = own.keys().chain(others.keys());
        let mut keys: Vec<_> = keys.filter(|key| own.get(key) != others.get(key)).collect();
        keys.dedup();
        let first = keys.first()?;
        let words = |routes: Option<&Vec<Route>>| -> Vec<_> {
            routes.into_iter().flatten().map(|route| format!("\n    {route:?}")).collect()
        };
        let (known, listed) = (words(own.get(first)).concat(), words(others.get(first)).concat());
        let dst = format!("{:?}", first.dst);
        let events = self.model.events.iter().filter(|event| event.contains(&dst));
        let events = events.map(|event| format!("\n    {event}")).collect::<Vec<_>>().concat();
        Some(format!("{} routes differ: {first:?}{known}\nnot{listed}\nevents{events}", keys.len()))
    }

    /// Reads until nothing arrives any more, and asserts that the model equals that of a source that opens only
    /// now. The kernel may make changes by itself, such as duplicate address detection, so the models may take a
    /// while to agree.
    pub fn assert_agrees(&mut self) {
        self.assert_agrees_in(Self::differs);
    }

    /// Like [`SyncedModel::assert_agrees`], for everything but routes.
    pub fn assert_agrees_but_for_routes(&mut self) {
        self.assert_agrees_in(|synced| {
            let fresh = Self::new(Settings::default());
            let (own, others) = (&synced.model.kernel, &fresh.model.kernel);
            (own != others).then(|| format!("{own:#?}\nnot\n{others:#?}"))
        });
    }

    fn assert_agrees_in(&mut self, differs: impl Fn(&Self) -> Option<String>) {
        let start = Instant::now();
        self.read_until_quiet();
        while let Some(differs) = differs(self) {
            assert!(start.elapsed() < Duration::from_secs(3), "{differs}");
            self.read_until_quiet();
        }
    }
}
