//! What redirects packets that come to an instance (`redirect_addr`, `redirect_port`, `redirect_proto`).

use std::net::Ipv4Addr;

use tollway_dataplane::wire::l4;

use super::names;
use super::words::{Word, Words, number};
use crate::ir::{AliasEnd, Redirect};
use crate::mistake::{SpannedFault, quoted, wrong};

/// A first port, and the number of ports.
type Ports = (u16, u16);

/// `redirect_addr LOCAL[,LOCAL] PUBLIC`.
pub(super) fn address(words: &mut Words<'_>) -> Result<Redirect, SpannedFault> {
    let word = words.need("the local address")?;
    let inside =
        word.text.split(',').map(|text| address_in(word, text)).collect::<Result<_, _>>()?;
    let public = address_of(words.need("the public address")?)?;
    Ok(Redirect::Address { inside, public })
}

/// `redirect_port PROTOCOL LOCAL:PORT[-PORT][,LOCAL:PORT] [PUBLIC:]PORT[-PORT] [REMOTE[:PORT[-PORT]]]`.
pub(super) fn port(words: &mut Words<'_>) -> Result<Redirect, SpannedFault> {
    let word = words.need("the protocol")?;
    let protocol = match word.text.as_str() {
        "tcp" => l4::TCP,
        "udp" => l4::UDP,
        "sctp" => {
            let what = "redirect_port does not know the ports of SCTP in Tollway";
            return wrong(&word.span, what, "write redirect_proto sctp, or redirect_addr");
        }
        text => {
            let what = format!("{} is no protocol with ports", quoted(text));
            return wrong(&word.span, what, "write tcp or udp");
        }
    };
    let word = words.need("the local address and port")?;
    let all = word.text.split(',').map(|text| end_in(word, text));
    let inside: Vec<_> = all.collect::<Result<_, _>>()?;
    let counts = inside.iter().map(|(_, count)| *count);
    let local = counts.max().unwrap_or(1);
    if inside.len() > 1 && local > 1 {
        let what = "several local addresses have a single port each";
        return wrong(&word.span, what, "write one port behind each");
    }
    let word = words.need("the public port")?;
    let (public, count) = match word.text.contains(':') {
        true => end_in(word, &word.text)?,
        false => {
            let (port, count) = ports_in(word, &word.text)?;
            (AliasEnd { address: 0, port }, count)
        }
    };
    if count != local {
        let what = format!("{count} public ports cannot go to {local} local ones");
        return wrong(&word.span, what, "write as many of both");
    }
    let remote = match next_address(words) {
        None => AliasEnd::default(),
        Some(word) if word.text.contains(':') => {
            let (remote, from) = end_in(word, &word.text)?;
            if from != count && remote.port != 0 {
                let what = format!("{from} remote ports cannot be for {count} public ones");
                return wrong(&word.span, what, "write as many of both, or 0 for any");
            }
            remote
        }
        Some(word) => AliasEnd { address: address_of(word)?, port: 0 },
    };
    let inside = inside.into_iter().map(|(end, _)| end).collect();
    Ok(Redirect::Port { protocol, inside, public, count, remote })
}

/// `redirect_proto PROTOCOL LOCAL [PUBLIC [REMOTE]]`.
pub(super) fn protocol(words: &mut Words<'_>) -> Result<Redirect, SpannedFault> {
    let word = words.need("the protocol")?;
    let protocol = match names::protocol(&word.text) {
        Some(l4::TCP | l4::UDP | l4::ICMP) => {
            let what = format!("redirect_proto is not for {}, which has ports", quoted(&word.text));
            return wrong(&word.span, what, "write redirect_port, or redirect_addr");
        }
        Some(protocol) => protocol,
        None => {
            let what = format!("{} is no protocol", quoted(&word.text));
            return wrong(&word.span, what, "write a name of /etc/protocols, or a number");
        }
    };
    let inside = address_of(words.need("the local address")?)?;
    let public = next_address(words).map_or(Ok(0), address_of)?;
    let remote = next_address(words).map_or(Ok(0), address_of)?;
    Ok(Redirect::Protocol { protocol, inside, public, remote })
}

/// The next word, if it is an address: the next option begins with a letter.
fn next_address<'a>(words: &mut Words<'a>) -> Option<&'a Word> {
    let is_address =
        words.peek().is_some_and(|text| text.starts_with(|first: char| first.is_ascii_digit()));
    if is_address { words.next() } else { None }
}

pub(super) fn address_of(word: &Word) -> Result<u32, SpannedFault> {
    address_in(word, &word.text)
}

fn address_in(word: &Word, text: &str) -> Result<u32, SpannedFault> {
    match parse(text) {
        Some(address) => Ok(address),
        None => wrong(
            &word.span,
            format!("{} is no address of IPv4", quoted(text)),
            "write an address, as 192.0.2.1",
        ),
    }
}

fn end_in(word: &Word, text: &str) -> Result<(AliasEnd, u16), SpannedFault> {
    let Some((address, ports)) = text.split_once(':') else {
        let what = format!("{} has no port", quoted(text));
        return wrong(&word.span, what, "write ADDRESS:PORT");
    };
    let address = address_in(word, address)?;
    let (port, count) = ports_in(word, ports)?;
    Ok((AliasEnd { address, port }, count))
}

fn ports_in(word: &Word, text: &str) -> Result<Ports, SpannedFault> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    // A service may have a hyphen in its name.
    let range = match port_of(text) {
        Some(port) => Some((port, port)),
        None => port_of(first).zip(port_of(last)),
    };
    match range.and_then(|(first, last)| Some((first, last.checked_sub(first)?.checked_add(1)?))) {
        Some(ports) => Ok(ports),
        None => wrong(
            &word.span,
            format!("{} is no port", quoted(text)),
            "write a port, or a range FIRST-LAST",
        ),
    }
}

/// A port by number or name.
pub(super) fn port_of(text: &str) -> Option<u16> {
    number(text, 65_535).map(|port| port as u16).or_else(|| names::port(text))
}

/// An address of IPv4.
fn parse(text: &str) -> Option<u32> {
    text.parse().ok().map(Ipv4Addr::to_bits)
}
