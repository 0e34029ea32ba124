//! An instance: what it does with packets that leave and that come (`LibAliasOut`, `LibAliasIn`).

use std::sync::atomic::Ordering::Relaxed;

use super::config::{AliasConfig, AliasEnd, AliasPass, Redirect};
use super::lifetime::Lifetime;
use super::packet::{AliasPacket, Payload, Quoted};
use super::table::{Key, Kind, Locked, Mapping, Table, Way};
use super::{Aliased, Translations};
use crate::sync::AtomicUsize;
use crate::wire::l4;
use crate::wire::translate::Translation;

/// The number of ports that are tried (`GET_NEW_PORT_MAX_ATTEMPTS`).
const TRIES: usize = 20;

/// The ports without `port_range` (`ALIAS_PORT_BASE`).
const PORTS: (u16, u16) = (0x8000, 0xffff);

/// An instance.
#[derive(Debug)]
pub(super) struct Instance {
    pub(super) config: AliasConfig,
    pub(super) identity: u64,
    /// For each redirect, how many packets it has redirected: its servers take turns.
    turns: Box<[AtomicUsize]>,
}

/// A packet's flow.
#[derive(Clone, Copy)]
struct Flow {
    kind: Kind,
    source: AliasEnd,
    destination: AliasEnd,
    tcp_flags: u8,
    bytes: u64,
}

impl Flow {
    /// None of packets without a mapping of their own.
    fn of(packet: &AliasPacket, way: Way) -> Option<Self> {
        let (ports, tcp_flags) = match (packet.payload, way) {
            (Payload::Ports { source, destination, tcp_flags }, _) => {
                ((source, destination), tcp_flags)
            }
            (Payload::Query { id }, Way::Leaves) => ((id, 0), 0),
            (Payload::Query { id }, Way::Comes) => ((0, id), 0),
            (Payload::Other, _) => ((0, 0), 0),
            _ => return None,
        };
        Some(Self {
            kind: Kind::of(packet.protocol),
            source: AliasEnd { address: packet.source, port: ports.0 },
            destination: AliasEnd { address: packet.destination, port: ports.1 },
            tcp_flags,
            bytes: packet.bytes,
        })
    }
}

impl Instance {
    pub(super) fn new(config: AliasConfig) -> Self {
        let turns = config.redirects.iter().map(|_| AtomicUsize::new(0)).collect();
        Self { identity: config.identity(), turns, config }
    }

    /// Says whether packets of a pass count as leaving.
    pub(super) fn goes_out(&self, pass: AliasPass) -> bool {
        (pass == AliasPass::Out) != self.config.reverse
    }

    /// What it does with a packet that leaves.
    pub(super) fn leaves(
        &self,
        table: &Table,
        packet: &AliasPacket,
        creates: bool,
        now_ns: u64,
    ) -> Aliased {
        if let Payload::LaterFragment = packet.payload {
            return from(AliasEnd { address: self.alias_of(packet.source), port: 0 }, false);
        }
        if let Payload::Error(quoted) = packet.payload {
            let Some(quoted) = quoted else { return Aliased::Ignored };
            return self.error_leaves(table, packet, quoted, now_ns);
        }
        let Some(flow) = Flow::of(packet, Way::Leaves) else { return Aliased::Ignored };
        let (mut locked, key) = self.lock(table, &flow, Way::Leaves, now_ns);
        let found = locked.find(Way::Leaves, &key);
        if found.is_none() && !creates {
            return Aliased::Ignored;
        }
        let at = found.or_else(|| {
            let alias = self.alias(table, &locked, &flow)?;
            locked.add(self.mapping(&flow, Way::Leaves, flow.source, alias))
        });
        let Some(at) = at else { return Aliased::Full };
        let mapping = locked.note(at, Way::Leaves, flow.bytes, flow.tcp_flags);
        from(mapping.alias, packet.payload != Payload::Other)
    }

    /// What it does with a packet that comes.
    pub(super) fn comes(&self, table: &Table, packet: &AliasPacket, now_ns: u64) -> Aliased {
        let aliased = match packet.payload {
            Payload::LaterFragment => return self.fragment_comes(table, packet, now_ns),
            Payload::Error(Some(quoted)) => self.error_comes(table, quoted, now_ns),
            _ => match Flow::of(packet, Way::Comes) {
                Some(flow) => self.flow_comes(table, packet, &flow, now_ns),
                None => Aliased::Ignored,
            },
        };
        let is_ours = aliased != Aliased::Ignored || !self.config.deny_in;
        if packet.has_more && is_ours && !self.keep_fragments(table, packet, &aliased, now_ns) {
            return Aliased::Full;
        }
        aliased
    }

