use super::{Policies, RouteTables, query};
use crate::burst::{BURST, Burst, Lanes};
use crate::frame::Umem;

/// Finds the next hops of packets whose links have a policy, from the policy instead of their FIBs.
#[inline(never)]
pub(crate) fn run(
    burst: &mut Burst,
    umem: &Umem,
    tables: &RouteTables,
    policies: &Policies,
    marks: &[u32; BURST],
    (ip4, ip6): (Lanes, Lanes),
) {
    let next_hops = tables.next_hops.view();
    for (version, lanes) in [(4, ip4), (6, ip6)] {
        for lane in lanes {
            if policies.of(burst.link[lane]).is_none() {
                continue;
            }
            let query = query(burst, umem, lane, version, marks[lane]);
            burst.next[lane] = next_hops.installed(tables.find(&query));
        }
    }
}
