//! The addresses that the kernel delivers to the host, whose packets need not take the user path.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::kernel::{RouteKind, TableId};
use super::rib::{Choice, Dest, Rib};

/// The most addresses of each family. The XDP program has room for some more. Packets to other addresses
/// take the user path.
const MOST: usize = 60_000;

/// Host routes of all tables that deliver locally.
#[derive(Debug, Default)]
pub(super) struct Locals {
    kernel_state: BTreeSet<(IpAddr, TableId)>,
    changed: bool,
}

impl Locals {
    /// Looks at all destinations again.
    pub(super) fn read(&mut self, rib: &Rib) {
        let mut kernel_state = BTreeSet::new();
        rib.each(|dest, choice| {
            kernel_state
                .extend(address(dest).filter(|_| delivers(rib, choice)).map(|at| (at, dest.table)));
        });
        self.changed |= kernel_state != self.kernel_state;
        self.kernel_state = kernel_state;
    }

    /// Looks at a destination that may have changed.
    pub(super) fn look(&mut self, rib: &Rib, dest: Dest) {
        let Some(address) = address(dest) else { return };
        let key = (address, dest.table);
        self.changed |= match delivers(rib, rib.choice(dest)) {
            true => self.kernel_state.insert(key),
            false => self.kernel_state.remove(&key),
        };
    }

    /// Returns whether the addresses have changed since the last call.
    pub(super) const fn take_changed(&mut self) -> bool {
        std::mem::replace(&mut self.changed, false)
    }

    /// The addresses.
    pub(super) fn addresses(&self) -> Vec<IpAddr> {
        let mut addresses: Vec<_> = self.kernel_state.iter().map(|(address, _)| *address).collect();
        addresses.dedup();
        addresses.truncate(MOST);
        addresses
    }
}

/// The address of a destination that has only one.
fn address(dest: Dest) -> Option<IpAddr> {
    let net = dest.net();
    (net.prefix_len() == net.max_prefix_len()).then(|| net.addr())
}

fn delivers(rib: &Rib, choice: Choice) -> bool {
    use RouteKind::{Anycast, Broadcast, Local};
    match choice {
        Choice::Is(attrs) => {
            matches!(rib.attrs(attrs).route.kind, Local | Broadcast | Anycast)
        }
        Choice::Nothing | Choice::Kernel => false,
    }
}
