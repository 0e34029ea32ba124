//! Generations of regions, byte for byte as in `bpf/flows.h`. A changed route invalidates the flows
//! whose destination it may cover, and keeps the rest of the XDP path.
//!
//! An IPv4 region holds the addresses with the same first 16 bits; an IPv6 region those with the
//! same hash of the first 32 bits. A flow is active under the sum of the generations of the XDP
//! path and of its regions. Each of these only grows, so the sum repeats only if nothing has
//! changed (or 2^32 changes later).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

use tollway_dataplane::changes::Touched;

use super::shared::{Atomics, Shared};

/// Regions of each family, as a power of two; the IPv6 regions follow the IPv4 ones.
const BITS: u32 = 16;
const OF_FAMILY: u32 = 1 << BITS;
/// Regions of both families.
pub const REGIONS: u32 = 2 * OF_FAMILY;
/// Bits of an IPv6 address that determine its region.
const BITS6: u32 = 32;
/// A prefix that covers more regions than this (a power of two) counts as covering all addresses.
const MOST_BITS: u32 = 8;

/// The region of an IPv4 address.
#[inline(always)]
#[must_use]
pub const fn region4(first: u16) -> u32 {
    first as u32
}

/// The region of an IPv6 address with these first bits.
#[inline(always)]
#[must_use]
pub const fn region6(first: u32) -> u32 {
    // Any odd factor works; this one is 2^32 divided by the golden ratio.
    OF_FAMILY | first.wrapping_mul(0x9e37_79b1) >> (32 - BITS)
}

/// The regions that a prefix touches; `None` if they are too many.
#[must_use]
pub fn regions(touched: Touched) -> Option<impl Iterator<Item = u32>> {
    let is_ipv4 = touched.version == 4;
    let bits = if is_ipv4 { BITS } else { BITS6 };
    // The number of region bits that the prefix leaves open.
    let open = bits.saturating_sub(touched.len.into());
    let first = touched.bits.checked_shr(32 - bits).unwrap_or(0);
    let all = first..=first | (1_u32.checked_shl(open)?.wrapping_sub(1));
    let region = move |first| if is_ipv4 { region4(first as u16) } else { region6(first) };
    (open <= MOST_BITS).then(|| all.map(region))
}

// SAFETY: an atomic number.
#[allow(unsafe_code)]
unsafe impl Atomics for AtomicU32 {}

/// The regions' generations, shared with the XDP program. Cheap to clone; all clones share the
/// memory.
#[derive(Clone)]
pub(super) struct Regions(Arc<Shared<AtomicU32>>);

impl Regions {
    pub(super) fn map(map: &OwnedFd) -> io::Result<Self> {
        Ok(Self(Arc::new(Shared::map(map.as_fd(), REGIONS as usize)?)))
    }

    pub(super) fn generation(&self, region: u32) -> u32 {
        self.0.get(region as usize).map_or(0, |generation| generation.load(Acquire))
    }

    pub(super) fn bump(&self, region: u32) {
        if let Some(generation) = self.0.get(region as usize) {
            generation.fetch_add(1, AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touched(version: u8, bits: u32, len: u8) -> Touched {
        Touched { version, bits, len }
    }

    fn all(touched: Touched) -> Option<Vec<u32>> {
        regions(touched).map(Iterator::collect)
    }

    #[test]
    fn a_prefix_lies_in_the_regions_of_its_addresses() {
        for len in 0..=32 {
            let v4 = touched(
                4,
                0x0a81_0000_u32 & u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0),
                len,
            );
            let v6 = Touched { version: 6, ..v4 };
            let [found4, found6] = [v4, v6].map(all);
            assert_eq!(found4.is_some(), len >= 8, "{len}");
            assert_eq!(found6.is_some(), len >= 24, "{len}");
            let covers = |address: u32| u64::from(address ^ v4.bits) >> (32 - len) == 0;
            let addresses = (0..1 << 16)
                .map(|high: u32| high << 16 | 0x1234)
                .chain((0..1 << 16).map(|low| v4.bits & 0xffff_0000 | low));
            for address in addresses.filter(|address| covers(*address)) {
                if let Some(found) = &found4 {
                    assert!(found.contains(&region4((address >> 16) as u16)));
                }
                if let Some(found) = &found6 {
                    assert!(found.contains(&region6(address)));
                }
            }
        }
    }

    #[test]
    fn a_long_prefix_lies_in_one_region() {
        assert_eq!(all(touched(4, 0x0a01_0203, 32)), Some(vec![0x0a01]));
        assert_eq!(all(touched(4, 0x0a01_0000, 16)), Some(vec![0x0a01]));
        assert_eq!(all(touched(4, 0x0a00_0000, 15)), Some(vec![0x0a00, 0x0a01]));
        assert_eq!(all(touched(6, 0x2001_0db8, 32)), Some(vec![region6(0x2001_0db8)]));
        assert_eq!(all(touched(4, 0, 8)).map(|all| all.len()), Some(256));
        assert_eq!(
            all(touched(4, 0xff00_0000, 8)).and_then(|all| all.last().copied()),
            Some(0xffff)
        );
    }

    #[test]
    fn regions_of_ipv6_are_spread_and_apart_from_those_of_ipv4() {
        let mut seen = std::collections::BTreeSet::new();
        for number in 0..4096_u32 {
            let region = region6(0x2a00_0000 + number * 8);
            assert!((OF_FAMILY..REGIONS).contains(&region));
            seen.insert(region);
        }
        assert!(seen.len() > 3800, "{}", seen.len());
    }
}
