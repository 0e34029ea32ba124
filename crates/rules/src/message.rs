//! Messages of nf_tables (`include/uapi/linux/netfilter/nf_tables.h`), as far as Tollway reads them.

use tollway_linux::netlink::{self, attributes, find, push};

/// `NFNL_SUBSYS_NFTABLES`.
const SUBSYSTEM: u8 = 10;

/// Message types within the subsystem.
const NEWTABLE: u8 = 0;
const GETTABLE: u8 = 1;
const GETCHAIN: u8 = 4;
const NEWRULE: u8 = 6;
const GETRULE: u8 = 7;
const DELRULE: u8 = 8;
const NEWSET: u8 = 9;
const GETSET: u8 = 10;
const DELSET: u8 = 11;
const NEWSETELEM: u8 = 12;
const GETSETELEM: u8 = 13;
const DELSETELEM: u8 = 14;
const NEWGEN: u8 = 15;
const GETGEN: u8 = 16;
const NEWOBJ: u8 = 18;

/// `NLMSG_ERROR`, `NLMSG_DONE`.
const ERROR: u16 = 2;
const DONE: u16 = 3;

const NLM_F_DUMP: u16 = 0x300;

/// Size of `nfgenmsg` in bytes.
const GENERAL: usize = 4;

/// A message of nf_tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// A change is complete, or this answers a query: the generation number.
    Generation(u32),
    /// A table.
    Table(Table),
    /// Elements of a set were added or removed.
    Elements(Elements),
    /// A rule was added or removed.
    Rule(Rule),
    /// A set without expressions of its own was added or removed: its name after its table's.
    Set(String),
    /// A stateful object was added or has notified of something.
    Object,
    /// Something else changed.
    Other,
    /// The end of an answer.
    Done,
    /// An error number that answers a request, 0 for success.
    Refused(i32),
}

/// A message with fields of its header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RulesMessage {
    /// The sequence number of the request that it answers, 0 for none.
    pub(super) sequence: u32,
    /// The lower bits of its generation number.
    pub(super) generation: u16,
    /// The message itself.
    pub(super) message: Message,
}

/// Elements added to or removed from a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Elements {
    /// The set's name after its table's, `inet filter bad`.
    pub(super) set: String,
    /// Whether they were added.
    pub(super) added: bool,
    /// The elements; `None` if one of them is more than a key.
    pub(super) keys: Option<Vec<Key>>,
}

/// A rule that was added or removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    /// Its chain's name after its table's, `inet filter input`.
    pub(super) chain: String,
    /// Whether it affects only the packets that meet it.
    pub(super) is_plain: bool,
}

/// One end of an element in the kernel, or a whole element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Key {
    /// The key, as long as the set's keys.
    pub(super) value: Vec<u8>,
    /// The last key of the element, if the kernel stores both ends in one.
    pub(super) last: Option<Vec<u8>>,
    /// Whether an interval ends before it.
    pub(super) is_end: bool,
}

/// A table, identified by what distinguishes it from others.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Table {
    family: u8,
    name: Vec<u8>,
    handle: Vec<u8>,
    flags: u32,
}

impl Table {
    fn read(family: u8, body: &[u8]) -> Option<Self> {
        let (name, handle) = (attribute(body, 1)?.to_vec(), attribute(body, 4)?.to_vec());
        let flags = attribute(body, 2).and_then(be_word)?;
        Some(Self { family, name, handle, flags })
    }

    /// Its family and its name.
    pub(super) fn place(&self) -> Option<(&'static str, String)> {
        let (_, family) = FAMILIES.into_iter().find(|(number, _)| *number == self.family)?;
        Some((family, name(&self.name)?))
    }

    /// `NFT_TABLE_F_*`.
    pub(super) const fn flags(&self) -> u32 {
        self.flags
    }

    /// Says whether it disappears without a notification when its creator exits (`NFT_TABLE_F_OWNER` without
    /// `NFT_TABLE_F_PERSIST`).
    pub(super) const fn is_owned(&self) -> bool {
        const OWNER: u32 = 2;
        const PERSIST: u32 = 4;
        self.flags & (OWNER | PERSIST) == OWNER
    }
}

