//! Links on top of each other, as hook ingress meets them.
//!
//! A tagged frame comes to hook ingress of the device below, its tag taken off, then again to that of the
//! VLAN's device (`another_round` in `__netif_receive_skb_core`, `net/core/dev.c`).

use crate::filter::eval::Link;

/// What rules take the links of packets for; a link without a name is none.
pub(super) struct Level {
    /// By the packet's link.
    pub(super) links: Vec<Link>,
    /// Numbers of links whose packets have a tag left there: what is behind it, rules can not see.
    pub(super) tagged: Vec<usize>,
}

impl Level {
    /// Every link as what it is.
    pub(super) fn plain(links: &[Link]) -> Self {
        Self { links: links.to_vec(), tagged: Vec::new() }
    }

    /// The levels of hook ingress, the ports' first.
    pub(super) fn ingress(links: &[Link]) -> Vec<Self> {
        let stacks: Vec<_> = links.iter().map(|link| stack(links, link)).collect();
        let depth = stacks.iter().map(Vec::len).max().unwrap_or(0);
        let level = |depth: usize| Self {
            links: stacks
                .iter()
                .map(|stack| stack.get(depth).copied().cloned().unwrap_or_default())
                .collect(),
            tagged: (0..stacks.len()).filter(|link| stacks[*link].len() > depth + 2).collect(),
        };
        (0..depth).map(level).collect()
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
