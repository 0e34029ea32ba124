use super::*;
use tollway_capture::CaptureWriter;

/// Three ports without addresses.
fn small_model() -> Model {
    let text = ["a", "b", "c"].map(|port| format!("[ports.{port}]\nkind = \"tap\"\n")).concat();
    tollway_model::config::parse(&text, "t.toml").unwrap().model
}

/// Writes a file with a frame at each of these times.
fn capture(dir: &std::path::Path, name: &str, times: &[u64], frame: &[u8]) -> PathBuf {
    let path = dir.join(name);
    let mut writer = CaptureWriter::create(&path).unwrap();
    for time in times {
        writer.write(*time, frame).unwrap();
    }
    writer.finish().unwrap();
    path
}

#[test]
fn frames_of_all_files_come_in_the_order_of_time() {
    let dir = tempfile::tempdir().unwrap();
    let files = Files {
        inputs: vec![
            (0, capture(dir.path(), "a.pcap", &[10, 30, 20], b"a")),
            (1, capture(dir.path(), "b.pcap", &[5, 30, 40], b"b")),
            (0, capture(dir.path(), "c.pcap", &[], b"c")),
        ],
        outputs: Vec::new(),
    };
    let mut replay = Replay::new(&small_model(), &files).unwrap();
    for index in 0..files.inputs.len() {
        replay.refill(index);
    }
    let order = std::iter::from_fn(|| replay.next_frame());
    let order: Vec<_> = order.map(|(port, frame)| (port, frame.time_ns)).collect();
    // The frames of one file keep their order, even where timestamps go back.
    assert_eq!(order, [(1, 5), (0, 10), (0, 30), (0, 20), (1, 30), (1, 40)]);
}

#[test]
fn the_clock_never_goes_back_and_gaps_are_crossed_in_bounded_time() {
    let dir = tempfile::tempdir().unwrap();
    let day = 86_400_000_000_000;
    let times = [1000 * day, 7, 20_000 * day, u64::from(u32::MAX) * 1_000_000_000];
    let files = Files {
        inputs: vec![(0, capture(dir.path(), "a.pcap", &times, b"a"))],
        outputs: Vec::new(),
    };
    let replay = Replay::new(&small_model(), &files).unwrap();
    let outcome = replay.run(|| {}).unwrap();
    outcome.counters.check().unwrap();
    assert_eq!(outcome.counters.received_packets(), 4);
}

#[test]
fn the_largest_packet_that_a_configuration_allows_fits_a_chunk() {
    let dir = tempfile::tempdir().unwrap();
    let mut model = small_model();
    model.links[0].mtu = 16_000;
    let mut frame = model.links[0].mac.0.to_vec();
    frame.resize(14 + 16_000, 0);
    let inputs = vec![(0, capture(dir.path(), "a.pcap", &[1], &frame))];
    let files = Files { inputs, outputs: Vec::new() };
    let outcome = Replay::new(&model, &files).unwrap().run(|| {}).unwrap();
    let drops = outcome.counters.drops;
    assert_eq!(drops[tollway_dataplane::verdict::DropReason::UnhandledProto as usize], 1);
}

#[test]
fn frames_that_fit_no_chunk_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let jumbo = vec![0; CHUNK_BYTES as usize];
    let files = Files {
        inputs: vec![(2, capture(dir.path(), "a.pcap", &[1, 2], &jumbo))],
        outputs: Vec::new(),
    };
    let outcome = Replay::new(&small_model(), &files).unwrap().run(|| {}).unwrap();
    outcome.counters.check().unwrap();
    assert_eq!(outcome.counters.rx[2].packets, 2);
    assert_eq!(outcome.counters.rx[2].bytes, 2 * u64::from(CHUNK_BYTES));
    let drops = outcome.counters.drops;
    assert_eq!(drops[tollway_dataplane::verdict::DropReason::PktTooBig as usize], 2);
}