/// The kinds of objects that can be listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum List {
    Chains,
    Rules,
    Sets,
}

/// Families of tables by the kernel's numbers.
const FAMILIES: [(u8, &str); 6] =
    [(1, "inet"), (2, "ip"), (3, "arp"), (5, "netdev"), (7, "bridge"), (10, "ip6")];

/// The number of a family of tables.
pub(super) fn family_number(name: &str) -> Option<u8> {
    FAMILIES.iter().find(|(_, family)| *family == name).map(|(number, _)| *number)
}

/// A request for the generation number.
pub(super) fn get_generation(sequence: u32) -> Vec<u8> {
    // Any family.
    request(GETGEN, 0, sequence, 0, &[])
}

/// A request for all tables.
pub(super) fn list_tables(sequence: u32) -> Vec<u8> {
    request(GETTABLE, NLM_F_DUMP, sequence, 0, &[])
}

/// A transaction without changes, which leaves the generation as it is.
pub(super) fn empty_transaction(sequence: u32) -> Vec<u8> {
    /// `NFNL_MSG_BATCH_BEGIN`, `NFNL_MSG_BATCH_END`.
    const BATCH: [u16; 2] = [16, 17];
    // For nf_tables, the resource.
    let general = [0, 0, 0, SUBSYSTEM];
    BATCH.map(|kind| netlink::request(kind, 0, sequence, &general)).concat()
}

/// A request for all chains, rules or sets of all tables.
pub(super) fn list_all(sequence: u32, what: List) -> Vec<u8> {
    let kind = match what {
        List::Chains => GETCHAIN,
        List::Rules => GETRULE,
        List::Sets => GETSET,
    };
    request(kind, NLM_F_DUMP, sequence, 0, &[])
}

/// The family and the attributes of an entry of a list; `None` for any other message.
pub(super) fn listed<'a>(message: &netlink::Message<'a>) -> Option<(&'static str, &'a [u8])> {
    let [_, subsystem] = message.kind.to_le_bytes();
    let (general, body) = message.body.split_first_chunk::<GENERAL>()?;
    let (_, family) = FAMILIES.into_iter().find(|(number, _)| *number == general[0])?;
    (subsystem == SUBSYSTEM).then_some((family, body))
}

/// A request for the elements of a set.
pub(super) fn list_elements(sequence: u32, family: u8, table: &str, set: &str) -> Vec<u8> {
    let mut names = Vec::new();
    for (kind, name) in [(1, table), (2, set)] {
        push(&mut names, kind, format!("{name}\0").as_bytes());
    }
    request(GETSETELEM, NLM_F_DUMP, sequence, family, &names)
}

fn request(kind: u8, flags: u16, sequence: u32, family: u8, body: &[u8]) -> Vec<u8> {
    let kind = u16::from(SUBSYSTEM) << 8 | u16::from(kind);
    // Version 0, no resource.
    let general: [u8; GENERAL] = [family, 0, 0, 0];
    netlink::request(kind, flags, sequence, &[&general[..], body].concat())
}

/// Parses a message; `None` if it is not of nf_tables, or truncated.
pub(super) fn read(message: &netlink::Message<'_>) -> Option<RulesMessage> {
    let sequence = message.sequence;
    let of_generation = |generation, message| Some(RulesMessage { sequence, generation, message });
    match message.kind {
        ERROR => {
            let code = i32::from_ne_bytes(*message.body.first_chunk()?);
            return of_generation(0, Message::Refused(code));
        }
        // A list that failed ends with the error.
        DONE => {
            let code = message.body.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code));
            let end = if code < 0 { Message::Refused(code) } else { Message::Done };
            return of_generation(0, end);
        }
        _ => {}
    }
    let [kind, subsystem] = message.kind.to_le_bytes();
    if subsystem != SUBSYSTEM {
        return None;
    }
    let (general, body) = message.body.split_first_chunk::<GENERAL>()?;
    let [family, _, g0, g1] = *general;
    let generation = u16::from_be_bytes([g0, g1]);
    let message = match kind {
        NEWGEN => Message::Generation(be_word(attribute(body, 1)?)?),
        NEWTABLE => Message::Table(Table::read(family, body)?),
        NEWSETELEM | DELSETELEM => match elements(family, kind == NEWSETELEM, body) {
            Some(elements) => Message::Elements(elements),
            None => Message::Other,
        },
        NEWRULE | DELRULE => match rule(family, kind == NEWRULE, body) {
            Some(rule) => Message::Rule(rule),
            None => Message::Other,
        },
        NEWSET | DELSET => match full_name(family, body).filter(|_| is_plain_set(body)) {
            Some(set) => Message::Set(set),
            None => Message::Other,
        },
        NEWOBJ => Message::Object,
        _ => Message::Other,
    };
    of_generation(generation, message)
}

