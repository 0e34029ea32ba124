//! The firewall's rules, in a file of their own.

use std::path::Path;

use super::super::load;
use super::assert_alone;

const PORT: &str = "[ports.a]\nkind = \"memory\"\n";

/// The mistakes of a configuration whose `filter` file has this content.
fn wrong(dir: &Path, rules: &[u8]) -> Vec<String> {
    let config = dir.join("t.toml");
    std::fs::write(dir.join("rules"), rules).unwrap();
    std::fs::write(&config, format!("filter = \"rules\"\n{PORT}")).unwrap();
    let mistakes = load(&config).err().unwrap_or_default();
    let at = format!("{}/", dir.display());
    mistakes.iter().map(|mistake| mistake.to_string().replace(&at, "")).collect()
}

#[test]
fn a_name_that_is_none() {
    let port = PORT;
    assert_alone(&[
        ("filter = \"\"\n[ports.a]\nkind = \"memory\"\n", 1, &["not a file name"]),
        ("filter = 5\n[ports.a]\nkind = \"memory\"\n", 1, &["filter", "string"]),
        ("filter_log = \"x.pcap\"\n[ports.a]\nkind = \"memory\"\n", 1, &["without filter"]),
        ("filters = \"x\"\n[ports.a]\nkind = \"memory\"\n", 1, &["did you mean filter?"]),
    ]);
    let reported = super::mistakes(&format!("filter = \"/no/such.rules\"\n{port}"));
    assert_eq!(reported.len(), 1);
    assert_eq!(
        reported[0].to_string(),
        "/no/such.rules: the rules cannot be read: no such file or directory; name a file that exists"
    );
}

#[test]
fn mistakes_of_the_rules_are_reported_with_their_place() {
    let dir = tempfile::tempdir().unwrap();
    let reported = wrong(dir.path(), b"\n# rules\nlet it be\n");
    assert_eq!(reported.len(), 1, "{reported:?}");
    assert!(reported[0].starts_with("rules:3: \"let it be\" begins no rules that are known; "));
    assert_eq!(
        wrong(dir.path(), b"\xff"),
        ["rules:1: the file is not UTF-8 text; save it as UTF-8"]
    );
    assert_eq!(wrong(dir.path(), b"add 100 allow ip from any to any\n"), [""; 0]);
}

#[test]
fn rules_start_at_the_configuration() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(wrong(dir.path(), b"add 100 allow ip from any to any\n"), [""; 0]);
    let model = load(&dir.path().join("t.toml")).unwrap().model;
    assert!(model.filter.is_some());
}
