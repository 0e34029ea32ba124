//! Sets of ipset that rules of iptables look up (`-m set --match-set`).
//!
//! The kernel does not notify of changes of such a set (`net/netfilter/ipset/ip_set_core.c`). So a thread of
//! [`Watch`] lists the sets again and again, and reports the elements that came and went.
//!
//! Limits: sets of addresses or prefixes (`hash:ip`, `hash:net`, `bitmap:ip`) that the kernel lists in one
//! datagram, some 1,000 elements. While it lists a set in several datagrams, `ipset swap` fails (EBUSY). So
//! Tollway must not list a larger set over and over. The cost of all sets together has a limit too
//! ([`Budget`]).

mod message;
#[cfg(test)]
mod tests;
mod watch;

use std::collections::BTreeSet;
use std::io;

use tollway_dataplane::stages::filter::Element;

use super::socket::NetfilterSocket;
use tollway_linux::sys::why;
pub(super) use watch::{Look, Watch};

/// What precedes the name of such a set in the rules.
const PREFIX: &str = "ipset ";
/// The size of the kernel's datagrams in a list, less what is not elements, in bytes (`netlink_dump`).
const DATAGRAM: u32 = 31 << 10;

/// A set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IpSet {
    /// Its name.
    pub(super) name: String,
    /// The tables with rules that look it up, after their families.
    pub(super) tables: BTreeSet<String>,
    /// Its elements, or why the rules that look it up take the kernel path.
    pub(super) contents: Result<Contents, IpSetError>,
}

/// Why rules that look up a set take the kernel path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{set} {fault}")]
pub(super) struct IpSetError {
    /// The set, as the subject of the sentence.
    set: String,
    fault: IpSetFault,
}

// The user sees only the sentence.
impl From<IpSetError> for String {
    fn from(error: IpSetError) -> Self {
        error.to_string()
    }
}

/// What keeps Tollway from evaluating a set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum IpSetFault {
    /// The kernel does not list it, with the error in words.
    #[error("cannot be listed: {0}")]
    Unlisted(String),
    /// The list has another format than the kernel's header file describes.
    #[error("is listed in an unknown format")]
    UnknownFormat,
    #[error("is of type {0}")]
    Type(String),
    #[error("has a bit mask")]
    BitMask,
    #[error("counts packets")]
    Counters,
    #[error("has elements with nomatch")]
    NoMatch,
    #[error("has elements with unknown flags")]
    UnknownFlags,
    #[error("has elements in an unknown format")]
    UnknownElement,
    #[error("is too large to be listed again and again")]
    TooLarge,
    /// It exceeds the [`Budget`] of all sets.
    #[error("would cost too much, with the other sets, to be listed again and again")]
    OverBudget,
}

/// What a set contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Contents {
    /// The version of IP of its addresses.
    pub(super) version: u8,
    /// Its elements, sorted.
    pub(super) elements: Vec<Element>,
}

/// The limits for all sets that are listed again and again: together they take less than 2% of a
/// processor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    sets: u32,
    /// A thousand take 0.4 ms.
    elements: u32,
    /// Places in hash tables, which the kernel walks whether they hold elements or not.
    places: u32,
}

impl Budget {
    pub(super) const fn new() -> Self {
        Self { sets: 16, elements: 2000, places: 1 << 16 }
    }

    /// Takes the cost of a set; `None` if it is too much.
    fn take(&mut self, head: &message::Head) -> Option<()> {
        self.sets = self.sets.checked_sub(1)?;
        self.elements = self.elements.checked_sub(head.count)?;
        self.places = self.places.checked_sub(head.places)?;
        Some(())
    }
}

impl IpSet {
    /// Lists the set with this index, which rules of these tables look up.
    pub(super) fn read(
        index: u16,
        tables: BTreeSet<String>,
        budget: &mut Budget,
        socket: &mut NetfilterSocket,
    ) -> Self {
        let unlisted = |error: io::Error| IpSetFault::Unlisted(why(&error));
        match name(index, socket) {
            Ok(name) => {
                let contents = list(&name, budget, socket)
                    .unwrap_or_else(|error| Err(unlisted(error)))
                    .map_err(|fault| IpSetError { set: format!("the ipset {name}"), fault });
                Self { name, tables, contents }
            }
            Err(error) => {
                let set = format!("ipset {index}");
                let contents = Err(IpSetError { set, fault: unlisted(error) });
                Self { name: String::new(), tables, contents }
            }
        }
    }

    /// Its name in the rules, without the table.
    pub(super) fn name_in_rules(&self) -> String {
        format!("{PREFIX}{}", self.name)
    }
}

fn name(index: u16, socket: &mut NetfilterSocket) -> io::Result<String> {
    let answers = query(socket, |sequence| message::name_of(sequence, index))?;
    let name = answers.first().and_then(|body| message::name(body));
    name.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Lists a set. The inner error says why its rules take the kernel path.
fn list(
    name: &str,
    budget: &mut Budget,
    socket: &mut NetfilterSocket,
) -> io::Result<Result<Contents, IpSetFault>> {
    let head = query(socket, |sequence| message::list(sequence, name, true))?;
    let head = match head.first().map(|body| message::Head::read(body)) {
        Some(Ok(head)) => head,
        Some(Err(fault)) => return Ok(Err(fault)),
        None => return Err(io::ErrorKind::NotFound.into()),
    };
    if head.count.saturating_mul(head.element_bytes) > DATAGRAM {
        return Ok(Err(IpSetFault::TooLarge));
    }
    if budget.take(&head).is_none() {
        return Ok(Err(IpSetFault::OverBudget));
    }
    let lists = query(socket, |sequence| message::list(sequence, name, false))?;
    match &lists[..] {
        // The set may have been swapped for another one since.
        [list] => Ok(message::Head::read(list).and_then(|head| head.contents(list))),
        [] => Err(io::ErrorKind::NotFound.into()),
        _ => Ok(Err(IpSetFault::TooLarge)),
    }
}

/// Sends a request. Returns the attributes of each message that answers it.
fn query(
    socket: &mut NetfilterSocket,
    request: impl Fn(u32) -> Vec<u8>,
) -> io::Result<Vec<Vec<u8>>> {
    let mut bodies = Vec::new();
    socket.answers(&request, &mut |message| {
        bodies.extend(message::body(message).map(<[u8]>::to_vec));
        false
    })?;
    Ok(bodies)
}
