//! IPv4 destinations to which the kernel knows a smaller path MTU that holds for forwarded packets, too.
//!
//! An ICMP message "fragmentation needed" with an MTU below `net.ipv4.route.min_pmtu` (552) makes an exception
//! whose MTU is locked (`__ip_rt_update_pmtu` in `net/ipv4/route.c`): until it expires, forwarded packets are
//! cut to that minimum (`ip_dst_mtu_maybe_forward`). The kernel tells of none. So a raw socket hears the
//! messages, and for each the kernel is asked as it asked itself; where it says that the MTU is locked, packets
//! to that destination are the kernel's, whatever table they go by.
//!
//! Limits: a message that is one of more than some thousand at once may be missed. Of those that came before
//! the start, the kernel lists the exceptions that packets have met since.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::io::{self, Read};
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::kernel::Ifindex;
use super::netlink::{Asker, Locked, list_locked};
use crate::ports::{sys, why};

/// When it is asked after a message: the socket hears it before the kernel heeds it (`raw_local_deliver`), and a
/// busy TCP socket heeds it later (`tcp_v4_mtu_reduced`).
const ASKED_AFTER: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(2), Duration::from_millis(50), Duration::from_secs(1)];
/// Messages that are taken before it is another's turn.
const BATCH: usize = 64;
/// Questions that may wait: beyond that the oldest are dropped.
const MOST_ASKS: usize = 4096;
/// The list of the start is looked after so often.
const LIST_EVERY: Duration = Duration::from_millis(50);
/// After a route has changed, what else is about to change is waited for so long.
const DOUBTED_FOR: Duration = Duration::from_millis(50);
/// Nothing is due.
const NEVER: Duration = Duration::from_secs(3600);

/// What is known of them.
pub(super) struct Exceptions {
    /// None where the system gives no such socket.
    messages: Option<File>,
    asker: Option<Asker>,
    asks: VecDeque<Ask>,
    /// Until when each holds.
    known: BTreeMap<Ipv4Addr, Instant>,
    /// The list of the start, while it is being made.
    list: Option<JoinHandle<io::Result<Locked>>>,
    /// When there is something to do even if there is no message.
    pub(super) at: Instant,
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

/// Who sent a packet, and to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flow {
    pub(super) src: Option<Ipv4Addr>,
    pub(super) dst: Ipv4Addr,
}

impl Exceptions {
    /// Listens from now on.
    pub(super) fn open() -> Self {
        let opened = sys::unreachable_socket().and_then(|socket| Ok((socket, Asker::open()?)));
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
        Self { messages, asker, asks, known, list, at: Instant::now() }
    }

    /// What to wait for; poll(2) passes over the negative number of none.
    pub(super) fn fd(&self) -> i32 {
        self.messages.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    /// Routes have changed, and exceptions with them: asks soon whether they still are.
    pub(super) fn doubt(&mut self) {
        let soon = Instant::now() + DOUBTED_FOR;
        self.known.values_mut().for_each(|until| *until = soon.min(*until));
        self.at = self.known.values().copied().fold(self.at, Instant::min);
    }

    /// Takes what has come, and asks what is due; the destinations that are the kernel's, if others are than
    /// before. `vrfs` are the VRF devices. Never waits.
    pub(super) fn look(&mut self, vrfs: &[Ifindex]) -> Option<BTreeSet<Ipv4Addr>> {
        let now = Instant::now();
        self.hear(now);
        if self.at > now {
            return None;
        }
        let before: Vec<_> = self.known.keys().copied().collect();
        self.take_list(now);
        let expired = self.known.iter().filter(|(_, until)| **until <= now).map(|(dst, _)| *dst);
        for dst in expired.collect::<Vec<_>>() {
            self.known.remove(&dst);
            self.ask(Flow { src: None, dst }, vrfs, now);
        }
        for _ in 0..self.asks.len() {
            let Some(ask) = self.asks.pop_front() else { break };
            let locked = ask.at <= now && self.ask(ask.flow, vrfs, now);
            let tries = ask.tries + usize::from(ask.at <= now);
            if let (false, Some(after)) = (locked, ASKED_AFTER.get(tries)) {
                let at = if ask.at <= now { now + *after } else { ask.at };
                self.asks.push_back(Ask { at, tries, ..ask });
            }
        }
        let due = self.asks.iter().map(|ask| ask.at).chain(self.known.values().copied());
        let list = self.list.as_ref().map(|_| now + LIST_EVERY);
        self.at = due.chain(list).min().unwrap_or(now + NEVER);
        (!self.known.keys().eq(&before)).then(|| self.known.keys().copied().collect())
    }

    fn hear(&mut self, now: Instant) {
        /// An IPv4 header, ICMP's, and as much of the packet that did not fit; all with options.
        const ROOM: usize = 256;
        let Some(messages) = &mut self.messages else { return };
        let mut room = [0; ROOM];
        for _ in 0..BATCH {
            let Ok(len) = messages.read(&mut room) else { return };
            let Some(flow) = room.get(..len).and_then(too_big) else { continue };
            if self.asks.iter().any(|ask| ask.flow == flow) {
                continue;
            }
            if self.asks.len() == MOST_ASKS {
                self.asks.pop_front();
            }
            self.asks.push_back(Ask { at: now, tries: 0, flow });
            self.at = now;
        }
    }

    fn take_list(&mut self, now: Instant) {
        let Some(list) = self.list.take_if(|list| list.is_finished()) else { return };
        match list.join() {
            Ok(Ok(locked)) => {
                self.known.extend(locked.into_iter().map(|(dst, left)| (dst, now + left)));
            }
            Ok(Err(error)) => tracing::info!("the kernel lists no path MTUs: {}", why(&error)),
            Err(_) => {}
        }
    }

    /// Asks the kernel, by the main table and those of VRFs; says if it has an exception, which is noted.
    fn ask(&mut self, flow: Flow, vrfs: &[Ifindex], now: Instant) -> bool {
        let Some(asker) = &mut self.asker else { return false };
        let by = std::iter::once(None).chain(vrfs.iter().copied().map(Some));
        let left = by.filter_map(|vrf| asker.locked(flow.src, flow.dst, vrf)).max();
        if let Some(left) = left {
            self.known.insert(flow.dst, now + left);
        }
        left.is_some()
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
    Some(Flow { src: address(12), dst: address(16)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_packet_that_did_not_fit_is_found() {
        let mut packet = vec![0x46; 24];
        packet.extend([3, 4, 0, 0, 0, 0, 1, 0x90]);
        packet.extend([0x45; 12]);
        packet.extend([10, 0, 0, 1, 198, 18, 0, 1]);
        let (src, dst) = (Some([10, 0, 0, 1].into()), [198, 18, 0, 1].into());
        assert_eq!(too_big(&packet), Some(Flow { src, dst }));
        for len in 0..packet.len() {
            assert_eq!(too_big(&packet[..len]), None, "{len} bytes");
        }
        packet[25] = 3;
        assert_eq!(too_big(&packet), None, "a port is unreachable");
    }
}
