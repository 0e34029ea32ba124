//! Checks of single values: names, Ethernet addresses, IP addresses and prefixes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::nearest::nearest;
use tollway_firewall::mistake::{Fault, quoted};
use tollway_net::Mac;

/// The kernel's IFNAMSIZ without the final zero.
const NAME_LIMIT: usize = 15;

/// Looks up a word in a fixed list; returns its value.
pub(super) fn choice<T: Copy>(what: &str, text: &str, table: &[(&str, T)]) -> Result<T, Fault> {
    if let Some((_, value)) = table.iter().find(|(name, _)| *name == text) {
        return Ok(*value);
    }
    let names: Vec<&str> = table.iter().map(|(name, _)| *name).collect();
    let remedy = match nearest(text, &names) {
        Some(name) => format!("did you mean {name}?"),
        None => format!("write one of {}", names.join(", ")),
    };
    Fault::err(format!("{} is not a known {what}", quoted(text)), remedy)
}

/// Checks a name as the kernel's `dev_valid_name` does, and refuses names that are patterns or
/// unreadable.
pub(super) fn device_name(what: &str, name: &str) -> Result<(), Fault> {
    let bad = |why: &str, remedy: &str| {
        Fault::err(format!("the {what} name {} {why}", quoted(name)), remedy)
    };
    if name.is_empty() {
        return bad("is empty", "give it 1 to 15 bytes");
    }
    if name.len() > NAME_LIMIT {
        return bad(&format!("has {} bytes", name.len()), "shorten it to 15 bytes");
    }
    if name == "." || name == ".." {
        return bad("is a directory's", "choose another");
    }
    let forbidden = |b: u8| {
        // The kernel takes 0xa0 for white space even inside a UTF-8 character.
        matches!(b, b'/' | b':' | b'%' | b' ' | 0xa0) || b.is_ascii_control()
    };
    if name.bytes().any(forbidden) {
        return bad(
            "holds a character that the kernel refuses in device names",
            "leave out '/', ':', '%', white space and control characters",
        );
    }
    Ok(())
}

/// Reads an Ethernet address of a single station.
pub(super) fn mac(text: &str) -> Result<Mac, Fault> {
    let remedy = "write six pairs of hexadecimal digits, as 02:00:00:00:00:01";
    let Some(Mac(octets)) = Mac::parse(text) else {
        return Fault::err(format!("{} is not an Ethernet address", quoted(text)), remedy);
    };
    if octets == [0; 6] {
        return Fault::err("the Ethernet address is all zero", "give a station's own address");
    }
    if octets[0] & 1 == 1 {
        return Fault::err(
            format!("{text} is a multicast Ethernet address"),
            "give a station's own address: the second digit must be even",
        );
    }
    Ok(Mac(octets))
}

/// Derives an Ethernet address from a port's name: locally administered, and the same on every
/// start.
pub(super) fn derived_mac(name: &str) -> Mac {
    let fnv = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let [a, b, c, d, e, ..] = (fnv ^ (fnv >> 24)).to_le_bytes();
    Mac([0x02, a, b, c, d, e])
}

/// Reads an address with its prefix length, as for a link.
pub(super) fn interface_address(text: &str) -> Result<IpNet, Fault> {
    let net = match text.parse::<IpNet>() {
        Ok(net) => net,
        Err(_) => {
            return Err(bad_prefix(
                text,
                "an address with a prefix length",
                "192.0.2.1/24 or 2001:db8::1/64",
            ));
        }
    };
    if let Some(kind) = never_unicast(net.addr()) {
        return Fault::err(
            format!("{} is {kind}, which no link can have", net.addr()),
            "give a unicast address",
        );
    }
    if net.prefix_len() == 0 {
        return Fault::err(
            format!("{net} makes every address a neighbour"),
            "give the prefix length of the link's subnet",
        );
    }
    match edge(&net, net.addr()) {
        Some(kind) => Fault::err(
            format!("{} is the {kind} address of {}", net.addr(), net.trunc()),
            "give one of the addresses between the first and the last",
        ),
        None => Ok(net),
    }
}

/// Says whether an address is the network or broadcast address of an IPv4 subnet, which no host can
/// have. A /31 or /32 has none (RFC 3021).
pub(super) fn edge(net: &IpNet, address: IpAddr) -> Option<&'static str> {
    if !address.is_ipv4() || net.prefix_len() > 30 {
        None
    } else if address == net.network() {
        Some("network")
    } else if address == net.broadcast() {
        Some("broadcast")
    } else {
        None
    }
}

