//! Rules in nft's syntax.

use serde_json::Value;

#[test]
fn rules_are_written_as_nft_writes_them() {
    let json = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    for (expr, written) in [
        (
            r#"[{"match":{"op":"==","left":{"meta":{"key":"iifname"}},"right":"eth*"}},
                {"match":{"op":"==","left":{"payload":{"protocol":"tcp","field":"dport"}},
                 "right":{"set":[22,{"range":[80,90]}]}}},{"counter":null},{"drop":null}]"#,
            "iifname \"eth*\" tcp dport { 22, 80-90 } counter drop",
        ),
        (
            r#"[{"match":{"op":"in","left":{"ct":{"key":"state"}},
                 "right":["established","related"]}},{"accept":null}]"#,
            "ct state established,related accept",
        ),
        (
            r#"[{"dnat":{"family":"ip6","addr":"2001:db8::1","port":80}}]"#,
            "dnat ip6 to [2001:db8::1]:80",
        ),
        (
            r#"[{"vmap":{"key":{"concat":[{"meta":{"key":"iif"}},{"meta":{"key":"mark"}}]},
                 "data":{"set":[[{"concat":["lo",5]},{"jump":{"target":"c"}}],["*",{"drop":null}]]}}}]"#,
            "iif . meta mark vmap { \"lo\" . 5 : jump c, * : drop }",
        ),
        (r#"[{"fwd":{"dev":"lo"}}]"#, "fwd to \"lo\""),
        (r#"[{"queue":{"num":{"range":[1,3]},"flags":"bypass"}}]"#, "queue flags bypass to 1-3"),
        (
            r#"[{"set":{"op":"update","elem":{"elem":{"val":{"payload":{"protocol":"ip",
                 "field":"saddr"}},"timeout":30}},"set":"@seen"}}]"#,
            "update @seen { ip saddr timeout 30s }",
        ),
        (r#"[{"from_the_future":{"a":1}}]"#, r#"{"from_the_future":{"a":1}}"#),
    ] {
        let rule = serde_json::json!({ "expr": json(expr) });
        assert_eq!(super::super::text::rule(&rule), written);
    }
}
