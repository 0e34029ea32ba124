//! Contexts that pass packets on to each other, and contexts that do not.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::super::small_path::Routes;
use super::queue::{Packet, Queue, QueuedPacket};
use super::work::{self, Method};
use crate::frames::Template;

/// Packets that a context takes at once.
const BURST: usize = 64;

/// Number of buffers: more than the queues accept.
const BUFFERS: usize = 24_576;

/// Sent packets that return to the receiver at once.
const BACK: usize = 256;

/// The outcomes of the packets.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Tally {
    pub(super) received: u64,
    pub(super) sent: u64,
    pub(super) input_drops: u64,
    pub(super) output_drops: u64,
    pub(super) livelocks: u64,
    pub(super) contended: u64,
    pub(super) wrong: u64,
    pub(super) left: u64,
    pub(super) seconds: f64,
}

impl Tally {
    /// Checks that every packet is accounted for and correct.
    pub(super) fn check(&self, method: Method) -> Result<(), String> {
        let gone = self.sent + self.input_drops + self.output_drops + self.left;
        if self.wrong > 0 || gone != self.received {
            return Err(format!("{}: packets went astray: {self:?}", method.name()));
        }
        Ok(())
    }
}

/// The path with its queues.
struct Line {
    method: Method,
    input: Queue,
    output: Queue,
    /// Buffers on their way back to the receiver.
    back: Mutex<Vec<QueuedPacket>>,
    stop: AtomicBool,
    received: AtomicU64,
    sent: AtomicU64,
    wrong: AtomicU64,
}

impl Line {
    fn new(method: Method) -> Self {
        Self {
            method,
            input: Queue::input(),
            output: Queue::output(),
            back: Mutex::new(Vec::with_capacity(BUFFERS)),
            stop: AtomicBool::new(false),
            received: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            wrong: AtomicU64::new(0),
        }
    }

    fn give_back(&self, packets: &mut Vec<QueuedPacket>) {
        self.back.lock().unwrap_or_else(PoisonError::into_inner).append(packets);
    }

    /// A context counts alone until it ends, and then adds its counts here.
    fn add(&self, received: u64, sent: u64, wrong: u64) {
        self.received.fetch_add(received, Ordering::Relaxed);
        self.sent.fetch_add(sent, Ordering::Relaxed);
        self.wrong.fetch_add(wrong, Ordering::Relaxed);
    }
}

/// The part that takes packets from the card, removes their tags and puts them into the input
/// queue.
struct Receiver<'a> {
    line: &'a Line,
    templates: &'a [Template],
    at: usize,
    free: Vec<QueuedPacket>,
    burst: Vec<QueuedPacket>,
    received: u64,
    livelocks: u64,
    /// Turns for which it pauses the card after the request to slow down.
    pause: u32,
}

impl<'a> Receiver<'a> {
    fn new(line: &'a Line, templates: &'a [Template]) -> Self {
        let count = if line.method.has_queues() { BUFFERS } else { BACK };
        let free = (0..count).map(|_| Box::new(Packet::new())).collect();
        Self {
            line,
            templates,
            at: 0,
            free,
            burst: Vec::with_capacity(BURST),
            received: 0,
            livelocks: 0,
            pause: 0,
        }
    }

    /// Takes a burst from the card, as far as there are buffers.
    fn take(&mut self) {
        if self.line.method.has_queues() {
            // The last buffer to return is the first to be used again: the caches still have it.
            let mut back = self.line.back.lock().unwrap_or_else(PoisonError::into_inner);
            self.free.append(&mut back);
        }
        for _ in 0..BURST {
            let Some(mut packet) = self.free.pop() else { break };
            work::arrive(&mut packet, &self.templates[self.at % self.templates.len()]);
            self.at += 1;
            self.burst.push(packet);
        }
        self.received += self.burst.len() as u64;
    }

    fn turn(&mut self) {
        if self.pause > 0 {
            self.pause -= 1;
            std::thread::yield_now();
            return;
        }
        self.take();
        let mut slow = false;
        self.burst.iter_mut().for_each(|packet| work::untag(packet));
        if self.line.method == Method::Burst {
            slow = self.line.input.put_all(&mut self.burst);
            self.free.append(&mut self.burst);
        } else {
            for packet in self.burst.drain(..) {
                let (dropped, pressed) = self.line.input.put(packet);
                self.free.extend(dropped);
                slow |= pressed;
            }
        }
        if slow {
            self.livelocks += 1;
            self.pause = 1;
        }
    }
}

impl Drop for Receiver<'_> {
    fn drop(&mut self) {
        self.line.add(self.received, 0, 0);
        self.line.input.livelocks.fetch_add(self.livelocks, Ordering::Relaxed);
    }
}

/// The part that forwards: takes the whole input queue at once, and outputs single packets or
/// bursts.
struct Forwarder<'a> {
    line: &'a Line,
    routes: &'a Routes,
    list: Vec<QueuedPacket>,
    dropped: Vec<QueuedPacket>,
    wrong: u64,
}

impl<'a> Forwarder<'a> {
    fn new(line: &'a Line, routes: &'a Routes) -> Self {
        let (list, dropped) = (Vec::with_capacity(BUFFERS), Vec::with_capacity(BURST));
        Self { line, routes, list, dropped, wrong: 0 }
    }

    fn turn(&mut self) {
        self.line.input.take_all(BURST, &mut self.list);
        for packet in &mut self.list {
            self.wrong += u64::from(!work::forward(packet, self.routes));
        }
        if self.line.method == Method::Burst {
            self.line.output.put_all(&mut self.list);
            self.dropped.append(&mut self.list);
        } else {
            for packet in self.list.drain(..) {
                self.dropped.extend(self.line.output.put(packet).0);
            }
        }
        if !self.dropped.is_empty() {
            self.line.give_back(&mut self.dropped);
        }
    }
}

