//! ICMP redirect: packets that would exit through their ingress link take the kernel path.
//!
//! Kernel equivalent: `__mkroute_input` (`net/ipv4/route.c`), which requests a redirect if the packet's
//! next hop is on its ingress device (`IPSKB_DOREDIRECT`), and `ip_rt_send_redirect`, which sends and
//! counts redirects; `ip6_forward` (`net/ipv6/ip6_output.c`) with `ndisc_send_redirect`. All of them
//! also forward the packet, so the kernel does both.
//!
//! `fib_validate_source` also checks such packets more closely, so they skip
//! [`crate::stages::source_check`]. IPv6 allows them a source that is bound to the link.
//!
//! The path skips this stage while no link sends redirects.
//!
//! Limits: the kernel decides for each such packet whether it really notifies the sender (the sender
//! must be on the link itself, and the last redirect long enough ago).

mod stage;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use stage::run;
pub(crate) use table::Redirects;
