//! The memory that the workers and the XDP program share: heartbeats, bypass and generation.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use tollway_dataplane::id::PortId;

use super::clock;
use super::shared::{Atomics, Shared};

/// The coarse monotonic clock of the host, as read by `bpf_ktime_get_coarse_ns`.
#[inline]
pub(super) fn coarse_ns() -> u64 {
    let own_ns = own_coarse_ns();
    own_ns.wrapping_sub(*AHEAD_NS.get_or_init(clock::ahead_ns) as u64)
}

/// How far this process's clock is ahead of the host's; constant, as the process stays in its time
/// namespace.
static AHEAD_NS: OnceLock<i64> = OnceLock::new();

/// The same clock as this process sees it (time_namespaces(7)).
fn own_coarse_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the timespec, which is borrowed exclusively. It cannot fail: the clock exists.
    let _ = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The most ports.
pub const MOST_PORTS: usize = 64;

/// The most workers that share the queues of the ports.
pub const MOST_WORKERS: usize = 64;

/// The only element of the map `state`, shared with the XDP program.
pub(super) struct Page(Shared<XdpState>);

/// The heartbeats in the map `state` of this version or another one, read by a process that is to
/// replace the program.
///
/// They are a page at the start of the map. Versions with one worker have its heartbeat there, and
/// then other words in the same cache line and zeros up to the end of the page.
pub(super) struct Heartbeats(Shared<Heartbeat>);

/// `struct heartbeat` of bpf/maps.h: a cache line.
#[repr(C)]
struct Heartbeat {
    ns: AtomicU64,
    unused: [AtomicU64; 7],
}

// SAFETY: all fields are atomics.
unsafe impl Atomics for Heartbeat {}

/// `struct state` of bpf/maps.h.
#[repr(C)]
struct XdpState {
    heartbeats: [Heartbeat; MOST_WORKERS],
    bypass: AtomicU32,
    generation: AtomicU32,
    ruled: AtomicU32,
    region_changes: AtomicU32,
    crowded4: AtomicU64,
    crowded6: AtomicU64,
    confirmed_ns: AtomicU64,
    workers: AtomicU32,
    workers_late: AtomicU32,
    exit_limits: [AtomicU32; MOST_PORTS],
    exit_devices: [AtomicU32; MOST_PORTS],
    udp_timeout_ms: AtomicU32,
    verifies_sums: AtomicU32,
    tcp_timeout_ms: AtomicU32,
    tcp_close_timeout_ms: AtomicU32,
    tcp_settings: AtomicU32,
    unserved_tick: AtomicU32,
    connections_generation: AtomicU32,
    tracks: AtomicU32,
    connections4: AtomicU64,
    connections6: AtomicU64,
}

/// The words that the XDP program reads for each packet begin behind the heartbeats, on a page of their own.
const _: () = assert!(std::mem::offset_of!(XdpState, bypass) == 4096);

// SAFETY: all fields are atomics.
unsafe impl Atomics for XdpState {}

impl Heartbeats {
    /// Maps the memory of the map.
    pub(super) fn map(map: BorrowedFd<'_>) -> io::Result<Self> {
        Shared::map(map, MOST_WORKERS).map(Self)
    }

    /// Whether the last heartbeat of any worker is at most `limit_ns` old.
    pub(super) fn are_alive(&self, limit_ns: u64) -> bool {
        let last_ns = self.last_ns();
        last_ns != 0 && coarse_ns().saturating_sub(last_ns) <= limit_ns
    }

    /// The last heartbeat of any worker; 0 if there was none.
    pub(super) fn last_ns(&self) -> u64 {
        let all = self.0.iter().map(|heartbeat| heartbeat.ns.load(Ordering::Relaxed));
        all.max().unwrap_or(0)
    }
}

impl Page {
    /// Maps the memory of the map.
    pub(super) fn map(map: BorrowedFd<'_>) -> io::Result<Self> {
        Shared::map(map, 1).map(Self)
    }

    fn state(&self) -> &XdpState {
        &self.0[0]
    }

    /// Sets the heartbeat of a worker, if its number is below [`MOST_WORKERS`].
    pub(super) fn set_heartbeat_ns(&self, worker: usize, now_ns: u64) {
        let Some(Heartbeat { ns, .. }) = self.state().heartbeats.get(worker) else { return };
        // The coarse clock advances by ticks. Skip the store if nothing changed, for the XDP
        // program reads this cache line for each packet. A heartbeat orders no other data.
        if ns.load(Ordering::Relaxed) != now_ns {
            ns.store(now_ns, Ordering::Relaxed);
        }
    }

    /// The last heartbeat of a worker; 0 if there was none.
    pub(super) fn heartbeat_ns(&self, worker: usize) -> u64 {
        let heartbeat = self.state().heartbeats.get(worker);
        heartbeat.map_or(0, |heartbeat| heartbeat.ns.load(Ordering::Relaxed))
    }

    /// Sets the time at which user space kept the tables.
    pub(super) fn set_confirmed_ns(&self, now_ns: u64) {
        // After a bypass that was set before.
        self.state().confirmed_ns.store(now_ns, Ordering::Release);
    }

