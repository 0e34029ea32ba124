//! How an instance is configured (`nat N config`).

use std::hash::{DefaultHasher, Hash, Hasher};

/// The pass in which a packet comes to a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AliasPass {
    /// It has been received.
    In,
    /// It is about to be sent.
    Out,
}

/// An address of IPv4 and a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AliasEnd {
    /// The address.
    pub address: u32,
    /// The port, or what stands for it; 0 without one.
    pub port: u16,
}

/// Which addresses an instance takes for unregistered: it translates only these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Unregistered {
    /// It translates all.
    #[default]
    All,
    /// Those of RFC 1918.
    Private,
    /// Those, and 100.64.0.0/10 (RFC 6598).
    PrivateOrShared,
}

/// The configuration of an instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct AliasConfig {
    /// Its number.
    pub number: u16,
    /// The alias address.
    pub address: u32,
    /// Whether packets that come without a mapping are dropped.
    pub deny_in: bool,
    /// Whether a packet keeps its port, if that is free.
    pub same_ports: bool,
    /// Which addresses are translated.
    pub unregistered: Unregistered,
    /// Whether packets that come are taken for those that leave, and the other way round.
    pub reverse: bool,
    /// The first and the last alias port; none for 32,768 to 65,535.
    pub ports: Option<(u16, u16)>,
    /// Whether `nat global` passes it over.
    pub skip_global: bool,
    /// What redirects packets that come. Of equal ones, the last counts.
    pub redirects: Vec<Redirect>,
}

/// A redirect. An address of 0 stands for the alias address, in `remote` for any.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Redirect {
    /// All that comes for an address (`redirect_addr`).
    Address {
        /// Where it goes; to several in turn.
        inside: Vec<u32>,
        /// The address.
        public: u32,
    },
    /// What comes for some ports of TCP or UDP (`redirect_port`).
    Port {
        /// The protocol.
        protocol: u8,
        /// Where the first port goes; with a single port, to several in turn.
        inside: Vec<AliasEnd>,
        /// The address and the first port.
        public: AliasEnd,
        /// The number of ports.
        count: u16,
        /// Where the first port's packets come from; a port of 0 is any.
        remote: AliasEnd,
    },
    /// What comes of a protocol (`redirect_proto`).
    Protocol {
        /// The protocol.
        protocol: u8,
        /// Where it goes.
        inside: u32,
        /// The address.
        public: u32,
        /// Where it comes from.
        remote: u32,
    },
}

impl AliasConfig {
    /// The same with an alias address, which replaces every address that stands for it.
    #[must_use]
    pub fn with_address(mut self, alias: u32) -> Self {
        let set = |address: &mut u32| {
            if *address == 0 {
                *address = alias;
            }
        };
        self.address = alias;
        for redirect in &mut self.redirects {
            match redirect {
                Redirect::Address { inside, public } => {
                    inside.iter_mut().for_each(set);
                    set(public);
                }
                Redirect::Port { inside, public, .. } => {
                    inside.iter_mut().for_each(|end| set(&mut end.address));
                    set(&mut public.address);
                }
                Redirect::Protocol { inside, public, .. } => {
                    set(inside);
                    set(public);
                }
            }
        }
        self
    }

    /// What identifies the instance: mappings of one with the same identity are its own.
    #[must_use]
    pub(super) fn identity(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }

    /// Says whether the source of a packet that leaves is translated.
    pub(super) fn has_alias_for(&self, source: u32) -> bool {
        let is_in = |network: u32, len: u32| source >> (32 - len) == network >> (32 - len);
        let is_private = is_in(0x0a00_0000, 8) || is_in(0xac10_0000, 12) || is_in(0xc0a8_0000, 16);
        match self.unregistered {
            Unregistered::All => true,
            Unregistered::Private => is_private,
            Unregistered::PrivateOrShared => is_private || is_in(0x6440_0000, 10),
        }
    }
}
