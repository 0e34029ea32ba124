//! What each worker does, and what comes in by each queue.

use serde::{Deserialize, Serialize};
use tollway_dataplane::worker::Worker;
use tollway_worker::ports::{Devices, QueueCounts};
use tollway_worker::{Activity, Usage};

/// The answer to [`super::ShowRequest::Workers`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Workers {
    /// The workers, by number.
    pub workers: Vec<WorkerState>,
    /// The queues of those that answer, by port and number.
    pub queues: Vec<Queue>,
}

/// A worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerState {
    /// Its number.
    pub worker: usize,
    /// The processor that it is pinned to; none if the scheduler moves it.
    pub processor: Option<usize>,
    /// Its counts; none if it does not answer.
    pub counts: Option<WorkerCounts>,
}

/// A worker's times, and what became of the packets that it has received. Packets of the XDP path are not among
/// them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerCounts {
    /// The share of the last full second that it was not asleep; none before the first is over.
    pub load_percent: Option<f64>,
    /// The time that it was not asleep.
    pub busy_ns: u64,
    /// The time that it was asleep.
    pub asleep_ns: u64,
    /// Received.
    pub received: u64,
    /// Forwarded.
    pub sent: u64,
    /// Dropped.
    pub dropped: u64,
    /// Handed to the slow path.
    pub punted: u64,
    /// For the router itself.
    pub delivered: u64,
    /// The part of the packets sent that it has handed over to worker 0, which has a queue of the port.
    pub handed_over: u64,
    /// Bursts received.
    pub bursts: u64,
    /// The mean size of a burst; none if there was none.
    pub packets_per_burst: Option<f64>,
}

/// A receive queue of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    /// The port.
    pub port: String,
    /// The queue's number.
    pub queue: u32,
    /// The worker that serves it.
    pub worker: usize,
    /// Packets that the worker has read.
    pub received: u64,
    /// Packets that the kernel dropped before the worker could read them.
    pub missed: u64,
}

/// A worker's part of the answer.
#[derive(Default)]
pub(super) struct WorkerReport {
    processor: Option<usize>,
    counts: WorkerCounts,
    /// By port.
    queues: Vec<Vec<QueueCounts>>,
}

impl WorkerReport {
    /// Takes a worker's part. Call this on the worker's thread.
    pub(super) fn take(worker: &Worker, devices: &Devices, activity: &Activity) -> Self {
        let Usage { busy_ns, asleep_ns, bursts, load_percent } = activity.usage();
        let counters = &worker.counters;
        let received = counters.received_packets();
        let counts = WorkerCounts {
            load_percent,
            busy_ns,
            asleep_ns,
            received,
            // Worker 0 takes back what others have counted as sent and it could not send.
            sent: u64::try_from(counters.sent.cast_signed()).unwrap_or(0),
            dropped: counters.dropped_packets(),
            punted: counters.punted_packets(),
            delivered: counters.delivered,
            handed_over: devices.iter().map(|device| device.handed_over()).sum(),
            bursts,
            packets_per_burst: (bursts > 0).then(|| received as f64 / bursts as f64),
        };
        let queues = devices.iter().map(|device| device.queues()).collect();
        Self { processor: activity.processor(), counts, queues }
    }

    /// The state of the worker, which has this number.
    pub(super) fn state(&self, worker: usize) -> WorkerState {
        WorkerState { worker, processor: self.processor, counts: Some(self.counts.clone()) }
    }

    /// The queues of the worker, which has this number.
    fn queues(&self, worker: usize, ports: &[String]) -> impl Iterator<Item = (usize, Queue)> {
        let of_ports = self.queues.iter().zip(ports).enumerate();
        of_ports.flat_map(move |(index, (queues, port))| {
            queues.iter().map(move |counts| {
                let QueueCounts { queue, received, missed } = *counts;
                (index, Queue { port: port.clone(), queue, worker, received, missed })
            })
        })
    }
}

impl Workers {
    /// Composes the parts of the workers; who does not answer has only its processor. `ports` are the ports'
    /// names.
    pub(super) fn of(parts: &[Result<WorkerReport, Option<usize>>], ports: &[String]) -> Self {
        let state = |(worker, part): (usize, &Result<WorkerReport, Option<usize>>)| match part {
            Ok(report) => report.state(worker),
            Err(processor) => WorkerState { worker, processor: *processor, counts: None },
        };
        let workers = parts.iter().enumerate().map(state).collect();
        let reports =
            parts.iter().enumerate().filter_map(|(n, part)| Some((n, part.as_ref().ok()?)));
        let mut queues: Vec<_> = reports.flat_map(|(n, part)| part.queues(n, ports)).collect();
        queues.sort_by_key(|(port, queue)| (*port, queue.queue, queue.worker));
        Self { workers, queues: queues.into_iter().map(|(_, queue)| queue).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_listed_by_port_and_silent_workers_are_listed_too() {
        let queue = |queue, received| QueueCounts { queue, received, missed: 1 };
        let part = |queues| WorkerReport { processor: Some(4), queues, ..WorkerReport::default() };
        let parts = [
            Ok(part(vec![vec![queue(0, 5), queue(3, 6)], vec![]])),
            Err(Some(7)),
            Ok(part(vec![vec![queue(2, 7)], vec![queue(2, 8)]])),
        ];
        let all = Workers::of(&parts, &["wan".to_owned(), "lan".to_owned()]);
        let states = all.workers.iter().map(|w| (w.worker, w.processor, w.counts.is_some()));
        let expected = [(0, Some(4), true), (1, Some(7), false), (2, Some(4), true)];
        assert_eq!(states.collect::<Vec<_>>(), expected);
        let queues = all.queues.iter().map(|q| (q.port.as_str(), q.queue, q.worker, q.received));
        let expected = [("wan", 0, 0, 5), ("wan", 2, 2, 7), ("wan", 3, 0, 6), ("lan", 2, 2, 8)];
        assert_eq!(queues.collect::<Vec<_>>(), expected);
    }
}
