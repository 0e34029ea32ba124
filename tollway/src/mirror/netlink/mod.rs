//! The kernel's configuration by rtnetlink (rtnetlink(7)), as [events](super::event) in order.
//!
//! One socket hears of changes, another is told lists. A list is begun when the first is listened to and
//! nothing waits there, so what is listed is never older than what was heard before.
//! What is heard while a list is told is newer than it, or as new; whatever the list says of the same
//! thing is left out (`touched.rs`). Where the two together may not be the whole truth, it is listed
//! again.
//!
//! When messages were lost (`ENOBUFS`), and when somebody doubts, everything is listed anew. An audit
//! does the same now and then, but slowly, and what it has to mend is told as an error.
//!
//! What the kernel drops without telling (`untold.rs`) is told here all the same, for things that are
//! small; routes are for whoever keeps them.
//!
//! Limits, until an audit: two IPv6 routes of one key that are the same but for their source, or that a
//! replacement has made the same, are taken for one. IPv6 routes that stand between siblings of their
//! key are not listed by the kernel (`fib6_dump_node`). A program that is attached by a BPF link changes
//! [`Netdev::xdp`](super::kernel::Netdev::xdp) untold.
//!
//! Kernel equivalents: `rtmsg_fib` and `inet_dump_fib`, `inet6_rt_notify` and `inet6_dump_fib`,
//! `nexthop_notify`, `notify_rule_change`, `rtmsg_ifinfo`, `rtmsg_ifa`. Needs Linux 5.3, whose routes
//! may have next-hop objects.

mod drift;
mod link;
mod locked;
mod message;
mod nexthop;
mod pass;
mod route;
mod rule;
mod source;
#[cfg(test)]
mod tests;
mod touched;
mod untold;
mod whole;

pub(in crate::mirror) use link::xdp_program;
pub(in crate::mirror) use locked::{Flow, Locked, ask_locked, list_locked};
pub(in crate::mirror) use message::link_body;
pub(in crate::mirror) use rule::{NOT, VRF_ONLY};
pub use source::{Settings, Source, Stats};
