use std::collections::BTreeMap;

use super::*;

/// A lost packet or chunk is an error, and so is a worker that forwards nothing. Threads that share a processor disturb
/// each other, and those rounds do not count.
#[test]
fn two_workers_forward_every_packet() {
    let processor = sys::processors()[0];
    let rounds = scaling::rounds([processor; 2], 8).unwrap();
    assert!(rounds.iter().all(|round| round.one > 0.0 && round.two > 0.0 && round.two_apart > 0.0));
}

fn figures(values: &[(&str, f64)]) -> BTreeMap<String, f64> {
    values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
}

#[test]
fn the_text_has_the_ratio_in_80_columns() {
    let text = render(&figures(&[
        (PROCESSORS, 2.0),
        (SHARED_CORE, 1.0),
        ("workers_two_ratio", 1.957),
        ("workers_two_ratio_min", 1.801),
        ("workers_two_ratio_max", 1.999),
        ("workers_two_apart_ratio", 1.97),
        ("workers_two_apart_ratio_min", 1.9),
        ("workers_two_apart_ratio_max", 2.01),
        ("workers_one_mpps", 101.23),
        ("workers_two_mpps", 199.87),
        ("workers_rounds", 41.0),
    ]));
    for part in
        ["1.96 (1.80 to 2.00), 41 rounds", "nothing, against one: 1.97", "101.2 Mpps", "one core"]
    {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert!(text.lines().all(|line| line.len() <= 80), "{text}");
}

#[test]
fn the_text_has_what_was_measured_between_interfaces_in_80_columns() {
    let text = render(&figures(&[
        (PROCESSORS, 2.0),
        (SHARED_CORE, 0.0),
        ("workers_two_veth_ratio", 1.794),
        ("workers_two_veth_ratio_min", 1.6),
        ("workers_two_veth_ratio_max", 2.117),
        ("workers_one_veth_mpps", 0.8127),
        ("workers_two_veth_mpps", 1.4606),
        ("workers_veth_rounds", 11.0),
        ("hung_worker_lost_ms", 20.35),
        ("hung_worker_others_lost", 0.0),
        ("hung_worker0_lost_ms", 121.7),
        ("hung_worker0_others_lost", 12345.0),
        ("hung_worker_repeats", 10.0),
        ("overload_best_mpps", 11.246),
        ("overload_offered_mpps", 22.492),
        ("overload_goodput_percent", 101.2),
        ("overload_goodput_percent_min", 100.0),
        ("overload_goodput_percent_max", 104.0),
        ("overload_uncounted", 1234567.0),
        ("overload_pings_lost", 500.0),
        ("overload_pings", 500.0),
        ("overload_rounds", 5.0),
    ]));
    for part in [
        "1.79 (1.60 to 2.12), 11 rounds",
        "one 0.813 Mpps, two 1.461 Mpps",
        "worker 1: 20.4 ms of its traffic lost, 0 frames",
        "worker 0: 121.7 ms",
        "goodput 101%",
        "1234567 frames lost but not counted; at most 500 of",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert!(!text.contains("NaN") && !text.contains("memory to memory"), "{text}");
    assert!(text.lines().all(|line| line.len() <= 80), "{text}");
}

#[test]
fn one_processor_is_named_as_the_reason() {
    assert!(render(&figures(&[(PROCESSORS, 1.0)])).contains("need two processors"));
    assert_eq!(render(&BTreeMap::new()), "");
}
