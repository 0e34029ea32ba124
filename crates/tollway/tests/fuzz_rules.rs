//! Runs the fuzz targets of rules on rules that people and tools write, and on random changes of them.
//!
//! `TOLLWAY_FUZZ_SECONDS` sets the duration of each. The changes are the same each time.

mod changes;
#[path = "../../dataplane/src/testkit/dice.rs"]
mod dice;
#[path = "../../../fuzz/src/rules.rs"]
mod rules;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use changes::Changes;
use dice::Dice;
use tollway_firewall::ir::Family;
use tollway_rules::files::Language;

const SECONDS: u64 = 3;

/// The most bytes of an input.
const LONGEST: usize = 8192;

const NFT: Changes = Changes {
    before: ": ",
    ends: &[',', '}', ']'],
    words: &[
        "null",
        "0",
        "-1",
        "65536",
        "1e300",
        "18446744073709551615",
        "true",
        "\"\"",
        "\"*\"",
        "\"@s\"",
        "\"10.0.0.1\"",
        "\"::1\"",
        "\"inet\"",
        "\"eth*\"",
        "[]",
        "{}",
        "[[[[",
        "{\"range\": [9, 1]}",
        "{\"set\": [1, 2]}",
        "{\"prefix\": {\"addr\": \"10.0.0.0\", \"len\": 40}}",
        "\"drop\"",
        "{\"jump\": {\"target\": \"c\"}}",
        "\"tcp\"",
        "\u{feff}",
        "é",
    ],
};

const IPTABLES: Changes = Changes {
    before: " ",
    ends: &[' ', '\n'],
    words: &[
        "!",
        "-j",
        "-g",
        "-A",
        "-m",
        "-p",
        "tcp",
        "0",
        "-1",
        "65536",
        "4294967296",
        "0x",
        "1:",
        ":1",
        "9:1",
        "10.0.0.0/33",
        "::/0",
        "255.0.255.0",
        "eth+",
        "+",
        "FORWARD",
        "\"",
        "\n*raw\n",
        "\nCOMMIT\n",
        "[5:6]",
        "--dport",
        "--tcp-flags",
        "SYN,ACK",
        "LOG",
        "\u{feff}",
        "é",
    ],
};

const IPFW: Changes = Changes {
    before: " ",
    ends: &[' ', '\n'],
    words: &[
        "not",
        "or",
        "{",
        "}",
        "any",
        "me",
        "table(x)",
        "table(1,2)",
        "0",
        "-1",
        "65535",
        "65536",
        "4294967296",
        "10.0.0.0/33",
        "10.0.0.0:255",
        "1.2.3.0/24{1,9-5}",
        "::/0",
        "1-",
        "9-1",
        "skipto",
        "call",
        "return",
        "setfib",
        "fwd",
        "log",
        "in",
        "out",
        "layer2",
        "via",
        "\nadd 1 ",
        "\u{feff}",
        "é",
    ],
};

fn read(folder: &str) -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(folder);
    let mut paths: Vec<_> =
        fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("one").path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read_to_string(path).expect("a text")).collect()
}

/// Reads a folder's texts, then changed ones; none is refused without a reason and a place.
fn drive(folder: &str, languages: &[Language], changes: Changes) {
    let text = std::env::var("TOLLWAY_FUZZ_SECONDS").ok();
    let seconds = text.and_then(|text| text.parse().ok()).unwrap_or(SECONDS);
    let (start, bound) = (Instant::now(), Duration::from_secs(seconds));
    let inputs = read(folder);
    assert!(inputs.len() >= 5, "{folder} has seeds");
    let run = |input: &str| languages.iter().for_each(|language| rules::run(input, *language));
    inputs.iter().for_each(|input| run(input));
    run("");
    let (mut dice, mut runs) = (Dice(1), 0_u64);
    while start.elapsed() < bound {
        let other = dice.pick(&inputs);
        let mut input = dice.pick(&inputs);
        for _ in 0..=dice.below(4) {
            input = changes::changed(&input, &other, changes, &mut dice);
        }
        input.truncate(changes::floor(&input, LONGEST));
        run(&input);
        runs += 1;
    }
    println!("{runs} inputs in {seconds} s");
}

#[test]
fn no_text_breaks_the_reader_of_nft() {
    drive("fuzz/seeds/rules_nft", &[Language::NftJson], NFT);
}

#[test]
fn no_text_breaks_the_reader_of_iptables() {
    let languages = [Family::Ip, Family::Ip6].map(Language::Iptables);
    drive("crates/firewall/src/iptables/tests/saves", &languages, IPTABLES);
}

#[test]
fn no_text_breaks_the_reader_of_ipfw() {
    drive("crates/firewall/src/ipfw/tests/corpus", &[Language::Ipfw], IPFW);
}
