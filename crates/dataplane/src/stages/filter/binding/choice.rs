//! The choice of addresses and ports, so that answers are those of one connection only.

use super::super::flows::FlowId;
use super::hash::choose_address;
use super::{BindingRange, Manip};
use crate::wire::l4;

/// The most ports that one round tries.
const MOST_TRIES: u32 = 128;
/// A round of fewer tries is the last one.
const FEWEST_TRIES: u32 = 16;

/// What a choice has to know of the connections there are.
pub(in super::super) trait Tuples {
    /// Says whether answers to packets that leave so would be taken for those of another connection.
    fn is_taken(&self, leaves: &FlowId) -> bool;

    /// A number that nobody can guess.
    fn random(&self) -> u16;
}

/// What a protocol has instead of ports, or ports.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ports {
    Numbers,
    /// One for both directions.
    Identifier,
    None,
}

/// How the packets of a connection leave that have left as `current` before. The choice is taken already if all that
/// were tried are.
pub(in super::super) fn choose(
    current: &FlowId,
    range: &BindingRange,
    manip: Manip,
    tuples: &impl Tuples,
) -> FlowId {
    let is_kept = manip == Manip::Source && !range.is_random && range.has(current);
    if is_kept && !tuples.is_taken(current) {
        return *current;
    }
    let mut chosen = *current;
    if let Some((first, last)) = range.addresses {
        let address = match first == last {
            true => first,
            false => choose_address(current, (first, last), manip, range.is_persistent),
        };
        match manip {
            Manip::Source => chosen.source = address,
            Manip::Destination => chosen.destination = address,
        }
    }
    if !range.is_random {
        let is_in = |(first, last): (u16, u16)| match ports_of(&chosen) {
            Ports::None => true,
            _ => (first..=last).contains(&port(&chosen, manip)),
        };
        match range.ports {
            Some(ports) if is_in(ports) && (ports.0 == ports.1 || !tuples.is_taken(&chosen)) => {
                return chosen;
            }
            None if !tuples.is_taken(&chosen) => return chosen,
            _ => {}
        }
    }
    choose_port(chosen, range, manip, tuples)
}

/// `nf_nat_l4proto_unique_tuple`.
fn choose_port(
    mut chosen: FlowId,
    range: &BindingRange,
    manip: Manip,
    tuples: &impl Tuples,
) -> FlowId {
    let (first, last): (u16, u16) = match (ports_of(&chosen), range.ports) {
        (Ports::None, _) => return chosen,
        (_, Some(ports)) => ports,
        (Ports::Identifier, None) => (0, u16::MAX),
        (Ports::Numbers, None) if manip == Manip::Destination => return chosen,
        (Ports::Numbers, None) => match port(&chosen, manip) {
            0..512 => (1, 511),
            512..1024 => (600, 1023),
            1024.. => (1024, u16::MAX),
        },
    };
    let count = u32::from(last.saturating_sub(first)) + 1;
    let mut tries = count.min(MOST_TRIES);
    loop {
        let start = tuples.random();
        for number in 0..tries {
            let offset = u32::from(start.wrapping_add(number as u16)) % count;
            set_port(&mut chosen, manip, first.wrapping_add(offset as u16));
            if !tuples.is_taken(&chosen) {
                return chosen;
            }
        }
        if tries >= count || tries < FEWEST_TRIES {
            return chosen;
        }
        tries /= 2;
    }
}

impl BindingRange {
    /// Says whether a source is in the range.
    fn has(&self, flow: &FlowId) -> bool {
        let within = |(first, last): (u128, u128)| (first..=last).contains(&flow.source);
        let has_port = |(first, last): (u16, u16)| match ports_of(flow) {
            Ports::None => true,
            _ => (first..=last).contains(&flow.source_port),
        };
        self.addresses.is_none_or(within) && self.ports.is_none_or(has_port)
    }
}

const fn ports_of(flow: &FlowId) -> Ports {
    match flow.protocol {
        _ if flow.query.is_some() => Ports::Identifier,
        l4::TCP | l4::UDP | l4::UDP_LITE => Ports::Numbers,
        _ => Ports::None,
    }
}

const fn port(flow: &FlowId, manip: Manip) -> u16 {
    match manip {
        Manip::Source => flow.source_port,
        Manip::Destination => flow.destination_port,
    }
}

fn set_port(flow: &mut FlowId, manip: Manip, port: u16) {
    let is_both = ports_of(flow) == Ports::Identifier;
    if is_both || manip == Manip::Source {
        flow.source_port = port;
    }
    if is_both || manip == Manip::Destination {
        flow.destination_port = port;
    }
}
