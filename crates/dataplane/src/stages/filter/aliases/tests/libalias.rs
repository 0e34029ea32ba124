//! A plain model of libalias: one list of links, the newest first, searched as `_FindLinkIn` and `_FindLinkOut` do.

use super::super::{AliasConfig, AliasEnd, Redirect};
use crate::wire::l4;

/// A port that stands for none (`NO_SRC_PORT`, `NO_DEST_PORT`).
const NO_PORT: u16 = 1;

/// What a link is for: a protocol, or addresses alone.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Type {
    Protocol(u8),
    Address,
}

/// A link; an address or a port of 0 of the destination is any.
#[derive(Clone, Debug)]
struct Link {
    of: Type,
    source: AliasEnd,
    destination: AliasEnd,
    alias: AliasEnd,
    is_permanent: bool,
    /// The servers, and whose turn it is.
    servers: (Vec<AliasEnd>, usize),
}

/// An instance.
pub(super) struct LibAlias {
    config: AliasConfig,
    links: Vec<Link>,
}

/// A packet with ports, a query of ICMP, or one without ports.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet {
    pub(super) protocol: u8,
    pub(super) source: AliasEnd,
    pub(super) destination: AliasEnd,
}

const fn end(address: u32, port: u16) -> AliasEnd {
    AliasEnd { address, port }
}

const NONE: AliasEnd = end(0, 0);

impl LibAlias {
    /// The instance of a configuration, whose addresses are all given (`add_redir_spool_cfg`).
    pub(super) fn new(config: &AliasConfig) -> Self {
        let mut made = Self { config: config.clone(), links: Vec::new() };
        for redirect in &config.redirects {
            match redirect {
                Redirect::Address { inside, public } => {
                    let servers = inside.iter().map(|address| end(*address, 0)).collect();
                    made.permanent(Type::Address, servers, NONE, end(*public, 0));
                }
                Redirect::Port { protocol, inside, public, count, remote } => {
                    for offset in 0..*count {
                        let plus = |is: AliasEnd| end(is.address, is.port + offset);
                        let servers = inside.iter().map(|one| plus(*one)).collect();
                        let remote = if remote.port == 0 { *remote } else { plus(*remote) };
                        made.permanent(Type::Protocol(*protocol), servers, remote, plus(*public));
                    }
                }
                Redirect::Protocol { protocol, inside, public, remote } => {
                    let servers = vec![end(*inside, NO_PORT)];
                    let (remote, alias) = (end(*remote, NO_PORT), end(*public, 0));
                    made.permanent(Type::Protocol(*protocol), servers, remote, alias);
                }
            }
        }
        made
    }

    fn permanent(&mut self, of: Type, servers: Vec<AliasEnd>, remote: AliasEnd, alias: AliasEnd) {
        let (source, servers) = match servers[..] {
            [one] => (one, (Vec::new(), 0)),
            // `LibAliasAddServer` leaves the last one first.
            _ => (NONE, (servers.clone(), servers.len() - 1)),
        };
        self.add(Link { of, source, destination: remote, alias, is_permanent: true, servers });
    }

    fn add(&mut self, link: Link) {
        self.links.insert(0, link);
    }

    /// `_FindLinkOut`, without the search for partial links.
    fn exact(&self, of: Type, source: AliasEnd, destination: AliasEnd) -> Option<usize> {
        self.links.iter().position(|link| {
            link.of == of
                && link.servers.0.is_empty()
                && link.source == source
                && link.destination == destination
        })
    }

    /// The position of the link of a packet that leaves, and whether it has to be linked again.
    fn find_out(
        &self,
        of: Type,
        source: AliasEnd,
        destination: AliasEnd,
        replaces: bool,
    ) -> Option<(usize, bool)> {
        if let Some(at) = self.exact(of, source, destination) {
            return Some((at, false));
        }
        let partial = [end(destination.address, 0), end(0, destination.port), NONE];
        let mut found = partial.into_iter().filter_map(|partial| self.exact(of, source, partial));
        found.next().filter(|_| replaces).map(|at| (at, true))
    }

    /// `_FindLinkIn`, without linking again.
    fn find_in(&self, of: Type, alias: AliasEnd, remote: AliasEnd) -> Option<usize> {
        let mut found = [None; 4];
        for (at, link) in self.links.iter().enumerate() {
            if link.of != of || link.alias != alias {
                continue;
            }
            let any_address = link.destination.address == 0 || remote.address == 0;
            let any_port = link.destination.port == 0 || remote.port == 0;
            let is_address = any_address || link.destination.address == remote.address;
            let is_port = any_port || link.destination.port == remote.port;
            if is_address && is_port {
                let rank = usize::from(any_port) + 2 * usize::from(any_address);
                found[rank].get_or_insert(at);
            }
        }
        found.into_iter().flatten().next()
    }

