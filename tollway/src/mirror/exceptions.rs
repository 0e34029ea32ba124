//! IPv4 destinations to which the kernel knows a smaller path MTU that holds for forwarded packets, too.
//!
//! An ICMP message "fragmentation needed" with an MTU below `net.ipv4.route.min_pmtu` (552) makes an exception
//! whose MTU is locked (`__ip_rt_update_pmtu` in `net/ipv4/route.c`): until it expires, forwarded packets are
//! cut to that minimum (`ip_dst_mtu_maybe_forward`). The kernel tells of none. So a raw socket hears the
//! messages, and for each the kernel is asked as it asked itself; where it says that the MTU is locked, packets
//! to that destination are the kernel's, whatever table they go by.
//!
//! Limits: rules that look at marks, ports or bound devices are not asked for, and a socket hears of VRFs only
//! while `net.ipv4.raw_l3mdev_accept` is 1, as it is by itself. Some thousand messages may wait to be read. Of those
//! that came before the start, the kernel lists the exceptions that packets have met since. An ICMP redirect about
//! the host's own ICMP messages counts while somebody has such a socket (`raw_err`).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::io::{self, Read};
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netlink_sys::protocols::NETLINK_ROUTE;

use super::event::{Change, Event};
use super::kernel::{Family, Ifindex};
use super::netlink::{Flow, Locked, ask_locked, list_locked};
use crate::netlink::Asker;
use crate::ports::{sys, why};

/// When it is asked after a message: the socket hears it before the kernel heeds it (`raw_local_deliver`), and a
/// busy TCP socket heeds it later (`tcp_v4_mtu_reduced`).
const ASKED_AFTER: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(2), Duration::from_millis(50), Duration::from_secs(1)];
/// Messages that are taken before it is another's turn.
const BATCH: usize = 64;
/// Questions that may wait: beyond that the oldest are dropped.
const MOST_ASKS: usize = 512;
/// Destinations that are the kernel's at most: each is an entry in the FIB of each table. The kernel keeps some
/// thousand for a next hop.
const MOST_KNOWN: usize = 16_384;
/// Questions take no longer before it is another's turn.
const SLICE: Duration = Duration::from_millis(1);
/// The list of the start is looked after so often.
const LIST_EVERY: Duration = Duration::from_millis(50);
/// After a route has changed, what else is about to change is waited for so long.
const DOUBTED_FOR: Duration = Duration::from_millis(50);
/// An exception that is about to end is asked for again no sooner.
const LEAST: Duration = Duration::from_millis(20);
/// Nothing is due.
const NEVER: Duration = Duration::from_secs(3600);

/// What is known of them.
pub(super) struct Exceptions {
    /// None where the system gives no such socket.
    messages: Option<File>,
    asker: Option<Asker>,
    asks: VecDeque<Ask>,
    known: BTreeMap<Ipv4Addr, Known>,
    /// When routes have changed, and with them maybe all that is known.
    doubted: Option<Instant>,
    /// There were more than can be kept.
    has_told: bool,
    /// The list of the start, while it is being made.
    list: Option<JoinHandle<io::Result<Locked>>>,
    /// When there is something to do even if there is no message.
    pub(super) at: Instant,
}

/// Whether IPv4 packets may take another route since.
fn may_reroute(event: &Event) -> bool {
    match event {
        Event::Link(..) | Event::Rule(..) | Event::Nexthop(..) | Event::Address(..) => true,
        Event::Route(key, _, change) => {
            !matches!(change, Change::Listed) && key.family() == Family::V4
        }
        _ => false,
    }
}

/// A question whether an exception has come or still is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ask {
    at: Instant,
    /// How often it was asked.
    tries: usize,
    /// The packet that did not fit: it was the host's own.
    flow: Flow,
}

/// An exception.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    /// The packet by which it was found; none where the kernel has listed it.
    flow: Option<Flow>,
    until: Instant,
    /// It is to be asked for again.
    is_doubted: bool,
}

