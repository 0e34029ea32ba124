//! Tests of the rows' names, figures and text.

mod interfaces;

use super::table::SocketRules;
use super::*;

/// The figures that others read.
const FIGURES: [&str; 42] = [
    "xdp_256_ratio",
    "xdp_64k_ratio",
    "xdp_1m_ratio",
    "xdp_features_ratio",
    "af_xdp_ratio",
    "af_packet_ratio",
    "xdp_full4_256_ratio",
    "xdp_full4_64k_ratio",
    "xdp_full4_1m_ratio",
    "xdp_full6_256_ratio",
    "xdp_full6_64k_ratio",
    "xdp_full6_1m_ratio",
    "flood_ratio",
    "flood_100_rules_ratio",
    "flood_1000_rules_ratio",
    "stateful_ratio",
    "stateful_64k_ratio",
    "stateful_1m_ratio",
    "nat_ratio",
    "nat_64k_ratio",
    "nat_1m_ratio",
    "nat_tcp_256_ratio",
    "nat_tcp_64k_ratio",
    "nat_tcp_1m_ratio",
    "nat_flowtable_ratio",
    "drop_ratio",
    "drop_flood_ratio",
    "features_ratio",
    "kernel_rule_delivered_percent",
    "bridge_ratio",
    "bridge_64k_ratio",
    "bridge_plain_ratio",
    "bridge_routed_ratio",
    "tcp_stream_ratio",
    "tcp_stream_8_ratio",
    "nat_stream_ratio",
    "nat_stream_8_ratio",
    "nat_crr_ratio",
    "socket_ratio",
    "socket_100_rules_ratio",
    "nothing_offloaded_tcp_ratio",
    "nothing_offloaded_socket_ratio",
];

#[test]
fn every_row_has_the_figure_that_others_read() {
    let figures: Vec<_> = CASES.iter().map(Case::figure).collect();
    assert_eq!(figures, FIGURES);
}

#[test]
fn the_help_has_every_row() {
    let help = crate::live::row_names();
    let words: Vec<_> = help.split([' ', '\n', ';']).collect();
    for case in CASES {
        assert!(words.contains(&case.name), "{} is not in {help}", case.name);
    }
    assert!(help.lines().all(|line| line.len() < 80), "{help}");
    for part in ["Rows: kernel xdp-256 ", "; af-packet only if named.", "kill", "workers-overload."]
    {
        let help = help.replace('\n', " ");
        assert!(help.contains(part), "{part} is not in {help}");
    }
}

fn case(name: &str) -> &'static Case {
    CASES.iter().find(|case| case.name == name).unwrap()
}

fn measured(kernel: &[f64], tollway: &[f64], note: Option<&str>) -> Outcome {
    let pairs = Pairs { kernel: kernel.to_vec(), tollway: tollway.to_vec(), processor: Vec::new() };
    Outcome::Measured { pairs, note: note.map(str::to_owned) }
}

/// A pair with processor times.
fn with_processor(kernel: f64, tollway: f64, direct: f64) -> Outcome {
    let processor = vec![ProcessorTimes { kernel, tollway, direct }];
    Outcome::Measured {
        pairs: Pairs { kernel: vec![8.0], tollway: vec![8.0], processor },
        note: None,
    }
}

#[test]
fn the_text_has_every_row_and_its_note() {
    let rows = [
        row(case("xdp-1m"), measured(&[2.0, 2.5], &[5.0, 5.0], None)),
        row(case("kernel-rule-delivered"), measured(&[1.0], &[0.25], None)),
        row(case("tcp-stream-8"), measured(&[40.0], &[0.0], Some("another"))),
        row(case("socket"), measured(&[1.0], &[1.0], Some("it is quiet"))),
        row(case("nat-crr"), measured(&[20.0], &[21.0], None)),
        row(case("nat-stream"), with_processor(0.9, 0.8, 0.5)),
        row(case("features"), Outcome::LeftOut("there is none".to_owned())),
    ];
    let text = render(&rows);
    let line = |start: &str| {
        let line = text.lines().find(|line| line.trim_start().starts_with(start));
        line.unwrap_or_else(|| panic!("{start} is not in {text}")).split_whitespace().collect()
    };
    let cells: Vec<&str> = line("xdp-1m ");
    assert_eq!(cells[1..6], ["2.250", "5.000", "2.25", "2.00", "2.50"]);
    let cells: Vec<&str> = line("kernel-rule-delivered ");
    assert_eq!(cells[1..6], ["1.000", "0.250", "25%", "25%", "25%"]);
    let cells: Vec<&str> = line("tcp-stream-8 ");
    assert_eq!(cells[1..6], ["40.000", "0.000", "0.00", "0.00", "0.00"]);
    let cells: Vec<&str> = line("features ");
    assert_eq!(cells[1..6], ["-"; 5]);
    for note in [
        "tcp-stream-8: nothing gets through Tollway",
        "socket: it is quiet",
        "nat-stream: a byte takes 0.900 ns of processor time by the kernel, 0.800 by Tollway and 0.500 without a router: of \
         the router alone, 0.75 times as much",
        "features: left out: there is none",
        "Mpps of small packets, in turn, median of 2 pairs",
        "Gbit/s of TCP, in turn",
        "Thousand TCP connections a second, in turn",
    ] {
        assert!(text.contains(note), "{note} is not in {text}");
    }
}

#[test]
fn a_row_that_is_left_out_has_no_figures() {
    let left_out = row(case("features"), Outcome::LeftOut("there is none".to_owned()));
    let json = serde_json::to_value(&left_out).unwrap();
    assert!(json.get("ratio").is_none() && json.get("kernel").is_none(), "{json}");
    assert_eq!(json["note"], "left out: there is none");
    let kept = row(case("flood"), measured(&[2.0], &[3.0], None));
    let json = serde_json::to_value(&kept).unwrap();
    assert_eq!((&json["ratio"]["median"], &json["kernel"]["max"]), (&1.5.into(), &2.0.into()));
}

#[test]
fn the_kernels_rate_alone_is_that_of_plain_rows() {
    assert!(is_plain(case("xdp-64k"), 9) && is_plain(case("af-xdp"), 1));
    for name in ["af-xdp", "flood", "xdp-full4-256", "socket"] {
        assert!(!is_plain(case(name), 9), "{name}");
    }
    assert!(matches!(
        case("nothing-offloaded-socket").kind,
        Kind::Sockets { rules: SocketRules::Masquerade }
    ));
}
