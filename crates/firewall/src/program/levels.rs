//! Stacked links as hooks ingress and prerouting see them.
//!
//! A tagged frame meets hook ingress of the lower device with its tag removed, then that of the VLAN device
//! (`another_round` in `__netif_receive_skb_core`, `net/core/dev.c`). A packet of a device in a VRF meets
//! hook prerouting once for that device and once for the VRF (`vrf_ip_rcv`, `drivers/net/vrf.c`). From then
//! on its ingress device is the VRF.

use crate::ir::LinkPattern;
use crate::links::Link;

/// The links that rules see in place of the packets' own; one without a name matches nothing.
pub(super) struct Level {
    /// By the ingress link.
    pub(super) inputs: Vec<Link>,
    /// By the egress link.
    pub(super) outputs: Vec<Link>,
    /// Numbers of links whose packets still have a tag at this level; rules cannot see behind it.
    pub(super) tagged: Vec<usize>,
}

impl Level {
    fn new(inputs: Vec<Link>, outputs: &[Link]) -> Self {
        Self { inputs, outputs: outputs.to_vec(), tagged: Vec::new() }
    }

    /// The levels of hook prerouting: every link as itself, then as its VRF.
    pub(super) fn prerouting(links: &[Link]) -> Vec<Self> {
        let own = |link: &Link| match link.vrf_device {
            Some(_) => vrf(link),
            None => Link::default(),
        };
        let second = links.iter().any(|link| link.vrf_device.is_some());
        let second = second.then(|| Self::new(links.iter().map(own).collect(), links));
        std::iter::once(Self::new(links.to_vec(), links)).chain(second).collect()
    }

    /// The level of the hooks behind it.
    pub(super) fn forward(links: &[Link]) -> Self {
        Self::new(links.iter().map(vrf).collect(), links)
    }

    /// The levels of hook ingress, ports first.
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

    /// Numbers of links on top of one of these devices.
    pub(super) fn above(&self, devices: &[LinkPattern]) -> Vec<usize> {
        let is_device = |link: &&&Link| devices.iter().any(|device| link.is(device));
        let is_above = |number: &usize| {
            let stack = stack(&self.outputs, &self.outputs[*number]);
            stack.iter().rev().skip(1).any(|link| is_device(&link))
        };
        (0..self.outputs.len()).filter(is_above).collect()
    }
}

/// A link's VRF if that is a device, else the link.
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
        // Guards against a cycle.
        && !stack.contains(&link)
    {
        stack.push(link);
    }
    stack.reverse();
    stack
}
