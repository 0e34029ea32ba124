//! Routes in the kernel's form.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tollway_dataplane::prefix::Prefix;

use crate::fib::Internet;

/// Number of gateways behind B.
pub(super) const GATEWAYS: usize = 16;

/// Prefixes of both families, each with one of the gateways.
pub(in crate::live) struct Table(Vec<String>);

/// Maps a route's number to its gateway's number.
type By = fn(usize) -> usize;

impl Table {
    /// `count` prefixes of an Internet table, IPv4 first.
    pub(in crate::live) fn new(internet: &Internet, count: usize) -> Self {
        let outside = internet.v4.iter().filter(|prefix| !is_own4(prefix.bits()));
        let v4 = outside.map(|prefix| text(*prefix, true));
        let v6 = internet.v6.iter().map(|prefix| text(*prefix, false));
        Self(v4.chain(v6).take(count).collect())
    }

    /// The number of prefixes.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Lines for `ip -batch` that apply a command to a range of routes.
    pub(super) fn lines(&self, range: std::ops::Range<usize>, verb: &str, by: By) -> String {
        let mut lines = String::new();
        let routes = self.0.iter().enumerate().take(range.end).skip(range.start);
        for (number, prefix) in routes {
            let via = gateway(by(number), !prefix.contains(':'));
            let _ = writeln!(lines, "route {verb} {prefix} via {via} proto bgp");
        }
        lines
    }
}

/// Whether an IPv4 address is in the routers' own networks, 10.0.0.0/8, which may be in a generated table.
pub(in crate::live) const fn is_own4(bits: u128) -> bool {
    bits >> 120 == 10
}

/// A gateway's address.
pub(super) fn gateway(number: usize, v4: bool) -> String {
    let host = 2 + number % GATEWAYS;
    if v4 { format!("10.2.0.{host}") } else { format!("fd00:2::{host:x}") }
}

fn text(prefix: Prefix, v4: bool) -> String {
    let address = match v4 {
        true => IpAddr::V4(Ipv4Addr::from_bits((prefix.bits() >> 96) as u32)),
        false => IpAddr::V6(Ipv6Addr::from_bits(prefix.bits())),
    };
    format!("{address}/{}", prefix.len())
}

/// Routes by prefix, with their gateways.
pub(super) type Routes = HashMap<String, String>;

/// Parses the output of `ip route show`: routes with a gateway.
pub(super) fn listed(text: &str) -> Routes {
    let route = |line: &str| {
        let mut words = line.split(' ');
        let dst = words.next()?;
        let via = words.skip_while(|word| *word != "via").nth(1)?;
        let dst = match (dst.contains('/'), dst.contains(':')) {
            _ if dst == "default" => return None,
            (true, _) => dst.to_owned(),
            (false, true) => format!("{dst}/128"),
            (false, false) => format!("{dst}/32"),
        };
        Some((dst, via.to_owned()))
    };
    text.lines().filter_map(route).collect()
}

/// A message, if Tollway's routes differ from the kernel's.
pub(super) fn compare(kernel: &Routes, tollway: &Routes) -> Result<(), String> {
    let missing = kernel.iter().find(|(dst, via)| tollway.get(*dst) != Some(*via));
    let odd = tollway.keys().find(|dst| !kernel.contains_key(*dst));
    match (missing, odd) {
        (None, None) => Ok(()),
        (Some((dst, via)), _) => Err(format!(
            "the kernel has {} routes, Tollway {}: {dst} is via {via} there, and here {:?}",
            kernel.len(),
            tollway.len(),
            tollway.get(dst)
        )),
        (None, Some(dst)) => Err(format!("Tollway has a route to {dst}, the kernel has none")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_as_ip_reads_them() {
        let internet = Internet {
            v4: vec![Prefix::v4(0x0102_0300, 24), Prefix::v4(0x0808_0808, 32)],
            v6: vec![Prefix::v6(0x2001_0db8 << 96, 32)],
            source: String::new(),
        };
        let table = Table::new(&internet, 3);
        assert_eq!(
            table.lines(1..3, "add", |number| number),
            "route add 8.8.8.8/32 via 10.2.0.3 proto bgp\nroute add 2001:db8::/32 via fd00:2::4 proto bgp\n"
        );
        assert_eq!(Table::new(&internet, 2).len(), 2);
    }

    #[test]
    fn differences_are_named() {
        let list = "1.2.3.0/24 via 10.2.0.2 dev r1 proto bgp \n8.8.8.8 via 10.2.0.3 dev r1 \n\
                    10.2.0.0/24 dev r1 proto kernel scope link src 10.2.0.1 \n\
                    2001:db8::/32 via fd00:2::4 dev r1 proto bgp metric 1024 pref medium\n";
        let kernel = listed(list);
        assert_eq!(kernel.len(), 3);
        assert_eq!(kernel["8.8.8.8/32"], "10.2.0.3");
        assert_eq!(kernel["2001:db8::/32"], "fd00:2::4");
        let mut ours = kernel.clone();
        assert_eq!(compare(&kernel, &ours), Ok(()));
        ours.insert("9.0.0.0/8".to_owned(), "10.2.0.2".to_owned());
        assert!(compare(&kernel, &ours).unwrap_err().contains("9.0.0.0/8"));
        ours.insert("8.8.8.8/32".to_owned(), "10.2.0.9".to_owned());
        assert!(compare(&kernel, &ours).unwrap_err().contains("8.8.8.8/32 is via 10.2.0.3"));
    }
}
