//! A firewall that walks a list of rules for each packet, modelled on ipfw. It has three forms of
//! packet state:
//!
//! - 240 bytes that are zeroed each time;
//! - 128 bytes with flags that say which fields are valid;
//! - the router's own form, which lies beside the packets of a burst.

use tollway_dataplane::burst::{BURST, Lanes};
use tollway_dataplane::wire::{be16, be32};

use super::super::small_path::HEADER;

/// Bytes of a packet that the firewall may read.
pub(super) const PACKET: usize = HEADER + 8;

/// A condition or action of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    /// Continues if the destination is in a prefix.
    Destination { bits: u32, mask: u32 },
    /// Continues if the destination port is this one.
    Port(u16),
    /// Accepts the packet.
    Allow,
    /// Drops it.
    Deny,
}

/// A rule and its counters.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    pub(super) ops: Vec<Op>,
    pub(super) packets: u64,
    pub(super) bytes: u64,
}

/// A list that begins with "allow ip from any to any". No packet reaches the rules after it, but the
/// compiler must not know that.
pub(super) fn rules() -> Vec<Rule> {
    let rule = |ops: &[Op]| Rule { ops: ops.to_vec(), packets: 0, bytes: 0 };
    let loopback = Op::Destination { bits: 0x7f00_0000, mask: 0xff00_0000 };
    let rest = [rule(&[loopback, Op::Deny]), rule(&[Op::Port(0), Op::Deny]), rule(&[Op::Deny])];
    std::iter::once(rule(&[Op::Allow])).chain(rest).collect()
}

/// The fields that distinguish flows, for either version of IP: 56 bytes.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Flow {
    dst: u32,
    src: u32,
    dst_port: u16,
    src_port: u16,
    fib: u8,
    protocol: u8,
    flags: u8,
    kind: u8,
    dst6: [u64; 2],
    src6: [u64; 2],
    label: u32,
    extra: u32,
}

impl Flow {
    #[inline(always)]
    fn set_from(&mut self, packet: &[u8; PACKET]) {
        self.src = be32(packet, 26);
        self.dst = be32(packet, 30);
        self.src_port = be16(packet, 34);
        self.dst_port = be16(packet, 36);
        self.protocol = packet[23];
        self.fib = 0;
        self.flags = 0;
        self.kind = 4;
        self.extra = 0;
    }
}

/// The state of a packet: 240 bytes, all zeroed, since zero addresses mark unset fields.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Zeroed {
    packet: u64,
    out: u64,
    next_hop: u64,
    next_hop6: u64,
    rule: [u64; 3],
    ethernet: u64,
    flow: Flow,
    socket: u64,
    unused: [u64; 8],
    hop: [u64; 2],
    hop6: [u32; 8],
}

/// The same with flags that say what is set: 128 bytes, most of which are never written.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Flagged {
    flags: u32,
    direction: u32,
    packet: u64,
    interface: u64,
    socket: u64,
    flow: Flow,
    rule: [u64; 3],
    /// The flags say what these words hold.
    hop: [u64; 2],
}

const HAS_RULE: u32 = 1;
const HAS_HOP: u32 = 2;
const HAS_ETHERNET: u32 = 4;

const _: () = assert!(size_of::<Zeroed>() == 240 && size_of::<Flagged>() == 128);

/// The router's form: columns of a burst, each filled by one stage. 32 bytes per packet, never
/// zeroed.
#[derive(Debug)]
pub(super) struct Columns {
    pub(super) addr: [u32; BURST],
    pub(super) len: [u16; BURST],
    pub(super) link: [u16; BURST],
    pub(super) key: [u64; BURST],
    #[expect(dead_code, reason = "columns of stages that this path does not have")]
    others: [[u32; 4]; BURST],
}

const _: () = assert!(size_of::<Columns>() == 32 * BURST);

impl Columns {
    pub(super) const fn new() -> Self {
        Self {
            addr: [0; BURST],
            len: [0; BURST],
            link: [0; BURST],
            key: [0; BURST],
            others: [[0; 4]; BURST],
        }
    }
}

/// Checks one packet with a zeroed state. Says whether the list accepts it.
#[inline(never)]
pub(super) fn zeroed(rules: &mut [Rule], packet: &[u8; PACKET], len: u16, out: u64) -> bool {
    let mut state = Zeroed { packet: packet.as_ptr() as u64, out, ..Zeroed::default() };
    walk_zeroed(rules, packet, len, &mut state)
}

/// Checks one packet with a state that is not zeroed: only fields with a flag are valid.
#[inline(never)]
pub(super) fn flagged(
    rules: &mut [Rule],
    packet: &[u8; PACKET],
    len: u16,
    out: u64,
    state: &mut Flagged,
) -> bool {
    state.flags = 0;
    state.packet = packet.as_ptr() as u64;
    state.interface = out;
    walk_flagged(rules, packet, len, state)
}

