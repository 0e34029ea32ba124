//! What changes without a word of the kernel's, and keeps packets from being forwarded at once: looked at often,
//! since that costs some tens of microseconds. Only what it says is then asked for in full.

use std::collections::{BTreeMap, BTreeSet};

use super::hooks::{self, Hook};
use super::{Asked, Legacy, PerFamily, Probes, count, known, tables, taps, text};
use crate::mirror::kernel::Ifindex;
use crate::steer;

/// What was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glance {
    /// BPF programs of devices, on the way in and on the way out.
    tcx: BTreeMap<Ifindex, Asked<(bool, bool)>>,
    legacy: Asked<PerFamily<Legacy>>,
    hooks: Asked<Option<PerFamily<BTreeSet<Hook>>>>,
    tracked: bool,
    ipvs: bool,
    taps: BTreeSet<Option<Ifindex>>,
}

impl Glance {
    /// Looks, in the network namespace of this thread, at it and at some devices. What a kernel has not told
    /// before it is not asked for.
    pub fn take(devices: impl IntoIterator<Item = Ifindex>, before: &Probes) -> Self {
        let tcx = |ifindex| (ifindex, known(steer::tcx(ifindex)));
        Self {
            tcx: devices.into_iter().map(tcx).collect(),
            legacy: known(tables::legacy()),
            hooks: if before.hooks == Ok(None) { Ok(None) } else { known(hooks::hooks()) },
            tracked: count(TRACKED) > 0,
            ipvs: text(SERVICES).lines().count() > 3,
            taps: taps(&text(TAPS)),
        }
    }
}

pub(super) const TRACKED: &str = "/proc/sys/net/netfilter/nf_conntrack_count";
pub(super) const SERVICES: &str = "/proc/thread-self/net/ip_vs";
pub(super) const TAPS: &str = "/proc/thread-self/net/packet";
