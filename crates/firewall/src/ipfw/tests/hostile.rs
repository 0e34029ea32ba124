//! Tests that meaningless text is read without a panic.

use proptest::prelude::*;

/// Words of files, and words that do not belong there.
fn word() -> impl Strategy<Value = String> {
    const WORDS: &[&str] = &[
        "add",
        "table",
        "create",
        "type",
        "addr",
        "iface",
        "number",
        "1",
        "65534",
        "allow",
        "deny",
        "skipto",
        "call",
        "return",
        "count",
        "log",
        "set",
        "disable",
        "ip",
        "tcp",
        "from",
        "any",
        "to",
        "not",
        "{",
        "}",
        "or",
        "table(1)",
        "table(1,2)",
        "10.0.0.0/8",
        "10.0.0.0/24{1-9}",
        "2001:db8::/32",
        "1.2.3.4:0.0.0.0",
        "22",
        "1-5,ssh",
        "in",
        "out",
        "via",
        "em*",
        "frag",
        "mf,!df",
        "established",
        "check-state",
        "keep-state",
        "record-state",
        "defer-action",
        "limit",
        "src-addr",
        ":web",
        "tcpdatalen",
        "0-65535",
        "mac",
        "any",
        "mac-type",
        "dscp",
        "ef",
        "lookup",
        "dst-port",
        "pipe",
        "config",
        "delete",
        "flush",
        "ipfw",
        "-q",
        "\\\n",
        "#",
        "//",
        "$x",
        "unreach",
        "port",
        "fwd",
        "::1",
        "ipttl",
        "iplen",
        "icmptypes",
        "0,8",
        "prob",
        "{}",
        "(",
        "()",
        ",",
        "-",
        "{x",
        "x}",
    ];
    prop_oneof![
        8 => prop::sample::select(WORDS).prop_map(str::to_owned),
        1 => "\\PC{0,6}",
        1 => any::<u32>().prop_map(|number| number.to_string()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn any_text_is_read_without_a_panic(text in "(?s).{0,300}") {
        let _ = super::read(&text, "odd");
    }

    #[test]
    fn any_order_of_words_is_read_without_a_panic(
        lines in prop::collection::vec(prop::collection::vec(word(), 0..14), 0..12)
    ) {
        let lines: Vec<_> = lines.iter().map(|line| line.join(" ")).collect();
        let text = lines.join("\n");
        if let Ok(rules) = super::read(&text, "odd") {
            prop_assert_eq!(rules.check(), Ok(()));
        }
    }

    #[test]
    fn any_rule_is_read_without_a_panic(words in prop::collection::vec(word(), 0..10)) {
        let text = format!("add allow {}", words.join(" "));
        if let Ok(rules) = super::read(&text, "odd") {
            prop_assert_eq!(rules.check(), Ok(()));
        }
    }
}

#[test]
fn a_rule_without_a_body_is_a_mistake() {
    for body in ["allow", "add", "deny log", "count log logamount 5", "return", "skipto 9"] {
        let mistakes = super::super::read(&format!("add {body}\n"), "t").unwrap_err();
        assert_eq!(mistakes.len(), 1, "{body}");
    }
    // To ipfw a comment is a body, like an option.
    for body in ["allow // all", "count // a heading", "deny in", "allow ip from any to any"] {
        let rules = super::super::read(&format!("add {body}\n"), "t").unwrap();
        assert!(rules.rule_count() > 0, "{body}");
    }
}
