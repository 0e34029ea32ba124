//! The functions that netfilter calls for forwarded packets (`nfnetlink_hook`, Linux 5.14): nftables,
//! iptables, connection tracking, IPVS, BPF programs, security modules.
//!
//! Not all kernels list them (`CONFIG_NETFILTER_NETLINK_HOOK`; Debian's does from 13 on), so absence from the list
//! proves nothing. BPF programs leave no other trace; without the list, Tollway looks for them among the links
//! of all programs.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use netlink_sys::protocols::NETLINK_NETFILTER;

use crate::offload::PerFamily;
use tollway_linux::netlink::QuerySocket;
use tollway_linux::netlink::{find, push};

/// `NFNL_SUBSYS_HOOK` and `NFNL_MSG_HOOK_GET`.
const HOOK_GET: u16 = 12 << 8;
const NFNLA_HOOK_HOOKNUM: u16 = 1;
const NFNLA_HOOK_FUNCTION_NAME: u16 = 4;
const NFNLA_HOOK_MODULE_NAME: u16 = 5;
/// `NFPROTO_IPV4`, `NFPROTO_IPV6`.
const PROTOCOLS: [u8; 2] = [2, 10];
/// `NF_INET_PRE_ROUTING`, `NF_INET_FORWARD`, `NF_INET_POST_ROUTING`.
const FORWARD_HOOKS: [u32; 3] = [0, 2, 4];
/// The function that calls BPF programs.
const BPF: &str = "nf_hook_run_bpf";
/// AppArmor's function (before Linux 5.16, one for each family) looks only at packets of a local socket that have a
/// `secmark` (`security/apparmor/lsm.c`), so at none that are forwarded.
const OF_SOCKETS: [&str; 3] =
    ["apparmor_ip_postroute", "apparmor_ipv4_postroute", "apparmor_ipv6_postroute"];
/// Bytes of `struct nfgenmsg`.
const NFGEN: usize = 4;

/// The owner of a function that netfilter calls for forwarded packets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hook {
    /// A chain of nftables.
    Nftables,
    /// A table of iptables.
    Legacy,
    /// Connection tracking, reassembly, which it needs, and address translation, which needs it.
    Conntrack,
    /// IP virtual server.
    Ipvs,
    /// A security module, which inspects labels of packets.
    Labels,
    /// An unknown function.
    Other(String),
}

impl Hook {
    fn of(function: &str, module: &str) -> Self {
        let is = |part: &str| function.contains(part) || module.contains(part);
        // In this order: `nft_nat_do_chain` belongs to a chain, though it translates addresses.
        if function.starts_with("nft_") {
            Self::Nftables
        } else if ["ipt_do_table", "ip6t_do_table", "iptable_", "ip6table_"].into_iter().any(is) {
            Self::Legacy
        } else if is("ip_vs") {
            Self::Ipvs
        } else if ["conntrack", "defrag", "nf_nat"].into_iter().any(is) {
            Self::Conntrack
        } else if ["selinux_", "smack_"].into_iter().any(is) {
            Self::Labels
        } else {
            Self::Other(
                if function.is_empty() { "a function without a name" } else { function }.to_owned(),
            )
        }
    }
}

/// The owners of the functions; none if this kernel does not list them.
///
/// # Errors
/// The kernel refused.
pub(super) fn hooks() -> io::Result<Option<PerFamily<BTreeSet<Hook>>>> {
    /// The kernel does not list functions. It is asked once only, since it starts a program to load a module at each request.
    static HAS_NO_LIST: AtomicBool = AtomicBool::new(false);
    if HAS_NO_LIST.load(Ordering::Relaxed) {
        return bpf();
    }
    let mut socket = match QuerySocket::open(NETLINK_NETFILTER) {
        Err(error) if error.raw_os_error() == Some(libc::EPROTONOSUPPORT) => return Ok(None),
        opened => opened?,
    };
    let mut both = PerFamily::<BTreeSet<Hook>>::default();
    for (protocol, into) in PROTOCOLS.into_iter().zip([&mut both.v4, &mut both.v6]) {
        for number in FORWARD_HOOKS {
            match socket.list(HOOK_GET, &request(protocol, number), |_, body| hook(body)) {
                Ok(hooks) => into.extend(hooks),
                // The kernel lacks the module for it.
                Err(error)
                    if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) =>
                {
                    HAS_NO_LIST.store(true, Ordering::Relaxed);
                    return bpf();
                }
                Err(error) => return Err(error),
            }
        }
    }
    Ok(Some(both))
}

