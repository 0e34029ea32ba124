//! Reads and writes messages and attributes as bytes. Reading ends at the first malformed one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Length of a message's header.
const HEADER: usize = 16;
/// Length of an attribute's header.
const ATTRIBUTE: usize = 4;
/// `NLM_F_REQUEST`.
const REQUEST: u16 = 1;
/// The flags in an attribute's type: nested, and network byte order.
const TYPE_FLAGS: u16 = 0xc000;

/// A message.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// `RTM_*`, `NLMSG_*`.
    pub kind: u16,
    /// `NLM_F_*`.
    pub flags: u16,
    /// The number of the request that it answers.
    pub sequence: u32,
    /// The port of the socket that it answers, or whose request caused it (`nlmsg_pid`).
    pub port: u32,
    /// What follows the header.
    pub body: &'a [u8],
}

impl<'a> Message<'a> {
    /// The first message of a datagram, and the rest.
    pub fn cut(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let len = usize::try_from(u32_at(bytes, 0)?).ok()?;
        let whole = bytes.get(..len)?;
        let message = Self {
            kind: u16_at(whole, 4)?,
            flags: u16_at(whole, 6)?,
            sequence: u32_at(whole, 8)?,
            port: u32_at(whole, 12)?,
            body: whole.get(HEADER..)?,
        };
        Some((message, bytes.get(len.next_multiple_of(4)..).unwrap_or_default()))
    }

    /// The error in an `NLMSG_ERROR` or `NLMSG_DONE`; none for success.
    pub fn error(&self) -> Option<std::io::Error> {
        let code = i32::from_ne_bytes(*self.body.first_chunk()?);
        (code != 0).then(|| std::io::Error::from_raw_os_error(code.saturating_neg()))
    }
}

/// An attribute.
#[derive(Clone, Copy, Debug)]
pub struct Attribute<'a> {
    /// Its type, without flags.
    pub kind: u16,
    /// Its content.
    pub value: &'a [u8],
}

impl<'a> Attribute<'a> {
    /// The value, if it is a number of 8 bits.
    pub fn u8(&self) -> Option<u8> {
        self.value.first().copied()
    }

    /// The value, if it is a number of 16 bits.
    pub fn u16(&self) -> Option<u16> {
        u16_at(self.value, 0)
    }

    /// The value, if it is a number of 32 bits.
    pub fn u32(&self) -> Option<u32> {
        u32_at(self.value, 0)
    }

    /// The value as text that ends with a zero.
    pub fn text(&self) -> String {
        let end = self.value.iter().position(|byte| *byte == 0).unwrap_or(self.value.len());
        String::from_utf8_lossy(self.value.get(..end).unwrap_or_default()).into_owned()
    }

    /// The value as an address, of the family whose addresses have this length.
    pub fn address(&self) -> Option<IpAddr> {
        address(self.value)
    }

    /// The attributes nested in the value.
    pub fn nested(&self) -> impl Iterator<Item = Attribute<'a>> + use<'a> {
        attributes(self.value, 0)
    }
}

/// A request to the kernel, as bytes: `kind`, `NLM_F_*` flags beside `NLM_F_REQUEST`, sequence number, and
/// what follows the header.
pub fn request(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
    let len = HEADER + body.len();
    let mut message = Vec::with_capacity(len);
    message.extend((len as u32).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend((flags | REQUEST).to_ne_bytes());
    message.extend(sequence.to_ne_bytes());
    // The sender's port: the kernel knows it.
    message.extend([0; 4]);
    message.extend(body);
    message
}

/// Appends an attribute.
pub fn push(message: &mut Vec<u8>, kind: u16, value: &[u8]) {
    message.extend(((ATTRIBUTE + value.len()) as u16).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(value);
    message.resize(message.len().next_multiple_of(4), 0);
}

/// An address, of the family whose addresses have this length.
pub fn address(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(bytes) {
        return Some(Ipv4Addr::from(v4).into());
    }
    <[u8; 16]>::try_from(bytes).ok().map(|v6| Ipv6Addr::from(v6).into())
}

/// The attributes after the first `skip` bytes.
pub fn attributes(bytes: &[u8], skip: usize) -> impl Iterator<Item = Attribute<'_>> {
    let mut rest = bytes.get(skip..).unwrap_or_default();
    std::iter::from_fn(move || {
        let len = usize::from(u16_at(rest, 0)?);
        let attribute =
            Attribute { kind: u16_at(rest, 2)? & !TYPE_FLAGS, value: rest.get(ATTRIBUTE..len)? };
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(attribute)
    })
}

/// The first attribute of a kind after the first `skip` bytes.
pub fn find(bytes: &[u8], skip: usize, kind: u16) -> Option<Attribute<'_>> {
    attributes(bytes, skip).find(|attribute| attribute.kind == kind)
}

/// A record that begins with its own length (`struct rtnexthop`), and the rest.
pub fn record(bytes: &[u8], least: usize) -> Option<(&[u8], &[u8])> {
    let len = usize::from(u16_at(bytes, 0)?).max(least);
    let record = bytes.get(..len)?;
    Some((record, bytes.get(len.next_multiple_of(4)..).unwrap_or_default()))
}

pub fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|chunk| u16::from_ne_bytes(*chunk))
}

pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|chunk| u32::from_ne_bytes(*chunk))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The attributes as kind and value.
    fn all(bytes: &[u8]) -> Vec<(u16, &[u8])> {
        attributes(bytes, 0).map(|attribute| (attribute.kind, attribute.value)).collect()
    }

    #[test]
    fn a_request_is_read_as_it_was_written() {
        let mut bytes = request(18, 0x300, 7, &[1, 2, 3, 4]);
        bytes.extend(request(20, 0, 8, &[]));
        let (first, rest) = Message::cut(&bytes).unwrap();
        assert_eq!((first.kind, first.flags, first.sequence), (18, 0x301, 7));
        assert_eq!(first.body, &[1, 2, 3, 4]);
        let (second, rest) = Message::cut(rest).unwrap();
        assert_eq!((second.kind, second.flags, second.sequence), (20, 1, 8));
        assert!(second.body.is_empty() && rest.is_empty());
        (0..20).for_each(|end| assert!(Message::cut(&bytes[..end]).is_none(), "{end}"));
    }

    #[test]
    fn attributes_that_are_cut_short_end_the_list() {
        let mut bytes = vec![9];
        push(&mut bytes, 3, &[1, 2]);
        assert_eq!(bytes.len(), 8, "with its padding");
        let mut bytes = Vec::new();
        push(&mut bytes, 3, &[1, 2]);
        push(&mut bytes, 4 | 0x8000, &[]);
        assert_eq!(all(&bytes), [(3, &[1, 2][..]), (4, &[][..])]);
        assert_eq!(find(&bytes, 0, 3).unwrap().u16(), Some(u16::from_ne_bytes([1, 2])));
        assert!(find(&bytes, 8, 3).is_none());
        assert!(find(&bytes, 8, 4).is_some(), "the upper bits are no part of it");
        (0..6).for_each(|end| assert!(all(&bytes[..end]).is_empty(), "{end}"));
        (6..12).for_each(|end| assert_eq!(all(&bytes[..end]).len(), 1, "{end}"));
        assert!(all(&[0; 8]).is_empty(), "a length of nothing");
    }
}
