//! Ranges of addresses, and which of them tests may use without special permission.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use super::Error;

/// A range of addresses of one family, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first address, as a number.
    first: u128,
    /// The last address.
    last: u128,
    v6: bool,
}

/// Allowed destinations everywhere: the benchmark networks (RFC 2544, RFC 5180) and loopback.
const OPEN: [&str; 4] = ["198.18.0.0/15", "2001:2::/48", "127.0.0.0/8", "::1"];
/// Additional destinations in a separate network namespace: private networks and those of examples.
const PRIVATE: [&str; 8] = [
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "192.0.2.0/24",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "fc00::/7",
    "2001:db8::/32",
];

impl Range {
    /// The range of one address.
    #[must_use]
    pub fn one(address: IpAddr) -> Self {
        let (number, v6) = match address {
            IpAddr::V4(address) => (u128::from(address.to_bits()), false),
            IpAddr::V6(address) => (address.to_bits(), true),
        };
        Self { first: number, last: number, v6 }
    }

    /// Whether the range is IPv6.
    #[must_use]
    pub const fn is_v6(self) -> bool {
        self.v6
    }

    /// The number of addresses. Saturates at the largest number for all of IPv6.
    #[must_use]
    pub const fn count(self) -> u128 {
        (self.last - self.first).saturating_add(1)
    }

    /// The address with that number; a number that is too large wraps around.
    #[must_use]
    pub fn at(self, number: u128) -> IpAddr {
        let value = self.first + number % self.count();
        match self.v6 {
            true => Ipv6Addr::from_bits(value).into(),
            false => Ipv4Addr::from_bits(value as u32).into(),
        }
    }

    /// Whether the range contains all of `other`.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.v6 == other.v6 && self.first <= other.first && other.last <= self.last
    }

    fn network(address: IpAddr, length: u32) -> Option<Self> {
        let one = Self::one(address);
        let bits = if one.v6 { 128 } else { 32 };
        let host = u32::checked_sub(bits, length)?;
        let mask = 1_u128.checked_shl(host).map_or(u128::MAX, |high| high - 1);
        Some(Self { first: one.first & !mask, last: one.first | mask, v6: one.v6 })
    }
}

impl FromStr for Range {
    type Err = String;

    /// Parses ADDRESS, NETWORK/LENGTH or FIRST-LAST.
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is no address: write ADDRESS, NETWORK/LENGTH or FIRST-LAST");
        if let Some((network, length)) = text.split_once('/') {
            let (network, length) = (network.parse().ok(), length.parse().ok());
            return network.zip(length).and_then(|(n, l)| Self::network(n, l)).ok_or_else(bad);
        }
        let Some((first, last)) = text.split_once('-') else {
            return text.parse().map(Self::one).map_err(|_| bad());
        };
        let [first, last] = [first, last].map(|text| text.parse().map(Self::one).ok());
        let (Some(first), Some(last)) = (first, last) else { return Err(bad()) };
        let made = Self { first: first.first, last: last.first, v6: first.v6 };
        (first.v6 == last.v6 && made.first <= made.last).then_some(made).ok_or_else(bad)
    }
}

impl fmt::Display for Range {
    /// Writes FIRST-LAST, or the only ADDRESS.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = |value: u128| match self.v6 {
            true => IpAddr::from(Ipv6Addr::from_bits(value)),
            false => Ipv4Addr::from_bits(value as u32).into(),
        };
        write!(f, "{}", address(self.first))?;
        if self.first < self.last { write!(f, "-{}", address(self.last)) } else { Ok(()) }
    }
}

/// Refuses destinations that tests must not use. `own_namespace` says that this is a separate network
/// namespace.
///
/// # Errors
/// The range is not loopback, not for benchmarks, and not private where private networks are
/// allowed.
pub fn allow(range: Range, own_namespace: bool) -> Result<(), Error> {
    let among = |networks: &[&str]| {
        networks.iter().any(|network| network.parse().is_ok_and(|known: Range| known.has(range)))
    };
    if among(&OPEN) || (own_namespace && among(&PRIVATE)) {
        return Ok(());
    }
    let what = format!(
        "{range} is neither loopback nor of the networks for benchmarks, 198.18.0.0/15 and 2001:2::/48"
    );
    let what = match among(&PRIVATE) {
        true => format!("{what}, and this is not a network namespace of the test's own"),
        false => what,
    };
    Err(Error::usage(
        what,
        "Keep to these networks, or say --i-know if the address is yours to flood",
    ))
}

/// Like [`allow`], for source addresses, since answers go there.
///
/// # Errors
/// As for [`allow`].
pub fn allow_source(range: Range, own_namespace: bool) -> Result<(), Error> {
    allow(range, own_namespace)
        .map_err(|error| Error { what: format!("the source {}", error.what), ..error })
}

/// Whether this process is in another network namespace than process 1.
#[must_use]
pub fn has_own_namespace() -> bool {
    let namespace = |who: &str| std::fs::read_link(format!("/proc/{who}/ns/net"));
    match (namespace("1"), namespace("thread-self")) {
        (Ok(first), Ok(own)) => first != own,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> Range {
        text.parse().unwrap()
    }

    #[test]
    fn ranges_are_read_in_three_ways() {
        assert_eq!(range("198.18.0.2").count(), 1);
        assert_eq!(range("198.18.0.77/24").count(), 256);
        assert_eq!(range("198.18.0.77/24").at(257), "198.18.0.1".parse::<IpAddr>().unwrap());
        assert_eq!(range("198.18.0.5-198.18.1.4").count(), 256);
        assert_eq!(range("0.0.0.0/0").count(), 1 << 32);
        assert_eq!(range("2001:2::/48").count(), 1 << 80);
        assert_eq!(range("::/0").count(), u128::MAX);
        let last = range("2001:2::/48").at((1 << 80) - 1);
        assert_eq!(last, "2001:2:0:ffff:ffff:ffff:ffff:ffff".parse::<IpAddr>().unwrap());
        assert_eq!(range("2001:2::4-2001:2::5").at(3), "2001:2::5".parse::<IpAddr>().unwrap());
        for bad in
            ["", "198.18.0", "198.18.0.0/33", "::/129", "198.18.0.2-198.18.0.1", "1.1.1.1-::2"]
        {
            assert!(bad.parse::<Range>().is_err(), "{bad}");
        }
    }

    #[test]
    fn only_networks_for_tests_are_open() {
        for open in ["198.18.0.0/15", "198.19.255.255", "127.0.0.1", "::1", "2001:2:0:ffff::1"] {
            assert_eq!(allow(range(open), false), Ok(()), "{open}");
        }
        for closed in
            ["198.17.255.255-198.18.0.1", "198.20.0.0", "8.8.8.8", "2001:2:1::", "0.0.0.0/0"]
        {
            for own_namespace in [false, true] {
                let error = allow(range(closed), own_namespace).unwrap_err();
                assert!(error.usage && error.remedy.contains("--i-know"), "{error}");
            }
        }
        let error = allow(range("8.8.8.0/24"), true).unwrap_err();
        assert!(error.what.starts_with("8.8.8.0-8.8.8.255 is neither"), "{error}");
        assert!(allow(range("10.1.2.3"), false).unwrap_err().what.contains("namespace"));
        assert_eq!(allow(range("10.1.2.3"), true), Ok(()));
        assert_eq!(allow(range("fd00::/16"), true), Ok(()));
    }
}
