use tollway_dataplane::dispatch::Path as Level;
use tollway_dataplane::frame::{Descriptor, Umem};
use tollway_dataplane::host::Host;
use tollway_dataplane::id::PortId;
use tollway_dataplane::port::MemoryPort;
use tollway_dataplane::worker::Worker;

use super::super::fill::Filler;
use super::super::mark::of_frame;
use super::super::plan::{Plan, Spec, tests::spec};
use super::super::track::{Tracker, latencies};
use super::*;
use crate::frames::Source;
use crate::tolls::ROWS;

/// A path defined by a formula: all frames pass below a knee, and the sender has a maximum rate.
struct Formula {
    /// The loss at a rate.
    loss: fn(f64) -> f64,
    most: f64,
    trials: usize,
}

impl Path for Formula {
    fn trial(&mut self, pps: Option<f64>, time: Duration) -> Result<Trial, Error> {
        self.trials += 1;
        let sent_pps = pps.unwrap_or(f64::MAX).min(self.most);
        let sent = (sent_pps * time.as_secs_f64()) as u64;
        let lost = (sent as f64 * (self.loss)(sent_pps)).ceil() as u64;
        Ok(Trial { sent, received: sent - lost, sent_pps, off_cpu: 0.0, latency: latencies() })
    }
}

fn options(losses: &[f64]) -> Options {
    Options {
        trial: Duration::from_secs(1),
        within: Duration::from_secs(60),
        losses: losses.to_vec(),
        precision: 0.005,
        most_pps: None,
    }
}

/// All frames above a million per second are lost.
fn knee(pps: f64) -> f64 {
    (1.0 - 1e6 / pps).max(0.0)
}

#[test]
fn rates_are_found_within_the_precision() {
    let mut path = Formula { loss: knee, most: 5e6, trials: 0 };
    let found = search(&mut path, &options(&[0.0, 0.005, 0.1])).unwrap();
    for (found, expected) in found.iter().zip([1e6, 1e6 / 0.995, 1e6 / 0.9]) {
        assert!(found.pps <= expected * 1.0001, "{} of {expected}", found.pps);
        assert!(found.pps >= expected / 1.006, "{} of {expected}", found.pps);
        assert!(found.is_precise && !found.is_senders_limit && found.too_much_pps > found.pps);
    }
    assert!(path.trials < 60, "{}", path.trials);
}

#[test]
fn slow_and_fast_paths_are_found_too() {
    // A path that collapses: the more frames arrive, the fewer pass.
    let livelock = |pps: f64| if pps > 20_000.0 { 1.0 - 2000.0 / pps } else { 0.0 };
    let mut path = Formula { loss: livelock, most: 4e6, trials: 0 };
    let found = search(&mut path, &options(&[0.0])).unwrap();
    assert!((found[0].pps / 20_000.0 - 1.0).abs() < 0.006, "{}", found[0].pps);
    let mut path = Formula { loss: |_| 0.0, most: 4e6, trials: 0 };
    let found = search(&mut path, &options(&[0.0])).unwrap();
    assert!((found[0].pps / 4e6 - 1.0).abs() < 1e-6 && found[0].is_senders_limit);
    assert!(path.trials < 6, "{}", path.trials);
    let mut path = Formula { loss: |_| 1.0, most: 4e6, trials: 0 };
    let found = search(&mut path, &options(&[0.5])).unwrap();
    assert_eq!(found[0].pps, 0.0);
    assert!(found[0].trial.is_none());
}

#[test]
fn a_limit_that_was_set_is_kept() {
    let mut path = Formula { loss: knee, most: 5e6, trials: 0 };
    let limited = Options { most_pps: Some(300_000.0), ..options(&[0.0]) };
    let found = search(&mut path, &limited).unwrap();
    assert!((found[0].pps - 300_000.0).abs() < 1.0 && found[0].is_senders_limit);
}

