//! Random conversations for rules that keep states: packets come again, are answered, and time passes.

use super::frames::Frames;
use super::path_bench::{PathBench, links};
use crate::ir::{Hook, Ruleset};
use crate::testkit::dice::Dice;
use crate::testkit::eval::Packet;

const MS: u64 = 1_000_000;
const S: u64 = 1000 * MS;

/// How many packets back a packet may be a repetition of.
const RECENT: usize = 40;

/// Draws packets that often belong to flows of earlier ones.
pub struct Conversations {
    frames: Frames,
    recent: Vec<Vec<u8>>,
    now_ns: u64,
}

impl Conversations {
    /// Conversations with numbers that occur in the rules.
    pub fn new(rules: &Ruleset, dice: &mut Dice) -> Self {
        Self { frames: Frames::new(rules, dice), recent: Vec::new(), now_ns: 0 }
    }

    /// The next packet, untagged and to one station.
    pub fn plain(&mut self, dice: &mut Dice) -> Vec<u8> {
        self.next(dice, Frames::plain)
    }

    fn next(&mut self, dice: &mut Dice, new: fn(&Frames, &mut Dice) -> Vec<u8>) -> Vec<u8> {
        let mut frame = match self.recent.is_empty() || dice.one_in(4) {
            true => new(&self.frames, dice),
            false => dice.pick(&self.recent),
        };
        if dice.one_in(2) {
            answer(&mut frame);
        }
        say(&mut frame, dice);
        if self.recent.len() == RECENT {
            self.recent.swap_remove(dice.below(RECENT));
        }
        self.recent.push(frame.clone());
        frame
    }

    /// Lets some time pass, seldom much; returns how much.
    pub fn wait(dice: &mut Dice) -> u64 {
        match dice.below(40) {
            0 => dice.pick(&[301, 302, 400]) * S,
            1 | 2 => dice.pick(&[2, 3, 4, 6, 9, 11, 19, 21, 25]) * S,
            3 | 4 => 1200 * MS,
            _ => 0,
        }
    }

    /// The time after some more has passed.
    pub fn later(&mut self, dice: &mut Dice) -> u64 {
        self.now_ns += 50_000 + Self::wait(dice);
        self.now_ns
    }
}

/// Where the transport header is, and its protocol, if it is whole in the frame.
fn transport(frame: &[u8]) -> Option<(usize, u8)> {
    let (links, l3) = (links(), l3(frame));
    let packet = Packet::new(frame, l3, &links[0]);
    let parsed = packet.parsed_at(Hook::Prerouting);
    let (protocol, start) = parsed.transport.filter(|_| parsed.offset == 0)?;
    (parsed.length >= start + 14).then_some((l3 + start, protocol))
}

fn l3(frame: &[u8]) -> usize {
    if frame[12..14] == [0x81, 0] { 18 } else { 14 }
}

/// Swaps addresses and ports.
fn answer(frame: &mut [u8]) {
    let l3 = l3(frame);
    let ports = transport(frame).filter(|(_, protocol)| matches!(protocol, 6 | 17 | 132));
    let (addresses, bytes) = match frame[l3 - 2..l3] {
        [8, 0] => (l3 + 12, 4),
        [0x86, 0xdd] => (l3 + 8, 16),
        _ => return,
    };
    let ports = ports.map(|(at, _)| (at, 2));
    for (at, bytes) in [Some((addresses, bytes)), ports].into_iter().flatten() {
        (0..bytes).for_each(|byte| frame.swap(at + byte, at + bytes + byte));
    }
}

/// Sets flags and acknowledgement of TCP.
fn say(frame: &mut [u8], dice: &mut Dice) {
    if let Some((at, 6)) = transport(frame) {
        frame[at + 8..at + 12].copy_from_slice(&(dice.below(4) as u32).to_be_bytes());
        frame[at + 13] = dice.pick(&[0x02, 0x02, 0x12, 0x12, 0x10, 0x10, 0x10, 0x11, 0x18, 0x04]);
    }
}

/// Sends conversations through a ruleset in both implementations. Returns how many states there have been at
/// the most.
pub fn compare_states(ruleset: &Ruleset, seed: u64, dice: &mut Dice, packets: usize) -> usize {
    let mut path_bench = PathBench::new(ruleset);
    let mut conversations = Conversations::new(ruleset, dice);
    let (mut left, mut most) = (packets, 0);
    while left > 0 {
        let burst: Vec<_> =
            (0..dice.below(16) + 1).map(|_| conversations.next(dice, Frames::draw)).collect();
        left = left.saturating_sub(burst.len());
        path_bench.wait(Conversations::wait(dice));
        if let Err((lane, how)) = path_bench.send(&burst) {
            panic!("seed {seed:#x}: {how}\n{:02x?}\n{ruleset:#?}", burst[lane]);
        }
        most = most.max(path_bench.states());
    }
    path_bench.same_counts(seed);
    most
}
