//! A FIB that changes while a thread looks up: small, for Miri.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use super::{Capacity, Fib};
use crate::epoch::Epochs;
use crate::id::NextHopId;
use crate::prefix::Prefix;

const CAPACITY: Capacity = Capacity { roots: 1, nodes: 18, values: 256 + 20 * 257 };

#[test]
fn a_small_fib_changes_while_it_is_read() {
    let changes = if cfg!(miri) { 4 } else { 20_000 };
    for (prefixes, probe) in [
        ([(8, 1), (20, 2), (24, 3), (32, 4)], 0x0a01_0105_u128 << 96),
        ([(8, 1), (47, 2), (64, 3), (128, 4)], 0x2001_0db8_0001_0002_0000_0000_0000_0001),
    ] {
        let epochs = Epochs::new();
        let fib = Fib::new(Arc::clone(&epochs), CAPACITY);
        let root = fib.add_root().expect("a root");
        let prefixes = prefixes.map(|(len, next)| (Prefix::v6(probe, len), NextHopId(next)));
        let (always, next) = prefixes[0];
        fib.insert(root, always, next).expect("room");
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let reader = epochs.join();
                // Beside all routes but the first.
                let beside = probe ^ 1 << 110;
                while !stop.load(Relaxed) {
                    assert!((1..=4).contains(&fib.lookup(root, probe).0));
                    assert_eq!(fib.lookup(root, beside), NextHopId(1));
                    reader.pass();
                }
            });
            let mut up = [false; 4];
            for change in 0..changes {
                let at = 1 + (change * 7 / 3 + change / 5) % 3;
                let (prefix, next) = prefixes[at];
                // Refused while the reader may still read what was taken out.
                let done = if up[at] {
                    fib.remove(root, prefix).is_ok()
                } else {
                    fib.insert(root, prefix, next).is_ok()
                };
                up[at] ^= done;
                if !done {
                    thread::yield_now();
                }
            }
            stop.store(true, Relaxed);
        });
        for (prefix, next) in prefixes {
            assert!(fib.get(root, prefix).is_none_or(|found| found == next));
        }
    }
}
