//! How the packets of a connection's direction leave.

use std::net::Ipv4Addr;

use crate::flows::Flow4Key;

/// The addresses and ports that packets leave with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation {
    /// The source.
    pub source: (Ipv4Addr, u16),
    /// The destination.
    pub destination: (Ipv4Addr, u16),
}

impl Translation {
    /// The addresses and ports of a key: nothing changes.
    #[must_use]
    pub fn none(key: &Flow4Key) -> Self {
        let [source, destination] = [key.src_be, key.dst_be].map(Ipv4Addr::from);
        let [sport, dport] = [key.sport_be, key.dport_be].map(u16::from_be_bytes);
        Self { source: (source, sport), destination: (destination, dport) }
    }

    /// Words of `struct translation` of bpf/header.h, for packets with a key.
    pub(super) fn words(&self, key: &Flow4Key) -> [u64; 2] {
        let before = Self::none(key);
        let addresses = [before, *self].map(|one| [one.source.0, one.destination.0]);
        let ports = [before, *self].map(|one| [one.source.1, one.destination.1]);
        let changes = *self != before;
        let address_sum =
            (0..2).filter(|at| addresses[0][*at] != addresses[1][*at]).fold(0, |sum, at| {
                let [old, new] = [addresses[0][at], addresses[1][at]].map(halves);
                [!old[0], !old[1], new[0], new[1]].into_iter().fold(sum, add)
            });
        let l4_sum = ports[0]
            .iter()
            .zip(ports[1])
            .fold(address_sum, |sum, (old, new)| add(add(sum, !old), new));
        // The sum is over words as they are in memory.
        let sums = [address_sum, l4_sum]
            .map(|sum| if changes { nonzero(sum).to_be_bytes() } else { [0; 2] });
        let [a, b] = self.source.1.to_be_bytes();
        let [c, d] = self.destination.1.to_be_bytes();
        let [[e, f], [g, h]] = sums;
        let [src, dst] = addresses[1].map(|address| address.octets());
        let [i, j, k, l] = src;
        let [m, n, o, p] = dst;
        [[i, j, k, l, m, n, o, p], [a, b, c, d, e, f, g, h]].map(u64::from_ne_bytes)
    }

    pub(super) fn of(words: [u64; 2]) -> Self {
        let [[i, j, k, l, m, n, o, p], [a, b, c, d, ..]] = words.map(u64::to_ne_bytes);
        Self {
            source: (Ipv4Addr::new(i, j, k, l), u16::from_be_bytes([a, b])),
            destination: (Ipv4Addr::new(m, n, o, p), u16::from_be_bytes([c, d])),
        }
    }
}

fn halves(address: Ipv4Addr) -> [u16; 2] {
    let [a, b, c, d] = address.octets();
    [u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])]
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

    fn words(translation: &Translation) -> [u16; 6] {
        let [[a, b], [c, d]] = [translation.source.0, translation.destination.0].map(halves);
        [a, b, c, d, translation.source.1, translation.destination.1]
    }

    #[test]
    fn the_sums_of_a_translation_make_up_for_its_changes() {
        let mut dice = Dice(5);
        for _ in 0..10_000 {
            let mut address = || (Ipv4Addr::from(dice.roll() as u32), dice.roll() as u16);
            let (before, after) = ((address(), address()), (address(), address()));
            let key = Flow4Key::new(LinkId(3), 17, before.0, before.1);
            let translation = match dice.below(4) {
                0 => Translation { source: after.0, destination: before.1 },
                1 => Translation { source: before.0, destination: after.1 },
                2 => Translation { source: after.0, destination: after.1 },
                _ => Translation { source: (before.0.0, after.0.1), destination: before.1 },
            };
            let written = translation.words(&key);
            assert_eq!(Translation::of(written), translation);
            let [.., a, b, c, d] = written[1].to_ne_bytes();
            let [ip, l4] = [[a, b], [c, d]].map(u16::from_be_bytes);
            assert!(ip != 0 && l4 != 0, "they say that something changes");
            // A checksum is the complement of a sum, which grows by what is added to its words.
            let old = words(&Translation::none(&key));
            let new = words(&translation);
            for (sum_of_change, count) in [(ip, 4), (l4, 6)] {
                let changed = add(sum(old[..count].iter().copied()), sum_of_change);
                let difference = add(changed, !sum(new[..count].iter().copied()));
                assert!(matches!(difference, 0 | u16::MAX), "{translation:?}");
            }
        }
        let key = Flow4Key::new(LinkId(3), 17, (Ipv4Addr::LOCALHOST, 1), (Ipv4Addr::LOCALHOST, 2));
        let nothing = Translation::none(&key).words(&key)[1].to_ne_bytes();
        assert_eq!(nothing[4..], [0; 4], "nothing changes");
    }
}
