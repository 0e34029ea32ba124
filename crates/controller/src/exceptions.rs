//! IPv4 destinations for which the kernel knows a smaller path MTU that also applies to forwarded
//! packets.
//!
//! An ICMP message "fragmentation needed" with an MTU below `net.ipv4.route.min_pmtu` (552) makes an
//! exception whose MTU is locked (`__ip_rt_update_pmtu` in `net/ipv4/route.c`). Until it expires, the kernel
//! fragments forwarded packets to that minimum (`ip_dst_mtu_maybe_forward`). It does not notify of
//! exceptions. So a raw socket receives the messages. For each, Tollway sends a route query for the same
//! lookup that the kernel makes. If the answer has a locked MTU, packets to that destination take the kernel
//! path, whatever table they are looked up in.
//!
//! Limits: queries do not cover rules that select by marks, ports or bound devices. The socket receives
//! messages of VRFs only while `net.ipv4.raw_l3mdev_accept` is 1, the default. Some thousand messages may
//! wait to be read. At the start, the kernel lists only the exceptions that packets have used. An ICMP
//! redirect about the host's own ICMP messages takes effect while any such socket is open (`raw_err`).

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
use super::netlink::{Flow, Locked, list_locked, query_locked};
use tollway_linux::netlink::QuerySocket;
use tollway_linux::sys::{self, why};

/// When to query after a message. The socket receives it before the kernel processes it
/// (`raw_local_deliver`), and a busy TCP socket processes it later (`tcp_v4_mtu_reduced`).
const QUERY_AFTER: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(2), Duration::from_millis(50), Duration::from_secs(1)];
/// Messages read in one turn.
const BATCH: usize = 64;
/// Queries that may wait; beyond that the oldest are dropped.
const MOST_QUERIES: usize = 512;
/// The most destinations on the kernel path: each is an entry in the FIB of each table. The kernel itself
/// stores some thousand exceptions for a next hop.
const MOST_KNOWN: usize = 16_384;
/// The most time for queries in one turn.
const SLICE: Duration = Duration::from_millis(1);
/// How often to check whether the initial list is complete.
const LIST_EVERY: Duration = Duration::from_millis(50);
/// The time to wait for further changes after a change of routes.
const DOUBTED_FOR: Duration = Duration::from_millis(50);
/// The shortest time until Tollway queries an exception again that is about to expire.
const LEAST: Duration = Duration::from_millis(20);
/// Nothing is due.
const NEVER: Duration = Duration::from_secs(3600);

/// The known exceptions, and the means to learn of them.
pub(super) struct Exceptions {
    /// The raw socket for the messages; none where the system refuses it.
    messages: Option<File>,
    query_socket: Option<QuerySocket>,
    queries: VecDeque<Query>,
    known: BTreeMap<Ipv4Addr, PathMtuException>,
    /// When to query all known exceptions again, after a change of routes.
    doubted: Option<Instant>,
    /// Whether the warning about too many exceptions has been logged.
    has_warned: bool,
    /// The initial list, until it is complete.
    list: Option<JoinHandle<io::Result<Locked>>>,
    /// When there is something to do even without a message.
    pub(super) at: Instant,
}

/// Says whether IPv4 packets may take another route after an event.
fn may_reroute(event: &Event) -> bool {
    match event {
        Event::Link(..) | Event::Rule(..) | Event::Nexthop(..) | Event::Address(..) => true,
        Event::Route(key, _, change) => {
            !matches!(change, Change::Listed) && key.family() == Family::V4
        }
        _ => false,
    }
}

/// A query whether an exception has been made or still exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Query {
    at: Instant,
    /// How often it has been tried.
    tries: usize,
    /// The packet that was too big, which the host itself had sent.
    flow: Flow,
}

/// An exception.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PathMtuException {
    /// The packet by which it was found; none if the kernel has listed it.
    flow: Option<Flow>,
    until: Instant,
    /// It has to be queried again.
    is_doubted: bool,
}

impl Exceptions {
    /// Starts to follow the messages.
    pub(super) fn open() -> Self {
        let opened = sys::unreachable_socket()
            .and_then(|socket| Ok((socket, QuerySocket::open(NETLINK_ROUTE)?)));
        let (messages, query_socket) = match opened {
            Ok((socket, query_socket)) => (Some(File::from(socket)), Some(query_socket)),
            Err(error) => {
                tracing::warn!(
                    "ICMP messages cannot be received ({}): where the kernel learns of a path MTU below \
                     552 by one, packets leave whole nevertheless",
                    why(&error)
                );
                (None, None)
            }
        };
        let list =
            std::thread::Builder::new().name("exceptions".to_owned()).spawn(list_locked).ok();
        let (queries, known) = (VecDeque::new(), BTreeMap::new());
        let (doubted, has_warned) = (None, false);
        Self {
            messages,
            query_socket,
            queries,
            known,
            doubted,
            has_warned,
            list,
            at: Instant::now(),
        }
    }

