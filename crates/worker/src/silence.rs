//! Logs which workers take no turns: the dispatcher then sends nothing to them.

use tollway_xdp::{Ruled, State};

/// A worker counts as silent when its last heartbeat is this old: five times as old as the dispatcher permits.
const SILENT_NS: u64 = 100_000_000;

/// Whether a worker was silent at the last tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turns {
    Taken,
    Missing,
}

impl Turns {
    /// The next state, and the line to log if it is another one.
    fn next(self, worker: usize, silence_ns: u64, ruled: Ruled) -> (Self, Option<String>) {
        match (self, silence_ns > SILENT_NS) {
            (Self::Taken, true) => {
                let meanwhile = match ruled {
                    Ruled::FailClosed => {
                        "what its queues have for it is dropped (fail = \"closed\")"
                    }
                    Ruled::Not | Ruled::FailOpen => {
                        "the kernel forwards what its queues have for it"
                    }
                };
                let silence_ms = silence_ns / 1_000_000;
                let line =
                    format!("worker {worker} has taken no turn for {silence_ms} ms; {meanwhile}");
                (Self::Missing, Some(line))
            }
            (Self::Missing, false) => {
                (Self::Taken, Some(format!("worker {worker} takes turns again")))
            }
            (same, _) => (same, None),
        }
    }
}

/// Watches the workers from number 1 on, for worker 0.
pub(crate) struct Silence {
    state: State,
    workers: Vec<Turns>,
}

impl Silence {
    /// Watches so many workers besides worker 0.
    pub(crate) fn new(state: State, others: usize) -> Self {
        Self { state, workers: vec![Turns::Taken; others] }
    }

    /// Logs what has changed; to be called some ten times a second.
    pub(crate) fn tick(&mut self) {
        for (number, worker) in (1..).zip(&mut self.workers) {
            let (next, line) =
                worker.next(number, self.state.silence_ns(number), self.state.ruled());
            *worker = next;
            if let Some(line) = line {
                tracing::warn!("{line}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_silence_is_logged_once_with_its_end() {
        let mut turns = Turns::Taken;
        let lines: Vec<_> = [1, 99, 150, 250, 3, 4]
            .into_iter()
            .filter_map(|silence_ms| {
                let (next, line) = turns.next(2, silence_ms * 1_000_000, Ruled::Not);
                turns = next;
                line
            })
            .collect();
        assert_eq!(
            lines,
            [
                "worker 2 has taken no turn for 150 ms; the kernel forwards what its queues have for it",
                "worker 2 takes turns again"
            ]
        );
    }
}
