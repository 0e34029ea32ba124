//! Captures that are sent: which may be.

use std::net::IpAddr;

use super::address::{Range, allow};
use super::plan::MAX_LEN;
use super::{Error, Traffic};

/// Takes a capture's frames; `anywhere` says that their addresses are the user's own business, and
/// `apart` that this is a network namespace of its own.
///
/// # Errors
/// There is none, one is too long, or one goes where tests have no business.
pub fn traffic(frames: Vec<Vec<u8>>, anywhere: bool, apart: bool) -> Result<Traffic, Error> {
    if frames.is_empty() {
        return Err(Error::usage("the capture has no frame", "Name one that has"));
    }
    for (index, frame) in frames.iter().enumerate() {
        if !(14..=MAX_LEN).contains(&frame.len()) {
            let what = format!("frame {} of the capture has {} bytes", index + 1, frame.len());
            let remedy = format!(
                "Leave out what is shorter than 14 or longer than {MAX_LEN} with `editcap`"
            );
            return Err(Error::usage(what, remedy));
        }
        if let Some(to) = destination(frame).filter(|_| !anywhere) {
            allow(Range::one(to), apart).map_err(|error| Error {
                what: format!("frame {} of the capture: {}", index + 1, error.what),
                ..error
            })?;
        }
    }
    Ok(Traffic::Replay(frames))
}

/// Where an IP packet goes; none for what is no IP packet, which goes no further than the wire.
fn destination(frame: &[u8]) -> Option<IpAddr> {
    let two = |at: usize| frame.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes));
    let mut at = 12;
    while matches!(two(at)?, 0x8100 | 0x88a8) {
        at += 4;
    }
    match two(at)? {
        0x0800 => frame.get(at + 18..)?.first_chunk::<4>().map(|bytes| IpAddr::from(*bytes)),
        0x86dd => frame.get(at + 26..)?.first_chunk::<16>().map(|bytes| IpAddr::from(*bytes)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::{Addresses, udp};

    fn frame(to: [u8; 4], tags: &[(u16, u16)]) -> Vec<u8> {
        udp([2; 6], [4; 6], tags, Addresses::V4(1, u32::from_be_bytes(to)), (1, 2)).to_vec()
    }

    #[test]
    fn captures_are_sent_where_tests_may_send() {
        let open = frame([198, 18, 0, 1], &[]);
        let closed = frame([8, 8, 8, 8], &[(0x8100, 5)]);
        assert!(traffic(vec![open.clone()], false, false).is_ok());
        let error = traffic(vec![open.clone(), closed.clone()], false, true).err().unwrap();
        assert!(error.usage && error.what.contains("frame 2") && error.what.contains("8.8.8.8"));
        assert!(traffic(vec![open, closed], true, false).is_ok());
        let v6 = udp([2; 6], [4; 6], &[], Addresses::V6(1, 0x2606 << 112), (1, 2)).to_vec();
        assert!(traffic(vec![v6], false, false).is_err());
    }

    #[test]
    fn what_no_port_takes_is_refused() {
        for bad in [vec![], vec![vec![0; 13]], vec![vec![0; MAX_LEN + 1]]] {
            assert!(traffic(bad, true, true).err().is_some_and(|error| error.usage));
        }
    }
}
