//! A quick look at what changes without notification and at once keeps packets from the fast path. It costs
//! some tens of microseconds, so it is repeated often. Only if it differs, everything is queried.

use std::collections::{BTreeMap, BTreeSet};

use super::hooks::{self, Hook};
use super::{Asked, Legacy, PerFamily, Probes, count, known, tables, taps, text};
use crate::controller::kernel::Ifindex;
use crate::xdp;

/// The result of a quick look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glance {
    /// Whether devices have BPF programs on ingress and on egress.
    tcx: BTreeMap<Ifindex, Asked<(bool, bool)>>,
    legacy: Asked<PerFamily<Legacy>>,
    hooks: Asked<Option<PerFamily<BTreeSet<Hook>>>>,
    tracked: bool,
    ipvs: bool,
    taps: BTreeSet<Option<Ifindex>>,
}

impl Glance {
    /// Looks at the network namespace of this thread and at some devices. What the kernel did not report in
    /// `before` is skipped.
    pub fn take(devices: impl IntoIterator<Item = Ifindex>, before: &Probes) -> Self {
        let tcx = |ifindex| (ifindex, known(xdp::tcx(ifindex)));
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
