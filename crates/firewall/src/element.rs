//! Elements of sets of addresses in text form.

use std::net::IpAddr;

use ipnet::IpNet;
use tollway_dataplane::stages::filter::Element;

/// Why a text is no element of a set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ElementError {
    /// It is no address, prefix or range.
    #[error("{0:?} is no address, prefix or range; write 192.0.2.1 or 192.0.2.0/24")]
    Syntax(String),
    /// The second address of a range is not above the first, or is of the other family.
    #[error("{0:?} ends before it begins; write the lower address first")]
    Reversed(String),
    /// A prefix has bits behind its length.
    #[error("{text:?} has host bits; write {net}, or the address alone")]
    HostBits {
        /// The text.
        text: String,
        /// The prefix without these bits.
        net: IpNet,
    },
}

/// Parses an address, a prefix or a range (`10.0.0.1-10.0.0.9`). Returns its version of IP too.
///
/// # Errors
/// See [`ElementError`].
pub fn read(text: &str) -> Result<(u8, Element), ElementError> {
    let syntax = || ElementError::Syntax(text.to_owned());
    if let Some((first, last)) = text.split_once('-') {
        let (first, last) = (first.trim().parse::<IpAddr>(), last.trim().parse::<IpAddr>());
        let (Ok(first), Ok(last)) = (first, last) else { return Err(syntax()) };
        if first.is_ipv4() != last.is_ipv4() || first > last {
            return Err(ElementError::Reversed(text.to_owned()));
        }
        return Ok((version(first), (number(first), number(last))));
    }
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok((version(address), (number(address), number(address))));
    }
    let net: IpNet = text.parse().map_err(|_| syntax())?;
    if net.addr() != net.network() {
        return Err(ElementError::HostBits { text: text.to_owned(), net: net.trunc() });
    }
    Ok((version(net.addr()), (number(net.network()), number(net.broadcast()))))
}

const fn version(address: IpAddr) -> u8 {
    if address.is_ipv4() { 4 } else { 6 }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_bits().into(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_prefixes_and_ranges_are_read() {
        assert_eq!(read("192.0.2.1"), Ok((4, (0xc000_0201, 0xc000_0201))));
        assert_eq!(read("192.0.2.0/30"), Ok((4, (0xc000_0200, 0xc000_0203))));
        assert_eq!(read("192.0.2.1-192.0.2.9"), Ok((4, (0xc000_0201, 0xc000_0209))));
        assert_eq!(read("::/0"), Ok((6, (0, u128::MAX))));
        assert_eq!(read("::1-::2"), Ok((6, (1, 2))));
    }

    #[test]
    fn mistakes_are_reported() {
        for (text, part) in [
            ("hello", "is no address"),
            ("10.0.0.0/33", "is no address"),
            ("10.0.0.1-", "is no address"),
            ("10.0.0.1/24", "write 10.0.0.0/24"),
            ("10.0.0.9-10.0.0.1", "ends before"),
            ("10.0.0.9-::1", "ends before"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
