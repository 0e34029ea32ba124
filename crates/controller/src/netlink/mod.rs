//! Reads the kernel's configuration by rtnetlink (rtnetlink(7)), as [events](super::event) in order.
//!
//! One socket receives notifications of changes, another receives lists. A list begins only while the first
//! socket is open and empty, so listed data is never older than earlier notifications. A notification during
//! a list is as new as the list or newer. So the reader ignores what the list says of the same object
//! (`touched.rs`). If list and notifications together may be incomplete, the list is repeated.
//!
//! After a loss of messages (`ENOBUFS`), or on request in case of doubt, everything is listed again. A
//! periodic audit does the same, but slowly, and reports what it has to correct as an error.
//!
//! What the kernel deletes without notification (`implicit_deletes.rs`) becomes events here as well, except
//! for routes: their store derives that.
//!
//! Limits, until an audit: two IPv6 routes of one key count as one if they differ only in their source, or
//! if a replacement makes them equal. The kernel does not list IPv6 routes that stand between siblings of
//! their key (`fib6_dump_node`). A program that is attached by a BPF link changes
//! [`Netdev::xdp`](super::kernel::Netdev::xdp) without notification. So does the kernel's spanning tree protocol
//! with two times of a bridge ([`BridgeSettings::notified`](super::kernel::BridgeSettings::notified)). The
//! settings of a bridge or port that is down may change without notification until it is up.
//!
//! Kernel equivalents: `rtmsg_fib` and `inet_dump_fib`, `inet6_rt_notify` and `inet6_dump_fib`,
//! `nexthop_notify`, `notify_rule_change`, `rtmsg_ifinfo`, `rtmsg_ifa`. Needs Linux 5.3, whose routes
//! may have next-hop objects.

mod bridge;
mod drift;
mod implicit_deletes;
mod link;
mod locked;
mod message;
mod nexthop;
mod object;
mod pass;
mod route;
mod rule;
mod settings;
mod source;
#[cfg(test)]
mod tests;
mod touched;
mod whole;

pub(crate) use link::{has_generic_xdp, xdp_program};
pub(crate) use locked::{Flow, Locked, list_locked, query_locked};
pub(crate) use message::link_body;
pub(crate) use rule::{NOT, VRF_ONLY};
pub use settings::Settings;
pub use source::{Source, Stats};