#[test]
fn time_ends_a_search() {
    struct Slow(Formula);
    impl Path for Slow {
        fn trial(&mut self, pps: Option<f64>, time: Duration) -> Result<Trial, Error> {
            std::thread::sleep(Duration::from_millis(20));
            self.0.trial(pps, time)
        }
    }
    let short = Options {
        trial: Duration::from_millis(20),
        within: Duration::from_millis(100),
        precision: 1e-4,
        ..options(&[0.0])
    };
    let start = Instant::now();
    let found = search(&mut Slow(Formula { loss: knee, most: 5e9, trials: 0 }), &short).unwrap();
    assert!(!found[0].is_precise);
    assert!(start.elapsed() < Duration::from_secs(5));
}

/// A path on which one trial uses up all the time, and on which whole trials lose more.
struct Late {
    formula: Formula,
    /// The number of that trial.
    late: usize,
    /// No whole trial passes from this rate on.
    whole_knee: f64,
    /// The rates that were tried.
    tried: Vec<f64>,
}

const WHOLE: Duration = Duration::from_millis(100);
const WITHIN: Duration = Duration::from_millis(500);

impl Late {
    fn new(loss: fn(f64) -> f64, late: usize, whole_knee: f64) -> Self {
        let formula = Formula { loss, most: 2e6, trials: 0 };
        Self { formula, late, whole_knee, tried: Vec::new() }
    }

    fn search(&mut self, losses: &[f64]) -> Vec<SearchResult> {
        let options = Options { trial: WHOLE, within: WITHIN, precision: 1e-4, ..options(losses) };
        search(self, &options).unwrap()
    }
}

impl Path for Late {
    fn trial(&mut self, pps: Option<f64>, time: Duration) -> Result<Trial, Error> {
        let mut trial = self.formula.trial(pps, time)?;
        if self.formula.trials == self.late {
            std::thread::sleep(WITHIN);
        }
        if let Some(pps) = pps {
            self.tried.push(pps);
            if time == WHOLE && pps >= self.whole_knee {
                trial.received = 0;
            }
        }
        Ok(trial)
    }
}

#[test]
fn rates_that_held_before_the_time_limit_are_reported() {
    // Above the knee the loss exceeds the excess, so the search starts below.
    let loss = |pps: f64| if pps > 1e6 { 1.0 - 0.7e6 / pps } else { 0.0 };
    for (whole_knee, expected) in [(f64::MAX, 0.95e6..1e6), (0.9e6, 0.9e6..0.95e6)] {
        let mut path = Late::new(loss, 8, whole_knee);
        let found = &path.search(&[0.0])[0];
        assert!(!found.is_precise && found.trial.is_some(), "{found:?}");
        assert!(expected.contains(&found.pps), "{} of {:?}", found.pps, path.tried);
        assert!(found.too_much_pps > found.pps && found.too_much_pps < 1.1e6, "{found:?}");
        assert_eq!(path.formula.trials, 9, "one whole trial is made in any case");
    }
}

#[test]
fn a_rate_that_was_not_found_in_time_is_no_reason_to_begin_at_the_bottom() {
    let mut path = Late::new(|_| 0.7, 3, f64::MAX);
    let found = path.search(&[0.5, 0.0]);
    assert!(found.iter().all(|found| found.pps == 0.0 && !found.is_precise), "{found:?}");
    assert!(path.tried.len() == 4 && path.tried.iter().all(|pps| *pps > 1e5), "{:?}", path.tried);
}

#[test]
fn invalid_searches_are_refused() {
    for wrong in [
        options(&[]),
        options(&[1.0]),
        options(&[-0.1]),
        Options { trial: Duration::ZERO, ..options(&[0.0]) },
        Options { within: Duration::ZERO, ..options(&[0.0]) },
        Options { precision: 0.0, ..options(&[0.0]) },
        Options { most_pps: Some(0.0), ..options(&[0.0]) },
    ] {
        let mut path = Formula { loss: knee, most: 5e6, trials: 0 };
        assert!(search(&mut path, &wrong).unwrap_err().usage);
    }
}

