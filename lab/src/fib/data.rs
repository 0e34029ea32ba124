//! Routing tables to measure with: a real one where it is at hand, else one of the same shape.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::path::Path;

use flate2::read::GzDecoder;
use tollway_dataplane::stages::route::Prefix;

use crate::frames::Spread;

/// The prefixes of a whole Internet table, by family, in the order of the file.
#[derive(Clone, Debug, Default)]
pub struct Internet {
    /// IPv4.
    pub v4: Vec<Prefix>,
    /// IPv6.
    pub v6: Vec<Prefix>,
    /// Where they are from, in words.
    pub source: String,
}

impl Internet {
    /// The real table at `path`, a gzipped list with one prefix a line; a generated one where there
    /// is no such file.
    ///
    /// # Errors
    /// A sentence with file and line, where the file is there and is not such a list.
    pub fn load(path: &Path) -> Result<Self, String> {
        let Ok(file) = File::open(path) else { return Ok(Self::generate()) };
        let mut table = Self { source: path.display().to_string(), ..Self::default() };
        for (number, line) in BufReader::new(GzDecoder::new(file)).lines().enumerate() {
            let place = || format!("{}:{}", path.display(), number + 1);
            let line = line.map_err(|error| format!("{}: {error}", place()))?;
            let prefix = parse(line.trim());
            let prefix = prefix.ok_or_else(|| format!("{}: {line:?} is no prefix", place()))?;
            match prefix {
                (IpAddr::V4(address), len) => table.v4.push(Prefix::v4(address.to_bits(), len)),
                (IpAddr::V6(address), len) => table.v6.push(Prefix::v6(address.to_bits(), len)),
            }
        }
        Ok(table)
    }

    /// A table of the same shape as the real one of November 2026: as many prefixes of each length, in
    /// blocks as registries give them out.
    #[must_use]
    pub fn generate() -> Self {
        let mut spread = Spread::new(0xf1b);
        let v4 = grow(&LENGTHS_V4, &mut spread, |bits, len| Prefix::v4((bits >> 96) as u32, len));
        let v6 = grow(&LENGTHS_V6, &mut spread, |bits, len| {
            Prefix::v6(bits >> 3 | 0x2000_u128 << 112, len)
        });
        Self { v4, v6, source: "generated, in the shape of a real table".to_owned() }
    }
}

/// How many prefixes of each length the real table has, from /8 on.
const LENGTHS_V4: [(u8, usize); 17] = [
    (8, 16),
    (9, 13),
    (10, 38),
    (11, 103),
    (12, 299),
    (13, 581),
    (14, 1203),
    (15, 2100),
    (16, 13490),
    (17, 8235),
    (18, 13798),
    (19, 24870),
    (20, 42611),
    (21, 50750),
    (22, 108_623),
    (23, 96510),
    (24, 537_698),
];
const LENGTHS_V6: [(u8, usize); 13] = [
    (20, 16),
    (24, 30),
    (28, 193),
    (29, 4371),
    (32, 22548),
    (33, 2926),
    (36, 5996),
    (40, 13418),
    (42, 2301),
    (44, 14365),
    (46, 3039),
    (47, 3153),
    (48, 87804),
];

/// Draws prefixes; longer ones lie in blocks of shorter ones for the most part.
fn grow(
    lengths: &[(u8, usize)],
    spread: &mut Spread,
    make: impl Fn(u128, u8) -> Prefix,
) -> Vec<Prefix> {
    let mut seen = std::collections::HashSet::new();
    let mut prefixes: Vec<Prefix> = Vec::new();
    for (len, count) in lengths {
        let parents = prefixes.len() as u64;
        let mut made = 0;
        while made < *count {
            let random = u128::from(spread.next()) << 64 | u128::from(spread.next());
            let fresh = make(random, *len);
            let prefix = if parents > 100 && !spread.next().is_multiple_of(8) {
                let parent = prefixes[(spread.next() % parents) as usize];
                let below = u128::MAX >> parent.len();
                fresh.with_bits(parent.bits() | fresh.bits() & below)
            } else {
                fresh
            };
            if seen.insert(prefix) {
                prefixes.push(prefix);
                made += 1;
            }
        }
    }
    prefixes
}

fn parse(line: &str) -> Option<(IpAddr, u8)> {
    let (address, len) = line.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    let len: u8 = len.parse().ok()?;
    (len <= if address.is_ipv4() { 32 } else { 128 }).then_some((address, len))
}
