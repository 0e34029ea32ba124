//! Random destinations of a full Internet table.

use std::sync::Arc;

use tollway_dataplane::prefix::Prefix;

use super::super::controller::table::is_own4;
use super::super::generator::{Destinations, Flows, Stream};
use super::super::sink::SinkHook;
use super::follow::{self, AS_CARDS, Launch};
use super::wire::Wire;
use super::{Bench, Outcome};
use crate::fib::below;
use crate::frames::Xorshift;

/// Measures with so many flows of a family.
pub(super) fn measure(bench: &Bench<'_>, v6: bool, flows: u32) -> Result<Outcome, String> {
    let full = bench.setups.full_table()?;
    let prefixes = if v6 { &full.internet.v6 } else { &full.internet.v4 };
    let destinations = Arc::new(draw(prefixes, v6, flows));
    let wire = |topology| {
        let flows = Flows::To(Arc::clone(&destinations));
        Wire::new(topology, Stream { flows, vid: None, rate: None }, SinkHook::Xdp, None)
    };
    let (kernel, side) = (wire(&full.kernel.topology)?, wire(&full.tollway.topology)?);
    // Room for twice as many: the table evicts only approximately the least recently used flow.
    let room = (2 * flows).to_string();
    let more: &[&str] = if flows >= 1 << 20 { &["--xdp-flows", &room] } else { &[] };
    let launch = Launch { arguments: &[AS_CARDS.arguments, more].concat(), ..AS_CARDS };
    follow::measure(bench, &full.tollway.topology, launch, [&kernel, &side])
}

/// Random addresses, each of a random one of the prefixes.
pub(super) fn draw(prefixes: &[Prefix], v6: bool, count: u32) -> Destinations {
    let mut rng = Xorshift::new(0xf00d);
    let mut address = || {
        let prefix = prefixes[(rng.next() % prefixes.len() as u64) as usize];
        let random = u128::from(rng.next()) << 64 | u128::from(rng.next());
        let bits = prefix.bits() | random & below(prefix);
        // The last bits of an IPv4 prefix are not part of an address.
        if v6 { bits } else { bits >> 96 << 96 }
    };
    let mut outside = || loop {
        let bits = address();
        if v6 || !is_own4(bits) {
            return bits.to_be_bytes();
        }
    };
    Destinations { v6, addresses: (0..count).map(|_| outside()).collect() }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_destination_is_within_a_prefix_and_all_prefixes_have_their_turn() {
        let prefixes = [Prefix::v4(0x0102_0300, 24), Prefix::v4(0x0808_0000, 16)];
        let drawn = draw(&prefixes, false, 1 << 12).addresses;
        assert_eq!(drawn.len(), 1 << 12);
        let within = |start: &[u8]| drawn.iter().filter(|it| it.starts_with(start)).count();
        let (first, second) = (within(&[1, 2, 3]), within(&[8, 8]));
        assert_eq!(first + second, drawn.len());
        assert!(first > 1 << 10 && second > 1 << 10, "{first} and {second}");
        assert!(drawn.iter().all(|address| address[4..] == [0; 12]));
        let unique: HashSet<_> = drawn.iter().collect();
        assert!(unique.len() > second * 9 / 10, "{} of {second}", unique.len());
    }

    #[test]
    fn destinations_of_ipv6_are_random_to_their_last_bit() {
        let prefixes = [Prefix::v6(0x2001_0db8 << 96, 32)];
        let drawn = draw(&prefixes, true, 256).addresses;
        assert!(drawn.iter().all(|address| address.starts_with(&[0x20, 1, 0xd, 0xb8])));
        let ends: HashSet<_> = drawn.iter().map(|address| address[15]).collect();
        assert!(ends.len() > 100);
    }

    #[test]
    fn destinations_are_outside_the_wires_networks() {
        let prefixes = [Prefix::v4(0, 0), Prefix::v4(0x0a02_0000, 24), Prefix::v4(0x0900_0000, 7)];
        let drawn = draw(&prefixes, false, 1 << 10).addresses;
        assert!(drawn.iter().all(|address| address[0] != 10));
    }
}
