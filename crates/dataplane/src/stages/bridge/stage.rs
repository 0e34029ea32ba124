use super::fdb::{FdbHome, FdbKey, FdbView};
use super::slow;
use super::table::{LearningBridges, LearningPort};
use crate::burst::{BURST, Burst, Lanes};
use crate::clock::tick_of;
use crate::frame::Umem;
use crate::id::Domain;
use crate::stages::transmit::Egress;
use crate::wire::eth::{self, EthView};

/// Forwards the burst's frames, which came from a port of a bridge; all of them. Returns those to be sent that have known
/// addresses, each with its egress port. Of the others, those that are forwarded are in `egress`, and the rest exits with a
/// verdict.
#[inline(always)]
pub(crate) fn run(
    burst: &mut Burst,
    umem: &mut Umem,
    bridges: &LearningBridges,
    port: &LearningPort,
    egress: &mut Egress,
    now_ns: u64,
) -> Lanes {
    // What frames of one flow have in common does not decide about them.
    burst.bound = burst.lanes();
    let view = bridges.fdb.view();
    prepare(burst, umem, view, port.domain);
    let rare = forward_known(burst, umem, view, port, tick_of(now_ns));
    let known = burst.lanes().without(rare);
    if rare.is_empty() {
        return known;
    }
    slow::run(burst, umem, bridges, port, egress, now_ns, rare);
    known
}

/// Notes where the searches for both addresses of each frame begin, and fetches these places.
#[inline(always)]
fn prepare(burst: &mut Burst, umem: &Umem, view: FdbView<'_>, domain: Domain) {
    for lane in 0..burst.count.min(BURST) {
        let eth = EthView(umem.bytes(burst.addr[lane], 0));
        let dst = view.home(FdbKey::new(domain, eth.dst()));
        let src = view.home(FdbKey::new(domain, eth.src()));
        view.prefetch(dst);
        view.prefetch(src);
        burst.key[lane] = dst.pair(src);
    }
}

/// Finds the egress ports of known unicast from known senders; returns the other frames.
#[inline(always)]
fn forward_known(
    burst: &mut Burst,
    umem: &Umem,
    view: FdbView<'_>,
    port: &LearningPort,
    tick: u32,
) -> Lanes {
    let mut rare = Lanes::NONE;
    for lane in 0..burst.count.min(BURST) {
        let eth = EthView(umem.bytes(burst.addr[lane], 0));
        let (dst_home, src_home) = FdbHome::of_pair(burst.key[lane]);
        let dst = view.find(FdbKey::new(port.domain, eth.dst()), dst_home);
        let src = view.find(FdbKey::new(port.domain, eth.src()), src_home);
        let is_known = match src {
            Some(src) => {
                let age_ticks = tick.wrapping_sub(src.tick());
                (src.port() == burst.port) & (age_ticks <= port.refresh_ticks)
            }
            None => false,
        };
        let may_send = is_known | (!port.learns & eth.has_station_source());
        // What is shorter than a header wraps.
        let fits = burst.len[lane].wrapping_sub(eth::LEN as u16) <= port.common_mtu;
        match dst {
            Some(dst) if may_send & fits & port.targets.has(dst.port()) => {
                burst.egress[lane] = dst.port();
            }
            _ => rare.insert_rare(lane),
        }
    }
    rare
}
