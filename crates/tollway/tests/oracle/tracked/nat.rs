//! Rules that translate a conversation, and what each side then knows the other one by.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::dice::Dice;
use crate::net;

/// Rules at hooks prerouting and postrouting, as statements of nftables, and as lines of iptables for IPv4.
#[derive(Default)]
pub struct NatRules {
    pub nft: [Vec<String>; 2],
    pub iptables: [Vec<String>; 2],
    /// Servers of these conversations.
    pub servers: Vec<(bool, String)>,
}

/// A side: its device, address and port.
type Side = (usize, u128, u16);

fn text(is_six: bool, address: u128) -> String {
    match is_six {
        true => Ipv6Addr::from(address).to_string(),
        false => Ipv4Addr::from(address as u32).to_string(),
    }
}

/// An address with a port behind it.
fn socket(is_six: bool, address: &str, port: Option<u16>) -> String {
    match port {
        Some(port) if is_six => format!("[{address}]:{port}"),
        Some(port) => format!("{address}:{port}"),
        None => address.to_owned(),
    }
}

/// Adds rules for a conversation of a client and a server. Returns address and port by which the other side knows each.
pub fn draw(
    dice: &mut Dice,
    (is_six, protocol): (bool, u8),
    [client, server]: [Side; 2],
    rules: &mut NatRules,
) -> [(u128, u16); 2] {
    let family = if is_six { "ip6" } else { "ip" };
    let has_ports = matches!(protocol, 6 | 17);
    let own = |device: usize| match is_six {
        true => u128::from(net::address6(device)),
        false => u32::from(net::address4(device)).into(),
    };
    let other = |first: u16| match is_six {
        true => u128::from(Ipv6Addr::new(0xfd00, first, 0, 0, 0, 0, 0, 0)) + (client.1 & 0xffff),
        false => u128::from(u32::from(Ipv4Addr::new(172, first as u8, 0, 0))) + (client.1 & 0xffff),
    };
    let (client_text, server_text) = (text(is_six, client.1), text(is_six, server.1));
    let mut seen = [(client.1, client.2), (server.1, server.2)];
    if !dice.one_in(3) {
        let from = if dice.one_in(3) { own(client.0) } else { other(16) };
        let port = if has_ports && dice.one_in(3) { server.2 + 1000 } else { server.2 };
        let to = socket(is_six, &server_text, (port != server.2).then_some(server.2));
        let from_text = text(is_six, from);
        let (ports, dport) = match has_ports {
            true => (format!("th dport {port} "), format!(" --dport {port}")),
            false => Default::default(),
        };
        rules.nft[0].push(format!(
            "{family} saddr {client_text} {family} daddr {from_text} meta l4proto {protocol} {ports}dnat {family} to {to}"
        ));
        if !is_six {
            rules.iptables[0].push(format!(
                "-A PREROUTING -s {client_text} -d {from_text} -p {protocol}{dport} -j DNAT --to-destination {to}"
            ));
        }
        seen[1] = (from, port);
    }
    rules.servers.push((is_six, server_text.clone()));
    let is_one = format!("{family} saddr {client_text} meta l4proto {protocol}");
    let line = format!("-A POSTROUTING -s {client_text} -p {protocol}");
    let (statement, target, address, port) = match dice.below(8) {
        0 | 1 => return seen,
        2 | 3 => ("masquerade".to_owned(), "MASQUERADE".to_owned(), own(server.0), client.2),
        4 if has_ports => {
            let address = text(is_six, other(17));
            let to = socket(is_six, &address, Some(7777));
            (format!("snat {family} to {to}"), format!("SNAT --to-source {to}"), other(17), 7777)
        }
        5 => {
            // Which one it is, a hash decides.
            let (first, last) = (other(18), other(18) + 9);
            let both = format!("{}-{}", text(is_six, first), text(is_six, last));
            let persistent = if dice.one_in(2) { " persistent" } else { "" };
            let option = if persistent.is_empty() { "" } else { " --persistent" };
            (
                format!("snat {family} to {both}{persistent}"),
                format!("SNAT --to-source {both}{option}"),
                first + dice.below(10) as u128,
                client.2,
            )
        }
        _ => {
            let address = text(is_six, other(17));
            (
                format!("snat {family} to {address}"),
                format!("SNAT --to-source {address}"),
                other(17),
                client.2,
            )
        }
    };
    rules.nft[1].push(format!("{is_one} {statement}"));
    if !is_six {
        rules.iptables[1].push(format!("{line} -j {target}"));
    }
    seen[0] = (address, port);
    seen
}
