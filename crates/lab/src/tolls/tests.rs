use std::collections::BTreeSet;
use std::path::PathBuf;

use super::*;
use crate::bench::Bench;

/// A directory for one test.
pub(super) fn directory(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("tollway-tolls-{name}-{}", std::process::id()))
}

/// A run whose rows take the given times, plus or minus a tenth of a nanosecond.
pub(super) fn made(rows: &[(&'static str, f64)]) -> Tolls {
    let machine = Machine {
        cpu: "made up".to_owned(),
        cpus: 1,
        kernel: "6.0".to_owned(),
        tsc_mhz: 1000.0,
        level: "v3".to_owned(),
    };
    let rounds = |ns: f64| (0..21).map(|at| ns + 0.01 * (f64::from(at % 21) - 10.0)).collect();
    let stages = BTreeMap::from([("admit", 2.0), ("route", 3.0)]);
    let measured: Vec<Measured> = rows
        .iter()
        .map(|(name, ns)| ((scenario(name).unwrap(), stages.clone()), rounds(*ns)))
        .collect();
    Tolls { report: Report::new(machine, sum_up(&measured, 1.0)), against: None }
}

#[test]
fn rows_have_names_of_their_own_and_others_to_be_held_against() {
    let names: BTreeSet<_> = ROWS.iter().map(|row| row.name).collect();
    assert_eq!(names.len(), ROWS.len());
    for row in ROWS {
        let place = |name| ROWS.iter().position(|row| row.name == name);
        assert!(row.over.is_none_or(|over| place(over) < place(row.name)), "{}", row.name);
    }
    assert!(ROWS.windows(2).all(|pair| pair[0].group <= pair[1].group), "groups stand together");
    assert_eq!(ROWS[1].name, "ip4-one-flow", "the one that sampling is measured with");
}

/// A packet with another outcome ends a measurement with a panic.
#[test]
fn every_packet_of_every_row_is_forwarded() {
    for row in ROWS.iter().filter(|row| !row.name.ends_with("100k") && !row.name.ends_with("1m")) {
        let mut bench = row.bench().unwrap_or_else(|error| panic!("{}: {error}", row.name));
        assert!(bench.clocks_per_packet(4).is_finite(), "{}", row.name);
        bench.watch(1, |_| ());
    }
}

/// The headers of the cold rows are in no cache: that costs several times the noise, even in a build that is not
/// optimized.
#[cfg(target_arch = "x86_64")]
#[test]
fn headers_of_cold_rows_come_from_memory() {
    let [mut warm, mut cold] = ["ip4-all-off", "ip4-cold-no-prefetch"]
        .map(|name| scenario(name).unwrap().bench().unwrap());
    // A disturbance of the machine may hit either; the least of several is what the row takes.
    let least = |bench: &mut Bench| {
        (0..10).map(|_| bench.clocks_per_packet(16)).fold(f64::INFINITY, f64::min)
    };
    let is_slower = |_| least(&mut cold) > least(&mut warm) + 5.0;
    assert!((0..10).any(is_slower), "headers in memory cost as much as those in caches");
}

#[test]
fn stages_that_are_configured_have_a_toll() {
    for (name, stages) in [
        ("ip4-ecmp", &["ecmp"][..]),
        ("ip4-policy", &["rule"]),
        ("ip4-rpf", &["source_check"]),
        ("ip4-redirects", &["icmp_redirect"]),
        ("l2-bridge", &["bridge", "transmit"]),
        ("ip4-filter-10", &["prerouting", "forward"]),
        ("ip4-all-on", &["classify", "ecmp", "rule", "icmp_redirect", "source_check", "forward"]),
    ] {
        let mut bench = scenario(name).unwrap().bench().unwrap();
        bench.clocks_per_packet(16);
        let found = bench.stages();
        for stage in stages {
            assert!(found.contains_key(stage), "{name} has no {stage}: {found:?}");
        }
    }
}

#[test]
fn costs_are_over_the_row_that_has_less() {
    let tolls = made(&[("ip4-one-flow", 10.0), ("ip4-all-off", 11.0), ("ip4-vlan", 14.0)]);
    let cost = |at: usize| tolls.report.rows[at].cost.clone();
    assert_eq!(cost(0), None, "the floor was not measured");
    let vlan = cost(2).unwrap();
    assert_eq!(vlan.over, "ip4-all-off");
    assert!((vlan.ns - 3.0).abs() < 1e-9, "{vlan:?}");
    assert!(vlan.interval_ns[0] <= vlan.ns && vlan.ns <= vlan.interval_ns[1]);
}

#[test]
fn a_run_is_one_object_of_the_usual_form() {
    let json = serde_json::to_value(run(&["ip4-vlan".to_owned()]).unwrap()).unwrap();
    assert!(json["machine"]["cpu"].is_string() && json["commit"].is_string());
    assert!(json["sampling_overhead_percent"].is_number());
    let [row] = &json["rows"].as_array().unwrap()[..] else { panic!("{json}") };
    assert_eq!(row["name"], "ip4-vlan");
    let median = row["ns_per_packet"]["median"].as_f64().unwrap();
    let end = |at: usize| row["interval_ns"][at].as_f64().unwrap();
    assert!(median > 0.0 && end(0) <= end(1) && end(0) > 0.0);
    assert_eq!(
        row["rounds_ns"].as_array().unwrap().len() as u64,
        row["clocks_per_packet"]["repeats"]
    );
    assert!(row["stages"]["classify"].is_number(), "{row}");
    assert!(row.get("cost").is_none() && json.get("against").is_none());
    assert!(run(&["nonsense".to_owned()]).unwrap_err().contains("no row is called nonsense"));
}

#[test]
fn the_text_has_every_row_under_its_group() {
    let text = render(&made(&[("floor", 1.0), ("ip4-one-flow", 10.0), ("ip4-burst-1", 40.0)]));
    for part in ["the path\n", "  floor ", "bursts\n", "  ip4-burst-1 ", "+30.00", "over", "route"]
    {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert!(!text.contains("ecmp"), "a stage that no row has");
}
