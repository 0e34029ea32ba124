//! Conversations of TCP that the test makes: segments that belong, others that do not, and messages of ICMP about them.

use std::time::Duration;

use crate::crafted::{Agreement, Bench, Fault, Line, Note, Sum};
use crate::errors;
use crate::packets::Packet;
use crate::scene::{ALONE, WITH};
use crate::script::Untracked;
use crate::tcp_segments::{ACK, FIN, RST, SYN, Segment, Talk as Conversation};
use crate::testkit::dice::Dice;

/// Segments that let Tollway take over, their pace, and those that are drawn behind them, at most.
const FIRST: usize = 16;
const PACE: Duration = Duration::from_millis(4);
const SEGMENTS: usize = 90;
/// After so many invalid segments of a way in a row, Tollway follows the windows no more, and the kernel goes on.
const STRAYS: usize = 3;
/// Segments behind those, of which the last two end the connection.
const AFTER: usize = 6;
/// Of so many segments that arrive, an error is about one.
const ERRORS: usize = 8;

/// A conversation of TCP.
pub fn converse(bench: &mut Bench, line: &mut Line, mut dice: Dice) -> Result<(), Fault> {
    let mut conversation = Conversation::new(dice.clone());
    if !begin(bench, line, &mut conversation, &mut dice)? {
        return Ok(());
    }
    go_on(bench, line, &mut conversation, &mut dice)?;
    end(bench, line, &conversation)
}

/// Opens the connection, and sends segments that belong to it. Says whether all of them arrive.
fn begin(
    bench: &mut Bench,
    line: &mut Line,
    conversation: &mut Conversation,
    dice: &mut Dice,
) -> Result<bool, Fault> {
    let opening = conversation.opening();
    let opening = if dice.one_in(4) { at_once(&opening) } else { opening.to_vec() };
    for segment in opening {
        if !send(bench, line, &segment, Agreement::Exact)? {
            return Ok(false);
        }
        may_fail(bench, line, dice)?;
    }
    for number in 0..FIRST {
        let bytes = if number % 3 == 2 { 0 } else { 100 };
        let segment = conversation.segment(number / 2 % 2, bytes);
        if !send(bench, line, &segment, Agreement::Exact)? {
            return Ok(false);
        }
        conversation.arrived(&segment);
        std::thread::sleep(PACE);
    }
    Ok(true)
}

/// Sends what is drawn, as long as it is clear what both kernels think of the connection.
fn go_on(
    bench: &mut Bench,
    line: &mut Line,
    conversation: &mut Conversation,
    dice: &mut Dice,
) -> Result<(), Fault> {
    let is_fast = bench.is_fast(line.talk);
    let has_state = line.talk.untracked != Untracked::All;
    let mut strays = [0; 2];
    for _ in 0..SEGMENTS {
        let segment = conversation.draw();
        let arrived = send(bench, line, &segment, Agreement::Exact)?;
        bench.count.by_tollway += usize::from(is_fast);
        strays[segment.way] = if line.is_stray { strays[segment.way] + 1 } else { 0 };
        // The kernel has it again: a SYN does so even where it is invalid.
        let is_end = arrived && segment.flags & (FIN | RST) != 0 || segment.flags & SYN != 0;
        if has_state && (is_end || strays.contains(&STRAYS)) {
            break;
        }
        if arrived {
            conversation.arrived(&segment);
            may_fail(bench, line, dice)?;
        }
    }
    Ok(())
}

/// Whatever came last, the conversation goes on and ends as it should.
fn end(bench: &mut Bench, line: &mut Line, conversation: &Conversation) -> Result<(), Fault> {
    let agreement = match line.talk.untracked {
        Untracked::All => Agreement::Exact,
        _ => Agreement::AtLeast,
    };
    for number in 0..AFTER {
        let flags = if number < AFTER - 2 { ACK } else { FIN | ACK };
        let segment = conversation.segment(number % 2, 0);
        send(bench, line, &Segment { flags, ..segment }, agreement)?;
    }
    Ok(())
}

/// Now and then, somebody sends an error about the last segment, which has arrived.
fn may_fail(bench: &mut Bench, line: &mut Line, dice: &mut Dice) -> Result<(), Fault> {
    if dice.one_in(ERRORS) {
        errors::about_last(bench, line, dice)?;
    }
    Ok(())
}

/// Sends a segment in both twins. Says whether it arrives.
fn send(
    bench: &mut Bench,
    line: &mut Line,
    segment: &Segment,
    agreement: Agreement,
) -> Result<bool, Fault> {
    let packet = |twin: usize| {
        let ends = line.ends(segment.way, twin)?;
        Some(Packet(segment.packet(ends.map(|end| end.ip()), ends.map(|end| end.port()))))
    };
    let (Some(alone), Some(with)) = (packet(ALONE), packet(WITH)) else { return Ok(false) };
    let sum = if segment.is_damaged { Sum::Wrong } else { Sum::Right };
    let what = format!("{segment:?}");
    line.packet(bench, segment.way, [alone, with], &Note { what, agreement, sum })
}

/// Both sides open the connection at the same time.
fn at_once(opening: &[Segment; 3]) -> Vec<Segment> {
    let [first, second, last] = opening;
    let second_alone = Segment { flags: SYN, ack: 0, ..second.clone() };
    let answer = Segment { flags: SYN | ACK, ack: last.ack, ..first.clone() };
    vec![first.clone(), second_alone, answer, second.clone()]
}
