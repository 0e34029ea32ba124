//! IPv4 fragmentation: RFC 791, 3.2, as in `ip_do_fragment` (`net/ipv4/ip_output.c`) and
//! `ip_options_fragment` (`net/ipv4/ip_options.c`).

use super::build::fill_checksum4;
use crate::ip::options::{END, NO_OPERATION};

const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;
const OFFSET: u16 = 0x1fff;
/// The bit of an option's type that copies the option into every fragment.
const COPIED: u8 = 0x80;

/// Whether a packet must not be fragmented.
pub(super) fn is_forbidden(packet: &[u8]) -> bool {
    flags(packet) & DONT_FRAGMENT != 0
}

fn flags(packet: &[u8]) -> u16 {
    packet.get(6..8).map_or(0, |field| u16::from_be_bytes([field[0], field[1]]))
}

/// Cuts a sound packet into fragments of at most `mtu` bytes; `None` if the MTU is too small for a
/// header and eight bytes.
pub(super) fn cut(packet: &[u8], mtu: usize) -> Option<Vec<Vec<u8>>> {
    let header_len = usize::from(packet.first()? & 0x0f) * 4;
    let (header, payload) = packet.split_at_checked(header_len).filter(|_| header_len >= 20)?;
    let room = mtu.checked_sub(header_len)? & !7;
    if room == 0 {
        return None;
    }
    let mut header = header.to_vec();
    let (offset, more) = (flags(packet) & OFFSET, flags(packet) & MORE_FRAGMENTS);
    let mut fragments = Vec::new();
    let mut rest = payload;
    while !rest.is_empty() {
        // The last fragment may fill the MTU to the byte.
        let last = rest.len() <= mtu - header_len;
        let (data, behind) = rest.split_at(if last { rest.len() } else { room });
        let done = (payload.len() - rest.len()) / 8;
        let more = if last { more } else { MORE_FRAGMENTS };
        fragments.push(fragment(&header, data, offset.checked_add(done as u16)? & OFFSET | more));
        // When a fragment is fragmented again, it keeps its options (`ip_frag_next`).
        if offset == 0 {
            clear_uncopied(&mut header);
        }
        rest = behind;
    }
    Some(fragments)
}

fn fragment(header: &[u8], data: &[u8], flags: u16) -> Vec<u8> {
    let mut bytes = [header, data].concat();
    let len = bytes.len() as u16;
    bytes[2..4].copy_from_slice(&len.to_be_bytes());
    bytes[6..8].copy_from_slice(&flags.to_be_bytes());
    fill_checksum4(&mut bytes);
    bytes
}

/// Overwrites the options that only the first fragment carries; the header keeps its length.
fn clear_uncopied(header: &mut [u8]) {
    let mut at = 20;
    while let Some(&kind) = header.get(at) {
        let len = match kind {
            END => return,
            NO_OPERATION => 1,
            _ => match header.get(at + 1) {
                Some(&len) if len >= 2 && at + usize::from(len) <= header.len() => usize::from(len),
                _ => return,
            },
        };
        if kind & COPIED == 0 {
            header[at..at + len].fill(NO_OPERATION);
        }
        at += len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::Ipv4Slice;

    fn packet(options: &[u8], offset: u16, more: bool, payload: usize) -> Vec<u8> {
        let mut header = etherparse::Ipv4Header::new(
            payload as u16,
            64,
            17.into(),
            [10, 0, 0, 1],
            [10, 0, 1, 1],
        )
        .unwrap();
        header.identification = 77;
        header.more_fragments = more;
        header.fragment_offset = offset.try_into().unwrap();
        header.options = options.try_into().unwrap();
        header.header_checksum = header.calc_header_checksum();
        let mut bytes = header.to_bytes().to_vec();
        bytes.extend((0..payload).map(|n| (n / 7) as u8));
        bytes
    }

    /// Reassembles fragments with an independent header parser.
    fn join(fragments: &[Vec<u8>]) -> (Vec<u8>, bool, u16) {
        let first = Ipv4Slice::from_slice(&fragments[0]).unwrap();
        let start = first.header().fragments_offset().value();
        let (mut payload, mut more) = (Vec::new(), true);
        for bytes in fragments {
            let ip = Ipv4Slice::from_slice(bytes).unwrap();
            let header = ip.header();
            assert_eq!(header.header_checksum(), header.to_header().calc_header_checksum());
            assert_eq!(header.identification(), 77);
            assert!(!header.dont_fragment());
            assert!(more, "a last fragment before another");
            let at = usize::from(header.fragments_offset().value() - start) * 8;
            assert_eq!(at, payload.len());
            payload.extend_from_slice(ip.payload().payload);
            more = header.more_fragments();
        }
        (payload, more, start)
    }

    proptest::proptest! {
        #[test]
        fn fragments_join_to_the_packet(
            payload in 1..9000_usize, mtu in 68..1600_usize, offset in 0..100_u16, more: bool,
            words in 0..11_usize,
        ) {
            // Every fragment but the last has a multiple of eight bytes.
            let payload = if more { payload.next_multiple_of(8) } else { payload };
            let whole = packet(&vec![1; words * 4], offset, more, payload);
            let fragments = cut(&whole, mtu).unwrap();
            proptest::prop_assert!(fragments.iter().all(|fragment| fragment.len() <= mtu));
            let (joined, still_more, start) = join(&fragments);
            proptest::prop_assert_eq!(&joined[..], &whole[20 + words * 4..]);
            proptest::prop_assert_eq!((still_more, start), (more, offset));
            // And once more, through a smaller MTU.
            let again: Vec<_> = fragments.iter().flat_map(|one| cut(one, 68).unwrap()).collect();
            proptest::prop_assert_eq!(&join(&again).0[..], &joined[..]);
        }
    }

    #[test]
    fn only_options_marked_so_are_in_every_fragment() {
        // Only the first fragment has record route (7); all have router alert (0x94).
        let options = [7, 7, 4, 0, 0, 0, 0, 1, 0x94, 4, 0, 0];
        let fragments = cut(&packet(&options, 0, false, 100), 68).unwrap();
        assert_eq!(&fragments[0][20..32], &options);
        for fragment in &fragments[1..] {
            assert_eq!(&fragment[20..32], &[1, 1, 1, 1, 1, 1, 1, 1, 0x94, 4, 0, 0]);
        }
    }

    #[test]
    fn packets_that_cannot_be_cut_are_refused() {
        assert!(cut(&packet(&[], 0, false, 100), 27).is_none());
        assert!(cut(&[0x4f; 24], 68).is_none());
        assert!(cut(&[], 68).is_none());
        assert_eq!(cut(&packet(&[], 0, false, 100), 120).unwrap().len(), 1);
    }

    #[test]
    fn a_fragment_that_is_cut_again_keeps_its_options() {
        let options = [30, 4, 1, 2];
        for (offset, second) in [(0, [1; 4]), (5, options)] {
            let cut = cut(&packet(&options, offset, false, 100), 88).unwrap();
            assert_eq!((&cut[0][20..24], &cut[1][20..24]), (&options[..], &second[..]));
        }
    }
}
