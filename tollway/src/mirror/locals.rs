//! The addresses that the kernel delivers to the host, which need not go to user space and back.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::kernel::{RouteKind, TableId};
use super::rib::{Choice, Dest, Rib};

/// The steering program has room for some more of each family; what it does not know of goes by user space.
const MOST: usize = 60_000;

/// Host routes that deliver, of all tables.
#[derive(Debug, Default)]
pub(super) struct Locals {
    known: BTreeSet<(IpAddr, TableId)>,
    changed: bool,
}

impl Locals {
    /// Looks at every destination anew.
    pub(super) fn read(&mut self, rib: &Rib) {
        let mut known = BTreeSet::new();
        rib.each(|dest, choice| {
            known
                .extend(address(dest).filter(|_| delivers(rib, choice)).map(|at| (at, dest.table)));
        });
        self.changed |= known != self.known;
        self.known = known;
    }

    /// Looks at a destination that may have changed.
    pub(super) fn look(&mut self, rib: &Rib, dest: Dest) {
        let Some(address) = address(dest) else { return };
        let key = (address, dest.table);
        self.changed |= match delivers(rib, rib.choice(dest)) {
            true => self.known.insert(key),
            false => self.known.remove(&key),
        };
    }

    /// Says if they have changed since this was asked last.
    pub(super) const fn take_changed(&mut self) -> bool {
        std::mem::replace(&mut self.changed, false)
    }

    /// The addresses.
    pub(super) fn addresses(&self) -> Vec<IpAddr> {
        let mut addresses: Vec<_> = self.known.iter().map(|(address, _)| *address).collect();
        addresses.dedup();
        addresses.truncate(MOST);
        addresses
    }
}

/// The only address of a destination.
fn address(dest: Dest) -> Option<IpAddr> {
    let net = dest.net();
    (net.prefix_len() == net.max_prefix_len()).then(|| net.addr())
}

fn delivers(rib: &Rib, choice: Choice) -> bool {
    use RouteKind::{Anycast, Broadcast, Local};
    match choice {
        Choice::Is(body) => {
            matches!(rib.body(body).route.kind, Local | Broadcast | Anycast)
        }
        Choice::Nothing | Choice::Kernel => false,
    }
}
