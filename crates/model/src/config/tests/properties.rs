//! No text makes the reader panic.

use proptest::prelude::*;

use super::super::{parse, report};
use super::BASE;

const EXAMPLE: &str = include_str!("../../../../../examples/three-ports.toml");

/// Words that the reader knows, so that texts get past the syntax.
const WORDS: &[&str] = &[
    "[ports.wan]\n",
    "[vlans.a]\n",
    "[vlans.b]\n",
    "[vrfs.red]\n",
    "[groups.g]\n",
    "[[routes]]\n",
    "[[neighbours]]\n",
    "[bridges.br]\n",
    "[[bridges.br.entries]]\n",
    "ports = [\"wan\", { port = \"a\", isolated = true }]\n",
    "kind = \"memory\"\n",
    "kind = \"capture\"\n",
    "parent = \"a\"\n",
    "parent = \"b\"\n",
    "parent = \"wan\"\n",
    "vid = 5\n",
    "vid = 0\n",
    "vrf = \"red\"\n",
    "to = \"default\"\n",
    "to = \"10.0.0.0/8\"\n",
    "via = \"10.0.0.2\"\n",
    "dev = \"wan\"\n",
    "group = \"g\"\n",
    "nexthops = [{ via = \"fe80::1\" }]\n",
    "nexthops = []\n",
    "mtu = 0xffff\n",
    "addresses = [\"10.0.0.1/8\"]\n",
    "addresses = [\"fe80::1/64\", \"10.0.0.1/31\"]\n",
    "\"",
    "é",
    "'''",
    "{",
    "]",
    ".",
    "= ",
    "#",
    "\0",
    "\r\n",
    "mac = \"02-00-00-00-00-01\"\n",
];

fn read(text: &str) {
    if let Err(mistakes) = parse(text, "t.toml") {
        assert!(!mistakes.is_empty());
        assert!(mistakes.iter().all(|m| m.line >= 1 && m.column >= 1));
        report(&mistakes);
    }
}

proptest! {
    #[test]
    fn arbitrary_text(text in any::<String>()) {
        read(&text);
    }

    #[test]
    fn shuffled_words(words in prop::collection::vec(prop::sample::select(WORDS), 0..40)) {
        read(&words.concat());
    }

    #[test]
    fn mutated_files(
        example in any::<bool>(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0..12usize, ".{0,4}"), 1..6),
    ) {
        let mut chars: Vec<char> = if example { EXAMPLE } else { BASE }.chars().collect();
        for (at, cut, paste) in edits {
            let at = at.index(chars.len());
            let end = (at + cut).min(chars.len());
            chars.splice(at..end, paste.chars());
            if chars.is_empty() {
                break;
            }
        }
        read(&chars.into_iter().collect::<String>());
    }
}

#[test]
fn deep_and_long_inputs() {
    read(&"[".repeat(20_000));
    read(&format!("x = {}", "[".repeat(20_000)));
    read(&format!("{} = 1", vec!["a"; 20_000].join(".")));
    read(&"[vlans.\"".repeat(5_000));
    let chain: String =
        (0..3_000).map(|i| format!("[vlans.v{i}]\nparent = \"v{}\"\nvid = 1\n", i + 1)).collect();
    read(&chain);
    read(&format!("{chain}[vlans.v3000]\nparent = \"v0\"\nvid = 1\n"));
}
