//! The address of several that a connection gets (`find_best_ips_proto`).

use super::super::flows::FlowId;
use super::Manip;

/// Chooses one of the addresses from the first to the last. `flow` are the addresses before.
pub(super) fn choose_address(
    flow: &FlowId,
    (first, last): (u128, u128),
    manip: Manip,
    is_persistent: bool,
) -> u128 {
    let count = if flow.version == 4 { 1 } else { 4 };
    let [first, last, source] = [first, last, flow.source].map(|number| words(number, count));
    let mut destination = words(flow.destination, count);
    let seed = if is_persistent { 0 } else { raw(destination[count - 1]) };
    let mut hash = jhash2(source.map(raw), seed);
    let mut chosen = [0_u32; 4];
    let mut is_whole = false;
    for at in 0..count {
        // Behind a word that is not the last one of the range, all numbers are in it.
        let (least, many) = match is_whole {
            true => (0, u32::MAX),
            false => (first[at], last[at].wrapping_sub(first[at]).wrapping_add(1)),
        };
        let scaled = (u64::from(hash) * u64::from(many)) >> 32;
        chosen[at] = least.wrapping_add(scaled as u32);
        is_whole |= chosen[at] != last[at];
        if manip == Manip::Destination {
            destination[at] = chosen[at];
        }
        if !is_persistent {
            hash ^= raw(destination[at]);
        }
    }
    chosen[..count].iter().fold(0, |all, word| all << 32 | u128::from(*word))
}

/// The words of an address, the first one first.
fn words(address: u128, count: usize) -> [u32; 4] {
    let mut words = [0; 4];
    for (at, word) in words[..count].iter_mut().enumerate() {
        *word = (address >> (32 * (count - 1 - at))) as u32;
    }
    words
}

/// A word as the kernel reads it from the packet.
const fn raw(word: u32) -> u32 {
    u32::from_ne_bytes(word.to_be_bytes())
}

/// `jhash2` of four words (`include/linux/jhash.h`).
fn jhash2([first, second, third, fourth]: [u32; 4], seed: u32) -> u32 {
    let start = 0xdead_beef_u32.wrapping_add(4 << 2).wrapping_add(seed);
    let (mut a, mut b, mut c) =
        (start.wrapping_add(first), start.wrapping_add(second), start.wrapping_add(third));
    for (rotation, at) in [4, 6, 8, 16, 19, 4].into_iter().zip([0, 1, 2].into_iter().cycle()) {
        let (x, y, z) = match at {
            0 => (&mut a, &mut b, &mut c),
            1 => (&mut b, &mut c, &mut a),
            _ => (&mut c, &mut a, &mut b),
        };
        *x = x.wrapping_sub(*z) ^ z.rotate_left(rotation);
        *z = z.wrapping_add(*y);
    }
    a = a.wrapping_add(fourth);
    for (rotation, at) in [14, 11, 25, 16, 4, 14, 24].into_iter().zip([0, 1, 2].into_iter().cycle())
    {
        let (x, y) = match at {
            0 => (&mut c, b),
            1 => (&mut a, c),
            _ => (&mut b, a),
        };
        *x = (*x ^ y).wrapping_sub(y.rotate_left(rotation));
    }
    c
}