    fn flow_comes(&self, table: &Table, packet: &AliasPacket, flow: &Flow, now_ns: u64) -> Aliased {
        let (mut locked, key) = self.lock(table, flow, Way::Comes, now_ns);
        let at = match locked.find(Way::Comes, &key) {
            Some(at) => Some(at),
            None => {
                let redirected = self.redirect(flow.kind, flow.source, flow.destination, true);
                let Some(inside) = redirected.or_else(|| self.inside_of(flow.destination)) else {
                    return Aliased::Ignored;
                };
                let is_own = inside == flow.destination;
                let added = locked.add(self.mapping(flow, Way::Comes, inside, flow.destination));
                // What changes nothing needs no room: outsiders could fill it, and lock the router up.
                if added.is_none() && is_own {
                    return Aliased::Ignored;
                }
                added
            }
        };
        let Some(at) = at else { return Aliased::Full };
        let mapping = locked.note(at, Way::Comes, flow.bytes, flow.tcp_flags);
        to(mapping.inside, packet.payload != Payload::Other)
    }

    /// An error about a packet that has left.
    pub(super) fn error_comes(&self, table: &Table, quoted: Quoted, now_ns: u64) -> Aliased {
        let (kind, alias, remote) = quoted_flow(&quoted, quoted.source, quoted.destination);
        let key = Key { instance: self.identity, kind, near: alias, remote };
        let mut locked = table.lock(remote, now_ns);
        let inside = match locked.find(Way::Comes, &key) {
            Some(at) => Some(locked.mapping(at).inside),
            None => self.redirect(kind, remote, alias, false),
        };
        let Some(inside) = inside else { return Aliased::Ignored };
        Aliased::Translated(Translations {
            packet: Translation {
                destination: Some(inside.address.into()),
                ..Translation::default()
            },
            quoted: Some(Translation {
                source: Some(inside.address.into()),
                source_port: Some(inside.port),
                ..Translation::default()
            }),
        })
    }

    /// An error about a packet that has come.
    pub(super) fn error_leaves(
        &self,
        table: &Table,
        packet: &AliasPacket,
        quoted: Quoted,
        now_ns: u64,
    ) -> Aliased {
        let (kind, inside, remote) = quoted_flow(&quoted, quoted.destination, quoted.source);
        let key = Key { instance: self.identity, kind, near: inside, remote };
        let mut locked = table.lock(remote, now_ns);
        let Some(at) = locked.find(Way::Leaves, &key) else { return Aliased::Ignored };
        let alias = locked.mapping(at).alias;
        // Of another router on the way, the address stays.
        let is_of_inside = packet.source == inside.address;
        Aliased::Translated(Translations {
            packet: Translation {
                source: is_of_inside.then_some(alias.address.into()),
                ..Translation::default()
            },
            quoted: Some(Translation {
                destination: Some(alias.address.into()),
                destination_port: Some(alias.port),
                ..Translation::default()
            }),
        })
    }

    /// A later fragment goes where its first one has gone.
    fn fragment_comes(&self, table: &Table, packet: &AliasPacket, now_ns: u64) -> Aliased {
        let (key, remote) = self.fragments_of(packet);
        let mut locked = table.lock(remote, now_ns);
        match locked.find(Way::Comes, &key) {
            Some(at) => to(locked.mapping(at).inside, false),
            None => Aliased::Denied,
        }
    }

    /// Keeps where the fragments behind a first one go; says whether there is room.
    fn keep_fragments(
        &self,
        table: &Table,
        packet: &AliasPacket,
        aliased: &Aliased,
        now_ns: u64,
    ) -> bool {
        let translated = match aliased {
            Aliased::Translated(all) => all.packet.destination,
            _ => None,
        };
        let inside = AliasEnd {
            address: translated.map_or(packet.destination, |address| address as u32),
            port: 0,
        };
        let (key, remote) = self.fragments_of(packet);
        let mut locked = table.lock(remote, now_ns);
        if let Some(at) = locked.find(Way::Comes, &key)
            && locked.mapping(at).inside == inside
        {
            return true;
        }
        let mapping = Mapping {
            instance: self.identity,
            kind: Kind::FRAGMENTS,
            inside,
            remote,
            alias: key.near,
            first: Way::Comes,
            lifetime: Lifetime::of_fragment(),
            counts: Default::default(),
        };
        locked.add(mapping).is_some()
    }

    fn fragments_of(&self, packet: &AliasPacket) -> (Key, AliasEnd) {
        let remote = AliasEnd { address: packet.source, port: 0 };
        let near = AliasEnd { address: packet.destination, port: packet.id };
        (Key { instance: self.identity, kind: Kind::FRAGMENTS, near, remote }, remote)
    }

