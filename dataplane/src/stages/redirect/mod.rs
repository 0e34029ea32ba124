//! Redirect: packets that would leave by the link that they came by are the kernel's.
//!
//! Kernel equivalent: `__mkroute_input` (`net/ipv4/route.c`), which asks for a redirect where the packet's
//! next hop is on the device that it came by (`IPSKB_DOREDIRECT`), and `ip_rt_send_redirect`, which sends it
//! and counts how often; `ip6_forward` (`net/ipv6/ip6_output.c`) with `ndisc_send_redirect`. All of them
//! forward the packet as well, so the kernel does both. `fib_validate_source` looks closer at such packets,
//! too, so they do not come by [`crate::stages::source`]; and IPv6 lets them have a source that is bound to
//! the link.
//!
//! Not called while no link sends redirects.
//!
//! Limits: whether the sender would really be told (it is on the link itself, the last redirect was long
//! ago) is for the kernel to find out, for each such packet.

mod stage;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use stage::run;
pub(crate) use table::Redirects;
