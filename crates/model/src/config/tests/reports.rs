//! Tests how the reader reports several mistakes, and files that it cannot read.

use std::path::Path;

use super::super::{Mistake, load, report};
use super::mistakes;

fn lines(text: &str) -> Vec<usize> {
    mistakes(text).iter().map(|mistake| mistake.line).collect()
}

#[test]
fn a_mistake_is_one_sentence() {
    let found = mistakes("[ports.wan]\nkind = \"memory\"\n\tmtu = 5");
    assert_eq!(
        found[0].to_string(),
        "t.toml:3: mtu is 5, out of range; write a number from 68 to 16000"
    );
    assert_eq!(
        report(&found),
        "t.toml:3:8: mtu is 5, out of range - write a number from 68 to 16000\n \
         3 |  mtu = 5\n   |        ^\n"
    );
}

#[test]
fn columns_count_characters() {
    let found = mistakes("ports = { \"é\" = { kind = \"x\" } }");
    assert_eq!((found[0].line, found[0].column, found[0].length), (1, 26, 3));
}

#[test]
fn mistakes_are_reported_in_file_order() {
    let text = "[[routes]]\nto = \"10.0.0.1/8\"\nvia = \"x\"\n[ports.a]\nkind = \"tpa\"\nmtu = 1\n\
                mac = \"y\"\naddresses = [\"z\", \"10.0.0.0/8\"]\nvrf = \"v\"";
    assert_eq!(lines(text), [2, 3, 5, 6, 7, 8, 8, 9]);
}

#[test]
fn a_mistake_is_reported_once_and_not_for_what_depends_on_it() {
    // The next hop would be on the link if the link's address were correct.
    let text = "[ports.a]\nkind = \"memory\"\naddresses = [\"10.0.0.1\"]\n[[routes]]\n\
                to = \"0.0.0.0/0\"\nvia = \"10.0.0.2\"\n[[neighbours]]\ndev = \"a\"\n\
                address = \"10.0.0.2\"\nmac = \"02:00:00:00:00:02\"";
    assert_eq!(lines(text), [3]);
}

#[test]
fn syntax_errors_are_reported_with_certain_mistakes_only() {
    let text = "[ports.a]\nkind = \"memory\"\nmtu = 5\n[ports.b\nkind = \"memory\"\n\
                [vlans.c]\nparent = \"b\"\nvid = 1\nmac = = 1\n";
    assert_eq!(lines(text), [3, 4, 9]);
}

#[test]
fn control_characters_do_not_reach_the_terminal() {
    let found = mistakes("[ports.\"\\u001b[31m\"]\nkind = \"\\u001b\"");
    assert!(!report(&found).contains('\u{1b}'), "{found:#?}");
}

#[test]
fn long_values_and_lines_are_cut() {
    let found = mistakes(&format!("[ports.a]\nkind = \"{}\"", "x".repeat(10_000)));
    assert!(report(&found).len() < 300);
}

fn only(result: Result<super::super::Loaded, Vec<Mistake>>) -> Mistake {
    let mut found = result.expect_err("a mistake");
    assert_eq!(found.len(), 1);
    found.remove(0)
}

#[test]
fn files_that_cannot_be_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let missing = only(load(Path::new("/nonexistent/tollway.toml")));
    assert_eq!(missing.line, 0);
    assert!(missing.to_string().starts_with("/nonexistent/tollway.toml: "), "{missing}");
    assert!(missing.remedy.contains("exists"));
    assert!(report(&[missing]).starts_with("/nonexistent/tollway.toml: "));
    assert!(only(load(folder.path())).what.contains("cannot be read"));
    let latin = folder.path().join("latin.toml");
    std::fs::write(&latin, b"# one\n# caf\xe9\n").expect("written");
    let found = only(load(&latin));
    assert_eq!(found.line, 2);
    assert!(found.what.contains("UTF-8"));
}
