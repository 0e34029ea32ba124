//! How the packets of a connection's direction leave.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::key::{ConnectionKey, Family};

/// Words of the longest `struct translation*` of bpf/header.h.
pub(super) const MOST_TRANSLATION: usize = 5;
/// Bytes of an address of IPv6, the longest.
const MOST_ADDRESS: usize = 16;

/// The addresses and ports that packets leave with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation {
    /// The source.
    pub source: (IpAddr, u16),
    /// The destination.
    pub destination: (IpAddr, u16),
}

impl Translation {
    /// The addresses and ports of a key: nothing changes.
    #[must_use]
    pub fn none(key: &ConnectionKey) -> Self {
        Self { source: key.source(), destination: key.destination() }
    }

    /// Words of the structure for the key's family: both addresses, the ports, and of IPv6 what the change adds to the
    /// sums, for packets with this key. The programs add it up for IPv4. None if the addresses are of another family than
    /// the key's.
    pub(super) fn words(&self, key: &ConnectionKey) -> Option<[u64; MOST_TRANSLATION]> {
        let before = Self::none(key);
        let new = [self.source.0, self.destination.0];
        let old = [before.source.0, before.destination.0];
        if old.iter().zip(new).any(|(old, new)| old.is_ipv4() != new.is_ipv4()) {
            return None;
        }
        let ports = [before, *self].map(|one| [one.source.1, one.destination.1]);
        let changed = old.into_iter().zip(new).filter(|(old, new)| old != new);
        let address_sum = changed.fold(0, |sum, (old, new)| {
            let added = halves(new).fold(sum, add);
            halves(old).fold(added, |sum, half| add(sum, !half))
        });
        let l4_sum = ports[0]
            .iter()
            .zip(ports[1])
            .fold(address_sum, |sum, (old, new)| add(add(sum, !old), new));
        // The sum is over words as they are in memory.
        let has_sums = key.family() == Family::V6 && *self != before;
        let sums = [address_sum, l4_sum].map(|sum| if has_sums { nonzero(sum) } else { 0 });
        let mut bytes = [0; MOST_TRANSLATION * 8];
        let values = new.into_iter().flat_map(octets);
        let values = values.chain(ports[1].into_iter().chain(sums).flat_map(u16::to_be_bytes));
        bytes.iter_mut().zip(values).for_each(|(byte, value)| *byte = value);
        let (words, _) = bytes.as_chunks::<8>();
        Some(std::array::from_fn(|at| u64::from_ne_bytes(words[at])))
    }

    pub(super) fn of(family: Family, words: [u64; MOST_TRANSLATION]) -> Self {
        let bytes = words.map(u64::to_ne_bytes);
        let (address, bytes) = (address_len(family), bytes.as_flattened());
        let port =
            |at: usize| u16::from_be_bytes([bytes[2 * address + at], bytes[2 * address + at + 1]]);
        let ip = |at: usize| -> IpAddr {
            let mut octets = [0; MOST_ADDRESS];
            octets[..address].copy_from_slice(&bytes[at..at + address]);
            match (family, octets) {
                (Family::V4, [a, b, c, d, ..]) => Ipv4Addr::new(a, b, c, d).into(),
                (Family::V6, octets) => Ipv6Addr::from(octets).into(),
            }
        };
        Self { source: (ip(0), port(0)), destination: (ip(address), port(2)) }
    }
}

const fn address_len(family: Family) -> usize {
    match family {
        Family::V4 => 4,
        Family::V6 => MOST_ADDRESS,
    }
}

/// The bytes of an address.
fn octets(address: IpAddr) -> impl Iterator<Item = u8> {
    let mut octets = [0; MOST_ADDRESS];
    let len = match address {
        IpAddr::V4(v4) => {
            octets[..4].copy_from_slice(&v4.octets());
            4
        }
        IpAddr::V6(v6) => {
            octets = v6.octets();
            MOST_ADDRESS
        }
    };
    octets.into_iter().take(len)
}

