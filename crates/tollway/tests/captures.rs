//! Sends real and broken captures through the program's own readers and a router, in virtual time.
//!
//! The captures are in the folder `captures` below `$TOLLWAY_SHARED_DATA` (default:
//! `../shared/data`, beside the repository). If there is no such folder, the test reads the samples
//! in `tests/samples`.

#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::path::{Path, PathBuf};

use tollway_capture::CaptureReader;
use tollway_commands::replay::{Files, Replay};

/// The most files that are open at once; some systems allow no more than 1,024.
const AT_ONCE: usize = 64;

fn captures() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let shared = std::env::var_os("TOLLWAY_SHARED_DATA").map(PathBuf::from);
    let shared = shared.unwrap_or_else(|| root.join("../shared/data")).join("captures");
    let folder = if shared.is_dir() { shared } else { root.join("tests/samples") };
    let paths = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> = paths
        .filter(|path| path.extension().is_some_and(|end| end == "pcap" || end == "pcapng"))
        .collect();
    paths.sort();
    let mut stderr = std::io::stderr();
    let _ = writeln!(stderr, "{} captures of {}", paths.len(), folder.display());
    paths
}

/// The number of frames that a reader finds; `None` if it refuses the file.
fn count(path: &Path) -> Option<u64> {
    let mut reader = CaptureReader::open(path).ok()?;
    let mut frames = 0;
    while let Ok(Some(_)) = reader.next_frame() {
        frames += 1;
    }
    Some(frames)
}

#[test]
fn every_capture_into_every_port_is_accounted_for() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/office.toml");
    let model = tollway_model::config::load(&example).unwrap().model;
    let captures = captures();
    let usable: Vec<_> =
        captures.iter().filter_map(|path| Some((path.clone(), count(path)?))).collect();
    assert!(usable.len() > captures.len() / 2, "{} of {}", usable.len(), captures.len());
    for some in usable.chunks(AT_ONCE) {
        let of_port = |port| some.iter().map(move |(path, _)| (port, path.clone()));
        let inputs = (0..model.ports.len()).flat_map(of_port).collect();
        let files = Files { inputs, outputs: Vec::new() };
        let counters = Replay::new(&model, &files).unwrap().run(|| {}).unwrap().counters;
        counters.check().unwrap();
        let frames: u64 = some.iter().map(|(_, frames)| frames).sum();
        assert!(counters.rx.iter().all(|port| port.packets == frames), "{:?}", some[0].0);
        assert_eq!(counters.held, 0);
    }
}
