//! Rules in pieces are the same rules.

use super::{Place, Script};

/// Says that a file does not differ when it is loaded in pieces of so many bytes.
fn same(path: &std::path::Path, bytes: usize) {
    let script = Script::new(path).unwrap();
    let whole = script.output().unwrap().0;
    let whole = script.judge(&whole, None).unwrap();
    let pieces = script.in_pieces(Place::Net, bytes).unwrap();
    let text = |listings: &str| listings.split_once(super::BETWEEN).unwrap().1.to_owned();
    assert_eq!(text(&pieces), text(&whole), "{}", path.display());
}

#[test]
fn pieces_are_the_whole() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/src/filter/nft/corpus");
    for file in std::fs::read_dir(corpus).unwrap() {
        same(&file.unwrap().path(), 1);
    }
}

/// 10,000 rules with a set of 100,000 elements, half of them in a file that is included.
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
fn a_user_loads_what_one_message_has_no_room_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = large(folder.path());
    let script = Script::new(&path).unwrap();
    // As a user's, whoever runs this.
    let whole = script.run(Place::User, None).unwrap();
    assert!(super::said(&whole).contains(super::TOO_LONG), "{}", super::said(&whole));
    let listings = script.in_pieces(Place::User, super::BATCH_BYTES).unwrap();
    let (json, words) = listings.split_once(super::BETWEEN).unwrap();
    assert_eq!(words.lines().filter(|line| line.contains("counter")).count(), 10_000);
    let rules: Vec<_> = words.lines().filter(|line| line.contains(" tcp dport ")).collect();
    for (number, rule) in rules.iter().enumerate() {
        assert!(rule.contains(&format!(" tcp dport {} ", 1 + number)), "{number}: {rule}");
    }
    let rules = crate::filter::nft::read(&super::super::complete(json, words), "x").unwrap();
    assert_eq!(rules.chains.iter().map(|chain| chain.rules.len()).sum::<usize>(), 10_002);
    // The machine's own way, which is another one for root.
    assert_eq!(
        super::super::read(&super::script(&path).unwrap(), "x").unwrap().rule_count(),
        10_003 - 1
    );
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
    let told = script.in_pieces(Place::Net, 1).unwrap_err();
    assert_eq!((told[0].line, told[0].column), (4, 13), "{told:?}");
    assert_eq!(told[0].excerpt, "  tcp dport 70000 drop");
    std::fs::write(&path, text.replace("70000", "7000")).unwrap();
    let told = Script::new(&path).unwrap().in_pieces(Place::Net, 1).unwrap_err();
    assert_eq!((told[0].file.as_str(), told[0].line), (more.to_str().unwrap(), 2), "{told:?}");
}

#[test]
fn a_rule_that_is_too_long_alone_is_told() {
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
    let told = script.in_pieces(Place::User, super::BATCH_BYTES).unwrap_err();
    assert_eq!(told[0].line, 4, "{told:?}");
    assert!(told[0].to_string().contains("start as root"), "{told:?}");
    super::script(&path).unwrap();
}
