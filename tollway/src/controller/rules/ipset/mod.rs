//! Sets of ipset that rules of iptables look up (`-m set --match-set`).
//!
//! The kernel does not notify of changes of such a set (`net/netfilter/ipset/ip_set_core.c`), so [`Watch`]
//! lists the sets again every [`PERIOD`] and reports the elements that came and went.
//!
//! Limits: sets of addresses or prefixes (`hash:ip`, `hash:net`, `bitmap:ip`) that the kernel lists in one
//! datagram, some 1,000 elements. While it lists a set in several datagrams, `ipset swap` fails (EBUSY). So
//! Tollway must not list a larger set over and over.

mod message;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io;
use std::time::{Duration, Instant};

use tollway_dataplane::stages::filter::Element;

use super::ElementChange;
use super::read::Use;
use super::socket::Asker;
pub(super) use message::body;

/// How often the sets are listed. A change takes effect within 100 ms: one period, and the time until the
/// thread runs and has applied it.
const PERIOD: Duration = Duration::from_millis(50);
/// Sets of more elements are not listed: a datagram of 32 KiB holds 2,000 IPv4 addresses.
const MOST: u32 = 2000;
/// What precedes the name of such a set in the rules. No set of nft's language has a space in its name.
const PREFIX: &str = "ipset ";

/// A set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IpSet {
    /// Its name.
    pub(super) name: String,
    /// Its elements, or why the rules that look it up take the kernel path.
    pub(super) contents: Result<Contents, String>,
}

/// What a set contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Contents {
    /// The version of IP of its addresses.
    pub(super) version: u8,
    /// Its elements, sorted.
    pub(super) elements: Vec<Element>,
}

impl IpSet {
    /// Lists the set with this index.
    ///
    /// # Errors
    /// The kernel does not answer, or has no such set.
    pub(super) fn read(index: u16, asker: &mut Asker) -> io::Result<Self> {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let answers = asker.ask_ipset(|sequence| message::name_of(sequence, index))?;
        let name = answers.first().and_then(|body| message::name(body)).ok_or_else(missing)?;
        Self::list(name, asker)
    }

    fn list(name: String, asker: &mut Asker) -> io::Result<Self> {
        let contents = list(&name, asker)?.map_err(|why| format!("the ipset {name} {why}"));
        Ok(Self { name, contents })
    }

    /// Its name in the rules, without the table.
    pub(super) fn name_in_rules(&self) -> String {
        format!("{PREFIX}{}", self.name)
    }
}

/// Lists a set. The inner error says why its rules take the kernel path.
fn list(name: &str, asker: &mut Asker) -> io::Result<Result<Contents, String>> {
    let too_large = || Ok(Err("is too large to be listed again and again".to_owned()));
    let head = asker.ask_ipset(|sequence| message::list(sequence, name, true))?;
    let head = head.first().map(|body| message::Head::read(body));
    let head = match head {
        Some(Ok(head)) => head,
        Some(Err(why)) => return Ok(Err(why)),
        None => return Err(io::ErrorKind::NotFound.into()),
    };
    if head.count > MOST {
        return too_large();
    }
    let lists = asker.ask_ipset(|sequence| message::list(sequence, name, false))?;
    match &lists[..] {
        // The set may have been swapped for another one since.
        [list] => Ok(message::Head::read(list).and_then(|head| head.contents(list))),
        [] => Err(io::ErrorKind::NotFound.into()),
        _ => too_large(),
    }
}

/// The sets that rules of the fast path look up, as last listed.
pub(super) struct Watch {
    sets: Vec<Watched>,
    at: Instant,
}

struct Watched {
    set: IpSet,
    /// The names of the live sets with its elements; `None` if it is a part of the rules somewhere.
    live: Option<Vec<String>>,
}

/// The result of another look.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Elements came and went; none if nothing has changed.
    Elements(Vec<ElementChange>),
    /// The rules have to be read again.
    Reread,
}

impl Watch {
    /// Watches the sets that are in use, as listed after `listed_at`; `None` if there are none.
    pub(super) fn new(
        sets: Vec<IpSet>,
        listed_at: Instant,
        uses: &HashMap<String, Use>,
    ) -> Option<Self> {
        let sets: Vec<_> = sets.into_iter().filter_map(|set| Watched::new(set, uses)).collect();
        (!sets.is_empty()).then_some(Self { sets, at: listed_at + PERIOD })
    }

    /// When to look again.
    pub(super) const fn at(&self) -> Instant {
        self.at
    }

    /// Lists the sets again.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub(super) fn look(&mut self, asker: &mut Asker) -> io::Result<Look> {
        self.at = Instant::now() + PERIOD;
        let mut changes = Vec::new();
        for watched in &mut self.sets {
            let new = match IpSet::list(watched.set.name.clone(), asker) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Look::Reread),
                new => new?,
            };
            match watched.replace(new) {
                Some(more) => changes.extend(more),
                None => return Ok(Look::Reread),
            }
        }
        Ok(Look::Elements(changes))
    }
}

impl Watched {
    /// `None` if no rule of the fast path looks up the set.
    fn new(set: IpSet, uses: &HashMap<String, Use>) -> Option<Self> {
        let end = format!(" {}", set.name_in_rules());
        let mut uses = uses.iter().filter(|(name, _)| name.ends_with(&end)).peekable();
        uses.peek()?;
        let live = uses.map(|(name, of)| matches!(of, Use::Live { .. }).then(|| name.clone()));
        let live = live.collect();
        Some(Self { set, live })
    }

    /// Takes a newer list and returns the changes of live sets; `None` if the rules have to be read again.
    fn replace(&mut self, new: IpSet) -> Option<Vec<ElementChange>> {
        if new == self.set {
            return Some(Vec::new());
        }
        let (Ok(old), Ok(now)) = (&self.set.contents, &new.contents) else { return None };
        let live = self.live.as_ref().filter(|_| old.version == now.version)?;
        let [add, remove] = [(now, old), (old, now)].map(|(these, those)| these.without(those));
        let change = |set: &String| ElementChange {
            set: set.clone(),
            add: add.clone(),
            remove: remove.clone(),
        };
        let changes = live.iter().map(change).collect();
        self.set = new;
        Some(changes)
    }
}

impl Contents {
    /// The elements that the other does not have.
    fn without(&self, other: &Self) -> Vec<Element> {
        let is_new = |element: &&Element| other.elements.binary_search(element).is_err();
        self.elements.iter().filter(is_new).copied().collect()
    }
}
