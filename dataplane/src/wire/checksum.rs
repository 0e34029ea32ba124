//! The Internet checksum (RFC 1071) and its incremental update (RFC 1624).

use super::word64;

/// Says if a 20-byte IPv4 header sums to all ones.
///
/// The ones' complement sum of 16-bit words is the number modulo 65,535, and 2^64 is 1 modulo
/// that: so whole words are added with end-around carry and divided once (by a multiplication).
#[inline(always)]
#[must_use]
pub const fn header_is_valid(header: &[u8; 20]) -> bool {
    let tail = u32::from_le_bytes([header[16], header[17], header[18], header[19]]) as u64;
    let (sum, carry) = word64(header, 0).overflowing_add(word64(header, 8));
    let (sum, second) = sum.overflowing_add(tail + carry as u64);
    (sum + second as u64).is_multiple_of(0xffff)
}

/// The ones' complement sum of bytes, folded to 16 bits, in the order that the bytes lie.
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

/// The checksum after the TTL went down by one (`ip_decrease_ttl`, `include/net/ip.h`); the field
/// as read little-endian, before and after.
#[inline(always)]
#[must_use]
pub const fn after_ttl_decrement_le(checksum_le: u16) -> u16 {
    // The TTL is the first byte of its word, so the word falls by 0x0100 on the wire, which is
    // 0x0001 as read little-endian; the complement rises by as much (RFC 1624, eqn. 3).
    let sum = checksum_le as u32 + 1;
    (sum + (sum >= 0xffff) as u32) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 1071 as it is written: word by word.
    fn naive(bytes: &[u8]) -> u16 {
        let mut sum = 0_u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    proptest::proptest! {
        #[test]
        fn equals_the_sum_word_by_word(header: [u8; 20], odd: Vec<u8>) {
            proptest::prop_assert_eq!(sum(&odd), naive(&odd));
            let mut header = header;
            header[0] |= 0x40;
            proptest::prop_assert_eq!(header_is_valid(&header), naive(&header) == 0xffff);
            header[10..12].fill(0);
            let checksum = !naive(&header);
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
            proptest::prop_assert!(header_is_valid(&header));
        }

        #[test]
        fn a_decremented_ttl_keeps_the_header_valid(header: [u8; 20]) {
            let mut header = header;
            header[0] |= 0x40;
            header[8] |= 1;
            header[10..12].fill(0);
            let checksum = !naive(&header);
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
            header[8] -= 1;
            let field = u16::from_le_bytes([header[10], header[11]]);
            header[10..12].copy_from_slice(&after_ttl_decrement_le(field).to_le_bytes());
            proptest::prop_assert!(header_is_valid(&header));
        }
    }
}