/// Reads the address of a neighbour or next hop.
pub(super) fn host_address(what: &str, text: &str) -> Result<IpAddr, Fault> {
    let Ok(address) = text.parse::<IpAddr>() else {
        return Err(match text.parse::<IpNet>() {
            Ok(net) => Fault::new(
                format!("{what} is {}, a prefix", quoted(text)),
                format!("write the address alone: \"{}\"", net.addr()),
            ),
            Err(_) => Fault::new(
                format!("{what} is {}, not an IP address", quoted(text)),
                "write an address such as 192.0.2.1 or 2001:db8::1",
            ),
        });
    };
    match never_unicast(address) {
        Some(kind) => Fault::err(
            format!("{what} {address} is {kind}"),
            "give the unicast address of a station on the link",
        ),
        None => Ok(address),
    }
}

/// Reads the destination of a route.
pub(super) fn destination(text: &str) -> Result<IpNet, Fault> {
    let net = match text.parse::<IpNet>() {
        Ok(net) => net,
        Err(_) => return Err(bad_prefix(text, "a prefix", "192.0.2.0/24 or 2001:db8::/64")),
    };
    if net != net.trunc() {
        return Fault::err(
            format!("{net} has host bits set"),
            format!(
                "write \"{}\", or \"{}\" for that one host",
                net.trunc(),
                IpNet::from(net.addr())
            ),
        );
    }
    Ok(net)
}

fn bad_prefix(text: &str, wanted: &str, example: &str) -> Fault {
    let what = format!("{} is not {wanted}", quoted(text));
    let (address, length) = match text.split_once('/') {
        Some((address, length)) => (address, Some(length)),
        None => (text, None),
    };
    let remedy = match (address.parse::<IpAddr>(), length) {
        (Ok(address), None) => {
            format!("add the prefix length, as \"{address}/{}\"", usual_length(address))
        }
        (Ok(IpAddr::V4(_)), Some(_)) => "give a prefix length from 0 to 32".to_owned(),
        (Ok(IpAddr::V6(_)), Some(_)) => "give a prefix length from 0 to 128".to_owned(),
        (Err(_), _) => format!("write {wanted}, as {example}"),
    };
    Fault::new(what, remedy)
}

fn usual_length(address: IpAddr) -> u8 {
    if address.is_ipv4() { 24 } else { 64 }
}

/// Says why an address does not identify a single station, if it does not.
pub(super) fn never_unicast(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(v4) => never_unicast_v4(v4),
        IpAddr::V6(v6) => never_unicast_v6(v6),
    }
}

fn never_unicast_v4(address: Ipv4Addr) -> Option<&'static str> {
    match address.octets()[0] {
        _ if address.is_unspecified() => Some("the unspecified address"),
        0 => Some("an address of \"this network\" (0.0.0.0/8)"),
        127 => Some("a loopback address"),
        224..=239 => Some("a multicast address"),
        240..=255 => Some("a reserved address (240.0.0.0/4)"),
        _ => None,
    }
}

fn never_unicast_v6(address: Ipv6Addr) -> Option<&'static str> {
    if address.is_unspecified() {
        Some("the unspecified address")
    } else if address.is_loopback() {
        Some("a loopback address")
    } else if address.is_multicast() {
        Some("a multicast address")
    } else if address.to_ipv4_mapped().is_some() {
        Some("an IPv4-mapped address")
    } else {
        None
    }
}

/// Whether an address is meaningful only together with its link.
pub(super) fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// Says why packets for a prefix are never forwarded, if that holds for the whole prefix.
pub(super) fn never_forwarded(net: &IpNet) -> Option<&'static str> {
    let (first, last) = (net.network(), net.broadcast());
    if net.prefix_len() == 0 {
        return None;
    }
    let whole = |v4: u8, v6: u8| net.prefix_len() >= if first.is_ipv4() { v4 } else { v6 };
    if first.is_multicast() && whole(4, 8) {
        Some("multicast addresses")
    } else if first.is_loopback() && last.is_loopback() {
        Some("loopback addresses")
    } else if is_link_local(first) && is_link_local(last) {
        Some("link-local addresses")
    } else if matches!(first, IpAddr::V4(v4) if v4.octets()[0] == 0) && whole(8, 129) {
        Some("\"this network\" (0.0.0.0/8)")
    } else if matches!(first, IpAddr::V4(v4) if v4.is_broadcast()) {
        Some("the limited broadcast address")
    } else {
        None
    }
}
