//! Classify: finds the logical link that a frame arrived on from its VLAN tags, and the FIB from the
//! link.
//!
//! Kernel equivalent: `vlan_do_receive` (`net/8021q/vlan_core.c`) and the rounds of
//! `__netif_receive_skb_core` (`net/core/dev.c`); IEEE 802.1Q-2018. Tags are 802.1Q (0x8100) or 802.1ad
//! (0x88a8), stacked (QinQ). The stage skips a priority tag (VLAN id 0), as the kernel does.
//!
//! Limits: at most [`MAX_TAGS`] tags, priority tags included.

mod stage;
mod table;
#[cfg(test)]
mod tests;

pub use stage::Classified;
pub(crate) use stage::run;
pub use table::{InnerTag, PortRecord, VlanEntry, VlanTable};

/// The maximum number of tags in a frame: two links deep and a priority tag each.
pub const MAX_TAGS: usize = 4;
