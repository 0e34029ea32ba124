//! The seed of the hash by which the kernel spreads flows over several next hops.
//!
//! With a seed that an administrator has set, Tollway chooses as the kernel does. The kernel draws its own
//! seed when it boots, and keeps it secret. So if that seed is active and there are routes with several next
//! hops, Tollway sets another, once. It remains when Tollway ends, so flows keep their next hops.

use std::hash::{BuildHasher, RandomState};
use std::io;

use super::event::Event;
use super::kernel::{Family, Hops, Kernel, Nexthop};
use super::offload::{PerFamily, Spread};
use super::rib::Rib;
use super::sysctl::Sysctls;

const FILE: &str = "/proc/sys/net/ipv4/fib_multipath_hash_seed";
/// The highest hash policy that Tollway implements.
const MOST_POLICY: u8 = 1;

/// The families for which an event adds, or may add, routes with several next hops.
pub(super) fn adds_multipath(event: &Event, kernel: &Kernel) -> PerFamily<bool> {
    let is_group = |nexthop: &Nexthop| matches!(nexthop, Nexthop::Group { .. });
    let has_several = |hops: &Hops| match hops {
        Hops::Many(_) => true,
        Hops::Object(id) => kernel.nexthops.get(id).is_some_and(is_group),
        Hops::None | Hops::One(_) => false,
    };
    match event {
        Event::Route(key, route, _) => {
            PerFamily::each(|family| key.family() == family && has_several(&route.hops))
        }
        Event::Nexthop(_, Some(nexthop)) => PerFamily::each(|_| is_group(nexthop)),
        Event::Whole(kernel) => PerFamily::each(|_| kernel.nexthops.values().any(is_group)),
        _ => PerFamily::default(),
    }
}

/// The families that have routes with several next hops.
pub(super) fn multipath_families(rib: &Rib) -> PerFamily<bool> {
    let mut groups = PerFamily::default();
    rib.each_attrs(|attrs| {
        let several = match &attrs.route.hops {
            Hops::Many(_) => true,
            Hops::Object(id) => {
                matches!(rib.nexthop(*id), Some(Nexthop::Group { members, .. }) if members.len() > 1)
            }
            Hops::None | Hops::One(_) => false,
        };
        *groups.of_mut(attrs.family) |= several;
    });
    groups
}

/// Sets a seed if the kernel's secret one is active and matters; records in `spread` if the kernel refuses it.
pub(super) fn replace_secret_seed(sysctls: &mut Sysctls, spread: &mut Spread) {
    let global = &mut sysctls.global;
    let counts = |family, policy| *spread.groups.of(family) && policy <= MOST_POLICY;
    let counts = counts(Family::V4, global.multipath4) || counts(Family::V6, global.multipath6);
    if global.multipath_seed != Some(0) || !counts || spread.seed_refused {
        return;
    }
    match set_random_seed() {
        Ok(seed) => {
            tracing::info!(
                "set net.ipv4.fib_multipath_hash_seed = {seed}: with the kernel's own seed, which it \
                 keeps secret, flows would change their next hop when Tollway starts or ends"
            );
            global.multipath_seed = Some(seed);
        }
        Err(error) => {
            tracing::warn!(
                "cannot set net.ipv4.fib_multipath_hash_seed: {error}; routes with several next hops \
                 take the kernel path. Set it with: sysctl -w net.ipv4.fib_multipath_hash_seed=N"
            );
            spread.seed_refused = true;
        }
    }
}

/// Sets a random seed, and returns it.
fn set_random_seed() -> io::Result<u32> {
    let seed = (RandomState::new().hash_one(FILE) as u32).max(1);
    std::fs::write(FILE, seed.to_string())?;
    Ok(seed)
}
