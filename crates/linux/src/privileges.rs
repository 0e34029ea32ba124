//! Reduces the router's privileges to those that it needs, before its first thread starts.
//!
//! It needs `CAP_NET_ADMIN` (rtnetlink, nftables, XDP, TAP devices), `CAP_NET_RAW` (AF_XDP
//! sockets), `CAP_BPF` (programs and maps) and `CAP_PERFMON`. Without the last one, the verifier
//! makes programs guard every access against speculation (`bpf_bypass_spec_v1` in
//! `include/linux/bpf.h`), which slows the XDP path. The router gives up all other capabilities
//! permanently, also for the programs that it starts (nft).
//!
//! Before that, it makes two changes that need more privileges. It lifts the limit on locked memory for
//! sockets; if that fails, it keeps `CAP_IPC_LOCK` too. It raises the limits for real-time threads and
//! nice values ([`crate::priority`]); if that fails, it keeps `CAP_SYS_NICE` too. What else takes more privileges, its
//! caller has done: to open the description of the module nf_conntrack takes `CAP_SYS_ADMIN`.

use caps::{CapSet, Capability, CapsHashSet};

use crate::sys;

/// The capabilities that a router needs.
const NEEDED: [Capability; 4] = [
    Capability::CAP_NET_ADMIN,
    Capability::CAP_NET_RAW,
    Capability::CAP_BPF,
    Capability::CAP_PERFMON,
];

/// Why the router cannot give up privileges.
#[derive(Debug, thiserror::Error)]
#[error("cannot give up the privileges that the router does not need: {0}")]
pub struct PrivilegeError(String);

impl From<caps::errors::CapsError> for PrivilegeError {
    fn from(error: caps::errors::CapsError) -> Self {
        Self(error.to_string())
    }
}

impl From<std::io::Error> for PrivilegeError {
    fn from(error: std::io::Error) -> Self {
        Self(error.to_string())
    }
}

/// Makes the changes that need more privileges than a router needs, then gives up the surplus. Call it
/// while there is only one thread.
///
/// # Errors
/// If the system refuses.
pub fn give_up() -> Result<(), PrivilegeError> {
    // If the limit stays, the router needs this capability to exceed it.
    let lock = sys::lift_memory_limit().is_err().then_some(Capability::CAP_IPC_LOCK);
    // Likewise for the scheduling of threads.
    let nice = sys::allow_priorities().is_err().then_some(Capability::CAP_SYS_NICE);
    sys::no_new_privileges()?;
    let has = caps::read(None, CapSet::Permitted)?;
    let needed: CapsHashSet = NEEDED.into_iter().chain(lock).chain(nice).collect();
    let kept: CapsHashSet = needed.intersection(&has).copied().collect();
    if has.contains(&Capability::CAP_SETPCAP) {
        for capability in caps::read(None, CapSet::Bounding)? {
            if !needed.contains(&capability) {
                caps::drop(None, CapSet::Bounding, capability)?;
            }
        }
    }
    // A program that root starts has root's capabilities; another user's nft has only inherited
    // ones.
    let inherited = if sys::effective_user() == 0 { CapsHashSet::new() } else { kept.clone() };
    caps::clear(None, CapSet::Ambient)?;
    caps::set(None, CapSet::Effective, &kept)?;
    caps::set(None, CapSet::Permitted, &kept)?;
    caps::set(None, CapSet::Inheritable, &inherited)?;
    if inherited.contains(&Capability::CAP_NET_ADMIN) {
        caps::raise(None, CapSet::Ambient, Capability::CAP_NET_ADMIN)?;
    }
    Ok(())
}
