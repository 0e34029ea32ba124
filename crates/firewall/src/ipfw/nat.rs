//! Instances that translate addresses: `nat N config`.

use super::redirects;
use super::words::Words;
use crate::ir::{AliasConfig, Unregistered};
use crate::mistake::{Span, SpannedFault, quoted, wrong};

/// The highest number of an instance.
pub(super) const MOST: u32 = 65_534;

/// A configured instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Nat {
    pub(super) span: Span,
    pub(super) line: usize,
    pub(super) config: AliasConfig,
    /// The link that it takes its address from.
    pub(super) link: Option<String>,
}

/// Parses what follows `nat`, and changes the instances.
pub(super) fn command(
    nats: &mut Vec<Nat>,
    words: &mut Words<'_>,
    line: usize,
) -> Result<(), SpannedFault> {
    if matches!(words.peek(), Some("show" | "list")) {
        return Ok(());
    }
    if words.take("delete") {
        let number = instance(words)?;
        nats.retain(|nat| nat.config.number != number);
        return Ok(());
    }
    let span = words.place();
    let number = instance(words)?;
    let word = words.need("config")?;
    match word.text.as_str() {
        "config" => {}
        "show" => return Ok(()),
        "delete" => {
            nats.retain(|nat| nat.config.number != number);
            return Ok(());
        }
        text => {
            let what = format!("{} is no command for nat here", quoted(text));
            return wrong(&word.span, what, "write config and the instance's options");
        }
    }
    let nat = config(words, number, (span, line))?;
    // As in FreeBSD, the new one comes to another place (`nat44_config`).
    nats.retain(|nat| nat.config.number != number);
    nats.push(nat);
    Ok(())
}

/// Parses the number of an instance.
pub(super) fn instance(words: &mut Words<'_>) -> Result<u16, SpannedFault> {
    let place = words.place();
    match words.number("number of a nat instance", MOST)? {
        0 => wrong(&place, "0 is no number of a nat instance", format!("write 1 to {MOST}")),
        number => Ok(number as u16),
    }
}

fn config(
    words: &mut Words<'_>,
    number: u16,
    (span, line): (Span, usize),
) -> Result<Nat, SpannedFault> {
    let mut config = AliasConfig { number, ..AliasConfig::default() };
    let mut link = None;
    while let Some(word) = words.next() {
        match word.text.as_str() {
            "ip" => {
                config.address = given_address(words)?;
                link = None;
            }
            "if" => {
                link = Some(words.need("the link")?.text.clone());
                config.address = 0;
            }
            // Mappings of an instance with another address are gone anyway, and `show connections` lists all.
            "reset" | "log" => {}
            "deny_in" => config.deny_in = true,
            "same_ports" => config.same_ports = true,
            "unreg_only" if config.unregistered == Unregistered::All => {
                config.unregistered = Unregistered::Private;
            }
            "unreg_only" => {}
            "unreg_cgn" => config.unregistered = Unregistered::PrivateOrShared,
            "reverse" => config.reverse = true,
            "skip_global" => config.skip_global = true,
            "port_range" => config.ports = Some(port_range(words)?),
            "redirect_addr" => config.redirects.push(redirects::address(words)?),
            "redirect_port" => config.redirects.push(redirects::port(words)?),
            "redirect_proto" => config.redirects.push(redirects::protocol(words)?),
            "proxy_only" => {
                return wrong(
                    &word.span,
                    "proxy_only is for proxies on the router, which Tollway does not support",
                    "leave it out",
                );
            }
            text => {
                return wrong(
                    &word.span,
                    format!("{} is no option of nat that Tollway supports", quoted(text)),
                    "write ip, if, deny_in, same_ports, redirect_port or another of ipfw(8)",
                );
            }
        }
    }
    if config.address == 0 && link.is_none() {
        return wrong(&span, "the instance has no address", "write ip ADDRESS, or if LINK");
    }
    Ok(Nat { span, line, config, link })
}

fn given_address(words: &mut Words<'_>) -> Result<u32, SpannedFault> {
    let place = words.place();
    match redirects::address_of(words.need("the address")?)? {
        0 => wrong(&place, "0.0.0.0 is no address to translate to", "write an address"),
        address => Ok(address),
    }
}

fn port_range(words: &mut Words<'_>) -> Result<(u16, u16), SpannedFault> {
    let word = words.need("the range of ports")?;
    let range = word.text.split_once('-');
    let range = range
        .and_then(|(first, last)| Some((redirects::port_of(first)?, redirects::port_of(last)?)));
    match range {
        Some((first, last)) if 0 < first && first <= last => Ok((first, last)),
        _ => wrong(
            &word.span,
            format!("{} is no range of ports", quoted(&word.text)),
            "write FIRST-LAST, as 40000-50000",
        ),
    }
}
