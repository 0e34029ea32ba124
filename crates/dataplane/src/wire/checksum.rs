//! The Internet checksum (RFC 1071) and its incremental update (RFC 1624).

/// Says whether a 20-byte IPv4 header, given as little-endian words, sums to all ones.
///
/// The ones' complement sum of 16-bit words is the number modulo 65,535, and 2^64 is 1 modulo that. So
/// the function adds whole words with end-around carry and divides once (by a multiplication).
#[inline(always)]
#[must_use]
pub const fn header_is_valid(first: u64, second: u64, third: u32) -> bool {
    let (sum, carry) = first.overflowing_add(second);
    let (sum, again) = sum.overflowing_add(third as u64 + carry as u64);
    (sum + again as u64).is_multiple_of(0xffff)
}

/// The ones' complement sum of bytes, folded to 16 bits, in the bytes' memory order.
#[must_use]
pub fn sum(bytes: &[u8]) -> u16 {
    let mut words = bytes.chunks_exact(2);
    let mut sum: u64 = words.by_ref().map(|w| u64::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    if let [last] = words.remainder() {
        sum += u64::from(*last) << 8;
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// What replaced bytes change a checksum by (RFC 1624, eqn. 3).
///
/// Bytes are replaced at even offsets from where the checksum begins to cover. A wrong checksum stays wrong.
#[derive(Clone, Copy, Debug, Default)]
pub struct Change(u32);

impl Change {
    /// Replaces bytes by as many others.
    pub fn replace(&mut self, before: &[u8], after: &[u8]) {
        self.add(&Self(u32::from(!sum(before)) + u32::from(sum(after))));
    }

    /// Adds what another change adds.
    pub const fn add(&mut self, other: &Self) {
        let sum = self.fold() as u32 + other.fold() as u32;
        self.0 = sum;
    }

    /// The checksum after the change of what it covers.
    #[must_use]
    pub const fn apply(self, checksum: u16) -> u16 {
        !Self(self.fold() as u32 + !checksum as u32).fold()
    }

    const fn fold(self) -> u16 {
        let once = (self.0 & 0xffff) + (self.0 >> 16);
        ((once & 0xffff) + (once >> 16)) as u16
    }
}

/// TTL, protocol and checksum as one little-endian word, with the TTL decremented by one
/// (`ip_decrease_ttl`, `include/net/ip.h`).
#[inline(always)]
#[must_use]
pub const fn after_ttl_decrement(word: u32) -> u32 {
    // The TTL is the first byte of its 16-bit word, so that word falls by 0x0100 on the wire and the
    // checksum, its complement, rises by as much (RFC 1624, eqn. 3): by 1 as read here, and by one more
    // for the end-around carry. Neither overflows into the other, because the TTL is not 0.
    let carry = (word >= 0xfffe_0000) as u32;
    word.wrapping_add(0x0000_ffff).wrapping_add(carry << 16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{word32, word64};

    /// RFC 1071 as written: word by word.
    fn naive(bytes: &[u8]) -> u16 {
        let mut sum = 0_u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    fn is_valid(header: &[u8; 20]) -> bool {
        header_is_valid(word64(header, 0), word64(header, 8), word32(header, 16))
    }

    fn sign(header: &mut [u8; 20]) {
        header[0] |= 0x40;
        header[10..12].fill(0);
        let checksum = !naive(header);
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
    }

    proptest::proptest! {
        #[test]
        fn equals_the_sum_word_by_word(header: [u8; 20], odd: Vec<u8>) {
            proptest::prop_assert_eq!(sum(&odd), naive(&odd));
            let mut header = header;
            header[0] |= 0x40;
            proptest::prop_assert_eq!(is_valid(&header), naive(&header) == 0xffff);
            sign(&mut header);
            proptest::prop_assert!(is_valid(&header));
        }

        #[test]
        fn a_change_equals_the_sum_of_all(
            before in proptest::collection::vec(0_u8.., 2..80),
            replaced: Vec<(usize, [u8; 2])>,
        ) {
            let mut after = before.clone();
            let mut change = Change::default();
            for (at, bytes) in replaced {
                let at = at % (after.len() / 2) * 2;
                change.replace(&after[at..at + 2], &bytes);
                after[at..at + 2].copy_from_slice(&bytes);
            }
            let is = change.apply(!sum(&before));
            let zero = |sum: u16| if sum == 0xffff { 0 } else { sum };
            proptest::prop_assert_eq!(zero(is), zero(!sum(&after)));
            // Only of nothing but zeros the sum is 0.
            proptest::prop_assert!(before.iter().all(|byte| *byte == 0) || is != 0xffff);
        }

        #[test]
        fn a_decremented_ttl_keeps_the_header_valid(header: [u8; 20]) {
            let mut header = header;
            header[8] |= 1;
            sign(&mut header);
            let before = header;
            let word = after_ttl_decrement(word32(&header, 8));
            header[8..12].copy_from_slice(&word.to_le_bytes());
            proptest::prop_assert!(is_valid(&header));
            proptest::prop_assert_eq!(header[8], before[8] - 1);
            proptest::prop_assert_eq!(header[9], before[9]);
        }
    }
}
