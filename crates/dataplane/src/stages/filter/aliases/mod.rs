//! Aliases: addresses that rules of ipfw give to packets that leave, and take from their answers.
//!
//! Kernel equivalent: FreeBSD's `nat` action (`sys/netpfil/ipfw/ip_fw_nat.c`) and what is below it
//! (`sys/netinet/libalias/alias.c`, `alias_db.c`); RFC 3022, RFC 2391 for several servers behind one address. The code
//! follows their meaning, and none of their text is here. There is no kernel behind the rules of a file, so the mappings
//! (libalias' links) are here.
//!
//! - A mapping belongs to an instance, a protocol, and three ends of an address and a port: inside, remote, and alias. A
//!   packet that leaves from inside to remote leaves from alias; one from remote to alias goes inside. The identifier of
//!   a query of ICMP is the port of its inside and alias. Other protocols have no ports.
//! - A packet that leaves without a mapping gets one. Its alias port is its own with `same_ports`, else random; it is
//!   one that no other mapping to the same remote end has.
//! - A packet that comes without a mapping gets one by a redirect; else one that changes nothing. With `deny_in` it is
//!   dropped instead, and only redirects of ports and protocols remain.
//! - ICMP errors follow the mapping of the packet that they quote.
//! - Later fragments that leave get the alias address. Those that come follow their first fragment, which must come
//!   before them.
//! - Lifetimes are libalias' (`lifetime.rs`).
//!
//! All workers share the mappings. They lie in parts by the remote end, a lock each: both lookups have that end, so two
//! packets cannot take the same alias port at once. Without a rule that translates there is no table.
//!
//! Rules that are read again take over the mappings of instances whose configuration is the same.
//!
//! Limits: [`MOST_MAPPINGS`] mappings; a packet that would get one more is dropped, as is one for which 20 ports in a row
//! are taken. Nothing looks into the payload (no FTP, IRC, PPTP, RTSP), and SCTP has no ports here. A closed connection of
//! TCP that begins again has the lifetime of a new one.

mod config;
mod instance;
mod lifetime;
mod packet;
mod table;
#[cfg(test)]
mod tests;

use std::sync::{Arc, OnceLock};

pub use config::{AliasConfig, AliasEnd, AliasPass, Redirect, Unregistered};
use instance::Instance;
use packet::{AliasPacket, Payload, Quoted};
pub use table::MappingReport;
use table::Table;

use crate::wire::translate::{Translation, Untranslatable, translate, translate_quoted};

/// The most mappings at a time.
pub const MOST_MAPPINGS: usize = 65_536;

const S: u64 = 1_000_000_000;

/// The instances of a filter, and their mappings.
#[derive(Debug, Default)]
pub struct Aliases {
    instances: Vec<Instance>,
    /// The table, from the first use on: until then, that of earlier rules can take its place.
    table: OnceLock<Arc<Table>>,
}

/// What changes in a packet, and in the packet that it quotes if it is an error of ICMP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Translations {
    pub(super) packet: Translation,
    pub(super) quoted: Option<Translation>,
}

impl Translations {
    /// Translates a packet, and first what it quotes.
    pub(super) fn apply(&self, packet: &mut [u8]) -> Result<(), Untranslatable> {
        if let Some(quoted) = &self.quoted {
            translate_quoted(packet, quoted)?;
        }
        translate(packet, &self.packet)
    }
}

/// What an instance does with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Aliased {
    /// It lets the packet by as it is.
    Ignored,
    Translated(Translations),
    /// It has no mapping for a packet that comes.
    Denied,
    /// There is no room for one more mapping, or no port.
    Full,
}

impl Aliases {
    /// Aliases by these instances, in the order of the file.
    #[must_use]
    pub fn new(configs: Vec<AliasConfig>) -> Self {
        let instances = configs.into_iter().map(Instance::new).collect();
        Self { instances, table: OnceLock::new() }
    }

    /// Takes over the mappings of the active rules, or makes a table, unless packets have come to these already.
    pub(crate) fn prepare(&self, before: Option<&Self>) {
        let shared = before.and_then(|before| before.table.get());
        let table = shared.map_or_else(|| Arc::new(Table::new(0)), Arc::clone);
        if self.table.set(Arc::clone(&table)).is_ok() {
            let identities: Vec<_> =
                self.instances.iter().map(|instance| instance.identity).collect();
            table.retain(&identities);
        }
    }