    /// The descriptor to wait for; -1, which poll(2) ignores, if there is none.
    pub(super) fn fd(&self) -> i32 {
        self.messages.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    /// Receives a notification of the kernel. Exceptions change with routes: after a notification that may
    /// change a route, Tollway soon queries the exceptions again.
    pub(super) fn on_event(&mut self, event: &Event) {
        if self.doubted.is_none() && !self.known.is_empty() && may_reroute(event) {
            let at = Instant::now() + DOUBTED_FOR;
            self.doubted = Some(at);
            self.at = self.at.min(at);
        }
    }

    /// Reads messages and makes the queries that are due. Returns the destinations on the kernel path, if
    /// they have changed. `vrfs` gives the VRF devices. Never waits.
    pub(super) fn look(
        &mut self,
        vrfs: impl FnOnce() -> Vec<Ifindex>,
    ) -> Option<BTreeSet<Ipv4Addr>> {
        let now = Instant::now();
        self.receive(now);
        if self.at > now {
            return None;
        }
        let vrfs = &vrfs();
        let mut changed = self.take_list(now);
        if self.doubted.take_if(|at| *at <= now).is_some() {
            self.known.values_mut().for_each(|known| known.is_doubted = true);
        }
        let is_due = |known: &PathMtuException| known.is_doubted || known.until <= now;
        let known = self.known.iter().map(|(dst, known)| (*dst, *known));
        let due: Vec<_> = known.filter(|(_, known)| is_due(known)).collect();
        let mut has_time = true;
        for (dst, known) in due {
            has_time = has_time && now.elapsed() < SLICE;
            if has_time {
                changed |= !self.query_again(dst, known, vrfs, now);
            }
        }
        for _ in 0..self.queries.len() {
            let Some(query) = self.queries.pop_front() else { break };
            has_time = has_time && now.elapsed() < SLICE;
            if query.at > now || !has_time {
                self.queries.push_back(query);
                continue;
            }
            match self.query(query.flow, vrfs) {
                Ok(Some(left)) => changed |= self.note(query.flow, now + left),
                Ok(None) | Err(_) => {
                    let tries = query.tries + 1;
                    let at = QUERY_AFTER.get(tries).map(|after| now + *after);
                    self.queries.extend(at.map(|at| Query { at, tries, ..query }));
                }
            }
        }
        let due = self.queries.iter().map(|query| query.at).chain(self.doubted);
        let ends = self.known.values().map(|known| known.until);
        let list = self.list.as_ref().map(|_| now + LIST_EVERY);
        let next = due.chain(ends).chain(list).min().unwrap_or(now + NEVER);
        self.at = if has_time { next } else { now };
        changed.then(|| self.known.keys().copied().collect())
    }

    /// Queries whether an exception still exists; false if it does not. An exception from the kernel's list
    /// may apply to unknown packets, so it stays until it expires.
    fn query_again(
        &mut self,
        dst: Ipv4Addr,
        known: PathMtuException,
        vrfs: &[Ifindex],
        now: Instant,
    ) -> bool {
        let flow = known.flow.unwrap_or(Flow { src: None, dst, tos: 0 });
        let until = match self.query(flow, vrfs) {
            Ok(Some(left)) => now + left.max(LEAST),
            Ok(None) if known.flow.is_some() || known.until <= now => {
                self.known.remove(&dst);
                return false;
            }
            Ok(None) => known.until,
            Err(_) => now + QUERY_AFTER[3],
        };
        self.known.insert(dst, PathMtuException { until, is_doubted: false, ..known });
        true
    }

    /// Records an exception; returns whether it is new.
    fn note(&mut self, flow: Flow, until: Instant) -> bool {
        let is_new = !self.known.contains_key(&flow.dst);
        if is_new && self.known.len() >= MOST_KNOWN {
            if !std::mem::replace(&mut self.has_warned, true) {
                tracing::warn!(
                    "the kernel has learnt of more than {MOST_KNOWN} path MTUs below \
                     net.ipv4.route.min_pmtu; packets to further destinations leave whole"
                );
            }
            return false;
        }
        self.known
            .insert(flow.dst, PathMtuException { flow: Some(flow), until, is_doubted: false });
        is_new
    }

    fn receive(&mut self, now: Instant) {
        /// An IPv4 header, the ICMP header, and the part of the packet that was too big; all with options.
        const ROOM: usize = 256;
        let Some(messages) = &mut self.messages else { return };
        let mut room = [0; ROOM];
        for _ in 0..BATCH {
            let Ok(len) = messages.read(&mut room) else { return };
            let Some(flow) = room.get(..len).and_then(too_big) else { continue };
            // The new message may have a smaller MTU than the one before.
            if let Some(query) = self.queries.iter_mut().find(|query| query.flow == flow) {
                (query.at, query.tries) = (now, 0);
                self.at = now;
                continue;
            }
            if self.queries.len() == MOST_QUERIES {
                self.queries.pop_front();
            }
            self.queries.push_back(Query { at: now, tries: 0, flow });
            self.at = now;
        }
    }

    /// Receives the initial list, if it is complete; returns whether it had any entry.
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
            self.known.entry(*dst).or_insert(PathMtuException {
                flow: None,
                until,
                is_doubted: false,
            });
        }
        !locked.is_empty()
    }

    /// Queries how long an exception holds, if there is one, in the main table and those of VRFs.
    fn query(&mut self, flow: Flow, vrfs: &[Ifindex]) -> io::Result<Option<Duration>> {
        let Some(query_socket) = &mut self.query_socket else { return Ok(None) };
        let mut left = None;
        for vrf in std::iter::once(None).chain(vrfs.iter().copied().map(Some)) {
            left = left.max(query_locked(query_socket, flow, vrf)?);
        }
        Ok(left)
    }
}

/// The packet that was too big according to an IPv4 packet (RFC 1191, section 4); none for other packets.
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
    // The last two bits of the type of service are for congestion notification.
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
