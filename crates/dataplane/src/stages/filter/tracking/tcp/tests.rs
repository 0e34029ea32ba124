//! What conversations in the tests of the whole system seldom come to.

use super::*;
use crate::wire::tcp_flags::FIN;

fn segment(flags: u8, seq: u32, ack: u32) -> Segment<'static> {
    let end = seq.wrapping_add(u32::from(flags & (SYN | FIN) != 0));
    Segment { flags, seq, end, ack, window: 1000, options: &[] }
}

#[test]
fn a_reset_answers_no_syn_of_its_own_side() {
    for (side, verdict) in [(Side::Forward, Verdict::Invalid), (Side::Reverse, Verdict::Valid)] {
        let mut tcp = Tcp::begin(&segment(SYN, 100, 0)).unwrap();
        let mut follow = |segment, side| tcp.follow(&segment, side, (SEEN_REPLY, 0)).verdict;
        assert_eq!(follow(segment(SYN, 100, 0), Side::Forward), Verdict::Valid);
        // Both sides open at once, and one goes on: that packet is ignored.
        assert_eq!(follow(segment(SYN, 500, 0), Side::Reverse), Verdict::Valid);
        assert_eq!(follow(segment(ACK, 700, 101), Side::Reverse), Verdict::Valid);
        assert_eq!(follow(segment(SYN, 100, 0), Side::Forward), Verdict::Valid);
        // It acknowledges the ignored packet, and is out of the windows.
        assert_eq!(follow(segment(RST | ACK, 5000, 700), side), verdict);
        let is_over = verdict == Verdict::Valid;
        assert_eq!(tcp.state == TcpState::Close, is_over, "{:?}", tcp.state);
    }
}