#[inline(never)]
fn walk_zeroed(rules: &mut [Rule], packet: &[u8; PACKET], len: u16, state: &mut Zeroed) -> bool {
    state.flow.set_from(packet);
    if state.ethernet != 0 || state.next_hop != 0 || state.next_hop6 != 0 {
        return false;
    }
    let first = state.rule[0] as usize;
    walk(rules, first, len, |op| holds(op, &state.flow))
}

#[inline(never)]
fn walk_flagged(rules: &mut [Rule], packet: &[u8; PACKET], len: u16, state: &mut Flagged) -> bool {
    state.flow.set_from(packet);
    if state.flags & (HAS_ETHERNET | HAS_HOP) != 0 {
        return false;
    }
    let first = if state.flags & HAS_RULE != 0 { state.rule[0] as usize } else { 0 };
    walk(rules, first, len, |op| holds(op, &state.flow))
}

/// Checks a burst, rule by rule instead of packet by packet; returns the accepted packets as bits. It
/// reads only fields that a rule checks, and a rule counts all of its packets at once.
#[inline(never)]
pub(super) fn columns(
    rules: &mut [Rule],
    columns: &mut Columns,
    count: usize,
    port: impl Fn(usize) -> u16,
) -> u64 {
    let mut left = Lanes::first(count);
    let mut allowed = 0;
    for rule in rules {
        let mut lanes = left;
        for op in &rule.ops {
            lanes = match *op {
                Op::Destination { bits, mask } => {
                    only(lanes, |lane| columns.key[lane] as u32 & mask == bits)
                }
                Op::Port(wanted) => only(lanes, |lane| port(lane) == wanted),
                Op::Allow | Op::Deny => {
                    rule.packets += lanes.count() as u64;
                    rule.bytes += bytes(lanes, columns);
                    if *op == Op::Allow {
                        allowed |= lanes.0;
                    }
                    left = left.without(lanes);
                    break;
                }
            };
        }
        if left.is_empty() {
            break;
        }
    }
    allowed
}

#[inline(always)]
fn only(lanes: Lanes, holds: impl Fn(usize) -> bool) -> Lanes {
    let mut kept = Lanes::NONE;
    lanes.into_iter().for_each(|lane| kept.put(lane, holds(lane)));
    kept
}

#[inline(always)]
fn bytes(lanes: Lanes, columns: &Columns) -> u64 {
    match lanes.dense() {
        Some(range) => columns.len[range].iter().copied().map(u64::from).sum(),
        None => lanes.into_iter().map(|lane| u64::from(columns.len[lane])).sum(),
    }
}

#[inline(always)]
fn holds(op: Op, flow: &Flow) -> bool {
    match op {
        Op::Destination { bits, mask } => flow.dst & mask == bits,
        Op::Port(port) => flow.dst_port == port,
        Op::Allow | Op::Deny => true,
    }
}

/// Walks the list until a rule decides. Says whether it accepts the packet.
#[inline(always)]
fn walk(rules: &mut [Rule], first: usize, len: u16, holds: impl Fn(Op) -> bool) -> bool {
    'rules: for rule in rules.iter_mut().skip(first) {
        for op in &rule.ops {
            if !holds(*op) {
                continue 'rules;
            }
            if matches!(op, Op::Allow | Op::Deny) {
                rule.packets += 1;
                rule.bytes += u64::from(len);
                return *op == Op::Allow;
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::super::super::small_path::templates;
    use super::*;

    #[test]
    fn all_three_decide_alike() {
        let lists: [(&[Op], bool); 4] = [
            (&[Op::Allow], true),
            (&[Op::Port(53), Op::Allow], true),
            (&[Op::Port(54), Op::Allow], false),
            (&[Op::Destination { bits: 0x0a00_0000, mask: 0xff00_0000 }, Op::Deny], false),
        ];
        let template = templates(1, &[], 53)[0];
        let packet: &[u8; PACKET] = template.first_chunk().unwrap();
        for (ops, allowed) in lists {
            let mut rules = rules();
            rules[0].ops = ops.to_vec();
            assert_eq!(zeroed(&mut rules, packet, 60, 1), allowed, "{ops:?}");
            assert_eq!(flagged(&mut rules, packet, 60, 1, &mut Flagged::default()), allowed);
            let mut burst = Columns::new();
            burst.key[0] = u64::from(be32(packet, 30));
            burst.len[0] = 60;
            let found = columns(&mut rules, &mut burst, 1, |_| be16(packet, 36));
            assert_eq!(found, u64::from(allowed));
            assert_eq!(rules.iter().map(|rule| rule.packets).sum::<u64>(), 3);
            assert_eq!(rules.iter().map(|rule| rule.bytes).sum::<u64>(), 180);
        }
    }
}
