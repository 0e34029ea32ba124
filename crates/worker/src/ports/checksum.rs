//! Finishes checksums that a sender on the same machine left to a network card.

use tollway_dataplane::wire::checksum::sum;

/// The offset of the CRC in an SCTP header (RFC 9260, 3.1).
const SCTP_CRC: usize = 8;
/// The offset of the checksum in a UDP header (RFC 768).
const UDP_CHECKSUM: usize = 6;

/// Finishes the checksum over the bytes from `start`. Its field is at `start + offset` and holds
/// the sum of the pseudo-header (`skb_checksum_help`, `net/core/dev.c`). Positions outside of the
/// frame leave it unchanged.
pub(super) fn finish(frame: &mut [u8], start: usize, offset: usize) {
    let Some(segment) = frame.get_mut(start..) else { return };
    if offset == SCTP_CRC {
        return finish_sctp(segment);
    }
    let total = sum(segment);
    let Some(field) = segment.get_mut(offset..offset + 2) else { return };
    let checksum = match (!total, offset) {
        // In UDP, zero would mean that there is no checksum.
        (0, UDP_CHECKSUM) => 0xffff,
        (checksum, _) => checksum,
    };
    field.copy_from_slice(&checksum.to_be_bytes());
}

fn finish_sctp(segment: &mut [u8]) {
    let Some(field) = segment.get_mut(SCTP_CRC..SCTP_CRC + 4) else { return };
    field.fill(0);
    let crc = crc32c(segment).to_le_bytes();
    segment[SCTP_CRC..SCTP_CRC + 4].copy_from_slice(&crc);
}

/// CRC-32C (RFC 9260, appendix A), bit by bit: such packets are rare here.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ ((crc & 1) * 0x82f6_3b78))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc32c_has_its_check_value() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn a_partial_udp_checksum_becomes_a_whole_one() {
        // 192.0.2.1 -> 192.0.2.2, UDP 1 -> 2, two bytes of payload.
        let pseudo = [192, 0, 2, 1, 192, 0, 2, 2, 0, 17, 0, 10];
        let mut frame = vec![0xee; 34];
        frame.extend([0, 1, 0, 2, 0, 10, 0, 0, 0xab, 0xcd]);
        frame[40..42].copy_from_slice(&sum(&pseudo).to_be_bytes());
        finish(&mut frame, 34, 6);
        let whole: Vec<u8> = pseudo.iter().chain(&frame[34..]).copied().collect();
        assert_eq!(sum(&whole), 0xffff);
    }

    #[test]
    fn a_checksum_of_zero_is_sent_as_ones_in_udp_only() {
        for (offset, expected) in [(6, [0xff, 0xff]), (16, [0, 0])] {
            let mut frame = [0_u8; 20];
            frame[offset..offset + 2].copy_from_slice(&[0xff, 0xff]);
            finish(&mut frame, 0, offset);
            assert_eq!(frame[offset..offset + 2], expected);
        }
    }

    #[test]
    fn positions_outside_change_nothing() {
        for (start, offset) in [(60, 6), (8, 6), (0, 9), (usize::MAX, 1), (5, 8)] {
            let mut frame = [7_u8; 10];
            finish(&mut frame, start, offset);
            assert_eq!(frame, [7; 10]);
        }
    }
}
