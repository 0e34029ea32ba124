//! Tests that a worker that hangs costs the others nothing.

use std::process::Command;

use serde_json::Value;

use super::namespaces::sh;

/// Tries: on a busy machine, a worker may be late for another reason.
const TRIES: usize = 5;

/// Measures it by the lab, which also waits until the worker serves its queue again.
fn measure() -> Value {
    let mut lab = Command::new(env!("CARGO_BIN_EXE_tollway"));
    lab.args(["lab", "live", "--only", "workers-hung", "--repeat", "1", "--json"]);
    let done = lab.output().unwrap();
    let error = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{error}");
    serde_json::from_slice(&done.stdout).unwrap()
}

pub fn worker() {
    if sh("nproc").trim() == "1" {
        // Streams come to queues of two workers only by two processors.
        assert_eq!(measure()["workers_processors"], 1.0);
        return;
    }
    let mut tried = Vec::new();
    for _ in 0..TRIES {
        let figures = measure();
        let figure = |name: &str| figures[name].as_f64().unwrap();
        let lost = [figure("hung_worker_lost_ms"), figure("hung_worker0_lost_ms")];
        let others = [figure("hung_worker_others_lost"), figure("hung_worker0_others_lost")];
        // Nothing lost at all would mean that no worker was stopped: some frames are in its ring.
        if lost.iter().all(|ms| *ms > 0.0 && *ms <= 50.0) && others == [0.0; 2] {
            return;
        }
        tried.push((lost, others));
    }
    panic!("a worker that hangs, ms of its stream and frames of the other's: {tried:?}");
}