    fn lock<'a>(&self, table: &'a Table, flow: &Flow, way: Way, now_ns: u64) -> (Locked<'a>, Key) {
        let (near, remote) = match way {
            Way::Leaves => (flow.source, flow.destination),
            Way::Comes => (flow.destination, flow.source),
        };
        let key = Key { instance: self.identity, kind: flow.kind, near, remote };
        (table.lock(remote, now_ns), key)
    }

    fn mapping(&self, flow: &Flow, first: Way, inside: AliasEnd, alias: AliasEnd) -> Mapping {
        let remote = match first {
            Way::Leaves => flow.destination,
            Way::Comes => flow.source,
        };
        let kind = flow.kind;
        let lifetime = Lifetime::of(if kind == Kind::of(l4::TCP) { l4::TCP } else { 0 });
        let (instance, counts) = (self.identity, Default::default());
        Mapping { instance, kind, inside, remote, alias, first, lifetime, counts }
    }

    /// The alias of a packet that leaves without a mapping; none if no port is free (`GetNewPort`).
    fn alias(&self, table: &Table, locked: &Locked<'_>, flow: &Flow) -> Option<AliasEnd> {
        if let Some(alias) = self.redirected_from(flow) {
            return Some(alias);
        }
        let address = self.alias_of(flow.source.address);
        let has_ports = [l4::TCP, l4::UDP, l4::ICMP].map(Kind::of).contains(&flow.kind);
        if !has_ports {
            return Some(AliasEnd { address, port: 0 });
        }
        let (first, last) = self.config.ports.unwrap_or(PORTS);
        let count = u64::from(last.saturating_sub(first)) + 1;
        let own = self.config.same_ports.then_some(flow.source.port);
        let drawn = std::iter::repeat_with(|| first + (table.draw() % count) as u16);
        own.into_iter().chain(drawn).take(TRIES).map(|port| AliasEnd { address, port }).find(
            |alias| {
                let (instance, kind) = (self.identity, flow.kind);
                let key = Key { instance, kind, near: *alias, remote: flow.destination };
                // A redirect for just this remote end is like a mapping.
                let closest = self.closest(kind, key.remote, *alias).map(|(rank, ..)| rank);
                closest != Some(0) && locked.find(Way::Comes, &key).is_none()
            },
        )
    }

    /// The alias address of an inside address (`FindAliasAddress`).
    fn alias_of(&self, source: u32) -> u32 {
        let redirected = self.config.redirects.iter().rev().find_map(|redirect| match redirect {
            Redirect::Address { inside, public } if inside[..] == [source] => Some(*public),
            _ => None,
        });
        let other = if self.config.has_alias_for(source) { self.config.address } else { source };
        redirected.unwrap_or(other)
    }

    /// Where a packet without a mapping or a redirect of its port goes; none if it is denied (`FindOriginalAddress`).
    fn inside_of(&self, alias: AliasEnd) -> Option<AliasEnd> {
        if self.config.deny_in {
            return None;
        }
        let redirects = self.config.redirects.iter().enumerate().rev();
        let redirected = redirects.filter_map(|(number, redirect)| match redirect {
            Redirect::Address { inside, public } if *public == alias.address => {
                self.turn(number, inside)
            }
            _ => None,
        });
        let address = redirected.take(1).next().unwrap_or(alias.address);
        Some(AliasEnd { address, port: alias.port })
    }

    /// The server whose turn it is. As in libalias, the last one is the first.
    fn turn<T: Copy>(&self, redirect: usize, servers: &[T]) -> Option<T> {
        let turn = match servers {
            [_] => 0,
            _ => self.turns.get(redirect)?.fetch_add(1, Relaxed),
        };
        let last = servers.len().checked_sub(1)?;
        servers.get(last.wrapping_add(turn) % servers.len()).copied()
    }

    /// The redirect that describes most closely what comes from a remote end to an alias, and how closely.
    fn closest(
        &self,
        kind: Kind,
        remote: AliasEnd,
        alias: AliasEnd,
    ) -> Option<(u8, usize, &Redirect)> {
        let redirects = self.config.redirects.iter().enumerate().rev();
        let found = redirects.filter_map(|(number, redirect)| {
            Some((rank_in(redirect, kind, remote, alias)?, number, redirect))
        });
        // Of equal ones, the last of the file.
        found.min_by_key(|(rank, ..)| *rank)
    }

    /// Where a redirect sends what comes from a remote end to an alias; to several servers only if `in_turn`.
    fn redirect(
        &self,
        kind: Kind,
        remote: AliasEnd,
        alias: AliasEnd,
        in_turn: bool,
    ) -> Option<AliasEnd> {
        let (_, number, redirect) = self.closest(kind, remote, alias)?;
        match redirect {
            Redirect::Port { inside, .. } if inside.len() > 1 && !in_turn => None,
            Redirect::Port { inside, public, .. } => {
                let end = self.turn(number, inside)?;
                let offset = alias.port.wrapping_sub(public.port);
                Some(AliasEnd { port: end.port.wrapping_add(offset), ..end })
            }
            Redirect::Protocol { inside, .. } => {
                Some(AliasEnd { address: *inside, port: alias.port })
            }
            Redirect::Address { .. } => None,
        }
    }

    /// The alias of a redirected server, whose packet leaves without a mapping (`FindLinkOut`).
    fn redirected_from(&self, flow: &Flow) -> Option<AliasEnd> {
        let redirects = self.config.redirects.iter().rev();
        let found = redirects.filter_map(|redirect| rank_out(redirect, flow));
        found.min_by_key(|(rank, _)| *rank).map(|(_, alias)| alias)
    }
}