    /// The ports that a link of a protocol has in place of those of a packet that leaves or comes.
    fn ends(packet: &Packet, comes: bool) -> (AliasEnd, AliasEnd) {
        let (near, remote) = match comes {
            true => (packet.destination, packet.source),
            false => (packet.source, packet.destination),
        };
        match packet.protocol {
            l4::TCP | l4::UDP => (near, remote),
            l4::ICMP => (near, end(remote.address, NO_PORT)),
            _ if comes => (end(near.address, 0), end(remote.address, NO_PORT)),
            _ => (end(near.address, NO_PORT), end(remote.address, NO_PORT)),
        }
    }

    /// Takes over a link for one packet's ends (`ReLink`).
    fn relink(&mut self, at: usize, source: AliasEnd, remote: AliasEnd, alias: AliasEnd) {
        let link = Link {
            source,
            destination: remote,
            alias,
            is_permanent: false,
            servers: (Vec::new(), 0),
            of: self.links[at].of,
        };
        if !self.links[at].is_permanent {
            self.links.remove(at);
        }
        self.add(link);
    }

    /// The alias of a packet that leaves. `chosen` is the port that it got, if it may have got that one.
    pub(super) fn out(&mut self, packet: &Packet, chosen: u16) -> Result<AliasEnd, String> {
        let of = Type::Protocol(packet.protocol);
        let (source, remote) = Self::ends(packet, false);
        match self.find_out(of, source, remote, true) {
            Some((at, false)) => return Ok(self.links[at].alias),
            // Not of ICMP: `FindIcmpOut`.
            Some((at, true)) if packet.protocol != l4::ICMP => {
                let alias = self.links[at].alias;
                self.relink(at, source, remote, alias);
                return Ok(alias);
            }
            _ => {}
        }
        let address = match self.exact(Type::Address, end(source.address, 0), NONE) {
            Some(at) => self.links[at].alias.address,
            None if self.config.has_alias_for(source.address) => self.config.address,
            None => source.address,
        };
        let port = match packet.protocol {
            l4::TCP | l4::UDP | l4::ICMP => self.port(of, address, source.port, remote, chosen)?,
            _ => 0,
        };
        let alias = end(address, port);
        let servers = (Vec::new(), 0);
        self.add(Link { of, source, destination: remote, alias, is_permanent: false, servers });
        Ok(alias)
    }

    /// `GetNewPort`: the port that was chosen, if it may be.
    fn port(
        &self,
        of: Type,
        address: u32,
        own: u16,
        remote: AliasEnd,
        chosen: u16,
    ) -> Result<u16, String> {
        let is_free = |port: u16| {
            self.find_in(of, end(address, port), remote).is_none_or(|at| {
                let destination = self.links[at].destination;
                destination.address == 0 || destination.port == 0
            })
        };
        let (first, last) = self.config.ports.unwrap_or((0x8000, 0xffff));
        match chosen {
            _ if self.config.same_ports && is_free(own) => Ok(own),
            port if (first..=last).contains(&port) && is_free(port) => Ok(port),
            port => Err(format!("port {port} is taken, or none to choose")),
        }
    }

    /// Where a packet that comes goes; none if it is ignored.
    pub(super) fn r#in(&mut self, packet: &Packet) -> Option<AliasEnd> {
        let of = Type::Protocol(packet.protocol);
        let (alias, remote) = Self::ends(packet, true);
        if let Some(at) = self.find_in(of, alias, remote) {
            let link = &mut self.links[at];
            let is_partial = link.destination.address == 0 || link.destination.port == 0;
            if !is_partial && link.servers.0.is_empty() {
                return Some(link.source);
            }
            let source = match &mut link.servers {
                (servers, _) if servers.is_empty() => link.source,
                (servers, turn) => {
                    let server = servers[*turn];
                    *turn = (*turn + 1) % servers.len();
                    server
                }
            };
            self.relink(at, source, remote, alias);
            return Some(source);
        }
        if self.config.deny_in {
            return None;
        }
        let target = match self.find_in(Type::Address, end(alias.address, 0), NONE) {
            None => alias.address,
            Some(at) => match &mut self.links[at] {
                Link { servers: (servers, _), source, .. } if servers.is_empty() => source.address,
                Link { servers: (servers, turn), .. } => {
                    let server = servers[*turn].address;
                    *turn = (*turn + 1) % servers.len();
                    server
                }
            },
        };
        let port = match packet.protocol {
            l4::TCP | l4::UDP | l4::ICMP => alias.port,
            _ => NO_PORT,
        };
        let (source, servers) = (end(target, port), (Vec::new(), 0));
        self.add(Link { of, source, destination: remote, alias, is_permanent: false, servers });
        Some(source)
    }
}