impl Exceptions {
    /// Listens from now on.
    pub(super) fn open() -> Self {
        let opened =
            sys::unreachable_socket().and_then(|socket| Ok((socket, Asker::open(NETLINK_ROUTE)?)));
        let (messages, asker) = match opened {
            Ok((socket, asker)) => (Some(File::from(socket)), Some(asker)),
            Err(error) => {
                tracing::warn!(
                    "ICMP messages cannot be heard ({}): where the kernel learns of a path MTU below \
                     552 by one, packets leave whole nevertheless",
                    why(&error)
                );
                (None, None)
            }
        };
        let list =
            std::thread::Builder::new().name("exceptions".to_owned()).spawn(list_locked).ok();
        let (asks, known) = (VecDeque::new(), BTreeMap::new());
        let (doubted, has_told) = (None, false);
        Self { messages, asker, asks, known, doubted, has_told, list, at: Instant::now() }
    }

    /// What to wait for; poll(2) passes over the negative number of none.
    pub(super) fn fd(&self) -> i32 {
        self.messages.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    /// Takes what the kernel has told: where it may route otherwise, exceptions change with routes, and it is soon
    /// asked whether they still are.
    pub(super) fn take(&mut self, event: &Event) {
        if self.doubted.is_none() && !self.known.is_empty() && may_reroute(event) {
            let at = Instant::now() + DOUBTED_FOR;
            self.doubted = Some(at);
            self.at = self.at.min(at);
        }
    }

    /// Takes what has come, and asks what is due; the destinations that are the kernel's, if others are than
    /// before. `vrfs` tells the VRF devices. Never waits.
    pub(super) fn look(
        &mut self,
        vrfs: impl FnOnce() -> Vec<Ifindex>,
    ) -> Option<BTreeSet<Ipv4Addr>> {
        let now = Instant::now();
        self.hear(now);
        if self.at > now {
            return None;
        }
        let vrfs = &vrfs();
        let mut changed = self.take_list(now);
        if self.doubted.take_if(|at| *at <= now).is_some() {
            self.known.values_mut().for_each(|known| known.is_doubted = true);
        }
        let is_due = |known: &Known| known.is_doubted || known.until <= now;
        let known = self.known.iter().map(|(dst, known)| (*dst, *known));
        let due: Vec<_> = known.filter(|(_, known)| is_due(known)).collect();
        let mut has_time = true;
        for (dst, known) in due {
            has_time = has_time && now.elapsed() < SLICE;
            if has_time {
                changed |= !self.ask_again(dst, known, vrfs, now);
            }
        }
        for _ in 0..self.asks.len() {
            let Some(ask) = self.asks.pop_front() else { break };
            has_time = has_time && now.elapsed() < SLICE;
            if ask.at > now || !has_time {
                self.asks.push_back(ask);
                continue;
            }
            match self.ask(ask.flow, vrfs) {
                Ok(Some(left)) => changed |= self.note(ask.flow, now + left),
                Ok(None) | Err(_) => {
                    let tries = ask.tries + 1;
                    let at = ASKED_AFTER.get(tries).map(|after| now + *after);
                    self.asks.extend(at.map(|at| Ask { at, tries, ..ask }));
                }
            }
        }
        let due = self.asks.iter().map(|ask| ask.at).chain(self.doubted);
        let ends = self.known.values().map(|known| known.until);
        let list = self.list.as_ref().map(|_| now + LIST_EVERY);
        let next = due.chain(ends).chain(list).min().unwrap_or(now + NEVER);
        self.at = if has_time { next } else { now };
        changed.then(|| self.known.keys().copied().collect())
    }

    /// Asks whether an exception still is; false where it is no more. One that the kernel has listed may be of
    /// packets of which nothing is known, and is kept to its end.
    fn ask_again(&mut self, dst: Ipv4Addr, known: Known, vrfs: &[Ifindex], now: Instant) -> bool {
        let flow = known.flow.unwrap_or(Flow { src: None, dst, tos: 0 });
        let until = match self.ask(flow, vrfs) {
            Ok(Some(left)) => now + left.max(LEAST),
            Ok(None) if known.flow.is_some() || known.until <= now => {
                self.known.remove(&dst);
                return false;
            }
            Ok(None) => known.until,
            Err(_) => now + ASKED_AFTER[3],
        };
        self.known.insert(dst, Known { until, is_doubted: false, ..known });
        true
    }

    /// Notes an exception; says if it is new.
    fn note(&mut self, flow: Flow, until: Instant) -> bool {
        let is_new = !self.known.contains_key(&flow.dst);
        if is_new && self.known.len() >= MOST_KNOWN {
            if !std::mem::replace(&mut self.has_told, true) {
                tracing::warn!(
                    "the kernel has learnt of more than {MOST_KNOWN} path MTUs below \
                     net.ipv4.route.min_pmtu; packets to further destinations leave whole"
                );
            }
            return false;
        }
        self.known.insert(flow.dst, Known { flow: Some(flow), until, is_doubted: false });
        is_new
    }

    fn hear(&mut self, now: Instant) {
        /// An IPv4 header, ICMP's, and as much of the packet that did not fit; all with options.
        const ROOM: usize = 256;
        let Some(messages) = &mut self.messages else { return };
        let mut room = [0; ROOM];
        for _ in 0..BATCH {
            let Ok(len) = messages.read(&mut room) else { return };
            let Some(flow) = room.get(..len).and_then(too_big) else { continue };
            // It may tell of less than the one before.
            if let Some(ask) = self.asks.iter_mut().find(|ask| ask.flow == flow) {
                (ask.at, ask.tries) = (now, 0);
                self.at = now;
                continue;
            }
            if self.asks.len() == MOST_ASKS {
                self.asks.pop_front();
            }
            self.asks.push_back(Ask { at: now, tries: 0, flow });
            self.at = now;
        }
    }

    /// Takes the list of the start, if it has come to its end; says if there was anything in it.
    fn take_list(&mut self, now: Instant) -> bool {
        let Some(list) = self.list.take_if(|list| list.is_finished()) else { return false };
        let locked = match list.join() {
            Ok(Ok(locked)) => locked,
            Ok(Err(error)) => {
                tracing::warn!("the kernel lists no path MTUs: {}", why(&error));
                return false;
            }
            Err(_) => return false,
        };
        for (dst, left) in locked.iter().take(MOST_KNOWN) {
            let until = now + (*left).max(LEAST);
            self.known.entry(*dst).or_insert(Known { flow: None, until, is_doubted: false });
        }
        !locked.is_empty()
    }

    /// Asks the kernel, by the main table and those of VRFs, how long an exception holds, if there is one.
    fn ask(&mut self, flow: Flow, vrfs: &[Ifindex]) -> io::Result<Option<Duration>> {
        let Some(asker) = &mut self.asker else { return Ok(None) };
        let mut left = None;
        for vrf in std::iter::once(None).chain(vrfs.iter().copied().map(Some)) {
            left = left.max(ask_locked(asker, flow, vrf)?);
        }
        Ok(left)
    }
}

/// Of which packet an IPv4 packet says that it did not fit (RFC 1191, section 4); none if it is another.
fn too_big(packet: &[u8]) -> Option<Flow> {
    const FRAGMENTATION_NEEDED: [u8; 2] = [3, 4];
    const ICMP: usize = 8;
    let header = |packet: &[u8]| Some(usize::from(packet.first()? & 15) * 4);
    let message = packet.get(header(packet)?..)?;
    if !message.starts_with(&FRAGMENTATION_NEEDED) {
        return None;
    }
    let inner = message.get(ICMP..)?;
    let address = |at: usize| inner.get(at..)?.first_chunk::<4>().map(|address| (*address).into());
    // The last two bits of the type of service tell of congestion.
    Some(Flow { src: address(12), dst: address(16)?, tos: inner.get(1)? & !3 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_packet_that_did_not_fit_is_found() {
        let mut packet = vec![0x46; 24];
        packet.extend([3, 4, 0, 0, 0, 0, 1, 0x90]);
        packet.extend([0x45, 0x13]);
        packet.extend([0; 10]);
        packet.extend([10, 0, 0, 1, 198, 18, 0, 1]);
        let (src, dst) = (Some([10, 0, 0, 1].into()), [198, 18, 0, 1].into());
        assert_eq!(too_big(&packet), Some(Flow { src, dst, tos: 0x10 }));
        for len in 0..packet.len() {
            assert_eq!(too_big(&packet[..len]), None, "{len} bytes");
        }
        packet[25] = 3;
        assert_eq!(too_big(&packet), None, "a port is unreachable");
    }
}