    pub(super) fn set_workers(&self, workers: u32) {
        self.state().workers.store(workers, Ordering::Release);
    }

    pub(super) fn set_workers_late(&self, late: bool) {
        self.state().workers_late.store(late.into(), Ordering::Release);
    }

    /// Sets or clears bits of the bypass, which is active while any is set.
    pub(super) fn set_bypass(&self, bits: u32, on: bool) {
        let bypass = &self.state().bypass;
        if on {
            bypass.fetch_or(bits, Ordering::AcqRel);
        } else {
            bypass.fetch_and(!bits, Ordering::AcqRel);
        }
    }

    /// Sets the flags of bpf/maps.h for a firewall that filters every forwarded packet.
    pub(super) fn set_ruled(&self, ruled: u32) {
        self.state().ruled.store(ruled, Ordering::Release);
    }

    pub(super) fn ruled(&self) -> u32 {
        self.state().ruled.load(Ordering::Acquire)
    }

    /// Sets for each family whether a port is crowded.
    pub(super) fn set_crowded(&self, port: PortId, (v4, v6): (bool, bool)) {
        let Some(bit) = 1_u64.checked_shl(port.0.into()) else { return };
        for (word, is_crowded) in [(&self.state().crowded4, v4), (&self.state().crowded6, v6)] {
            if is_crowded {
                word.fetch_or(bit, Ordering::Relaxed);
            } else {
                word.fetch_and(!bit, Ordering::Relaxed);
            }
        }
    }

    /// Sets the longest frame, in bytes, that a port's device takes from the XDP path.
    pub(super) fn set_exit_limit(&self, port: PortId, limit: u32) {
        if let Some(word) = self.state().exit_limits.get(usize::from(port.0)) {
            word.store(limit, Ordering::Release);
        }
    }

    /// Sets the ifindex of a port's device, to which the tc program sends; 0 if none.
    pub(super) fn set_exit_device(&self, port: PortId, ifindex: u32) {
        if let Some(word) = self.state().exit_devices.get(usize::from(port.0)) {
            word.store(ifindex, Ordering::Release);
        }
    }

    /// Sets how long the kernel keeps a connection of UDP after each packet; 0 if entries do not count.
    pub(super) fn set_udp_timeout_ms(&self, timeout_ms: u32) {
        self.state().udp_timeout_ms.store(timeout_ms, Ordering::Release);
    }

    /// Sets whether packets with a wrong checksum of UDP are the kernel's.
    pub(super) fn set_verifies_sums(&self, verifies: bool) {
        self.state().verifies_sums.store(verifies.into(), Ordering::Release);
    }

    /// Sets how long the kernel keeps a connection of TCP after each packet, and after an RST, and the flags.
    pub(super) fn set_tcp(&self, [timeout_ms, close_timeout_ms]: [u32; 2], settings: u32) {
        let state = self.state();
        state.tcp_close_timeout_ms.store(close_timeout_ms, Ordering::Relaxed);
        state.tcp_settings.store(settings, Ordering::Relaxed);
        state.tcp_timeout_ms.store(timeout_ms, Ordering::Release);
    }

    /// Sets which buckets of entries of connections are in use, for each family, and how many tracks.
    pub(super) fn set_connections_in_use(&self, buckets: [u64; 2], tracks: u32) {
        let state = self.state();
        state.tracks.store(tracks, Ordering::Relaxed);
        // What lies in the buckets was written before.
        state.connections4.store(buckets[0], Ordering::Release);
        state.connections6.store(buckets[1], Ordering::Release);
    }

    /// Takes note that packets may have gone past the programs in this tick.
    pub(super) fn set_unserved_tick(&self, tick: u32) {
        self.state().unserved_tick.store(tick, Ordering::Release);
    }

    /// The last tick in which packets went past the programs.
    pub(super) fn unserved_tick(&self) -> u32 {
        self.state().unserved_tick.load(Ordering::Acquire)
    }

    /// Whether any of these bits of the bypass is set.
    pub(super) fn bypass(&self, bits: u32) -> bool {
        self.state().bypass.load(Ordering::Acquire) & bits != 0
    }

    pub(super) fn generation(&self) -> u32 {
        self.state().generation.load(Ordering::Acquire)
    }

    pub(super) fn region_changes(&self) -> u32 {
        self.state().region_changes.load(Ordering::Acquire)
    }

    pub(super) fn count_region_change(&self) {
        self.state().region_changes.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn connections_generation(&self) -> u32 {
        self.state().connections_generation.load(Ordering::Acquire)
    }

    pub(super) fn bump_generation(&self) -> u32 {
        bump(&self.state().generation)
    }

    pub(super) fn bump_connections_generation(&self) {
        bump(&self.state().connections_generation);
    }
}

/// Gives a generation its successor, and returns that.
fn bump(generation: &AtomicU32) -> u32 {
    match generation.fetch_add(1, Ordering::AcqRel).wrapping_add(1) {
        // Generation 0 means no entry, so skip it.
        0 => generation.fetch_add(1, Ordering::AcqRel).wrapping_add(1),
        next => next,
    }
}