fn rule(family: u8, added: bool, body: &[u8]) -> Option<Rule> {
    /// Expressions that test a packet, count it or decide on it.
    const PLAIN: [&str; 13] = [
        "bitwise",
        "byteorder",
        "cmp",
        "counter",
        "exthdr",
        "immediate",
        "limit",
        "log",
        "lookup",
        "meta",
        "payload",
        "range",
        "reject",
    ];
    let expressions = attribute(body, 4).unwrap_or_default();
    let mut names = attributes(expressions, 0).map(|one| attribute(one.value, 1).and_then(name));
    let is_plain = names.all(|name| name.is_some_and(|name| PLAIN.contains(&&*name)));
    // A removed rule only ends what it has enabled, if anything.
    Some(Rule { chain: full_name(family, body)?, is_plain: is_plain || !added })
}

/// Says whether a set has no expressions of its own.
fn is_plain_set(body: &[u8]) -> bool {
    const EXPRESSION: u16 = 17;
    const EXPRESSIONS: u16 = 18;
    attributes(body, 0).all(|one| one.kind != EXPRESSION && one.kind != EXPRESSIONS)
}

/// The name of a rule's chain or of a set, after its table's.
fn full_name(family: u8, body: &[u8]) -> Option<String> {
    let (_, family) = FAMILIES.into_iter().find(|(number, _)| *number == family)?;
    Some(format!("{family} {} {}", name(attribute(body, 1)?)?, name(attribute(body, 2)?)?))
}

fn elements(family: u8, added: bool, body: &[u8]) -> Option<Elements> {
    let set = full_name(family, body)?;
    let list = attribute(body, 3).unwrap_or_default();
    let keys = attributes(list, 0).map(|element| key(element.value)).collect();
    Some(Elements { set, added, keys })
}

/// The key of an element; `None` if the element is more than a key.
fn key(element: &[u8]) -> Option<Key> {
    const KEY: u16 = 1;
    const FLAGS: u16 = 3;
    const USERDATA: u16 = 6;
    const EXPRESSION: u16 = 7;
    const PADDING: u16 = 8;
    const LAST: u16 = 10;
    const EXPRESSIONS: u16 = 11;
    const IS_END: u32 = 1;
    let (mut value, mut last, mut flags) = (None, None, 0);
    for one in attributes(element, 0) {
        let bytes = one.value;
        match one.kind {
            KEY => value = Some(attribute(bytes, 1)?.to_vec()),
            LAST => last = Some(attribute(bytes, 1)?.to_vec()),
            FLAGS => flags = be_word(bytes)?,
            USERDATA | PADDING => {}
            EXPRESSION if is_counter(bytes) => {}
            EXPRESSIONS if one.nested().all(|one| is_counter(one.value)) => {}
            _ => return None,
        }
    }
    if flags & !IS_END != 0 {
        return None;
    }
    Some(Key { value: value?, last, is_end: flags & IS_END != 0 })
}

fn is_counter(expression: &[u8]) -> bool {
    attribute(expression, 1).and_then(name).as_deref() == Some("counter")
}

/// The payload of the first attribute of this type.
pub(super) fn attribute(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    find(bytes, 0, wanted).map(|found| found.value)
}

/// A NUL-terminated string.
pub(super) fn name(bytes: &[u8]) -> Option<String> {
    let bytes = bytes.strip_suffix(&[0]).unwrap_or(bytes);
    std::str::from_utf8(bytes).ok().map(str::to_owned)
}

pub(super) fn be_word(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(..4)?.try_into().ok()?))
}
