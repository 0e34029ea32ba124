//! What the router may do: what it needs and nothing else, from before its first thread on.
//!
//! It needs `CAP_NET_ADMIN` (rtnetlink, nftables, XDP, TAP devices), `CAP_NET_RAW` (AF_XDP sockets),
//! `CAP_BPF` (programs and maps) and `CAP_PERFMON`, without which the verifier has programs guard every
//! access against speculation (`bpf_bypass_spec_v1` in `include/linux/bpf.h`), which the express lane
//! would pay for. All but these are given up for good, by programs that it starts as well (nft).
//!
//! What takes more is done before: the BPF file system is mounted if it is not, and the memory that
//! sockets hold is limited no more; where that limit cannot be lifted, `CAP_IPC_LOCK` is kept as well. So are the
//! priorities that the worker has (`worker/priority.rs`), or `CAP_SYS_NICE` is kept.

use caps::{CapSet, Capability, CapsHashSet};

use crate::ports::sys;
use crate::steer;

/// What a router needs.
const NEEDED: [Capability; 4] = [
    Capability::CAP_NET_ADMIN,
    Capability::CAP_NET_RAW,
    Capability::CAP_BPF,
    Capability::CAP_PERFMON,
];

/// What could not be given up.
#[derive(Debug, thiserror::Error)]
#[error("privileges that are not needed can not be given up: {0}")]
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

/// Does what takes more than a router needs, and then gives up what is more. To be called while there is
/// one thread only.
///
/// # Errors
/// The system refuses.
pub fn give_up() -> Result<(), PrivilegeError> {
    steer::prepare();
    // Where the limit stays, only this goes beyond.
    let lock = sys::lift_memory_limit().is_err().then_some(Capability::CAP_IPC_LOCK);
    // Likewise for what lets the worker have a processor at once.
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
    // What root starts has what root has; another's nft has only what is left to it.
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
