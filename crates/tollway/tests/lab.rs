//! Tests `tollway lab tolls` and `tollway lab profile` on the command line: what they record and read
//! again, what they write, and what they refuse.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

fn lab(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollway"));
    command.current_dir(directory).arg("lab").args(arguments).output().unwrap()
}

fn text(done: &Output) -> String {
    let error = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{error}");
    String::from_utf8(done.stdout.clone()).unwrap()
}

fn json(done: &Output) -> Value {
    serde_json::from_str(&text(done)).unwrap()
}

/// The only file of a directory.
fn only_file(directory: &Path) -> String {
    let mut files = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let file = files.next().unwrap();
    assert_eq!(files.next(), None);
    file.display().to_string()
}

#[test]
fn a_run_is_recorded_and_the_next_compared_with_it() {
    let directory = TempDir::new().unwrap();
    let here = directory.path();
    let rows = ["tolls", "--only", "floor", "ip4-one-flow"];
    let printed = text(&lab(here, &[&rows[..], &["--record"]].concat()));
    let file = only_file(&here.join("toll-records"));
    assert!(printed.contains("recorded in toll-records/tolls-2"), "{printed}");
    let kept: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(kept["toll_record"], 1);
    for field in ["recorded", "compiler", "commit"] {
        assert!(kept[field].is_string(), "{field}");
    }
    assert!(kept["machine"]["cpu"].is_string() && kept["machine"]["kernel"].is_string());

    // In this record each packet costs a third, so the present run costs three times as much.
    let mut cheaper = kept.clone();
    for ns in cheaper["rows"][1]["rounds_ns"].as_array_mut().unwrap() {
        *ns = (ns.as_f64().unwrap() / 3.0).into();
    }
    let path = here.join("cheaper.json");
    fs::write(&path, cheaper.to_string()).unwrap();
    let page = here.join("page.html");
    let more = ["--json", "--against", "cheaper.json", "--html", "page.html"];
    let now = json(&lab(here, &[&rows[..], &more].concat()));
    let against = &now["against"];
    assert_eq!(against["recorded"], kept["recorded"]);
    assert_eq!(against["file"], "cheaper.json");
    let row = &against["rows"][1];
    assert_eq!((&row["name"], &row["verdict"]), (&"ip4-one-flow".into(), &"slower".into()));
    assert_eq!(now["rows"][1]["cost"]["over"], "floor");

    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("What has changed") && page.contains("What each feature costs"));
    assert!(!page.contains("http"), "a reference to the outside");

    let again = text(&lab(here, &[&rows[..], &["--against", &file]].concat()));
    assert!(again.contains(&format!("since {}", kept["recorded"].as_str().unwrap())), "{again}");
}

#[test]
fn a_profile_is_a_table_and_three_pictures() {
    let directory = TempDir::new().unwrap();
    let here = directory.path();
    let printed =
        text(&lab(here, &["profile", "ip4-one-flow", "--seconds", "1", "--out", "pictures"]));
    assert!(printed.contains("self %") && printed.contains("tollway_dataplane::"), "{printed}");
    for (kind, end) in [("flame.svg", "</svg>\n"), ("calls.svg", "</svg>\n"), ("calls.dot", "}\n")]
    {
        let path = here.join("pictures").join(format!("profile-ip4-one-flow-{kind}"));
        assert!(fs::read_to_string(&path).unwrap().ends_with(end), "{path:?}");
        assert!(printed.contains(kind), "{printed}");
    }
    let arguments = ["profile", "ip4-vlan", "--seconds", "1", "--no-pictures", "--json"];
    let profile = json(&lab(here, &arguments));
    assert_eq!(profile["scenario"], "ip4-vlan");
    assert!(profile["samples"].as_u64().unwrap() > 30 && profile["ns_per_packet"].is_number());
    assert!(profile["rows"][0]["self_percent"].as_f64().unwrap() > 0.0);
    assert!(profile["pictures"].as_array().unwrap().is_empty());
}

#[test]
fn invalid_arguments_are_refused_in_a_sentence() {
    let directory = TempDir::new().unwrap();
    let here = directory.path();
    fs::write(here.join("file"), "{}").unwrap();
    for (arguments, code, word) in [
        (&["profile", "nonsense"][..], 2, "no row is called nonsense"),
        (&["profile", "floor", "--out", "file/below"], 1, "file/below"),
        (&["tolls", "--only", "nonsense"], 2, "no row is called nonsense"),
        (&["tolls", "--against", "none.json"], 2, "none.json: No such file"),
        (&["tolls", "--against", "file"], 2, "file: no record of `tollway lab tolls`"),
        (&["tolls", "--only", "floor", "--html", "none/page.html"], 1, "none/page.html"),
    ] {
        let done = lab(here, arguments);
        let error = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(code), "{arguments:?}: {error}");
        // The error comes before any measurement.
        assert!(done.stdout.is_empty() || arguments[0] != "tolls", "{arguments:?}");
        assert!(error.lines().count() == 1 && error.contains(word), "{arguments:?}: {error}");
    }
    for wrong in ["0", "-1", "x"] {
        let done = lab(here, &["profile", "floor", "--seconds", wrong]);
        assert_eq!(done.status.code(), Some(2), "{wrong}");
    }
}
