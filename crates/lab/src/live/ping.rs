//! Echo requests at a fixed interval, and the time until each answer.

use std::io;
use std::net::UdpSocket;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::host::Host;
use super::program;
use super::topology::RIGHT;
use crate::sys;

/// Time to wait for the last answers.
const PATIENCE: Duration = Duration::from_millis(500);
/// Bytes of an ICMP echo header.
const HEADER: usize = 8;
/// Bytes that ping(8) sends after the header.
const PAYLOAD: usize = 56;

/// How to ping.
#[derive(Clone, Copy)]
pub(super) struct Plan {
    /// Number of requests.
    pub(super) count: u16,
    /// Time between two requests.
    pub(super) interval: Duration,
    /// Whether to poll for answers without sleep, on the generator's processor: the cost of waking
    /// a sleeper is not the router's.
    pub(super) exact: bool,
}

/// The time from each request to its answer.
pub(super) type Answers = Vec<Option<Duration>>;

/// Pings from A; ends by itself.
pub(super) struct Pings(JoinHandle<io::Result<Answers>>);

impl Pings {
    /// Starts pings of B.
    pub(super) fn start(host: &Host, plan: Plan) -> Result<Self, String> {
        Self::start_to(host, plan, RIGHT[0], None)
    }

    /// Starts pings of an address, by this processor if there is one.
    pub(super) fn start_to(
        host: &Host,
        plan: Plan,
        to: &'static str,
        processor: Option<usize>,
    ) -> Result<Self, String> {
        let work = move || {
            if let Some(processor) = processor {
                sys::pin(&[processor])?;
            }
            ping(plan, to)
        };
        let thread = host.run(move || std::thread::Builder::new().spawn(work))?;
        thread.map(Self).map_err(|error| format!("no thread can be started: {error}"))
    }

    /// Waits until all requests are answered or have timed out.
    pub(super) fn answers(self) -> Result<Answers, String> {
        let failed = |error| format!("cannot send echo requests: {error}");
        let ended = self.0.join().map_err(|_| "the pinging thread panicked".to_owned())?;
        ended.map_err(failed)
    }
}

/// Number of requests without an answer.
pub(super) fn lost(answers: &Answers) -> usize {
    answers.iter().filter(|answer| answer.is_none()).count()
}

fn ping(plan: Plan, to: &str) -> io::Result<Answers> {
    if plan.exact {
        program::run_on_generator_processor()?;
    }
    // send(2) and recv(2) are the same for every kind of socket.
    let socket = UdpSocket::from(sys::icmp_socket()?);
    socket.connect((to, 0))?;
    // One id per thread, so that two concurrent runs do not take each other's answers.
    let id = (sys::thread_id() & 0xffff) as u16;
    let mut answers = vec![None; usize::from(plan.count)];
    let mut sent = Vec::with_capacity(answers.len());
    let start = Instant::now();
    for seq in 0..plan.count {
        let due = start + plan.interval * u32::from(seq);
        receive(&socket, id, &sent, &mut answers, due, plan.exact)?;
        sent.push(Instant::now());
        match socket.send(&request(id, seq)) {
            // No buffer or no route at the moment: the request is lost, as on the wire.
            Ok(_) | Err(_) => {}
        }
    }
    receive(&socket, id, &sent, &mut answers, Instant::now() + PATIENCE, plan.exact)?;
    Ok(answers)
}

/// Receives answers until `until`, or until all have arrived.
fn receive(
    socket: &UdpSocket,
    id: u16,
    sent: &[Instant],
    answers: &mut Answers,
    until: Instant,
    exact: bool,
) -> io::Result<()> {
    let mut buffer = [0; 256];
    loop {
        match socket.recv(&mut buffer) {
            Ok(length) => {
                let seq = answered(buffer.get(..length).unwrap_or_default(), id);
                let slot = seq.and_then(|seq| answers.get_mut(seq));
                if let (Some(slot), Some(sent)) = (slot, seq.and_then(|seq| sent.get(seq))) {
                    slot.get_or_insert(sent.elapsed());
                }
                continue;
            }
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            Err(_) => {}
        }
        let now = Instant::now();
        let all_came = sent.len() == answers.len() && lost(answers) == 0;
        if now >= until || all_came {
            return Ok(());
        }
        if !exact {
            std::thread::sleep((until - now).min(Duration::from_micros(200)));
        }
    }
}

/// An echo request.
fn request(id: u16, seq: u16) -> [u8; HEADER + PAYLOAD] {
    let mut packet = [0; HEADER + PAYLOAD];
    packet[0] = 8;
    packet[4..6].copy_from_slice(&id.to_be_bytes());
    packet[6..8].copy_from_slice(&seq.to_be_bytes());
    // All other bytes are zero, so the sum has three words.
    let sum = 0x0800 + u32::from(id) + u32::from(seq);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    packet[2..4].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    packet
}

/// The request that a packet with its IPv4 header answers, if it is ours.
fn answered(packet: &[u8], id: u16) -> Option<usize> {
    let header = usize::from(packet.first()? & 15) * 4;
    let [kind, _, _, _, id0, id1, seq0, seq1] = *packet.get(header..)?.first_chunk()?;
    let ours = kind == 0 && u16::from_be_bytes([id0, id1]) == id;
    ours.then(|| usize::from(u16::from_be_bytes([seq0, seq1])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_a_right_checksum_and_its_answer_is_known() {
        for (id, seq) in [(0, 0), (1, 2), (0xffff, 0xffff), (0x8000, 1999)] {
            let mut packet = [0; 20 + HEADER + PAYLOAD];
            packet[0] = 0x45;
            packet[20..].copy_from_slice(&request(id, seq));
            let words =
                packet[20..].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
            let sum: u32 = words.sum();
            assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
            assert_eq!(answered(&packet, id), None, "a request is no answer");
            packet[20] = 0;
            assert_eq!(answered(&packet, id), Some(usize::from(seq)));
            assert_eq!(answered(&packet, id ^ 1), None);
            assert_eq!(answered(&packet[..27], id), None);
        }
    }
}
