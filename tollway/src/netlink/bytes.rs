//! Messages and attributes in the bytes of a datagram. Whatever is broken ends the reading there.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Length of a message's header.
const HEADER: usize = 16;
/// What of an attribute's type are flags: nested, and of network byte order.
const TYPE_FLAGS: u16 = 0xc000;

/// A message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message<'a> {
    /// `RTM_*`, `NLMSG_*`.
    pub(crate) kind: u16,
    /// `NLM_F_*`.
    pub(crate) flags: u16,
    /// Which question it answers.
    pub(crate) sequence: u32,
    /// What follows the header.
    pub(crate) body: &'a [u8],
    /// All of it.
    pub(crate) whole: &'a [u8],
}

impl<'a> Message<'a> {
    /// The first message of a datagram, and what follows it.
    pub(crate) fn cut(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let len = usize::try_from(u32_at(bytes, 0)?).ok()?;
        let whole = bytes.get(..len)?;
        let message = Self {
            kind: u16_at(whole, 4)?,
            flags: u16_at(whole, 6)?,
            sequence: u32_at(whole, 8)?,
            body: whole.get(HEADER..)?,
            whole,
        };
        Some((message, bytes.get(len.next_multiple_of(4)..).unwrap_or_default()))
    }

    /// The error that an `NLMSG_ERROR` or `NLMSG_DONE` tells; none for a success.
    pub(crate) fn error(&self) -> Option<std::io::Error> {
        let code = i32::from_ne_bytes(*self.body.first_chunk()?);
        (code != 0).then(|| std::io::Error::from_raw_os_error(code.saturating_neg()))
    }
}

/// An attribute.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attribute<'a> {
    /// Its type, without flags.
    pub(crate) kind: u16,
    /// What it says.
    pub(crate) value: &'a [u8],
}

impl<'a> Attribute<'a> {
    pub(crate) fn u8(&self) -> Option<u8> {
        self.value.first().copied()
    }

    pub(crate) fn u16(&self) -> Option<u16> {
        u16_at(self.value, 0)
    }

    pub(crate) fn u32(&self) -> Option<u32> {
        u32_at(self.value, 0)
    }

    /// Text that ends with a zero.
    pub(crate) fn text(&self) -> String {
        let end = self.value.iter().position(|byte| *byte == 0).unwrap_or(self.value.len());
        String::from_utf8_lossy(self.value.get(..end).unwrap_or_default()).into_owned()
    }

    /// An address, of whichever family has such long ones.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        address(self.value)
    }

    /// The attributes within.
    pub(crate) fn nested(&self) -> impl Iterator<Item = Attribute<'a>> + use<'a> {
        attributes(self.value, 0)
    }
}

/// An address, of whichever family has such long ones.
pub(crate) fn address(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(bytes) {
        return Some(Ipv4Addr::from(v4).into());
    }
    <[u8; 16]>::try_from(bytes).ok().map(|v6| Ipv6Addr::from(v6).into())
}

/// The attributes behind the first `skip` bytes.
pub(crate) fn attributes(bytes: &[u8], skip: usize) -> impl Iterator<Item = Attribute<'_>> {
    let mut rest = bytes.get(skip..).unwrap_or_default();
    std::iter::from_fn(move || {
        let len = usize::from(u16_at(rest, 0)?);
        let attribute =
            Attribute { kind: u16_at(rest, 2)? & !TYPE_FLAGS, value: rest.get(4..len)? };
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(attribute)
    })
}

/// A record of a length of its own at the front (`struct rtnexthop`), and what follows it.
pub(crate) fn record(bytes: &[u8], least: usize) -> Option<(&[u8], &[u8])> {
    let len = usize::from(u16_at(bytes, 0)?).max(least);
    let record = bytes.get(..len)?;
    Some((record, bytes.get(len.next_multiple_of(4)..).unwrap_or_default()))
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|chunk| u16::from_ne_bytes(*chunk))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|chunk| u32::from_ne_bytes(*chunk))
}
