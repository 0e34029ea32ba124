//! Tests what `tollway lab study` lists, refuses and writes.

#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

fn study(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tollway"))
        .args(["lab", "study"])
        .args(arguments)
        .output()
        .unwrap()
}

#[test]
fn all_studies_are_listed_with_their_questions() {
    let output = study(&["--list"]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    for name in ["call-split", "receive-burst", "metadata", "vlan-queue", "vrf-lookup"] {
        assert!(text.lines().any(|line| line.starts_with(name) && line.ends_with('?')), "{text}");
    }
}

#[test]
fn invalid_arguments_are_refused() {
    for (arguments, expected) in [
        (&["call-merge"][..], "no study is called call-merge"),
        (&[], "<NAME>"),
        (&["metadata", "--processes", "2"], "2 is not in 3..=1000"),
        (&["metadata", "--seconds", "0"], "write seconds"),
    ] {
        let output = study(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn a_study_is_made_by_processes_of_the_program_and_written_in_all_forms() {
    let directory = TempDir::new().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (svg, html) = (path("study.svg"), path("study.html"));
    let mut arguments = vec!["metadata", "--json", "--processes", "3", "--seconds", "1"];
    arguments.extend(["--svg", &svg, "--html", &html]);
    let output = study(&arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["study"], &report["processes"]), (&"metadata".into(), &3.into()));
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 13);
    assert!(rows.iter().all(|row| row["ns_per_packet"]["median"].as_f64().unwrap() > 0.0));
    assert!(std::fs::read_to_string(svg).unwrap().starts_with("<svg"));
    let page = std::fs::read_to_string(html).unwrap();
    assert!(page.contains("<svg") && page.contains("zeroed-once"));
}

#[test]
fn unwritable_files_are_reported() {
    let arguments = ["metadata", "--processes", "3", "--seconds", "1", "--svg", "/nowhere/x.svg"];
    let output = study(&arguments);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("/nowhere/x.svg"));
}
