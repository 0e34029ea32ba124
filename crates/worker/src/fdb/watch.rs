//! Which bridges and members are the router's.

use std::collections::HashMap;

use tollway_dataplane::id::{Domain, PortId};
use tollway_dataplane::stages::bridge::{FdbEntry, FdbKey, FdbKind};
use tollway_dataplane::wire::eth::MacWord;

use super::event::{EntryKey, EntryKind, Ifindex, KernelEntry};

/// The port of entries that are a bridge's own: a number that no port has, as there are far fewer ports.
pub const LOCAL_PORT: PortId = PortId(u16::MAX);

/// The bridges and members of a router, by the numbers of their devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FdbWatch {
    domains: HashMap<(Ifindex, u16), Domain>,
    ports: HashMap<Ifindex, PortId>,
}

impl FdbWatch {
    /// Adds a VLAN of a bridge: 0 while the bridge does not filter VLANs.
    #[must_use]
    pub fn with_domain(mut self, bridge: u32, vid: u16, domain: Domain) -> Self {
        self.domains.insert((bridge, vid), domain);
        self
    }

    /// Adds a member that is a port. Entries at others are not for the router: their frames take the kernel path.
    #[must_use]
    pub fn with_port(mut self, member: u32, port: PortId) -> Self {
        self.ports.insert(member, port);
        self
    }

    /// Whether there is no bridge.
    pub(super) fn is_empty(&self) -> bool {
        self.domains.is_empty()
    }

    /// What an entry of the kernel is to the router; none if the router must not have it.
    pub(super) fn translate(
        &self,
        key: EntryKey,
        entry: KernelEntry,
    ) -> Option<(FdbKey, FdbEntry)> {
        let port = self.ports.get(&entry.device).copied();
        let (port, kind) = match entry.kind {
            EntryKind::Host => (port?, FdbKind::Host),
            EntryKind::Locked => (port?, FdbKind::Locked),
            EntryKind::Local => (LOCAL_PORT, FdbKind::Local),
            EntryKind::Expired => return None,
        };
        let domain = *self.domains.get(&(key.bridge, key.vid))?;
        Some((FdbKey::new(domain, MacWord::new(key.mac)), FdbEntry { port, kind }))
    }
}
