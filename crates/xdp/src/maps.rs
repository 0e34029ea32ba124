//! What the XDP program and user space share: handles to the maps that are used outside of the
//! loader. Their types are, byte for byte, those of `bpf/maps.h`.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use tollway_dataplane::id::PortId;

use super::counts::PortCounts;
use super::page::MOST_WORKERS;
use super::regions::Regions;
use super::sys::{self, Page};

/// The words that the XDP program reads for each packet, in memory shared with user space.
///
/// Cheap to clone; all clones share the memory.
#[derive(Clone)]
pub struct State(Arc<Page>, Regions);

/// Whether a firewall that the kernel does not know filters every forwarded packet, and what
/// happens to packets while it cannot be evaluated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Ruled {
    /// There is no such firewall.
    #[default]
    Not = 0,
    /// The kernel forwards them meanwhile, unfiltered.
    FailOpen = 1,
    /// The XDP program drops them meanwhile.
    FailClosed = 3,
}

/// How the kernel tracks connections of TCP (`net.netfilter.nf_conntrack_tcp_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpSettings {
    /// How long it keeps an established connection after each packet, in milliseconds.
    pub timeout_ms: u32,
    /// The same behind an RST.
    pub close_timeout_ms: u32,
    /// Whether it finds no packet but an RST out of window.
    pub is_liberal: bool,
    /// Whether it finds no RST out of window.
    pub ignores_invalid_resets: bool,
}

/// Bits of the bypass: no worker takes turns; the configuration changes.
pub(super) const BYPASS_IDLE: u32 = 1;
const BYPASS_HOLD: u32 = 2;
/// More bits: the worker is late with a job; kernel events may be unprocessed.
const BYPASS_OVERDUE: u32 = 4;
const BYPASS_BEHIND: u32 = 8;

impl State {
    pub(super) fn map(state: &OwnedFd, regions: &OwnedFd) -> io::Result<Self> {
        Ok(Self(Arc::new(Page::map(state.as_fd())?), Regions::map(regions)?))
    }

    /// Sets the number of workers, from 1 to [`MOST_WORKERS`]; a number out of this range becomes the
    /// nearest in it. Worker `q % workers` serves queue `q` of each port, and the XDP program looks at
    /// its heartbeat for what is for user space in that queue. At first there is one worker.
    ///
    /// A worker that has not yet written a heartbeat gets no frames; they are the kernel's. So while the
    /// queues change workers, set the bypass.
    pub fn set_workers(&self, workers: usize) {
        self.0.set_workers(workers.clamp(1, MOST_WORKERS) as u32);
    }

    /// Writes a worker's heartbeat, and confirms the tables, both for now.
    pub fn beat(&self, worker: usize) {
        let now_ns = Self::now_ns();
        self.beat_at(worker, now_ns);
        self.confirm_at(now_ns);
    }

    /// Confirms that somebody keeps the tables at a time, in nanoseconds of [`State::now_ns`]. When that
    /// was 80 ms ago (`UNCONFIRMED_NS` of bpf/maps.h), the programs leave everything to the kernel.
    pub fn confirm_at(&self, now_ns: u64) {
        self.0.set_confirmed_ns(now_ns);
    }

    /// The time in nanoseconds, by the clock of heartbeats.
    #[inline]
    #[must_use]
    pub fn now_ns() -> u64 {
        sys::coarse_ns()
    }

    /// Writes a worker's heartbeat with a time that was just read; somebody has to call it at least every 20 ms. If
    /// the process is stopped in between, the heartbeat is as old as the stop. A worker from
    /// [`MOST_WORKERS`] on has none.
    #[inline]
    pub fn beat_at(&self, worker: usize, now_ns: u64) {
        self.0.set_heartbeat_ns(worker, now_ns);
    }

    /// The time of a worker's last heartbeat, whoever has written it.
    #[inline]
    #[must_use]
    pub fn heartbeat_ns(&self, worker: usize) -> u64 {
        self.0.heartbeat_ns(worker)
    }

    /// The time since a worker's last heartbeat, in nanoseconds.
    #[must_use]
    pub fn silence_ns(&self, worker: usize) -> u64 {
        Self::now_ns().saturating_sub(self.heartbeat_ns(worker))
    }

    /// Sets or clears the bypass for the time before the first turn and after the last: while it is
    /// set, the kernel forwards everything.
    pub fn set_bypass(&self, bypass: bool) {
        self.0.set_bypass(BYPASS_IDLE, bypass);
    }

    /// Sets or clears the bypass for a change of the configuration, independently of
    /// [`State::set_bypass`].
    pub fn set_hold(&self, hold: bool) {
        self.0.set_bypass(BYPASS_HOLD, hold);
    }

    /// Sets or clears the bypass for the time in which the worker is late with a job that changes
    /// its tables.
    pub fn set_overdue(&self, overdue: bool) {
        if !overdue {
            // Flows that the XDP path has entered meanwhile predate the change.
            self.bump_generation();
        }
        self.0.set_bypass(BYPASS_OVERDUE, overdue);
    }

    /// Sets whether the kernel gets what is for the workers, because one of them may work by older tables. What the
    /// programs decide by the tables goes on.
    pub fn set_workers_late(&self, late: bool) {
        self.0.set_workers_late(late);
    }

    /// Sets or clears the bypass for the time until the tables reflect all events that the kernel
    /// reported while the process was paused, or made no changes.
    pub fn set_behind(&self, behind: bool) {
        self.0.set_bypass(BYPASS_BEHIND, behind);
    }

    /// Sets whether a firewall that the kernel does not know filters every forwarded packet. Then
    /// it also filters packets that otherwise pass to the kernel at once, for their IPv4 options or
    /// hop-by-hop header.
    pub fn set_ruled(&self, ruled: Ruled) {
        self.0.set_ruled(ruled as u32);
    }

