//! Address translation for rules of a file: source and destination of connections.
//!
//! Kernel equivalent: `nf_nat_inet_fn` (`net/netfilter/nf_nat_core.c`, Linux 6.18) and `nf_nat_proto.c` beside it, which
//! hooks prerouting and postrouting call at priorities -100 and 100, whatever the priorities of the chains.
//!
//! - Only the packet that begins a connection meets chains of type nat. The first rule that translates decides. All
//!   packets of the connection, and errors of ICMP about them, are then translated without rules.
//! - Behind hook prerouting, the destination is the new one: rules of that point, route lookup and delivery to the
//!   router itself see it. So answers to a masqueraded connection come to the router's own address, and go on.
//! - Behind hook postrouting, the source is the new one. There the connection enters the table. Its answers are answers
//!   to no other connection; if no port is free for that, the packet is dropped and counted.
//! - Where some chain of type nat sees a version of IP, connections that no rule translates get another source port, too,
//!   if the answers would be those of another connection (`nf_nat_alloc_null_binding`).
//!
//! RFC 3022 (traditional NAT), RFC 5508 (ICMP).
//!
//! Limits: those of [`binding`](super::binding). A masqueraded connection keeps its address when the link gets another one,
//! or the route another link. Connections of the router itself are not tracked, and may have the port of a masqueraded
//! one. Fragments belong to no connection, so they leave as they came.

mod own;
mod stage;
#[cfg(test)]
mod tests;

pub(crate) use own::{restore, translate_own};
pub(super) use stage::{destination, source};