/// The BPF programs, which need no list of hooks; `None` if the kernel does not list these either.
fn bpf() -> io::Result<Option<PerFamily<BTreeSet<Hook>>>> {
    let Some(hooks) = tollway_xdp::netfilter_hooks()? else { return Ok(None) };
    let mut both = PerFamily::<BTreeSet<Hook>>::default();
    for (protocol, into) in PROTOCOLS.into_iter().zip([&mut both.v4, &mut both.v6]) {
        let forwards = |(family, hook): &&(u32, u32)| {
            *family == u32::from(protocol) && FORWARD_HOOKS.contains(hook)
        };
        if hooks.iter().any(|hook| forwards(&hook)) {
            into.insert(Hook::Other(BPF.to_owned()));
        }
    }
    Ok(Some(both))
}

fn request(protocol: u8, hook: u32) -> Vec<u8> {
    let mut body = vec![0; NFGEN];
    body[0] = protocol;
    push(&mut body, NFNLA_HOOK_HOOKNUM, &hook.to_be_bytes());
    body
}

fn hook(body: &[u8]) -> Option<Hook> {
    body.get(..NFGEN)?;
    let name = |kind| find(body, NFGEN, kind).map(|name| name.text()).unwrap_or_default();
    let function = name(NFNLA_HOOK_FUNCTION_NAME);
    let is_of_forwarded = !OF_SOCKETS.contains(&&*function);
    is_of_forwarded.then(|| Hook::of(&function, &name(NFNLA_HOOK_MODULE_NAME)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_known_by_their_names() {
        let other = |name: &str| Hook::Other(name.to_owned());
        for (function, module, hook) in [
            ("nft_do_chain_inet", "nf_tables", Hook::Nftables),
            ("nft_do_chain_ipv4", "nf_tables", Hook::Nftables),
            ("nft_nat_do_chain", "nft_chain_nat", Hook::Nftables),
            ("ipt_do_table", "ip_tables", Hook::Legacy),
            ("ip6table_nat_do_chain", "ip6table_nat", Hook::Legacy),
            ("ipv4_conntrack_in", "nf_conntrack", Hook::Conntrack),
            ("nf_confirm", "nf_conntrack", Hook::Conntrack),
            ("ipv4_conntrack_defrag", "nf_defrag_ipv4", Hook::Conntrack),
            ("nf_nat_ipv4_pre_routing", "nf_nat", Hook::Conntrack),
            ("ip_vs_forward_icmp", "ip_vs", Hook::Ipvs),
            ("selinux_ip_forward", "", Hook::Labels),
            ("nf_hook_run_bpf", "", other("nf_hook_run_bpf")),
            ("", "", other("a function without a name")),
        ] {
            let mut body = vec![0; NFGEN];
            push(&mut body, NFNLA_HOOK_FUNCTION_NAME, function.as_bytes());
            push(&mut body, NFNLA_HOOK_MODULE_NAME, module.as_bytes());
            assert_eq!(self::hook(&body), Some(hook), "{function}");
        }
        let mut of_sockets = vec![0; NFGEN];
        push(&mut of_sockets, NFNLA_HOOK_FUNCTION_NAME, b"apparmor_ip_postroute");
        assert_eq!(hook(&of_sockets), None);
        assert_eq!(hook(&[2]), None);
    }
}
