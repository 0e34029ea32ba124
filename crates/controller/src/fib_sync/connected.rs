//! Which prefixes concern neighbours: connected prefixes, the prefixes within them, and those that cover
//! them.

use std::collections::{BTreeSet, HashSet};

use tollway_dataplane::prefix::Prefix;

/// The connected prefixes of one FIB; former ones stay.
#[derive(Debug, Default)]
pub(super) struct ConnectedPrefixes {
    prefixes: HashSet<(u8, u128)>,
    lengths: BTreeSet<u8>,
    /// By first address.
    sorted: BTreeSet<u128>,
}

impl ConnectedPrefixes {
    pub(super) fn add(&mut self, prefix: Prefix) {
        self.prefixes.insert((prefix.len(), prefix.bits()));
        self.lengths.insert(prefix.len());
        self.sorted.insert(prefix.bits());
    }

    /// Says whether a prefix covers a connected one or is within one.
    pub(super) fn meets(&self, prefix: Prefix) -> bool {
        let (len, bits) = (prefix.len(), prefix.bits());
        let mask = |len: u8| !u128::MAX.checked_shr(len.into()).unwrap_or(0);
        let covers = |of: u8| self.prefixes.contains(&(of, bits & mask(of)));
        if self.lengths.range(..=len).any(|of| covers(*of)) {
            return true;
        }
        let last = bits | u128::MAX.checked_shr(len.into()).unwrap_or(0);
        self.sorted.range(bits..=last).next().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_inside_and_around_an_entry_meet_it() {
        let mut connected = ConnectedPrefixes::default();
        connected.add(Prefix::v4(0x0a01_0200, 24));
        connected.add(Prefix::v4(0x0a02_0001, 32));
        for (address, len, meets) in [
            (0x0a01_0200, 24, true),
            (0x0a01_0280, 25, true),
            (0x0a01_02ff, 32, true),
            (0x0a00_0000, 8, true),
            (0, 0, true),
            (0x0a02_0001, 32, true),
            (0x0a02_0000, 31, true),
            (0x0a01_0300, 24, false),
            (0x0a02_0002, 31, false),
            (0x0a02_0000, 32, false),
            (0x0b00_0000, 8, false),
        ] {
            assert_eq!(connected.meets(Prefix::v4(address, len)), meets, "{address:x}/{len}");
        }
        assert!(!ConnectedPrefixes::default().meets(Prefix::v4(0, 0)));
    }
}