    /// Whether there is such a firewall, and what happens while it cannot be evaluated.
    #[must_use]
    pub fn ruled(&self) -> Ruled {
        match self.0.ruled() {
            0 => Ruled::Not,
            1 => Ruled::FailOpen,
            _ => Ruled::FailClosed,
        }
    }

    /// Sets for each family (IPv4, IPv6) whether a port is crowded. The XDP program passes a
    /// crowded port's packets without a flow to the kernel, for the user path would punt most.
    pub fn set_crowded(&self, port: PortId, (v4, v6): (bool, bool)) {
        self.0.set_crowded(port, (v4, v6));
    }

    /// Sets the longest frame, in bytes, that a port's device takes from the XDP path; 0 if none.
    pub fn set_exit_limit(&self, port: PortId, limit: u32) {
        self.0.set_exit_limit(port, limit);
    }

    /// Sets the ifindex of a port's device if it is up, for the tc program to send to; else 0.
    pub fn set_exit_device(&self, port: PortId, ifindex: u32) {
        self.0.set_exit_device(port, ifindex);
    }

    /// Sets how long the kernel keeps an established connection of UDP after each packet
    /// (`nf_conntrack_udp_timeout_stream`), in milliseconds; 0 makes the kernel forward all tracked packets.
    pub fn set_udp_timeout_ms(&self, timeout_ms: u32) {
        self.0.set_udp_timeout_ms(timeout_ms);
    }

    /// Sets how the kernel tracks TCP; none makes it forward all tracked packets of TCP.
    pub fn set_tcp(&self, tcp: Option<TcpSettings>) {
        let Some(tcp) = tcp else { return self.0.set_tcp([0; 2], 0) };
        // A packet prolongs a connection by this; 0 would end it.
        let times = [tcp.timeout_ms, tcp.close_timeout_ms].map(|time| time.max(1));
        let flags = [(tcp.is_liberal, 1), (tcp.ignores_invalid_resets, 2)];
        let flags = flags.into_iter().filter(|(is_set, _)| *is_set);
        self.0.set_tcp(times, flags.map(|(_, flag)| flag).sum());
    }

    /// Tells the programs which buckets of entries of connections are in use, as in `bpf/maps.h`, and how many tracks.
    pub(crate) fn set_connections_in_use(&self, buckets: [u64; 2], tracks: u32) {
        self.0.set_connections_in_use(buckets, tracks);
    }

    /// Takes note that packets may have gone past the programs in this tick, and until then.
    pub(crate) fn set_unserved_tick(&self, tick: u32) {
        self.0.set_unserved_tick(tick);
    }

    /// The last tick in which packets went past the programs, for [`TrackState::may_have_missed`].
    ///
    /// [`TrackState::may_have_missed`]: crate::connections::TrackState::may_have_missed
    #[must_use]
    pub fn unserved_tick(&self) -> u32 {
        self.0.unserved_tick()
    }

    /// Sets whether the kernel tracks no packets with wrong checksums (`nf_conntrack_checksum`): the programs then
    /// verify those that nobody else has verified.
    pub fn set_verifies_sums(&self, verifies: bool) {
        self.0.set_verifies_sums(verifies);
    }

    /// Whether the bypass is set, for any reason: the kernel forwards everything.
    #[must_use]
    pub fn bypass(&self) -> bool {
        self.0.bypass(BYPASS_IDLE | BYPASS_HOLD | BYPASS_OVERDUE | BYPASS_BEHIND)
    }

    /// The XDP path's generation. A flow is active under the sum of this one and those of its
    /// regions.
    #[inline]
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.0.generation()
    }

    /// The generation of connections, under which an entry is active.
    #[must_use]
    pub fn connections_generation(&self) -> u32 {
        self.0.connections_generation()
    }

    /// The generation of a region ([`regions`](super::regions)).
    #[inline]
    #[must_use]
    pub fn region_generation(&self, region: u32) -> u32 {
        self.1.generation(region)
    }

    /// How often [`State::bump_regions`] was called.
    #[inline]
    #[must_use]
    pub fn region_changes(&self) -> u32 {
        self.0.region_changes()
    }

    /// Gives regions their next generation. This voids all flows with a destination there, and
    /// those with a source there whose decision also used the route to the source.
    pub fn bump_regions(&self, regions: impl IntoIterator<Item = u32>) {
        // First the count: a reader that sees a region's new generation then sees the new count.
        self.0.count_region_change();
        for region in regions {
            self.1.bump(region);
        }
    }

    /// Empties the XDP path by voiding all its flows and connections; returns the new generation of flows.
    pub fn bump_generation(&self) -> u32 {
        self.0.bump_connections_generation();
        self.0.bump_generation()
    }

    /// Voids all flows of the XDP path, and the next hops that entries of connections note, but no connection: a change
    /// concerns only the ways that packets take.
    pub fn bump_flows(&self) {
        self.0.bump_generation();
    }
}

/// The XDP program's counters; a handle for any thread, cheap to clone.
#[derive(Clone)]
pub struct CountMap {
    map: Arc<OwnedFd>,
    processors: usize,
}

impl CountMap {
    pub(super) fn new(map: OwnedFd) -> io::Result<Self> {
        Ok(Self { map: Arc::new(map), processors: sys::possible_processors()? })
    }

    /// A port's counters, summed over all processors.
    ///
    /// # Errors
    /// There is no such port, or the system refused.
    pub fn port(&self, port: PortId) -> io::Result<PortCounts> {
        let mut sum = PortCounts::default();
        let parts = sys::lookup_each(self.map.as_fd(), u32::from(port.0), self.processors)?;
        parts.iter().for_each(|part| sum.add(part));
        Ok(sum)
    }
}
