//! Every study runs in brief form in this process, returns all rows, and all its ways give the same
//! result.

use super::*;

fn brief(name: &str) -> Outcome {
    let options =
        Options { program: None, processes: 3, time: Duration::from_millis(1), size: Size::Brief };
    run(study(name).unwrap(), &options).unwrap()
}

fn has(of: &Outcome, rows: &[&str]) {
    for name in rows {
        let row = of.report.rows.iter().find(|row| row.name == *name);
        let row = row.unwrap_or_else(|| panic!("{name} is missing"));
        assert!(row.ns_per_packet.median > 0.0 && row.mpps.is_finite(), "{row:?}");
        assert_eq!(row.ns_per_packet.repeats, 3);
    }
}

#[test]
fn call_split_has_all_compilers_that_are_there() {
    let of = brief("call-split");
    has(&of, &["rustc-whole-forward", "rustc-call-drop", "rustc-inline-forward"]);
    for compiler in ["gcc", "clang"] {
        let is_noted = of.notes.iter().any(|note| note.starts_with(compiler));
        if Command::new(compiler).arg("--version").output().is_err() {
            assert!(is_noted, "{compiler}");
            continue;
        }
        for level in ["-O1", "-O2", "-O3"] {
            has(&of, &[&format!("{compiler}{level}-call-forward")]);
            has(&of, &[&format!("{compiler}{level}-inline-drop")]);
        }
    }
}

#[test]
fn receive_burst_has_all_sets_and_ways() {
    let of = brief("receive-burst");
    assert_eq!(of.report.rows.len(), 42);
    has(&of, &["inside-copy", "outside-burst-1", "memory-burst-4", "memory-ahead-64"]);
}

#[test]
fn metadata_has_all_states() {
    let of = brief("metadata");
    assert_eq!(of.report.rows.len(), 13);
    has(&of, &["none", "zeroed-once", "flagged-twice", "columns-once", "path-twice"]);
}

#[test]
fn vlan_queue_has_all_contexts_and_counts() {
    let of = brief("vlan-queue");
    assert_eq!(of.report.rows.len(), 14);
    has(&of, &["plain-1", "mutex-2", "burst-3", "in-place-3", "path-vlan"]);
    for name in ["mutex_2_input_drops_percent", "burst_3_livelocks_per_second"] {
        assert!(of.report.figures[name] >= 0.0);
    }
}

#[test]
fn vrf_lookup_has_both_families() {
    let of = brief("vrf-lookup");
    assert_eq!(of.report.rows.len(), 10);
    has(&of, &["ip4-plain", "ip6-device", "ip4-checked", "ip6-path-vrf"]);
}

#[test]
fn text_picture_page_and_json_have_every_row() {
    let of = brief("metadata");
    let json = serde_json::to_value(&of).unwrap();
    assert_eq!(json["study"], "metadata");
    assert_eq!(json["rows"][0]["name"], "none");
    assert!(json["machine"]["cpu"].is_string() && json["rows"][1]["verdict"].is_string());
    let [low, high] = &json["rows"][1]["interval_ns"].as_array().unwrap()[..] else { panic!() };
    assert!(low.as_f64() <= high.as_f64());
    assert!(json["rows"][0].get("interval_ns").is_none());
    let picture = picture::draw(&of);
    assert!(picture.starts_with("<svg") && picture.ends_with("</svg>\n"));
    let (text, page) = (render(&of), page::page(&of));
    for row in &of.report.rows {
        for place in [&text, &picture, &page] {
            assert!(place.contains(&row.name), "{}", row.name);
        }
    }
    assert!(text.contains("+4.65%"), "{text}");
}

#[test]
fn every_study_has_a_page_with_its_picture() {
    for study in STUDIES {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/studies");
        let page = std::fs::read_to_string(docs.join(format!("{}.md", study.name))).unwrap();
        assert!(page.contains(&format!("tollway lab study {}", study.name)));
        assert!(page.contains(&format!("({}.svg)", study.name)));
        assert!(docs.join(format!("{}.svg", study.name)).exists());
    }
}

#[test]
fn an_unknown_study_is_refused_with_the_names_of_the_others() {
    let error = study("call-merge").err().unwrap();
    assert!(error.contains("call-merge") && error.contains("vrf-lookup"), "{error}");
}
