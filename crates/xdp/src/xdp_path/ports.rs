//! The state of the ports for the XDP path: where flows may arrive, and by which devices they may leave.

use std::num::NonZeroU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};

use tollway_dataplane::id::PortId;
use tollway_dataplane::next_hops::Record;

use crate::{Refusals, State};

/// The state of the ports for the XDP path; their watchers may change it at any time.
pub struct Ports {
    ports: Vec<PortState>,
    changes: AtomicU64,
    /// What devices refuse of the XDP path's frames, if that can be known.
    refusals: OnceLock<Refusals>,
    /// Where the XDP programs read which frames the devices take, if there are such programs.
    state: Option<State>,
}

#[derive(Debug, Default)]
struct PortState {
    entrance: AtomicBool,
    /// The [`Exit`] as one word; 0 for none.
    exit: AtomicU64,
    /// The kernel sends what XDP programs have for the port.
    is_kernels: AtomicBool,
}

/// A device by which flows may leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// The device's ifindex.
    pub ifindex: NonZeroU32,
    /// Its MTU, in bytes.
    pub mtu: u16,
    /// Whether it accepts redirected frames in several pieces (`NETDEV_XDP_ACT_NDO_XMIT_SG`).
    pub takes_pieces: bool,
}

impl Exit {
    const MTU_AT: u32 = 32;
    const PIECES_AT: u32 = 48;

    fn word(self) -> u64 {
        u64::from(self.ifindex.get())
            | u64::from(self.mtu) << Self::MTU_AT
            | u64::from(self.takes_pieces) << Self::PIECES_AT
    }

    fn of(word: u64) -> Option<Self> {
        let ifindex = NonZeroU32::new(word as u32)?;
        let (mtu, pieces) = (word >> Self::MTU_AT, word >> Self::PIECES_AT);
        Some(Self { ifindex, mtu: mtu as u16, takes_pieces: pieces & 1 != 0 })
    }

    /// The longest frame, in bytes, that the device accepts.
    ///
    /// The kernel frees redirected frames that are longer than the device's MTU with an Ethernet
    /// header and one VLAN tag (`xdp_ok_fwd_dev` in `include/linux/filter.h`), without notice.
    const fn limit(self) -> u32 {
        let limit = self.mtu as u32 + LONGEST_L2;
        if self.takes_pieces || limit <= ONE_PIECE { limit } else { ONE_PIECE }
    }

    /// Whether the device accepts every packet of up to `mtu` bytes after an Ethernet header of
    /// `l2_len` bytes.
    const fn takes(self, mtu: u16, l2_len: u8) -> bool {
        mtu as u32 + l2_len as u32 <= self.limit()
    }
}

/// In place of the longest frame that a device accepts: the kernel sends all (`bpf/maps.h`).
const LIMIT_OF_KERNEL: u32 = u32::MAX;
/// `ETH_HLEN` and `VLAN_HLEN`.
const LONGEST_L2: u32 = 18;
/// A frame of up to this many bytes lies in one piece with any driver. Of the drivers with frames in
/// several pieces, ice and i40e have the smallest receive buffers, of 1,664 bytes (`legacy-rx`).
const ONE_PIECE: u32 = 1600;

impl Ports {
    /// Creates the state of so many ports, none of which has the XDP path.
    #[must_use]
    pub fn new(ports: usize) -> Arc<Self> {
        Self::with_programs(ports, None)
    }

    /// As [`Ports::new`], for programs that read in `state` which frames the devices take.
    #[must_use]
    pub fn with_programs(ports: usize, state: Option<State>) -> Arc<Self> {
        let ports = (0..ports).map(|_| PortState::default()).collect();
        Arc::new(Self { ports, changes: AtomicU64::new(0), refusals: OnceLock::new(), state })
    }

    /// Keeps flows out whose device refuses them; to be called once.
    pub fn set_refusals(&self, refusals: Refusals) {
        // A second value would be the same: all ports share one dispatcher.
        let _ = self.refusals.set(refusals);
    }

    /// What devices refuse, if that can be known.
    #[must_use]
    pub fn refusals(&self) -> Option<&Refusals> {
        self.refusals.get()
    }

    /// Sets whether flows that arrive at a port enter the XDP path.
    pub fn set_entrance(&self, port: PortId, on: bool) {
        if let Some(state) = self.ports.get(usize::from(port.0))
            && state.entrance.swap(on, Relaxed) != on
        {
            self.void();
        }
    }

    /// Sets the device by which flows to a port leave; `None` if XDP cannot send there.
    pub fn set_exit(&self, port: PortId, exit: Option<Exit>) {
        let is_kernels = self.is_left_to_kernel(port);
        let exit = exit.filter(|_| !is_kernels);
        let word = exit.map_or(0, Exit::word);
        if let Some(state) = &self.state {
            let none = if is_kernels { LIMIT_OF_KERNEL } else { 0 };
            state.set_exit_limit(port, exit.map_or(none, Exit::limit));
        }
        if let Some(state) = self.ports.get(usize::from(port.0))
            && state.exit.swap(word, Relaxed) != word
        {
            self.void();
        }
    }

    /// Voids all flows after a change. Workers notice it, but they may hang; the generation needs none of them.
    fn void(&self) {
        self.changes.fetch_add(1, Release);
        if let Some(state) = &self.state {
            state.bump_flows();
        }
    }

    /// Leaves to the kernel what arrives by XDP and leaves by this port: the kernel puts packets together before a
    /// device whose frames it makes itself.
    pub fn leave_to_kernel(&self, port: PortId) {
        if let Some(state) = self.ports.get(usize::from(port.0)) {
            state.is_kernels.store(true, Relaxed);
        }
        self.set_exit(port, None);
    }

    /// Whether the kernel sends what arrives by XDP and leaves by this port.
    #[must_use]
    pub fn is_left_to_kernel(&self, port: PortId) -> bool {
        self.ports.get(usize::from(port.0)).is_some_and(|state| state.is_kernels.load(Relaxed))
    }

    /// Sets the ifindex of a port's device if it is up, to which the tc program sends.
    pub fn set_device(&self, port: PortId, ifindex: Option<NonZeroU32>) {
        if let Some(state) = &self.state {
            state.set_exit_device(port, ifindex.map_or(0, NonZeroU32::get));
        }
    }

    /// How often entrances and exits have changed.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Acquire)
    }

    /// Whether flows that arrive at a port enter the XDP path.
    #[must_use]
    pub fn is_entrance(&self, port: PortId) -> bool {
        self.ports.get(usize::from(port.0)).is_some_and(|state| state.entrance.load(Relaxed))
    }

    /// Whether flows may leave by a next hop, whose device must accept all of their packets. Call
    /// this after reading the flow's generation: a device's refusal is recorded before the
    /// generation is raised.
    pub(super) fn is_exit(&self, record: &Record) -> bool {
        let port = record.port();
        let refuses = || self.refusals().is_some_and(|refusals| refusals.cause(port).is_some());
        let exit = self
            .ports
            .get(usize::from(port.0))
            .and_then(|state| Exit::of(state.exit.load(Relaxed)));
        exit.is_some_and(|exit| exit.takes(record.mtu(), record.header_len())) && !refuses()
    }
}
