//! Checks which captures may be sent.

use std::net::IpAddr;

use super::address::{Range, allow, allow_source};
use super::plan::MAX_LEN;
use super::{Error, Traffic};

/// Accepts a capture's frames. `anywhere` says that the user is responsible for their addresses,
/// and `own_namespace` that this is a separate network namespace.
///
/// # Errors
/// There is no frame, or one is too long, has a destination or source that tests must not use, or
/// is neither IP nor ARP, so that this cannot be determined.
pub fn traffic(
    frames: Vec<Vec<u8>>,
    anywhere: bool,
    own_namespace: bool,
) -> Result<Traffic, Error> {
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
        if !anywhere {
            look(frame, own_namespace).map_err(|error| Error {
                what: format!("frame {} of the capture: {}", index + 1, error.what),
                ..error
            })?;
        }
    }
    Ok(Traffic::Replay(frames))
}

/// Refuses a frame whose addresses tests must not use, or cannot be determined.
fn look(frame: &[u8], own_namespace: bool) -> Result<(), Error> {
    let two = |at: usize| frame.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes));
    let mut at = 12;
    while matches!(two(at), Some(0x8100 | 0x88a8)) {
        at += 4;
    }
    let odd = |what: String| Err(Error::usage(what, "Leave it out, or say --i-know"));
    let addresses = match two(at) {
        Some(0x0800) => pair::<4>(frame, at + 14),
        Some(0x86dd) => pair::<16>(frame, at + 10),
        // ARP goes no further than the link.
        Some(0x0806) => return Ok(()),
        Some(other) => return odd(format!("its EtherType {other:#06x} is neither IP's nor ARP's")),
        None => None,
    };
    let Some([from, to]) = addresses else { return odd("it ends within its headers".to_owned()) };
    allow(Range::one(to), own_namespace)?;
    allow_source(Range::one(from), own_namespace)
}

/// Two consecutive addresses.
fn pair<const N: usize>(frame: &[u8], at: usize) -> Option<[IpAddr; 2]>
where
    IpAddr: From<[u8; N]>,
{
    let one = |at: usize| frame.get(at..)?.first_chunk::<N>().map(|bytes| IpAddr::from(*bytes));
    Some([one(at)?, one(at + N)?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::{Addresses, udp};

    fn frame(to: [u8; 4], tags: &[(u16, u16)]) -> Vec<u8> {
        from_to([198, 19, 0, 1], to, tags)
    }

    fn from_to(from: [u8; 4], to: [u8; 4], tags: &[(u16, u16)]) -> Vec<u8> {
        let [from, to] = [from, to].map(u32::from_be_bytes);
        udp([2; 6], [4; 6], tags, Addresses::V4(from, to), (1, 2)).to_vec()
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
    fn frames_that_are_neither_ip_nor_arp_are_refused() {
        let refusal = |frame: Vec<u8>| traffic(vec![frame], false, true).err();
        let typed = |kind: &[u8]| {
            let mut frame = vec![0; 60];
            frame[12..12 + kind.len()].copy_from_slice(kind);
            frame
        };
        for kind in [
            &[0x88, 0xb5][..],
            &[0x81, 0, 0, 5, 0x88, 0xcc],
            &[0x88, 0xa8, 0, 5, 0x81, 0, 0, 6, 0x88, 0x47],
            &[0, 40],
        ] {
            let error = refusal(typed(kind)).unwrap();
            assert!(error.usage && error.what.contains("EtherType"), "{error}");
            assert!(error.remedy.contains("--i-know"), "{error}");
            assert!(traffic(vec![typed(kind)], true, false).is_ok());
        }
        assert_eq!(refusal(typed(&[8, 6])).map(|error| error.what), None);
        assert_eq!(refusal(typed(&[0x81, 0, 0, 5, 8, 6])).map(|error| error.what), None);
        // Incomplete addresses, and nothing but tags.
        let error = refusal(frame([198, 18, 0, 1], &[])[..33].to_vec()).unwrap();
        assert!(error.what.contains("ends within"), "{error}");
        assert!(refusal([&[0; 12][..], &[0x81, 0, 0, 1]].concat()).is_some());
    }

    #[test]
    fn sources_are_looked_at_as_well() {
        let from = from_to([8, 8, 8, 8], [198, 18, 0, 1], &[(0x88a8, 1), (0x8100, 2)]);
        let error = traffic(vec![from], false, true).err().unwrap();
        assert!(error.what.contains("source 8.8.8.8"), "{error}");
    }

    #[test]
    fn frames_that_no_port_takes_are_refused() {
        for bad in [vec![], vec![vec![0; 13]], vec![vec![0; MAX_LEN + 1]]] {
            assert!(traffic(bad, true, true).err().is_some_and(|error| error.usage));
        }
    }
}
