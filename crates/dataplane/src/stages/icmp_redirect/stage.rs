use super::Redirects;
use crate::burst::{Burst, Lanes};
use crate::next_hops::{Action, NextHops};
use crate::stages::validate::Valid6;
use crate::verdict::{PuntReason, Verdict};

/// Punts packets that would exit through their ingress link to the kernel; returns the others.
#[inline(never)]
pub(crate) fn run(
    burst: &mut Burst,
    next_hops: &NextHops,
    redirects: &Redirects,
    (ip4, ip6): (Lanes, Valid6),
) -> (Lanes, Valid6) {
    let [back4, back6] = [(4, ip4), (6, ip6.lanes)].map(|(version, lanes)| {
        let back = going_back(burst, next_hops, redirects, version, lanes);
        burst.exit_all(back, Verdict::Punt(PuntReason::Redirect));
        back
    });
    (ip4.without(back4), ip6.without(back6))
}

fn going_back(
    burst: &Burst,
    next_hops: &NextHops,
    redirects: &Redirects,
    version: u8,
    lanes: Lanes,
) -> Lanes {
    let next_hops = next_hops.view();
    let mut back = Lanes::NONE;
    for lane in lanes {
        let Some(record) = next_hops.record(burst.next[lane]) else { continue };
        let link = burst.link[lane];
        if record.link() == link && redirects.has(link, version) {
            // The link field is meaningless in a next hop that does not lead to a link.
            let leads =
                matches!(record.action(), Action::Forward | Action::Resolve | Action::Glean);
            back.put(lane, leads);
        }
    }
    back
}
