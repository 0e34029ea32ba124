//! A quick poll of state that changes without notification, and whose change takes packets off the fast path
//! at once. It costs some tens of microseconds, so the controller repeats it often. It queries everything only
//! if the result differs.

use std::collections::{BTreeMap, BTreeSet};

use super::hooks::{self, Hook};
use super::{Legacy, PerFamily, Probes, QueryResult, count, known, tables, taps, text};
use crate::kernel::Ifindex;
use tollway_xdp::Tcx;

/// The result of a quick poll.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuickPoll {
    /// The BPF programs of devices on ingress and on egress.
    tcx: BTreeMap<Ifindex, QueryResult<Option<Tcx>>>,
    legacy: QueryResult<PerFamily<Legacy>>,
    hooks: QueryResult<Option<PerFamily<BTreeSet<Hook>>>>,
    ebtables: bool,
    tracked: bool,
    ipvs: bool,
    taps: BTreeSet<Option<Ifindex>>,
}

impl QuickPoll {
    /// Polls the network namespace of this thread and some devices. Skips queries that the kernel did not
    /// answer in `before`.
    pub fn query(devices: impl IntoIterator<Item = Ifindex>, before: &Probes) -> Self {
        let tcx = |ifindex| (ifindex, known(tollway_xdp::tcx(ifindex)));
        Self {
            tcx: devices.into_iter().map(tcx).collect(),
            legacy: known(tables::legacy()),
            hooks: if before.hooks == Ok(None) { Ok(None) } else { known(hooks::hooks()) },
            ebtables: ebtables(),
            tracked: count(TRACKED) > 0,
            ipvs: text(SERVICES).lines().count() > 3,
            taps: taps(&text(TAPS)),
        }
    }
}

/// The modules of ebtables-legacy: each is loaded when somebody first looks at its table. Whether that has rules, only
/// who may load it can ask.
const EBTABLES: [&str; 3] =
    ["/sys/module/ebtable_filter", "/sys/module/ebtable_nat", "/sys/module/ebtable_broute"];

/// Whether one of them is there.
pub(super) fn ebtables() -> bool {
    EBTABLES.iter().any(|module| std::path::Path::new(module).exists())
}

pub(super) const TRACKED: &str = "/proc/sys/net/netfilter/nf_conntrack_count";
pub(super) const SERVICES: &str = "/proc/thread-self/net/ip_vs";
pub(super) const TAPS: &str = "/proc/thread-self/net/packet";
