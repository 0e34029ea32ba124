//! Lookups in a live set, of a burst's packets and of single ones.

use std::ops::Range;
use std::sync::atomic::Ordering::Acquire;

use super::{LiveSet, key4, key6};
use crate::burst::BURST;
use crate::id::NextHopId;

impl LiveSet {
    /// Replaces each covered IPv4 address by 1, and the others by 0.
    #[inline(always)]
    pub(in super::super) fn look_up4(
        &self,
        value: &mut [u32; BURST],
        place: &mut [u64; BURST],
        lanes: Range<usize>,
    ) {
        let mut under = [0; BURST];
        if self.has_prefixes() {
            for (key, value) in place.iter_mut().zip(value.iter()) {
                *key = u64::from(*value) << 32;
            }
            self.prefixes.look_up_keys(self.root, place, &mut under, lanes.clone());
        }
        let Some(view) = self.four.view() else {
            for (value, next) in value.iter_mut().zip(&under) {
                *value = u32::from(*next != 0);
            }
            return;
        };
        for lane in lanes.clone() {
            let lane = lane & (BURST - 1);
            let first = view.place(key4(value[lane]));
            view.prefetch(first);
            place[lane] = first as u64;
        }
        for lane in lanes {
            let lane = lane & (BURST - 1);
            let found = view.has(place[lane] as usize, key4(value[lane]));
            value[lane] = u32::from(found | (under[lane] != 0));
        }
    }

    /// The same for IPv6 addresses, which `address` reads, written to `value`.
    #[inline(always)]
    pub(in super::super) fn look_up6(
        &self,
        address: impl Fn(usize) -> u128,
        value: &mut [u32; BURST],
        place: &mut [u64; BURST],
        lanes: Range<usize>,
    ) {
        let looks_under = self.has_prefixes();
        let view = self.six.view();
        for lane in lanes.clone() {
            let lane = lane & (BURST - 1);
            value[lane] = 0;
            if let Some(view) = view {
                let first = view.place(key6(address(lane)));
                view.prefetch(first);
                place[lane] = first as u64;
            }
        }
        for lane in lanes {
            let lane = lane & (BURST - 1);
            let address = address(lane);
            // An empty cell has a first word of 0, like a key that is stored as a prefix.
            let key = key6(address);
            let found = key[0] != 0 && view.is_some_and(|view| view.has(place[lane] as usize, key));
            value[lane] = u32::from(found || looks_under && self.is_under_prefix(address));
        }
    }

    /// Says whether a packet's address is covered: the lookup for a single packet.
    pub(in super::super) fn has(&self, address: u128) -> bool {
        let is_there = match self.version {
            4 => self.four.has(key4(address as u32)),
            _ => key6(address)[0] != 0 && self.six.has(key6(address)),
        };
        is_there || self.is_under_prefix(address)
    }

    fn is_under_prefix(&self, address: u128) -> bool {
        self.has_prefixes()
            && self.prefixes.lookup(self.root, address << (128 - self.bits()))
                != NextHopId::NO_ROUTE
    }

    #[inline(always)]
    pub(super) fn has_prefixes(&self) -> bool {
        self.pieces.load(Acquire) != 0
    }
}