/// How closely a redirect describes what comes, 0 for best (`FindLinkIn`); none if it is for something else.
fn rank_in(redirect: &Redirect, kind: Kind, remote: AliasEnd, alias: AliasEnd) -> Option<u8> {
    match redirect {
        Redirect::Port { protocol, public, count, remote: from, .. } => {
            let offset = alias.port.checked_sub(public.port).filter(|offset| offset < count)?;
            let is_it = Kind::of(*protocol) == kind && alias.address == public.address;
            let rank = rank_remote(*from, offset, remote)?;
            is_it.then_some(rank)
        }
        Redirect::Protocol { protocol, public, remote: from, .. } => {
            let is_it = Kind::of(*protocol) == kind && alias.address == *public;
            let is_from = *from == 0 || *from == remote.address;
            (is_it && is_from).then_some(if *from == 0 { 2 } else { 0 })
        }
        Redirect::Address { .. } => None,
    }
}

/// How closely a redirect describes what leaves, and its alias.
fn rank_out(redirect: &Redirect, flow: &Flow) -> Option<(u8, AliasEnd)> {
    match redirect {
        Redirect::Port { protocol, inside, public, count, remote } => {
            let [inside] = inside[..] else { return None };
            let offset =
                flow.source.port.checked_sub(inside.port).filter(|offset| offset < count)?;
            let is_it = Kind::of(*protocol) == flow.kind && flow.source.address == inside.address;
            let rank = rank_remote(*remote, offset, flow.destination)?;
            let alias = AliasEnd { port: public.port.wrapping_add(offset), ..*public };
            is_it.then_some((rank, alias))
        }
        Redirect::Protocol { protocol, inside, public, remote } => {
            let is_it = Kind::of(*protocol) == flow.kind && flow.source.address == *inside;
            let is_to = *remote == 0 || *remote == flow.destination.address;
            let alias = AliasEnd { address: *public, port: 0 };
            (is_it && is_to).then_some((if *remote == 0 { 2 } else { 0 }, alias))
        }
        Redirect::Address { .. } => None,
    }
}

/// 0 if address and port are given, 1 with any port, 2 with any address, 3 with both.
fn rank_remote(given: AliasEnd, offset: u16, is: AliasEnd) -> Option<u8> {
    let port = given.port.wrapping_add(offset);
    let has_address = given.address == 0 || given.address == is.address;
    let has_port = given.port == 0 || port == is.port;
    let rank = u8::from(given.port == 0) + 2 * u8::from(given.address == 0);
    (has_address && has_port).then_some(rank)
}

/// The flow of a quoted packet: its kind, the near end and the remote one.
fn quoted_flow(quoted: &Quoted, near: AliasEnd, remote: AliasEnd) -> (Kind, AliasEnd, AliasEnd) {
    let is_query = quoted.protocol == l4::ICMP;
    let remote = if is_query { AliasEnd { port: 0, ..remote } } else { remote };
    (Kind::of(quoted.protocol), near, remote)
}

fn from(alias: AliasEnd, has_port: bool) -> Aliased {
    Aliased::Translated(Translations {
        packet: Translation {
            source: Some(alias.address.into()),
            source_port: has_port.then_some(alias.port),
            ..Translation::default()
        },
        quoted: None,
    })
}

fn to(inside: AliasEnd, has_port: bool) -> Aliased {
    Aliased::Translated(Translations {
        packet: Translation {
            destination: Some(inside.address.into()),
            destination_port: has_port.then_some(inside.port),
            ..Translation::default()
        },
        quoted: None,
    })
}
