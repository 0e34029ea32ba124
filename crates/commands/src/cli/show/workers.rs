//! Formats the workers and their queues.

use std::fmt::Write as _;

use super::super::text::{arranged, table, thousands};
use crate::control::{WorkerCounts, WorkerState, Workers};

/// `show workers`.
pub(super) fn workers(answer: &Workers, width: Option<u16>) -> String {
    let header = ["worker", "processor", "load", "bursts", "packets/burst", "handed over"];
    let mut states = table(&header);
    let header = ["worker", "received", "sent", "dropped", "punted", "delivered"];
    let mut packets = table(&header);
    for worker in &answer.workers {
        let number = || std::iter::once(worker.worker.to_string());
        states.add_row(number().chain(state(worker)));
        let counts = worker.counts.as_ref().map(|counts| {
            let WorkerCounts { received, sent, dropped, punted, delivered, .. } = *counts;
            [received, sent, dropped, punted, delivered].map(thousands)
        });
        packets.add_row(number().chain(counts.unwrap_or_else(|| [(); 5].map(|()| none()))));
    }
    let mut out =
        format!("{}\n{}", arranged(states, "lrrrrr", width), arranged(packets, "lrrrrr", width));
    if !answer.queues.is_empty() {
        let _ = write!(out, "\n{}", queues(answer, width));
    }
    for worker in answer.workers.iter().filter(|worker| worker.counts.is_none()) {
        let number = worker.worker;
        let _ = writeln!(out, "\nworker {number} does not answer: it hangs, or it is busy");
    }
    out
}

/// The cells of a worker after its number.
fn state(worker: &WorkerState) -> [String; 5] {
    let processor = worker.processor.map_or_else(none, |processor| processor.to_string());
    let Some(counts) = &worker.counts else {
        return [processor, none(), none(), none(), none()];
    };
    let load = counts.load_percent.map_or_else(none, |load| format!("{load:.1}%"));
    let fill = counts.packets_per_burst.map_or_else(none, |packets| format!("{packets:.1}"));
    let [bursts, handed_over] = [counts.bursts, counts.handed_over].map(thousands);
    [processor, load, bursts, fill, handed_over]
}

/// In place of a number that is not known.
fn none() -> String {
    "-".to_owned()
}

fn queues(answer: &Workers, width: Option<u16>) -> String {
    let mut queues = table(&["port", "queue", "worker", "received", "missed"]);
    for queue in &answer.queues {
        let numbers = [queue.queue.to_string(), queue.worker.to_string()];
        let counts = [queue.received, queue.missed].map(thousands);
        queues.add_row(std::iter::once(queue.port.clone()).chain(numbers).chain(counts));
    }
    arranged(queues, "lrrrr", width)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Queue;

    fn answer() -> Workers {
        let counts = WorkerCounts {
            load_percent: Some(12.34),
            received: 987_654_321_012,
            sent: 987_654_000_000,
            dropped: 321_012,
            handed_over: 5_432_101_234,
            bursts: 30_864_197_531,
            packets_per_burst: Some(32.0),
            ..WorkerCounts::default()
        };
        let worker = |worker, processor, counts| WorkerState { worker, processor, counts };
        let queue = |queue, worker| Queue {
            port: "a_long_name_015".to_owned(),
            queue,
            worker,
            received: 493_827_160_506,
            missed: 1234,
        };
        Workers {
            workers: vec![
                worker(0, Some(0), Some(counts)),
                worker(1, Some(1), None),
                worker(2, None, Some(WorkerCounts::default())),
            ],
            queues: vec![queue(0, 0), queue(2, 2)],
        }
    }

    #[test]
    fn lines_fit_and_no_number_is_broken() {
        for width in [80, 200] {
            let text = workers(&answer(), Some(width));
            assert!(text.lines().all(|line| line.chars().count() <= usize::from(width)), "{text}");
            for words in ["12.3%", "32.0", "987,654,321,012", "493,827,160,506", "5,432,101,234"] {
                assert!(text.contains(words), "{words} is missing from\n{text}");
            }
            assert_eq!(text.matches("a_long_name_015").count(), 2, "{text}");
            assert!(text.ends_with("\nworker 1 does not answer: it hangs, or it is busy\n"));
        }
    }

    #[test]
    fn a_router_without_queues_has_no_table_of_them() {
        let text = workers(&Workers { queues: vec![], ..answer() }, Some(80));
        assert!(!text.contains("queue"), "{text}");
    }

    #[test]
    fn the_members_of_the_json_have_their_names() {
        let json = serde_json::to_value(answer()).unwrap();
        let first = &json["workers"][0];
        assert_eq!((&first["worker"], &first["processor"]), (&0.into(), &0.into()));
        assert_eq!(first["counts"]["load_percent"], 12.34);
        assert_eq!(first["counts"]["handed_over"], 5_432_101_234_u64);
        assert!(json["workers"][1]["counts"].is_null());
        assert!(json["workers"][2]["counts"]["packets_per_burst"].is_null());
        assert_eq!(json["queues"][1]["worker"], 2);
    }
}
