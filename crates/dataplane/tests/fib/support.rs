//! The shared kit of the FIB tests: families, an oracle, and lookups in bursts.

use prefix_trie::PrefixMap;
use tollway_dataplane::burst::{BURST, Burst};
use tollway_dataplane::fib::{Fib, FibError, Root};
use tollway_dataplane::frame::{FrameAddr, Umem};
use tollway_dataplane::id::{NextHopId, PortId};
use tollway_dataplane::prefix::Prefix;
use tollway_dataplane::stages::route::{V4, V6, look_up};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    pub const BOTH: [Self; 2] = [Self::V4, Self::V6];

    pub const fn width(self) -> u8 {
        match self {
            Self::V4 => 32,
            Self::V6 => 128,
        }
    }

    /// A prefix at a left-aligned address.
    pub const fn prefix(self, bits: u128, len: u8) -> Prefix {
        match self {
            Self::V4 => Prefix::v4((bits >> 96) as u32, len),
            Self::V6 => Prefix::v6(bits, len),
        }
    }

    /// A left-aligned address: the upper bits of `bits`, as many as the family has.
    pub const fn address(self, bits: u128) -> u128 {
        bits & (u128::MAX << (128 - self.width()))
    }

    /// The first and the last address of a prefix, the address before it and the one after it.
    pub fn edges(self, prefix: Prefix) -> [u128; 4] {
        let unit = 1 << (128 - self.width());
        let hosts = u128::MAX.checked_shr(prefix.len().into()).unwrap_or(0);
        let (first, last) = (prefix.bits(), self.address(prefix.bits() | hosts));
        [first, last, first.wrapping_sub(unit), last.wrapping_add(unit)]
    }
}

/// The routes of one FIB, in another author's trie.
#[derive(Clone, Default)]
pub struct Oracle(PrefixMap<(u128, u8), NextHopId>);

impl Oracle {
    pub fn insert(&mut self, prefix: Prefix, next: NextHopId) {
        self.0.insert((prefix.bits(), prefix.len()), next);
    }

    pub fn remove(&mut self, prefix: Prefix) -> bool {
        self.0.remove(&(prefix.bits(), prefix.len())).is_some()
    }

    pub fn lookup(&self, address: u128) -> NextHopId {
        self.0.get_lpm(&(address, 128)).map_or(NextHopId::NO_ROUTE, |(_, next)| *next)
    }

    /// Says whether there is a route to exactly this prefix.
    pub fn has(&self, prefix: Prefix) -> bool {
        self.0.contains_key(&(prefix.bits(), prefix.len()))
    }

    pub fn routes(&self) -> impl Iterator<Item = (Prefix, NextHopId)> {
        self.0.iter().map(|((bits, len), next)| (Prefix::v6(bits, len), *next))
    }

    /// The next hop for an address, from a linear search of all routes.
    pub fn scan(&self, address: u128) -> NextHopId {
        let covering = self.routes().filter(|(prefix, _)| prefix.contains(address));
        let longest = covering.max_by_key(|(prefix, _)| prefix.len());
        longest.map_or(NextHopId::NO_ROUTE, |(_, next)| next)
    }
}

/// A FIB's root and its oracle, changed together.
pub struct Pair {
    pub root: Root,
    pub family: Family,
    pub oracle: Oracle,
}

impl Pair {
    pub fn new(fib: &Fib, family: Family) -> Self {
        Self { root: fib.add_root().expect("a root"), family, oracle: Oracle::default() }
    }

    /// Inserts a route into both; on an error, into neither.
    pub fn insert(&mut self, fib: &Fib, prefix: Prefix, next: NextHopId) -> Result<(), FibError> {
        fib.insert(self.root, prefix, next)?;
        self.oracle.insert(prefix, next);
        Ok(())
    }

    /// Removes a route from both; on an error, from neither.
    pub fn remove(&mut self, fib: &Fib, prefix: Prefix) -> Result<(), FibError> {
        let was = fib.remove(self.root, prefix)?;
        assert_eq!(was, self.oracle.remove(prefix), "{prefix:?}");
        Ok(())
    }

    /// Looks up addresses one by one and in bursts, and compares the results with the oracle.
    pub fn check(&self, fib: &Fib, addresses: &[u128]) {
        let mut bursts = Bursts::new(self.family);
        for some in addresses.chunks(BURST) {
            let found = bursts.lookup(fib, |_| self.root, some);
            for (address, in_burst) in some.iter().zip(found) {
                let expected = self.oracle.lookup(*address);
                let single = fib.lookup(self.root, *address);
                assert_eq!(single, expected, "{address:#034x} by itself");
                assert_eq!(in_burst, expected, "{address:#034x} in a burst");
            }
        }
    }

    /// Checks the edges of every route.
    pub fn check_edges(&self, fib: &Fib) {
        let edges = self.oracle.routes().flat_map(|(prefix, _)| self.family.edges(prefix));
        self.check(fib, &edges.collect::<Vec<_>>());
    }
}

/// Looks up bursts of addresses with the route stage.
pub struct Bursts {
    family: Family,
    umem: Umem,
    frames: Vec<FrameAddr>,
    burst: Box<Burst>,
}

impl Bursts {
    pub fn new(family: Family) -> Self {
        let mut umem = Umem::new(BURST as u32, 2048).expect("memory for frames");
        let frames = (0..BURST).map(|_| umem.alloc().expect("a frame")).collect();
        Self { family, umem, frames, burst: Box::default() }
    }

    pub fn lookup(
        &mut self,
        fib: &Fib,
        root: impl Fn(usize) -> Root,
        addresses: &[u128],
    ) -> Vec<NextHopId> {
        let burst = &mut *self.burst;
        burst.reset(PortId(0));
        for (lane, (address, frame)) in addresses.iter().zip(&self.frames).enumerate() {
            assert!(burst.push(*frame, 54), "a burst has {BURST} packets at most");
            burst.l3[lane] = 14;
            burst.root[lane] = root(lane).0;
            burst.key[lane] = (address >> 64) as u64;
            let header: &mut [u8; 40] = self.umem.bytes_mut(*frame, 14);
            header[24..].copy_from_slice(&address.to_be_bytes());
        }
        let lanes = burst.lanes();
        match self.family {
            Family::V4 => look_up::<V4>(burst, &self.umem, fib, lanes),
            Family::V6 => look_up::<V6>(burst, &self.umem, fib, lanes),
        }
        burst.next[..addresses.len()].iter().map(|next| NextHopId(next.0)).collect()
    }
}
