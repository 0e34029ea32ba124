//! Routing tables to measure with: a real one if it is available, else a generated one of the same
//! shape.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use tollway_dataplane::prefix::Prefix;

use crate::frames::Xorshift;

/// The prefixes of a whole Internet table, by family, in file order.
#[derive(Clone, Debug, Default)]
pub struct Internet {
    /// IPv4.
    pub v4: Vec<Prefix>,
    /// IPv6.
    pub v6: Vec<Prefix>,
    /// Where they come from, in words.
    pub source: String,
}

impl Internet {
    /// The real table if it is available, else a generated one. The real one is in the folder that
    /// `TOLLWAY_SHARED_DATA` names, by default at [`super::DATA`].
    ///
    /// # Errors
    /// As for [`Internet::load`].
    pub fn at_hand() -> Result<Self, String> {
        let shared = std::env::var_os("TOLLWAY_SHARED_DATA").map(PathBuf::from);
        let shared = shared.map(|shared| shared.join("bgp-prefixes.txt.gz"));
        let path = shared.unwrap_or_else(|| PathBuf::from(super::DATA));
        if path.exists() { Self::load(&path) } else { Ok(Self::generate()) }
    }

    /// The table at `path`, a gzipped list with one prefix per line.
    ///
    /// # Errors
    /// A message with file and line, if this is not such a list.
    pub fn load(path: &Path) -> Result<Self, String> {
        let file = File::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
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

    /// A table of the same shape as the real one of November 2026: as many prefixes of each length,
    /// in blocks like those that registries allocate.
    #[must_use]
    pub fn generate() -> Self {
        let mut rng = Xorshift::new(0xf1b);
        let v4 = grow(Vec::new(), &LENGTHS_V4, &mut rng, random_v4);
        let v6 = grow(Vec::new(), &LENGTHS_V6, &mut rng, random_v6);
        Self { v4, v6, source: "generated, in the shape of a real table".to_owned() }
    }
}

/// Number of IPv4 prefixes of each length in the real table.
#[rustfmt::skip]
const LENGTHS_V4: [(u8, usize); 25] = [
    (8, 16), (9, 13), (10, 38), (11, 103), (12, 299), (13, 581),
    (14, 1203), (15, 2100), (16, 13490), (17, 8235), (18, 13798), (19, 24870),
    (20, 42611), (21, 50750), (22, 108_623), (23, 96510), (24, 537_698), (25, 20),
    (26, 3), (27, 11), (28, 18), (29, 17), (30, 3), (31, 3),
    (32, 886),
];
/// The same for IPv6.
#[rustfmt::skip]
const LENGTHS_V6: [(u8, usize); 46] = [
    (16, 1), (19, 1), (20, 16), (21, 3), (22, 7), (23, 8),
    (24, 30), (25, 8), (26, 15), (27, 20), (28, 193), (29, 4371),
    (30, 650), (31, 284), (32, 22548), (33, 2926), (34, 2603), (35, 1043),
    (36, 5996), (37, 880), (38, 1617), (39, 1377), (40, 13418), (41, 903),
    (42, 2301), (43, 1001), (44, 14365), (45, 1553), (46, 3039), (47, 3153),
    (48, 75488), (49, 11), (50, 3), (52, 1), (55, 1), (56, 24),
    (58, 20), (60, 2), (64, 184), (112, 2), (122, 1), (124, 4),
    (125, 9), (126, 19), (127, 42), (128, 6),
];

/// A routable IPv4 prefix of random bits.
fn random_v4(bits: u128, len: u8) -> Prefix {
    let address = (bits >> 96) as u32;
    match address >> 24 {
        0 | 127 | 224.. => Prefix::v4(address & 0x00ff_ffff | 0x1000_0000, len),
        _ => Prefix::v4(address, len),
    }
}

/// A prefix in 2000::/3 of random bits.
pub(super) fn random_v6(bits: u128, len: u8) -> Prefix {
    Prefix::v6(bits >> 3 | 0x2000_u128 << 112, len)
}

/// Adds prefixes of the most common lengths until there are `count`; `v4` selects the family.
pub(super) fn more(prefixes: Vec<Prefix>, count: usize, v4: bool) -> Vec<Prefix> {
    let missing = count.saturating_sub(prefixes.len());
    let mut rng = Xorshift::new(0x9009);
    if v4 {
        let lengths = [(22, missing / 8), (23, missing / 8), (24, missing - missing / 8 * 2)];
        grow(prefixes, &lengths, &mut rng, random_v4)
    } else {
        let lengths = [(40, missing / 8), (44, missing / 8), (48, missing - missing / 8 * 2)];
        grow(prefixes, &lengths, &mut rng, random_v6)
    }
}

/// Draws prefixes and adds them to the existing ones. Most longer prefixes lie in blocks of shorter
/// ones.
fn grow(
    mut prefixes: Vec<Prefix>,
    lengths: &[(u8, usize)],
    rng: &mut Xorshift,
    make: impl Fn(u128, u8) -> Prefix,
) -> Vec<Prefix> {
    let mut seen: HashSet<Prefix> = prefixes.iter().copied().collect();
    for (len, count) in lengths {
        let parents = prefixes.len() as u64;
        let mut made = 0;
        while made < *count {
            let random = u128::from(rng.next()) << 64 | u128::from(rng.next());
            let fresh = make(random, *len);
            let prefix = if parents > 100 && !rng.next().is_multiple_of(8) {
                let parent = prefixes[(rng.next() % parents) as usize];
                let below = u128::MAX.checked_shr(u32::from(parent.len())).unwrap_or(0);
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

#[cfg(test)]
mod tests {
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use std::io::Write as _;

    use super::*;

    fn counts(table: &Internet) -> (usize, usize) {
        (table.v4.len(), table.v6.len())
    }

    #[test]
    fn the_generated_table_has_the_shape_of_the_real_one() {
        let table = Internet::generate();
        assert_eq!(counts(&table), (901_899, 160_147));
        assert_eq!(table.v4.iter().filter(|prefix| prefix.len() == 24).count(), 537_698);
        let unique: HashSet<_> = table.v4.iter().collect();
        assert_eq!(unique.len(), table.v4.len());
        let odd = |prefix: &&Prefix| matches!((prefix.bits() >> 120) as u8, 0 | 127 | 224..);
        assert_eq!(table.v4.iter().find(odd), None);
    }

    #[test]
    fn the_real_table_is_read_whole() {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(super::super::DATA);
        if path.exists() {
            assert_eq!(counts(&Internet::load(&path).unwrap()), (901_899, 160_147));
        }
    }

    #[test]
    fn a_table_grows_to_a_number() {
        let few = vec![Prefix::v4(0x0a00_0000, 8)];
        let grown = more(few.clone(), 1000, true);
        assert_eq!((grown.len(), grown[0]), (1000, few[0]));
        assert_eq!(more(few, 1, true).len(), 1);
        assert_eq!(more(Vec::new(), 500, false).len(), 500);
    }

    #[test]
    fn lines_without_a_prefix_are_named() {
        let path = std::env::temp_dir().join(format!("tollway-lab-{}.gz", std::process::id()));
        let mut file = GzEncoder::new(File::create(&path).unwrap(), Compression::fast());
        file.write_all(b"10.0.0.0/8\n2001:db8::/32\n10.0.0.0/33\n").unwrap();
        file.finish().unwrap();
        let error = Internet::load(&path).unwrap_err();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(error, format!("{}:3: \"10.0.0.0/33\" is no prefix", path.display()));
        let error = Internet::load(&path).unwrap_err();
        assert!(error.contains("No such file"), "{error}");
    }
}
