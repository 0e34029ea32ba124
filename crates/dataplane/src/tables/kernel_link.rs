//! Links whose packets take the kernel path, and MTUs that differ by family.

use super::{Tables, TablesError};
use crate::fib::Root;
use crate::id::LinkId;
use crate::links::LinkRecord;
use crate::next_hops::Action;
use crate::prefix::RoutePrefix;
use crate::stages::classify::{InnerTag, VlanEntry};
use crate::verdict::PuntReason;

impl Tables {
    /// Sets the families whose packets take the kernel path if they arrive on a link, whatever
    /// their destination ([`PuntReason::KernelLink`]).
    ///
    /// It costs nothing per packet: the link's FIB is one that sends every address to the kernel path.
    ///
    /// # Errors
    /// See [`TablesError`].
    pub fn set_kernel_link(&mut self, link: LinkId, v4: bool, v6: bool) -> Result<(), TablesError> {
        let record = self.routes.links.get(link).ok_or(TablesError::Unknown)?;
        let vrf = *self.routes.vrfs.get(usize::from(record.vrf.0)).ok_or(TablesError::Unknown)?;
        let root4 = if v4 { self.kernel_root(true)? } else { vrf.root4 };
        let root6 = if v6 { self.kernel_root(false)? } else { vrf.root6 };
        self.set_roots(link, (root4.0, root6.0));
        self.epochs.changes.note();
        Ok(())
    }

    fn kernel_root(&mut self, is_ipv4: bool) -> Result<Root, TablesError> {
        let index = usize::from(!is_ipv4);
        if let Some(root) = self.routes.kernel_roots.0[index] {
            return Ok(root);
        }
        let next = self.inert(Action::Punt(PuntReason::KernelLink))?;
        let fib = if is_ipv4 { &self.routes.fib4 } else { &self.routes.fib6 };
        let root = fib.add_root()?;
        let (RoutePrefix::V4(all) | RoutePrefix::V6(all)) = RoutePrefix::all(is_ipv4);
        fib.insert(root, all, next)?;
        self.routes.kernel_roots.0[index] = Some(root);
        Ok(root)
    }

    /// Stores the roots of a link's FIBs wherever the path reads them.
    fn set_roots(&mut self, link: LinkId, (root4, root6): (u32, u32)) {
        let state = &mut **self;
        let Some(record) = state.routes.links.get_mut(link) else { return };
        (record.root4, record.root6) = (root4, root6);
        let LinkRecord { port, ref tags, .. } = *record;
        let Some(port) = state.ports.get_mut(usize::from(port.0)) else { return };
        let entry = VlanEntry { link, root4, root6 };
        match tags[..] {
            [] => (port.root4, port.root6) = (root4, root6),
            [(protocol, vid)] => port.vlans.insert(protocol, vid, entry, false),
            [(outer, outer_vid), (protocol, vid), ..] => {
                let parent = state.routes.links.vlan(port.link, outer, outer_vid.get());
                let Some(parent) = parent else { return };
                port.vlans.insert_inner(InnerTag::new(parent, protocol, vid.get()), entry, false);
            }
        }
    }

    /// Sets a link's MTU for IPv6 packets (`net.ipv6.conf.*.mtu`) in bytes, at most the link's MTU. It
    /// also bounds the MTU of routes that have one of their own.
    ///
    /// # Errors
    /// See [`TablesError`].
    pub fn set_mtu6(&mut self, link: LinkId, mtu: u16) -> Result<(), TablesError> {
        let record = self.routes.links.get_mut(link).ok_or(TablesError::Unknown)?;
        record.mtu6 = mtu.min(record.mtu);
        self.renew_neighs6(link)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::id::NextHopId;
    use crate::testkit::path_bench::{Outcome, PathBench};
    use crate::testkit::wires::{LinkVariant, tables};

    fn sent_or_punted(tables: &Tables, variant: LinkVariant, dst: IpAddr) -> Option<PuntReason> {
        let path = crate::dispatch::Path::detect();
        let mut path_bench = PathBench::over(tables, path, 2048);
        match path_bench.send(0, &variant.packet(0, dst).build()) {
            Outcome::Sent(..) => None,
            Outcome::Punt(reason, link, _) => {
                assert_eq!(link, variant.link(0));
                Some(reason)
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_packets_from_kernel_links_take_the_kernel_path() {
        let mut tables = tables();
        for variant in LinkVariant::ALL {
            for (v4, v6) in [(true, false), (false, true), (true, true), (false, false)] {
                let before = tables.version();
                tables.set_kernel_link(variant.link(0), v4, v6).unwrap();
                assert_ne!(tables.version(), before);
                for other in LinkVariant::ALL {
                    let kept = |on| (on && other == variant).then_some(PuntReason::KernelLink);
                    assert_eq!(
                        sent_or_punted(&tables, other, LinkVariant::Vlan.host4(1)),
                        kept(v4)
                    );
                    assert_eq!(
                        sent_or_punted(&tables, other, LinkVariant::Vlan.host6(1)),
                        kept(v6)
                    );
                }
            }
        }
    }

    #[test]
    fn there_is_one_fib_for_all_such_links() {
        let mut tables = tables();
        tables.set_kernel_link(LinkVariant::Plain.link(0), true, true).unwrap();
        let count = tables.routes.next_hops.len();
        tables.set_kernel_link(LinkVariant::Vlan.link(0), true, true).unwrap();
        assert_eq!(tables.routes.next_hops.len(), count);
        let [first, second] =
            [LinkVariant::Plain, LinkVariant::Vlan].map(|variant| tables.link(variant.link(0)));
        assert_eq!((first.root4, first.root6), (second.root4, second.root6));
        assert_eq!(tables.set_kernel_link(LinkId(999), true, true), Err(TablesError::Unknown));
        // The VRF's own FIBs are unchanged.
        assert_ne!(
            tables.lookup(LinkVariant::Plain.vrf(), LinkVariant::Plain.host4(1)),
            NextHopId::NO_ROUTE
        );
    }
}
