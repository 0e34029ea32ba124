//! Packets built to get past rules: truncated headers, headers with wrong lengths, fragments of any kind,
//! chains of extension headers.

use super::frames::Frames;
use crate::testkit::dice::Dice;

/// A frame of [`Frames`], usually with a defect. Destination and TTL stay, since rules do not decide where it
/// would go.
pub(super) fn draw(frames: &Frames, dice: &mut Dice) -> Vec<u8> {
    let mut frame = frames.draw(dice);
    let l3 = if frame[12] == 0x81 { 18 } else { 14 };
    for _ in 0..dice.below(3) {
        match frame[l3 - 2..l3] {
            [8, 0] if frame.len() >= l3 + 20 => break4(&mut frame[l3..], dice),
            [0x86, 0xdd] if frame.len() >= l3 + 40 => break6(&mut frame, l3, dice),
            _ => {}
        }
    }
    if dice.one_in(5) {
        frame.truncate(l3 + dice.below(frame.len() - l3 + 1));
    }
    frame
}

fn break4(packet: &mut [u8], dice: &mut Dice) {
    let header_len = usize::from(packet[0] & 15) * 4;
    let tcp = header_len + 12;
    match dice.below(6) {
        0 => packet[0] = packet[0] & 0xf0 | dice.below(16) as u8,
        1 => packet[0] = packet[0] & 0x0f | dice.pick(&[0x00, 0x50, 0x60]),
        2 => {
            let total = dice.pick(&[0, 19, 20, 21, 24, 33, 34, 39, 40, packet.len(), 0xffff]);
            packet[2..4].copy_from_slice(&(total as u16).to_be_bytes());
        }
        // The first of a pair may be too short for ports or flags, the second may overlap it.
        3 => {
            let field = dice.pick(&[0x2000_u16, 0x2001, 0x0001, 0x0002, 0x1fff, 0x8000, 0xffff]);
            packet[6..8].copy_from_slice(&field.to_be_bytes());
        }
        4 if packet.len() > tcp => packet[tcp] = dice.roll() as u8,
        _ => packet[dice.below(10)] ^= 1 << dice.below(8),
    }
    packet[8] = packet[8].max(2);
    // In half of the cases the checksum is correct for the header as it is.
    if dice.one_in(2) {
        let header_len = (usize::from(packet[0] & 15) * 4).clamp(20, packet.len());
        packet[10..12].fill(0);
        let sum = !tollway_dataplane::wire::checksum::sum(&packet[..header_len]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    }
}

fn break6(frame: &mut Vec<u8>, l3: usize, dice: &mut Dice) {
    match dice.below(5) {
        0 => frame[l3] = frame[l3] & 0x0f | dice.pick(&[0x00, 0x40, 0x50]),
        1 => {
            let whole = frame.len() - l3 - 40;
            let payload = dice.pick(&[0, 1, 7, 8, 13, 14, whole, whole + 1, 0xffff]);
            frame[l3 + 4..l3 + 6].copy_from_slice(&(payload as u16).to_be_bytes());
        }
        2 => frame[l3 + 6] = dice.pick(&[0, 43, 44, 50, 51, 59, 60, 135, 255]),
        3 => {
            let at = dice.below((frame.len() - l3 - 40).max(1));
            if let Some(byte) = frame.get_mut(l3 + 40 + at) {
                *byte = dice.pick(&[0, 1, 6, 17, 43, 44, 51, 59, 60, 255]);
            }
        }
        _ => chain(frame, l3, dice),
    }
    frame[l3 + 7] = frame[l3 + 7].max(2);
}

/// Inserts extension headers before the existing content.
fn chain(frame: &mut Vec<u8>, l3: usize, dice: &mut Dice) {
    let mut headers = Vec::new();
    let mut next = frame[l3 + 6];
    for _ in 0..dice.pick(&[1, 2, 7, 8, 9, 40]) {
        let kind = dice.pick(&[43, 44, 51, 60]);
        let mut header = vec![next, 0, 0, 0, 0, 0, 0, 0];
        if kind == 44 {
            let field = dice.pick(&[0_u16, 0, 1, 8, 9, 0xfff9]);
            header[2..4].copy_from_slice(&field.to_be_bytes());
        }
        headers.splice(0..0, header);
        next = kind;
    }
    frame[l3 + 6] = next;
    let payload = frame.len() - l3 - 40 + headers.len();
    frame[l3 + 4..l3 + 6].copy_from_slice(&(payload as u16).to_be_bytes());
    frame.splice(l3 + 40..l3 + 40, headers);
}

/// Whether a packet's own headers make it a later fragment, regardless of its other defects.
fn is_later_fragment(frame: &[u8]) -> bool {
    let l3 = if frame[12] == 0x81 { 18 } else { 14 };
    let packet = &frame[l3..];
    if frame[l3 - 2] == 8 {
        return packet.get(6..8).is_some_and(|field| field[0] & 0x1f != 0 || field[1] != 0);
    }
    let (mut next, mut at) = (packet.get(6).copied(), 40);
    while let (Some(kind @ (0 | 43 | 44 | 60)), Some(header)) = (next, packet.get(at..at + 4)) {
        if kind == 44 && (header[2] != 0 || header[3] & 0xf8 != 0) {
            return true;
        }
        at += if kind == 44 { 8 } else { (usize::from(header[1]) + 1) * 8 };
        next = Some(header[0]);
    }
    false
}

#[test]
fn no_packet_fares_otherwise_than_it_is_evaluated() {
    let text = std::env::var("TOLLWAY_FUZZ_SECONDS").ok();
    let seconds = text.and_then(|text| text.parse().ok()).unwrap_or(0);
    let start = std::time::Instant::now();
    let mut seed = 4;
    loop {
        super::compare(seed, 40, &[1, 3, 12, 60], 3000, draw);
        super::compare(seed + 1, 2, &[700], 3000, draw);
        seed += 2;
        if start.elapsed().as_secs() >= seconds {
            return;
        }
    }
}

#[test]
fn no_rule_about_ports_matches_a_later_fragment() {
    use crate::ir::*;
    for (hook, family) in [
        (Hook::Ingress, Family::Netdev),
        (Hook::Prerouting, Family::Inet),
        (Hook::Forward, Family::Inet),
    ] {
        for field in [
            Field::SourcePort,
            Field::DestinationPort,
            Field::TcpFlags,
            Field::IcmpType,
            Field::IcmpCode,
            Field::TransportLength,
            Field::Payload { base: PayloadBase::Transport, offset: 0, bytes: 1 },
        ] {
            let mut rules = Ruleset::default();
            let mut chain = Chain::new("ports", family);
            chain.base = Some(Base::new(hook, 0, Policy::Accept));
            let any = Match::in_ranges(field, [Range::new(0, field.max())]);
            let steps = vec![Step::Match(any), Step::Verdict(Verdict::Drop)];
            chain.rules.push(Rule { place: Place::default(), text: String::new(), steps });
            rules.add_chain(chain);
            let mut dice = Dice(7);
            let (mut path_bench, frames) =
                (super::PathBench::new(&rules), Frames::new(&rules, &mut dice));
            let (mut later, mut dropped) = (0, 0);
            for _ in 0..1500 {
                let frame = draw(&frames, &mut dice);
                assert_eq!(path_bench.send(std::slice::from_ref(&frame)), Ok(()), "{frame:02x?}");
                let is_later = is_later_fragment(&frame);
                assert!(!(is_later && path_bench.drops(0)), "{hook:?} {field:?}: {frame:02x?}");
                later += usize::from(is_later);
                dropped += usize::from(path_bench.drops(0));
            }
            assert!(later > 100 && dropped > 100, "{hook:?} {field:?}: {later}, {dropped}");
        }
    }
}
