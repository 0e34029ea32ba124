//! Rate limits of ICMP errors: `icmp_global_allow` and `icmpv4_xrlim_allow` in `net/ipv4/icmp.c`,
//! `icmpv6_xrlim_allow` in `net/ipv6/icmp.c`, `inet_peer_xrlim_allow` in `net/ipv4/inetpeer.c`. The
//! values are the `sysctl` defaults.
//!
//! Limits: Linux allows more ICMPv6 errors to shorter prefixes (`icmpv6_xrlim_allow` shifts the
//! interval by the prefix length of the route); here each destination gets one a second. For an
//! unreachable, `ip_error` (`net/ipv4/route.c`) takes a second token; here one is enough.

use std::collections::HashMap;
use std::net::IpAddr;

const MS: u64 = 1_000_000;

/// `icmp_ratelimit`: time for one message to a peer.
pub const PEER_INTERVAL_NS: u64 = 1000 * MS;
/// `XRLIM_BURST_FACTOR`: messages to a peer in one burst.
pub const PEER_BURST: u64 = 6;
/// `icmp_msgs_per_sec`.
pub const MESSAGES_PER_SECOND: u64 = 1000;
/// `icmp_msgs_burst`.
pub const MESSAGES_BURST: u64 = 50;
/// Neighbours that the kernel is asked for in a second, and at once: its table has 1,024 (`gc_thresh3` of arp(7)).
const QUESTIONS_PER_SECOND: u64 = 1000;
const QUESTIONS_BURST: u64 = 64;
/// `icmp_ratemask`: destination unreachable, source quench, time exceeded, parameter problem.
pub const RATE_MASK4: u32 = 0x1818;

/// Peers that are remembered. The global limit allows some 6,050 messages in the time that a bucket
/// takes to fill, so more buckets are never in use.
const PEERS: usize = 8192;

/// A token bucket, filled by time up to a limit; a token is a span of time.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// Accumulated time, in ns.
    saved: u64,
    /// The time of the last refill.
    at: u64,
}

impl Bucket {
    fn fill(&mut self, now: u64, full: u64) {
        self.saved = self.saved.saturating_add(now.saturating_sub(self.at)).min(full);
        self.at = now;
    }
}

/// The rate limits of one host.
#[derive(Debug, Default)]
pub(super) struct Limiter {
    global: Option<Bucket>,
    questions: Option<Bucket>,
    peers: HashMap<IpAddr, Bucket>,
}

impl Limiter {
    /// Whether an ICMP message may go to a peer.
    pub(super) fn allow4(&mut self, now: u64, peer: IpAddr, kind: u8, code: u8) -> bool {
        // Path MTU discovery and types outside of the mask are not limited.
        let exempt = (kind, code) == (3, 4) || kind > 18 || RATE_MASK4 >> kind & 1 == 0;
        exempt || self.take(now, peer)
    }

    /// Whether an ICMPv6 message may go to a peer.
    pub(super) fn allow6(&mut self, now: u64, peer: IpAddr, kind: u8) -> bool {
        // `icmp.ratemask` is 0-1,3-127: every error except "packet too big".
        kind == 2 || kind > 127 || self.take(now, peer)
    }

    /// Whether the kernel may be asked for a neighbour.
    pub(super) fn allow_question(&mut self, now: u64) -> bool {
        const TOKEN: u64 = 1000 * MS / QUESTIONS_PER_SECOND;
        const FULL: u64 = TOKEN * QUESTIONS_BURST;
        let bucket = self.questions.get_or_insert(Bucket { saved: FULL, at: now });
        bucket.fill(now, FULL);
        let is_allowed = bucket.saved >= TOKEN;
        bucket.saved -= if is_allowed { TOKEN } else { 0 };
        is_allowed
    }

    /// Takes one token from the peer's bucket and one from the global bucket, or none at all.
    fn take(&mut self, now: u64, peer: IpAddr) -> bool {
        const TOKEN: u64 = 1000 * MS / MESSAGES_PER_SECOND;
        const FULL: u64 = TOKEN * MESSAGES_BURST;
        const PEER_FULL: u64 = PEER_INTERVAL_NS * PEER_BURST;
        let mut global = self.global.unwrap_or(Bucket { saved: FULL, at: now });
        global.fill(now, FULL);
        self.global = Some(global);
        if global.saved < TOKEN {
            return false;
        }
        if self.peers.len() >= PEERS {
            self.forget_idle(now, PEER_FULL);
        }
        let bucket = self.peers.entry(peer).or_insert(Bucket { saved: PEER_FULL, at: now });
        bucket.fill(now, PEER_FULL);
        if bucket.saved < PEER_INTERVAL_NS {
            return false;
        }
        bucket.saved -= PEER_INTERVAL_NS;
        global.saved -= TOKEN;
        self.global = Some(global);
        true
    }

    /// Forgets peers whose buckets are full again; an unknown peer is treated the same.
    fn forget_idle(&mut self, now: u64, full: u64) {
        self.peers.retain(|_, bucket| {
            bucket.fill(now, full);
            bucket.saved < full
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1000 * MS;

    fn peer(number: u32) -> IpAddr {
        IpAddr::V4(number.into())
    }

    fn allowed(limiter: &mut Limiter, now: u64, tries: u32) -> usize {
        (0..tries).filter(|_| limiter.allow4(now, peer(1), 11, 0)).count()
    }

    #[test]
    fn a_peer_gets_six_at_once_and_one_a_second() {
        let mut limiter = Limiter::default();
        assert_eq!(allowed(&mut limiter, 0, 20), 6);
        assert_eq!(allowed(&mut limiter, S - 1, 20), 0);
        assert_eq!(allowed(&mut limiter, S, 20), 1);
        assert_eq!(allowed(&mut limiter, 3 * S + S / 2, 20), 2);
        assert_eq!(allowed(&mut limiter, 4 * S, 20), 1);
        assert_eq!(allowed(&mut limiter, 100 * S, 20), 6);
    }

    #[test]
    fn all_peers_together_get_fifty_at_once_and_a_thousand_a_second() {
        let mut limiter = Limiter::default();
        let mut next = 0;
        let mut burst = |now, tries: u32| {
            next += tries;
            (next - tries..next).filter(|n| limiter.allow6(now, peer(*n), 1)).count()
        };
        assert_eq!(burst(0, 200), 50);
        assert_eq!(burst(10 * MS, 200), 10);
        assert_eq!(burst(S, 200), 50);
    }

    #[test]
    fn a_peer_at_its_limit_takes_nothing_from_the_others() {
        let mut limiter = Limiter::default();
        assert_eq!(allowed(&mut limiter, 0, 500), 6);
        assert_eq!((10..100).filter(|n| limiter.allow4(0, peer(*n), 3, 0)).count(), 44);
    }

    #[test]
    fn path_mtu_discovery_and_answers_are_not_limited() {
        let mut limiter = Limiter::default();
        assert!((0..1000).all(|_| limiter.allow4(0, peer(1), 3, 4)));
        assert!((0..1000).all(|_| limiter.allow4(0, peer(1), 0, 0)));
        assert!((0..1000).all(|_| limiter.allow6(0, peer(1), 2)));
        assert!((0..1000).all(|_| limiter.allow6(0, peer(1), 129)));
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes under Miri")]
    fn idle_peers_are_forgotten() {
        let mut limiter = Limiter::default();
        for number in 0..100_000 {
            limiter.allow4(u64::from(number) * MS, peer(number), 11, 0);
        }
        assert!(limiter.peers.len() <= PEERS);
    }
}
