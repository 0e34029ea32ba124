//! Tests that rules loaded in pieces are the same rules.

use serde_json::Value;

use super::Script;
use crate::loaded::Loaded;
use tollway_firewall::ir::Step;
use tollway_firewall::nft::json::{only, several, text};
use tollway_linux::netlink::Unshare;

/// nft's listing without the numbers that the kernel assigned.
fn listed(loaded: &Loaded) -> Value {
    let mut listed: Value = serde_json::from_str(&loaded.listing()).unwrap();
    let objects = listed["nftables"].as_array_mut().unwrap();
    for object in objects.iter_mut().flat_map(|object| object.as_object_mut().unwrap().values_mut())
    {
        object.as_object_mut().unwrap().remove("handle");
    }
    objects.sort_by_key(|object| only(object).unwrap().0 == "rule");
    listed
}

/// The rules of a listing.
fn rules(listed: &Value) -> Vec<&Value> {
    let objects = several(&listed["nftables"]).iter().filter_map(only);
    objects.filter(|(kind, _)| *kind == "rule").map(|(_, rule)| rule).collect()
}

/// Checks that a file loaded in pieces of this many bytes does not differ.
fn assert_same(path: &std::path::Path, bytes: usize) {
    let script = Script::new(path).unwrap();
    let whole = script.whole().unwrap().0;
    let whole = script.evaluate(&whole, None).unwrap();
    let pieces = script.in_pieces(Unshare::Net, bytes).unwrap();
    assert_eq!(listed(&pieces), listed(&whole), "{}", path.display());
    let name = path.display().to_string();
    let steps = |loaded: &Loaded| {
        let rules = loaded.rules(&name).unwrap();
        rules.chains.into_iter().flat_map(|chain| chain.rules).map(|rule| rule.steps).collect()
    };
    let (pieces, whole): (Vec<_>, Vec<_>) = (steps(&pieces), steps(&whole));
    assert_eq!(pieces, whole, "{name}");
}

#[test]
fn rules_loaded_in_pieces_are_the_same() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/src/files/corpus");
    for file in std::fs::read_dir(corpus).unwrap() {
        assert_same(&file.unwrap().path(), 1);
    }
}

/// 10,000 rules with a set of 100,000 elements, half of them in an included file.
fn large(folder: &std::path::Path) -> std::path::PathBuf {
    let rule = |number: usize| {
        format!(
            "ip saddr 10.{}.{}.0/24 tcp dport {} counter accept\n",
            number >> 8,
            number & 255,
            1 + number
        )
    };
    let element =
        |number: usize| format!("10.{}.{}.{}", number >> 16, number >> 8 & 255, number & 255);
    let rules = |numbers: std::ops::Range<usize>| numbers.map(rule).collect::<String>();
    let more = folder.join("more.rules");
    std::fs::write(&more, rules(5000..10_000)).unwrap();
    let elements: Vec<_> = (0..100_000).map(element).collect();
    let text = format!(
        "table inet f {{\n set s {{\n  type ipv4_addr\n  elements = {{ {} }}\n }}\n chain c {{\n  \
         type filter hook forward priority 0; policy drop;\n  ip daddr @s jump d\n{}  include \
         \"{}/*.rules\"\n }}\n chain d {{\n  accept\n }}\n}}\n",
        elements.join(", "),
        rules(0..5000),
        folder.display(),
    );
    let file = folder.join("large.nft");
    std::fs::write(&file, text).unwrap();
    file
}

#[test]
fn a_user_loads_rules_too_large_for_one_message() {
    let folder = tempfile::tempdir().unwrap();
    let path = large(folder.path());
    let script = Script::new(&path).unwrap();
    // As an ordinary user, even if root runs the test.
    let whole = script.run(Unshare::User, None).unwrap();
    assert!(
        super::stderr_of(&whole.output).contains(super::TOO_LONG),
        "{}",
        super::stderr_of(&whole.output)
    );
    let loaded = script.in_pieces(Unshare::User, super::BATCH_BYTES).unwrap();
    let listed = listed(&loaded);
    let in_chain = rules(&listed).into_iter().filter(|rule| text(rule, "chain") == "c");
    let ports: Vec<_> = in_chain
        .filter_map(|rule| rule.pointer("/expr/1/match/right").and_then(Value::as_u64))
        .collect();
    assert!(ports.iter().copied().eq(1..=10_000), "{ports:?}");
    let rules = loaded.rules("x").unwrap();
    assert_eq!(rules.chains.iter().map(|chain| chain.rules.len()).sum::<usize>(), 10_002);
    let steps = rules.chains.iter().flat_map(|chain| &chain.rules).flat_map(|rule| &rule.steps);
    assert!(!steps.into_iter().any(|step| matches!(step, Step::Unsupported(_))));
    // Root loads the whole file at once.
    assert_eq!(super::load(&path).unwrap().rule_count(), 10_002);
}

#[test]
fn mistakes_in_pieces_are_at_their_place() {
    let folder = tempfile::tempdir().unwrap();
    let more = folder.path().join("more.nft");
    std::fs::write(&more, "# first\n  jump nowhere\n").unwrap();
    let text = format!(
        "table ip t {{\n chain c {{\n  accept\n  tcp dport 70000 drop\n  include \"{}\"\n }}\n}}\n",
        more.display()
    );
    let path = folder.path().join("rules.nft");
    std::fs::write(&path, &text).unwrap();
    let script = Script::new(&path).unwrap();
    let mistakes = script.in_pieces(Unshare::Net, 1).unwrap_err();
    assert_eq!((mistakes[0].line, mistakes[0].column), (4, 13), "{mistakes:?}");
    assert_eq!(mistakes[0].excerpt, "  tcp dport 70000 drop");
    std::fs::write(&path, text.replace("70000", "7000")).unwrap();
    let mistakes = Script::new(&path).unwrap().in_pieces(Unshare::Net, 1).unwrap_err();
    assert_eq!(
        (mistakes[0].file.as_str(), mistakes[0].line),
        (more.to_str().unwrap(), 2),
        "{mistakes:?}"
    );
}

#[test]
fn a_rule_that_is_too_long_alone_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules.nft");
    let elements: Vec<_> =
        (0..30_000).map(|number| format!("10.0.{}.{}", number >> 8, number & 255)).collect();
    let text = format!(
        "table ip t {{\n chain c {{\n  accept\n  ip saddr {{ {} }} drop\n }}\n}}\n",
        elements.join(", ")
    );
    std::fs::write(&path, text).unwrap();
    let script = Script::new(&path).unwrap();
    let mistakes = script.in_pieces(Unshare::User, super::BATCH_BYTES).unwrap_err();
    assert_eq!(mistakes[0].line, 4, "{mistakes:?}");
    assert!(mistakes[0].to_string().contains("start as root"), "{mistakes:?}");
    super::load(&path).unwrap();
}
