//! Each mistake is one sentence at its place.

use super::super::read;

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