/// Tollway's own path between memory ports, behind a gate that admits a limited number of frames
/// per second and queues none. Its clock advances with the frames sent, so a busy machine is no
/// slower.
struct Routed {
    worker: Worker,
    ports: Vec<MemoryPort>,
    /// Frames per second that the gate admits.
    limit: f64,
}

impl Routed {
    /// Takes a frame through the router, and tracks its output.
    fn forward(&mut self, bytes: &[u8], now_ns: u64, tracker: &mut Tracker) {
        self.ports[0].inject(self.worker.umem.store(bytes).unwrap());
        while self.worker.turn(PortId(0), &mut self.ports, now_ns) > 0 {}
        for frame in self.ports[1].take_sent() {
            let bytes = self.worker.umem.frame(frame.addr, frame.len as usize);
            tracker.take(&of_frame(bytes).unwrap(), bytes.len(), now_ns + 1000);
            self.worker.umem.free(frame.addr);
        }
    }
}

impl Path for Routed {
    fn trial(&mut self, pps: Option<f64>, time: Duration) -> Result<Trial, Error> {
        let sent_pps = pps.unwrap_or(500_000.0);
        let sent = (sent_pps * time.as_secs_f64()) as u64;
        let mut umem = Umem::new(4, 2048).unwrap();
        let mut filler = Filler::new(Plan::new(&routed()).unwrap(), 1, 0);
        let (mut tracker, mut free_ns) = (Tracker::default(), 0.0);
        for number in 0..sent {
            let now_ns = number as f64 / sent_pps * 1e9;
            let mut frame = [Descriptor::default()];
            assert_eq!(filler.fill(&mut umem, &mut frame, now_ns as u64), 1);
            if now_ns >= free_ns {
                free_ns = f64::max(free_ns, now_ns - 1e9 / self.limit) + 1e9 / self.limit;
                let bytes = umem.frame(frame[0].addr, frame[0].len as usize);
                self.forward(bytes, now_ns as u64, &mut tracker);
            }
            umem.free(frame[0].addr);
        }
        let counts = tracker.counts();
        assert_eq!((counts.duplicates, counts.reordered), (0, 0));
        let latency = tracker.latency().clone();
        Ok(Trial { sent, received: counts.arrived(), sent_pps, off_cpu: 0.0, latency })
    }
}

/// Frames like those of the row `ip4-one-flow`.
fn routed() -> Spec {
    let row = ROWS.iter().find(|row| row.name == "ip4-one-flow").unwrap();
    let Source::Whole(templates) = row.stage().unwrap().source else {
        panic!("frames as they are")
    };
    let template = templates[0];
    let address = |at: usize| {
        let bytes: [u8; 4] = template[at..at + 4].try_into().unwrap();
        std::net::Ipv4Addr::from(bytes).to_string().parse().unwrap()
    };
    Spec {
        dst_mac: template[..6].try_into().unwrap(),
        dst: address(30),
        src: address(26),
        ..spec()
    }
}

#[test]
fn the_limit_of_a_real_path_is_found() {
    let row = ROWS.iter().find(|row| row.name == "ip4-one-flow").unwrap();
    let umem = Umem::new(1024, 2048).unwrap();
    let worker =
        Worker::alone_with_path(Level::detect(), row.stage().unwrap().tables, umem, Host::new());
    let limit = 60_000.0;
    let ports = vec![MemoryPort::new(64), MemoryPort::new(64)];
    let mut path = Routed { worker, ports, limit };
    let options = Options {
        trial: Duration::from_millis(200),
        within: Duration::from_secs(60),
        precision: 0.01,
        ..options(&[0.0, 0.1])
    };
    let found = search(&mut path, &options).unwrap();
    for (found, expected) in found.iter().zip([limit, limit / 0.9]) {
        assert!((0.989..1.001).contains(&(found.pps / expected)), "{} of {expected}", found.pps);
        assert!(found.is_precise && !found.is_senders_limit);
        assert!(found.trial.as_ref().unwrap().latency.len() > 10_000);
    }
}