/// The words of an address whose sum is in checksums.
fn halves(address: IpAddr) -> impl Iterator<Item = u16> {
    let mut octets = octets(address);
    std::iter::from_fn(move || Some(u16::from_be_bytes([octets.next()?, octets.next()?])))
}

/// Adds in ones' complement (RFC 1071).
fn add(sum: u16, more: u16) -> u16 {
    let (sum, carry) = sum.overflowing_add(more);
    sum + u16::from(carry)
}

/// The other form of 0, which says that something changes.
fn nonzero(sum: u16) -> u16 {
    if sum == 0 { u16::MAX } else { sum }
}

#[cfg(test)]
mod tests {
    use tollway_dataplane::id::LinkId;

    use super::*;
    use crate::testkit::dice::Dice;

    /// The sum of RFC 1071 over words.
    fn sum(words: impl IntoIterator<Item = u16>) -> u16 {
        words.into_iter().fold(0, add)
    }

    /// The words of both addresses, and of both ports.
    fn words(translation: &Translation) -> (Vec<u16>, [u16; 2]) {
        let addresses = [translation.source.0, translation.destination.0];
        let ports = [translation.source.1, translation.destination.1];
        (addresses.into_iter().flat_map(halves).collect(), ports)
    }

    fn address(dice: &mut Dice, family: Family) -> (IpAddr, u16) {
        let number = u128::from(dice.roll()) << 64 | u128::from(dice.roll());
        let ip = match family {
            Family::V4 => Ipv4Addr::from(number as u32).into(),
            Family::V6 => Ipv6Addr::from(number).into(),
        };
        (ip, dice.roll() as u16)
    }

    #[test]
    fn the_sums_of_a_translation_make_up_for_its_changes() {
        let mut dice = Dice(5);
        for turn in 0..20_000 {
            let family = if turn % 2 == 0 { Family::V4 } else { Family::V6 };
            let [from, to, new_from, new_to] = std::array::from_fn(|_| address(&mut dice, family));
            let key = ConnectionKey::new(LinkId(3), 17, from, to).unwrap();
            let (source, destination) = match dice.below(4) {
                0 => (new_from, to),
                1 => (from, new_to),
                2 => (new_from, new_to),
                _ => ((from.0, new_from.1), to),
            };
            let translation = Translation { source, destination };
            let written = translation.words(&key).unwrap();
            assert_eq!(Translation::of(family, written), translation);
            let at = if family == Family::V4 { 1 } else { 4 };
            assert!(written[at + 1..].iter().all(|word| *word == 0), "{family:?} has no more");
            let [.., a, b, c, d] = written[at].to_ne_bytes();
            if family == Family::V4 {
                assert_eq!([a, b, c, d], [0; 4], "the programs add up");
                continue;
            }
            let [of_addresses, of_l4] = [[a, b], [c, d]].map(u16::from_be_bytes);
            assert!(of_addresses != 0 && of_l4 != 0, "they say that something changes");
            // A checksum is the complement of a sum, which grows by what is added to its words.
            let [old, new] = [Translation::none(&key), translation].map(|one| words(&one));
            for (more, with_ports) in [(of_addresses, 0), (of_l4, 2)] {
                let sum_of = |(addresses, ports): &(Vec<u16>, [u16; 2])| {
                    sum(addresses.iter().chain(&ports[..with_ports]).copied())
                };
                let difference = add(add(sum_of(&old), more), !sum_of(&new));
                assert!(matches!(difference, 0 | u16::MAX), "{translation:?}");
            }
        }
        for ip in [IpAddr::from([127, 0, 0, 1]), IpAddr::from([1_u16; 8])] {
            let key = ConnectionKey::new(LinkId(3), 17, (ip, 1), (ip, 2)).unwrap();
            let at = if ip.is_ipv4() { 1 } else { 4 };
            let nothing = Translation::none(&key).words(&key).unwrap()[at].to_ne_bytes();
            assert_eq!(nothing[4..], [0; 4], "nothing changes");
        }
    }
}