impl Drop for Forwarder<'_> {
    fn drop(&mut self) {
        self.line.add(0, 0, self.wrong);
    }
}

/// The part that takes packets from the output queue, adds their tags and sends them.
struct Sender<'a> {
    line: &'a Line,
    burst: Vec<QueuedPacket>,
    done: Vec<QueuedPacket>,
    sent: u64,
    wrong: u64,
}

impl<'a> Sender<'a> {
    fn new(line: &'a Line) -> Self {
        let done = Vec::with_capacity(2 * BACK);
        Self { line, burst: Vec::with_capacity(BURST), done, sent: 0, wrong: 0 }
    }

    fn turn(&mut self) {
        if self.line.method == Method::Burst {
            self.line.output.take_all(BURST, &mut self.burst);
        } else {
            for _ in 0..BURST {
                let Some(packet) = self.line.output.take() else { break };
                self.burst.push(packet);
            }
        }
        for mut packet in self.burst.drain(..) {
            work::tag(&mut packet);
            self.sent += 1;
            self.wrong += u64::from(!work::is_correct(&packet, self.line.method));
            self.done.push(packet);
        }
        if self.done.len() >= BACK {
            self.line.give_back(&mut self.done);
        }
    }
}

impl Drop for Sender<'_> {
    fn drop(&mut self) {
        self.line.add(0, self.sent, self.wrong);
    }
}

/// A context that does everything itself.
fn complete(line: &Line, templates: &[Template], routes: &Routes) {
    let mut receiver = Receiver::new(line, templates);
    let (mut sent, mut wrong) = (0, 0);
    while !line.stop.load(Ordering::Relaxed) {
        receiver.take();
        for mut packet in receiver.burst.drain(..) {
            match line.method {
                Method::Plain => work::forward(&mut packet, routes),
                _ => work::forward_tagged(&mut packet, routes),
            };
            sent += 1;
            wrong += u64::from(!work::is_correct(&packet, line.method));
            receiver.free.push(packet);
        }
    }
    line.add(0, sent, wrong);
}

/// Runs one part of the path, or several in turn, until `stop` is set.
fn work_until(stop: &AtomicBool, mut turn: impl FnMut()) {
    while !stop.load(Ordering::Relaxed) {
        turn();
    }
}

/// Lets 1 to 3 contexts forward for `time`.
pub(super) fn run(
    method: Method,
    contexts: usize,
    templates: &[Template],
    routes: &Routes,
    time: Duration,
) -> Tally {
    let line = &Line::new(method);
    let ready = &Barrier::new(contexts + 1);
    let mut seconds = 0.0;
    std::thread::scope(|scope| {
        for context in 0..contexts {
            scope.spawn(move || {
                let stop = &line.stop;
                if !method.has_queues() {
                    ready.wait();
                    return complete(line, templates, routes);
                }
                // Divides the parts of the path among the contexts as evenly as possible.
                let parts = match (contexts, context) {
                    (1, _) => [true; 3],
                    (2, 0) => [true, false, false],
                    (2, _) => [false, true, true],
                    _ => [context == 0, context == 1, context == 2],
                };
                let mut receiver = parts[0].then(|| Receiver::new(line, templates));
                let mut forwarder = parts[1].then(|| Forwarder::new(line, routes));
                let mut sender = parts[2].then(|| Sender::new(line));
                ready.wait();
                work_until(stop, || {
                    receiver.iter_mut().for_each(Receiver::turn);
                    forwarder.iter_mut().for_each(Forwarder::turn);
                    sender.iter_mut().for_each(Sender::turn);
                });
            });
        }
        ready.wait();
        let start = Instant::now();
        std::thread::sleep(time);
        line.stop.store(true, Ordering::Relaxed);
        seconds = start.elapsed().as_secs_f64();
    });
    tally(line, seconds)
}

fn tally(line: &Line, seconds: f64) -> Tally {
    let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
    Tally {
        received: of(&line.received),
        sent: of(&line.sent),
        input_drops: of(&line.input.drops),
        output_drops: of(&line.output.drops),
        livelocks: of(&line.input.livelocks),
        contended: of(&line.input.contended) + of(&line.output.contended),
        wrong: of(&line.wrong),
        left: (line.input.len() + line.output.len()) as u64,
        seconds,
    }
}

#[cfg(test)]
mod tests {
    use tollway_dataplane::wire::eth::ethertype;

    use super::super::super::small_path;
    use super::*;

    #[test]
    fn every_packet_is_accounted_for_in_every_way() {
        let routes = Routes::new();
        for method in Method::ALL {
            let tag = [(ethertype::DOT1Q, work::VIDS[0])];
            let tags: &[_] = if method == Method::Plain { &[] } else { &tag };
            let templates = small_path::templates(100, tags, 53);
            for contexts in 1..=3 {
                let tally = run(method, contexts, &templates, &routes, Duration::from_millis(5));
                assert_eq!(tally.check(method), Ok(()), "{contexts}");
            }
        }
    }

    #[test]
    fn faulty_and_missing_frames_are_found() {
        let good = Tally { received: 5, sent: 3, input_drops: 1, left: 1, ..Tally::default() };
        assert_eq!(good.check(Method::Mutex), Ok(()));
        assert!(Tally { wrong: 1, ..good }.check(Method::Mutex).is_err());
        assert!(Tally { left: 0, ..good }.check(Method::Mutex).is_err());
    }
}
