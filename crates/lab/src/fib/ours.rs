//! Tollway's own FIB in the form of a rival.

use tollway_dataplane::burst::{BURST, Burst, Lanes};
use tollway_dataplane::epoch::Epochs;
use tollway_dataplane::fib::{Capacity, Fib, Root};
use tollway_dataplane::frame::Umem;
use tollway_dataplane::id::NextHopId;
use tollway_dataplane::prefix::Prefix;
use tollway_dataplane::stages::route::{self, V4, V6};

use super::rival::{Keys, Lookups, Rival};

/// The FIB of one VRF, queried by the route stage. `HALVES` is the number of keys of an address: 1
/// for IPv4, 2 for IPv6.
pub(super) struct Ours<const HALVES: u32> {
    fib: Fib,
    root: Root,
    burst: Box<Burst>,
    /// Packet headers, which supply the lower halves of addresses.
    umem: Umem,
}

impl<const HALVES: u32> Rival for Ours<HALVES> {
    fn build(routes: &[(Prefix, u32)]) -> Result<Self, String> {
        let failed = |error| format!("the routes do not fit the FIB: {error:?}");
        let fib = Fib::new(Epochs::new(), Capacity::default());
        let root = fib.add_root().map_err(failed)?;
        for (prefix, value) in routes {
            fib.insert(root, *prefix, NextHopId(*value)).map_err(failed)?;
        }
        let mut umem = Umem::new(BURST as u32, 512).ok_or("no memory for the headers")?;
        let mut burst = Box::new(Burst::new());
        for lane in 0..BURST {
            burst.addr[lane] = umem.alloc().ok_or("no memory for the headers")?;
            (burst.l3[lane], burst.root[lane]) = (0, root.0);
        }
        burst.count = BURST;
        Ok(Self { fib, root, burst, umem })
    }

    #[inline(always)]
    fn lookup(&self, bits: u128) -> u32 {
        self.fib.lookup(self.root, bits).0
    }

    #[inline(always)]
    fn lookup_burst(&mut self, keys: &Keys, found: &mut Lookups) {
        for (lane, bits) in keys.iter().enumerate() {
            self.burst.key[lane] = (bits >> 64) as u64;
            if HALVES > 1 {
                let lower = self.umem.bytes_mut::<8>(self.burst.addr[lane], 32);
                *lower = (*bits as u64).to_be_bytes();
            }
        }
        let all = Lanes::first(BURST);
        if HALVES > 1 {
            route::look_up::<V6>(&mut self.burst, &self.umem, &self.fib, all);
        } else {
            route::look_up::<V4>(&mut self.burst, &self.umem, &self.fib, all);
        }
        for (found, next) in found.iter_mut().zip(&self.burst.next) {
            *found = next.0;
        }
    }

    fn memory_bytes(&self) -> usize {
        self.fib.memory_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::super::rival::Flat;
    use super::*;
    use crate::frames::Xorshift;

    /// Random routes, many of them more specific than others.
    fn routes(rng: &mut Xorshift, bits: u32, count: usize) -> Vec<(Prefix, u32)> {
        let mut routes: Vec<(Prefix, u32)> = Vec::new();
        for number in 0..count as u32 {
            let random = u128::from(rng.next()) << 64 | u128::from(rng.next());
            let len = (rng.next() % u64::from(bits + 1)) as u8;
            let above = match routes.len() as u64 {
                0 => 0,
                made => routes[(rng.next() % made) as usize].0.bits(),
            };
            let keep = u128::MAX.checked_shr((rng.next() % 129) as u32).unwrap_or(0);
            let address = above & !keep | random & keep;
            let prefix = match bits {
                32 => Prefix::v4((address >> 96) as u32, len),
                _ => Prefix::v6(address, len),
            };
            if routes.iter().all(|(other, _)| *other != prefix) {
                routes.push((prefix, number + 1));
            }
        }
        routes
    }

    fn agree<R: Rival, const HALVES: u32>(rng: &mut Xorshift, bits: u32, count: usize) {
        let routes = routes(rng, bits, count);
        let mut rival = R::build(&routes).unwrap();
        let mut ours = Ours::<HALVES>::build(&routes).unwrap();
        let host = u128::MAX.checked_shr(bits).unwrap_or(0);
        let mut probes = vec![0, !host];
        for (prefix, _) in &routes {
            let last = prefix.bits() | u128::MAX.checked_shr(u32::from(prefix.len())).unwrap_or(0);
            let one = host.wrapping_add(1);
            probes.extend([prefix.bits(), last & !host]);
            probes.extend([prefix.bits().wrapping_sub(one), (last & !host).wrapping_add(one)]);
            probes.push((u128::from(rng.next()) << 64 | u128::from(rng.next())) & !host);
        }
        probes.resize(probes.len().next_multiple_of(BURST), 0);
        let naive = |bits: u128| {
            let covers = routes.iter().filter(|(prefix, _)| prefix.contains(bits));
            covers.max_by_key(|(prefix, _)| prefix.len()).map_or(0, |(_, value)| *value)
        };
        for keys in probes.as_chunks::<BURST>().0 {
            let expected = keys.map(naive);
            let (mut theirs, mut own) = ([0; BURST], [0; BURST]);
            rival.lookup_burst(keys, &mut theirs);
            ours.lookup_burst(keys, &mut own);
            assert_eq!(theirs, expected);
            assert_eq!(own, expected);
            assert_eq!(keys.map(|bits| rival.lookup(bits)), expected);
            assert_eq!(keys.map(|bits| ours.lookup(bits)), expected);
        }
    }

    #[test]
    fn every_rival_finds_what_the_fib_finds() {
        let mut rng = Xorshift::new(0xab1e);
        for count in [0, 1, 2, 5, 30, 200] {
            for _ in 0..4 {
                agree::<Flat<16>, 1>(&mut rng, 32, count);
                agree::<Flat<16>, 2>(&mut rng, 128, count);
            }
        }
        agree::<Flat<24>, 1>(&mut rng, 32, 300);
    }
}
