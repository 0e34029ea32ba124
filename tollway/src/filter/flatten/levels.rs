//! Links on top of each other, as hooks ingress and prerouting meet them.
//!
//! A tagged frame comes to hook ingress of the device below, its tag taken off, then again to that of the
//! VLAN's device (`another_round` in `__netif_receive_skb_core`, `net/core/dev.c`). A packet of a VRF's device
//! comes to hook prerouting once as that device's and once as the VRF's (`vrf_ip_rcv`, `drivers/net/vrf.c`),
//! and stays the VRF's.

use crate::filter::eval::Link;
use crate::filter::ir::LinkPattern;

/// What rules take the links of packets for; a link without a name is none.
pub(super) struct Level {
    /// By the link that the packet arrived on.
    pub(super) inputs: Vec<Link>,
    /// By the link that it leaves by.
    pub(super) outputs: Vec<Link>,
    /// Numbers of links whose packets have a tag left there: what is behind it, rules can not see.
    pub(super) tagged: Vec<usize>,
}

impl Level {
    fn new(inputs: Vec<Link>, outputs: &[Link]) -> Self {
        Self { inputs, outputs: outputs.to_vec(), tagged: Vec::new() }
    }

    /// The levels of hook prerouting: every link as what it is, then VRFs.
    pub(super) fn prerouting(links: &[Link]) -> Vec<Self> {
        let own = |link: &Link| match link.vrf_device {
            Some(_) => vrf(link),
            None => Link::default(),
        };
        let second = links.iter().any(|link| link.vrf_device.is_some());
        let second = second.then(|| Self::new(links.iter().map(own).collect(), links));
        std::iter::once(Self::new(links.to_vec(), links)).chain(second).collect()
    }

    /// The level behind it.
    pub(super) fn forward(links: &[Link]) -> Self {
        Self::new(links.iter().map(vrf).collect(), links)
    }

    /// The levels of hook ingress, the ports' first.
    pub(super) fn ingress(links: &[Link]) -> Vec<Self> {
        let stacks: Vec<_> = links.iter().map(|link| stack(links, link)).collect();
        let depth = stacks.iter().map(Vec::len).max().unwrap_or(0);
        let level = |depth: usize| {
            let at = |stack: &Vec<&Link>| stack.get(depth).copied().cloned().unwrap_or_default();
            let tagged = (0..stacks.len()).filter(|link| stacks[*link].len() > depth + 2);
            Self { tagged: tagged.collect(), ..Self::new(stacks.iter().map(at).collect(), links) }
        };
        (0..depth).map(level).collect()
    }

    /// Numbers of links that are on top of one that is among these devices.
    pub(super) fn above(&self, devices: &[LinkPattern]) -> Vec<usize> {
        let is_device = |link: &&&Link| devices.iter().any(|device| link.is(device));
        let is_above = |number: &usize| {
            let stack = stack(&self.outputs, &self.outputs[*number]);
            stack.iter().rev().skip(1).any(|link| is_device(&link))
        };
        (0..self.outputs.len()).filter(is_above).collect()
    }
}

/// A link as its VRF, if it has one that is a device.
fn vrf(link: &Link) -> Link {
    match &link.vrf_device {
        Some(name) => Link { name: name.clone(), vrf: link.vrf.clone(), ..Link::default() },
        None => link.clone(),
    }
}

/// A link and those below it, the lowest first.
fn stack<'a>(links: &'a [Link], top: &'a Link) -> Vec<&'a Link> {
    let mut stack = vec![top];
    while let Some(below) = stack.last().and_then(|link| link.on.as_deref())
        && let Some(link) = links.iter().find(|link| link.name == below)
        // A link is on no other twice.
        && !stack.contains(&link)
    {
        stack.push(link);
    }
    stack.reverse();
    stack
}
