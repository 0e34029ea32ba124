//! Each mistake is one sentence at its place.

use super::super::{read, script};

fn reported(text: &str) -> Vec<String> {
    read(text, "rules.json").unwrap_err().iter().map(ToString::to_string).collect()
}

#[test]
fn json_that_is_none() {
    let mistakes = read("{\"nftables\": [\n  {\"table\" }\n]}", "rules.json").unwrap_err();
    assert_eq!((mistakes[0].line, mistakes[0].column), (2, 12));
    assert!(mistakes[0].to_string().starts_with("rules.json:2: this is no JSON: expected `:`"));
    assert!(reported("")[0].contains("no JSON"));
    assert!(reported("[]")[0].contains("no list \"nftables\""));
}

#[test]
fn listings_that_cannot_be() {
    let rule = r#"{"nftables":[{"rule":{"family":"ip","table":"t","chain":"c","expr":[]}}]}"#;
    assert!(reported(rule)[0].contains("a rule is in chain ip t \"c\", which is not listed"));
    let hook = r#"{"nftables":[{"chain":{"family":"ip","table":"t","name":"c","type":"filter",
        "hook":"elsewhere","prio":0,"policy":"accept"}},
        {"chain":{"family":"can","table":"t","name":"d"}}]}"#;
    let mistakes = reported(hook);
    assert!(mistakes.iter().any(|one| one.contains("hook \"elsewhere\"")), "{mistakes:?}");
    assert!(mistakes.iter().any(|one| one.contains("family \"can\"")), "{mistakes:?}");
}

#[test]
fn circles_of_jumps() {
    let text = r#"{"nftables":[{"chain":{"family":"ip","table":"t","name":"c"}},
        {"rule":{"family":"ip","table":"t","chain":"c","expr":[{"jump":{"target":"c"}}]}}]}"#;
    assert!(reported(text)[0].contains("circle"));
}

fn scripted(text: &str) -> Vec<crate::mistake::Mistake> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.nft");
    std::fs::write(&file, text).unwrap();
    script(&file).unwrap_err()
}

#[test]
fn mistakes_of_nft_have_their_place() {
    let mistakes = scripted("table ip t {\n  chain c {\n    tcp dport 70000 drop\n  }\n}\n");
    assert_eq!((mistakes[0].line, mistakes[0].column), (3, 15), "{mistakes:?}");
    assert!(mistakes[0].what.contains("out of range"), "{mistakes:?}");
    assert_eq!(mistakes[0].excerpt, "    tcp dport 70000 drop");
    let mistakes = scripted("table ip t {\n  chain c { iif nosuch drop; }\n}\n");
    assert!(mistakes[0].what.contains("Interface does not exist"), "{mistakes:?}");
    assert!(mistakes[0].remedy.contains("iifname"), "{mistakes:?}");
    let mistakes = scripted("include \"/nonexistent/rules.nft\"\n");
    assert!(!mistakes[0].what.is_empty(), "{mistakes:?}");
    let mistakes = script(std::path::Path::new("/nonexistent/rules.nft")).unwrap_err();
    assert!(mistakes[0].what.starts_with("cannot be read"), "{mistakes:?}");
}

#[test]
fn a_script_leaves_nothing_behind() {
    let before = std::fs::read_to_string("/proc/net/dev").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.nft");
    let text = "table netdev tollway_test {\n chain c {\n type filter hook ingress device \
                tollwaynft0 priority 0;\n }\n}\n";
    std::fs::write(&file, text).unwrap();
    let listing = script(&file).unwrap();
    assert!(listing.contains("tollwaynft0"));
    let after = std::fs::read_to_string("/proc/net/dev").unwrap();
    assert!(!before.contains("tollwaynft0") && !after.contains("tollwaynft0"));
}