    #[inline]
    fn table(&self, now_ns: u64) -> &Table {
        self.table.get_or_init(|| Arc::new(Table::new(now_ns)))
    }

    /// Gives back the room of mappings whose time is over.
    #[inline]
    pub(super) fn sweep(&self, now_ns: u64) {
        if let Some(table) = self.table.get() {
            table.sweep(now_ns);
        }
    }

    /// What an instance does with a packet of IPv4, whose bytes these are from layer 3 on.
    pub(super) fn translate(
        &self,
        number: u32,
        pass: AliasPass,
        packet: &[u8],
        now_ns: u64,
    ) -> Aliased {
        let Some(instance) = self.instances.get(number as usize) else { return Aliased::Denied };
        let aliased = match AliasPacket::of(packet) {
            Some(packet) if instance.goes_out(pass) => {
                instance.leaves(self.table(now_ns), &packet, true, now_ns)
            }
            Some(packet) => instance.comes(self.table(now_ns), &packet, now_ns),
            // As of IPv6: libalias knows nothing of it.
            None => Aliased::Ignored,
        };
        // What the packet's direction is to the rules decides, even if the instance takes it for the other.
        match (aliased, pass) {
            (Aliased::Ignored, AliasPass::In) if instance.config.deny_in => Aliased::Denied,
            (Aliased::Denied, AliasPass::Out) => Aliased::Ignored,
            _ => aliased,
        }
    }

    /// What the instances do with a packet that leaves for `nat global`: the first that has a mapping for it translates
    /// it.
    pub(super) fn translate_global(&self, pass: AliasPass, packet: &[u8], now_ns: u64) -> Aliased {
        let (AliasPass::Out, Some(packet)) = (pass, AliasPacket::of(packet)) else {
            return Aliased::Ignored;
        };
        // The instance that was configured last is the first.
        let instances = self.instances.iter().rev();
        let mut all =
            instances.filter(|instance| !instance.config.skip_global).map(
                |instance| match instance.goes_out(pass) {
                    true => instance.leaves(self.table(now_ns), &packet, false, now_ns),
                    false => instance.comes(self.table(now_ns), &packet, now_ns),
                },
            );
        all.find(|aliased| matches!(aliased, Aliased::Translated(_))).unwrap_or(Aliased::Ignored)
    }

    /// What changes in an error of the router itself about a packet that has come: the sender knows the alias.
    pub(super) fn translate_own_error(&self, packet: &[u8], now_ns: u64) -> Option<Translations> {
        let packet = AliasPacket::of(packet)?;
        let Payload::Error(Some(quoted)) = packet.payload else { return None };
        self.first(|instance, table| instance.error_leaves(table, &packet, quoted, now_ns), now_ns)
    }

    /// What gives a packet that nobody could receive the source with which it has come.
    pub(super) fn restore(&self, packet: &[u8], now_ns: u64) -> Option<Translation> {
        let left = Quoted::of(packet)?;
        self.first(|instance, table| instance.error_comes(table, left, now_ns), now_ns)?.quoted
    }

    /// What the first instance changes that changes something.
    fn first(
        &self,
        change: impl Fn(&Instance, &Table) -> Aliased,
        now_ns: u64,
    ) -> Option<Translations> {
        let table = self.table(now_ns);
        self.instances.iter().find_map(|instance| match change(instance, table) {
            Aliased::Translated(translations) => Some(translations),
            Aliased::Ignored | Aliased::Denied | Aliased::Full => None,
        })
    }

    /// All mappings whose time is not over, and their instances.
    #[must_use]
    pub fn list(&self, now_ns: u64) -> Vec<(&AliasConfig, MappingReport)> {
        let Some(table) = self.table.get() else { return Vec::new() };
        let listed = table.list(now_ns).into_iter().filter_map(|(identity, report)| {
            let instance = self.instances.iter().find(|one| one.identity == identity)?;
            Some((&instance.config, report))
        });
        listed.collect()
    }
}
