//! A FIB with the table of the whole Internet, compared with an oracle.
//!
//! The table is `bgp-prefixes.txt.gz`, one prefix per line, in the folder that
//! `TOLLWAY_SHARED_DATA` names. By default, that folder is `../shared/data` beside the repository.
//! Without the file, the test generates a table of the same size with similar prefix lengths.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use tollway_dataplane::epoch::Epochs;
use tollway_dataplane::fib::{Capacity, Fib};
use tollway_dataplane::id::NextHopId;
use tollway_dataplane::prefix::Prefix;

use crate::dice::Dice;
use crate::support::{Family, Pair};

/// The number of addresses that the tests look up, both families together.
const ADDRESSES: usize = 10_000_000;

fn path() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let shared = std::env::var_os("TOLLWAY_SHARED_DATA").map(PathBuf::from);
    shared.unwrap_or_else(|| root.join("../shared/data")).join("bgp-prefixes.txt.gz")
}

fn load(family: Family) -> Option<Vec<Prefix>> {
    let lines = BufReader::new(GzDecoder::new(File::open(path()).ok()?)).lines();
    let mut table = Vec::new();
    for line in lines {
        let line = line.expect("a readable line");
        let (address, len) = line.split_once('/').expect("a prefix a line");
        let len = len.parse().expect("a length");
        match (family, address.parse().expect("an address")) {
            (Family::V4, IpAddr::V4(address)) => table.push(Prefix::v4(address.to_bits(), len)),
            (Family::V6, IpAddr::V6(address)) => table.push(Prefix::v6(address.to_bits(), len)),
            _ => {}
        }
    }
    Some(table)
}

/// Generates nested prefixes: each one is random, inside the previous one, or beside it.
fn generate(family: Family, dice: &mut Dice) -> Vec<Prefix> {
    let (count, lens): (_, &[u8]) = match family {
        Family::V4 => (901_899, &[8, 12, 16, 18, 19, 20, 21, 22, 22, 23, 24, 24, 24, 24, 24, 24]),
        Family::V6 => (160_147, &[20, 28, 29, 32, 32, 36, 40, 44, 46, 48, 48, 48, 48, 48, 56, 64]),
    };
    let mut last = 0;
    let prefixes = (0..count).map(|_| {
        let bits = match dice.below(4) {
            0 => dice.wide(),
            _ => last ^ (dice.wide() >> (16 + dice.below(16))),
        };
        last = bits;
        family.prefix(bits, lens[dice.below(lens.len())])
    });
    prefixes.collect()
}

fn equals_the_oracle(family: Family, share: usize) {
    let mut dice = Dice(1);
    let mut table = load(family).unwrap_or_else(|| {
        eprintln!("{} is not there: a generated table", path().display());
        generate(family, &mut dice)
    });
    for at in (1..table.len()).rev() {
        table.swap(at, dice.below(at + 1));
    }
    let fib = Fib::new(Epochs::new(), Capacity::default());
    let mut pair = Pair::new(&fib, family);
    for prefix in &table {
        let next = NextHopId(1 + dice.below(500) as u32);
        pair.insert(&fib, *prefix, next).expect("room");
    }
    let mut addresses = Vec::with_capacity(share);
    addresses.extend(table.iter().flat_map(|prefix| family.edges(*prefix)));
    while addresses.len() < share {
        let inside = table[dice.below(table.len())];
        let random = dice.wide();
        let hosts = u128::MAX.checked_shr(inside.len().into()).unwrap_or(0);
        let inside = inside.bits() | random & hosts;
        addresses.push(family.address(if random.is_multiple_of(4) { random } else { inside }));
    }
    pair.check(&fib, &addresses);

    // Withdraw a third, change the next hop of a third, and check the edges of all prefixes again.
    let third = table.len() / 3;
    for prefix in &table[..third] {
        fib.remove(pair.root, *prefix).expect("room");
        pair.oracle.remove(*prefix);
    }
    for prefix in &table[third..2 * third] {
        let next = NextHopId(1 + dice.below(500) as u32);
        pair.insert(&fib, *prefix, next).expect("room");
    }
    pair.check(&fib, &addresses[..table.len() * 4]);
}

#[test]
fn ipv4_equals_the_oracle() {
    equals_the_oracle(Family::V4, ADDRESSES * 7 / 10);
}

#[test]
fn ipv6_equals_the_oracle() {
    equals_the_oracle(Family::V6, ADDRESSES * 3 / 10);
}
