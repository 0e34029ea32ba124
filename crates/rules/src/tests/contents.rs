//! Lists of sets that were taken while the kernel's table grew.

use serde_json::{Value, json};

use crate::contents::has_doubles;

#[test]
fn an_element_that_is_listed_twice_shows_in_all_its_forms() {
    let set = |elements: Value| json!({ "type": "inet_service", "elem": elements });
    let with_count = |key: u32, packets: u32| json!({ "elem": { "val": key, "counter": { "packets": packets } } });
    for (kind, elements, is_doubled) in [
        ("set", json!([22, 80, 443]), false),
        ("set", json!([22, 80, 22]), true),
        ("set", json!([{ "range": [1, 2] }, { "range": [1, 3] }]), false),
        ("set", json!([{ "concat": ["10.0.0.1", 22] }, { "concat": ["10.0.0.1", 22] }]), true),
        ("set", json!([with_count(1, 7), with_count(2, 7)]), false),
        ("set", json!([with_count(1, 7), with_count(1, 8)]), true),
        ("map", json!([[1, { "accept": null }], [2, { "accept": null }]]), false),
        ("map", json!([[1, { "accept": null }], [1, { "drop": null }]]), true),
        ("map", json!([[with_count(1, 7), 5], [with_count(1, 8), 5]]), true),
        ("set", json!([]), false),
        ("chain", json!([22, 22]), false),
    ] {
        assert_eq!(has_doubles((kind, &set(elements.clone()))), is_doubled, "{kind} {elements}");
    }
    // Packets fill it, or time empties it, while it is listed.
    for flags in [json!("dynamic"), json!(["timeout"]), json!(["interval", "dynamic"])] {
        let mut set = set(json!([22, 22]));
        set["flags"] = flags;
        assert!(!has_doubles(("set", &set)), "{set}");
    }
    assert!(!has_doubles(("set", &json!({ "type": "inet_service" }))));
}
