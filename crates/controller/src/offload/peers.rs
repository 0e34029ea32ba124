//! Peers of veths that have an XDP program in generic mode.
//!
//! A packet that a tc program redirects keeps a mark of that (`skb->redirected`), even in another network namespace.
//! With this mark, the kernel does not run programs in generic mode (`netif_receive_generic_xdp`). So what leaves for
//! such a peer takes the kernel path.

use std::collections::BTreeMap;

use super::probe::ForeignUpper;
use super::{Facts, Reason};
use crate::kernel::Ifindex;

/// For each veth with such a peer, and each device that such a veth belongs to, the reasons about what leaves by it.
pub(super) fn with_xdp(facts: &Facts<'_>) -> BTreeMap<Ifindex, Vec<Reason>> {
    let netdevs = &facts.kernel.netdevs;
    let here = netdevs.iter().filter_map(|(ifindex, netdev)| {
        let peer = netdev.lower.filter(|_| netdev.kind.as_deref() == Some("veth"))?;
        let peer =
            facts.probes.generic_xdp.contains(&peer).then(|| netdevs.get(&peer)).flatten()?;
        Some((*ifindex, peer.name.clone(), None))
    });
    let elsewhere = facts.probes.foreign_uppers.iter().flatten();
    let elsewhere = elsewhere.filter(|upper| upper.kind == "veth" && upper.generic_xdp).map(
        |ForeignUpper { lower, name, namespace, .. }| (*lower, name.clone(), Some(*namespace)),
    );
    let mut reasons: BTreeMap<Ifindex, Vec<Reason>> = BTreeMap::new();
    for (ifindex, peer, namespace) in here.chain(elsewhere) {
        let Some(netdev) = netdevs.get(&ifindex) else { continue };
        let reason = Reason::PeerXdp { device: netdev.name.clone(), peer, namespace };
        for device in std::iter::once(ifindex).chain(netdev.master) {
            reasons.entry(device).or_default().push(reason.clone());
        }
    }
    reasons
}
