//! Messages of nf_tables (`include/uapi/linux/netfilter/nf_tables.h`), as far as they are looked at.

use crate::netlink::{self, attributes, find, push};

/// `NFNL_SUBSYS_NFTABLES`.
const SUBSYSTEM: u8 = 10;

/// Numbers of messages within the subsystem.
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

/// Bytes of `nfgenmsg`.
const GENERAL: usize = 4;

/// What the kernel has to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// A change is over, or this is the answer to a question: the generation's number.
    Generation(u32),
    /// A table.
    Table(Table),
    /// Elements of a set came (or went).
    Elements(Elements),
    /// A rule came (or went).
    Rule(Rule),
    /// A set came (or went) that does nothing by itself: its name with its table's.
    Set(String),
    /// A stateful object came, or has something to tell.
    Object,
    /// Something else changed.
    Other,
    /// An answer is complete.
    Done,
    /// An answer is an error's number, 0 for none.
    Refused(i32),
}

/// A message with what its header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Told {
    /// The number of the question that it answers, 0 for none.
    pub(super) sequence: u32,
    /// The lower bits of the generation that it is of.
    pub(super) generation: u16,
    /// What it says.
    pub(super) message: Message,
}

/// Elements of a set that came or went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Elements {
    /// The set's name with its table's, `inet filter bad`.
    pub(super) set: String,
    /// Whether they came.
    pub(super) came: bool,
    /// The elements; none where one of them is more than a key.
    pub(super) keys: Option<Vec<Key>>,
}

/// A rule that came or went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    /// Its chain's name with its table's, `inet filter input`.
    pub(super) chain: String,
    /// Whether it does nothing beside its verdict that packets feel which do not meet it.
    pub(super) is_plain: bool,
}

/// What the kernel has for one end of an element, or for a whole one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Key {
    /// The key, as many bytes as the set's keys have.
    pub(super) value: Vec<u8>,
    /// The last key of those that the element is for, where the kernel keeps both ends in one.
    pub(super) last: Option<Vec<u8>>,
    /// Whether an interval ends before it.
    pub(super) is_end: bool,
}

/// A table, by what tells it from another.
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

    /// Says if it goes without a word when the process goes that made it (`NFT_TABLE_F_OWNER`, not
    /// `NFT_TABLE_F_PERSIST`).
    pub(super) const fn is_owned(&self) -> bool {
        const OWNER: u32 = 2;
        const PERSIST: u32 = 4;
        self.flags & (OWNER | PERSIST) == OWNER
    }
}

/// What there is a list of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum List {
    Chains,
    Rules,
    Sets,
}

/// Families of tables, by what the kernel calls them.
const FAMILIES: [(u8, &str); 6] =
    [(1, "inet"), (2, "ip"), (3, "arp"), (5, "netdev"), (7, "bridge"), (10, "ip6")];

/// The number of a family of tables.
pub(super) fn family_number(name: &str) -> Option<u8> {
    FAMILIES.iter().find(|(_, family)| *family == name).map(|(number, _)| *number)
}

/// Asks for the number of the generation.
pub(super) fn get_generation(sequence: u32) -> Vec<u8> {
    // Of any family.
    request(GETGEN, 0, sequence, 0, &[])
}

/// Asks for all tables.
pub(super) fn list_tables(sequence: u32) -> Vec<u8> {
    request(GETTABLE, NLM_F_DUMP, sequence, 0, &[])
}

/// Asks for all chains, rules or sets of all tables.
pub(super) fn list_all(sequence: u32, what: List) -> Vec<u8> {
    let kind = match what {
        List::Chains => GETCHAIN,
        List::Rules => GETRULE,
        List::Sets => GETSET,
    };
    request(kind, NLM_F_DUMP, sequence, 0, &[])
}

/// The family and the attributes of one of a list; none where the message is another one.
pub(super) fn listed<'a>(message: &netlink::Message<'a>) -> Option<(&'static str, &'a [u8])> {
    let [_, subsystem] = message.kind.to_le_bytes();
    let (general, body) = message.body.split_first_chunk::<GENERAL>()?;
    let (_, family) = FAMILIES.into_iter().find(|(number, _)| *number == general[0])?;
    (subsystem == SUBSYSTEM).then_some((family, body))
}

/// Asks for what a set has.
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

/// What a message says; none where it is not nf_tables', or cut off.
pub(super) fn read(message: &netlink::Message<'_>) -> Option<Told> {
    let sequence = message.sequence;
    let told = |generation, message| Some(Told { sequence, generation, message });
    match message.kind {
        ERROR => {
            let code = i32::from_ne_bytes(*message.body.first_chunk()?);
            return told(0, Message::Refused(code));
        }
        DONE => return told(0, Message::Done),
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
    told(generation, message)
}

fn rule(family: u8, came: bool, body: &[u8]) -> Option<Rule> {
    /// Expressions that look at a packet, count it or decide of it.
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
    // One that goes ends what it has begun, if anything.
    Some(Rule { chain: full_name(family, body)?, is_plain: is_plain || !came })
}

/// Says if a set has no expressions of its own.
fn is_plain_set(body: &[u8]) -> bool {
    const EXPRESSION: u16 = 17;
    const EXPRESSIONS: u16 = 18;
    attributes(body, 0).all(|one| one.kind != EXPRESSION && one.kind != EXPRESSIONS)
}

/// The name of a rule's chain or of a set, with its table's.
fn full_name(family: u8, body: &[u8]) -> Option<String> {
    let (_, family) = FAMILIES.into_iter().find(|(number, _)| *number == family)?;
    Some(format!("{family} {} {}", name(attribute(body, 1)?)?, name(attribute(body, 2)?)?))
}

fn elements(family: u8, came: bool, body: &[u8]) -> Option<Elements> {
    let set = full_name(family, body)?;
    let list = attribute(body, 3).unwrap_or_default();
    let keys = attributes(list, 0).map(|element| key(element.value)).collect();
    Some(Elements { set, came, keys })
}

/// The key of an element; none where it is more than that.
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

/// What the first attribute of a kind says.
pub(super) fn attribute(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    find(bytes, 0, wanted).map(|found| found.value)
}

/// A string that ends with a 0.
pub(super) fn name(bytes: &[u8]) -> Option<String> {
    let bytes = bytes.strip_suffix(&[0]).unwrap_or(bytes);
    std::str::from_utf8(bytes).ok().map(str::to_owned)
}

pub(super) fn be_word(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(..4)?.try_into().ok()?))
}
