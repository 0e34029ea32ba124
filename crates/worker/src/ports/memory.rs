//! The memory of the frames of all ports: how much there is, and in chunks of which size.

#![allow(unsafe_code)]

use tollway_dataplane::frame::Umem;

use super::{af_xdp, redirect};
use crate::hand_over;
use tollway_linux::sys;
use tollway_model::{AfXdpMode, Engine, Model, PortKind};
use tollway_xdp::MOST_WORKERS;

/// Bytes of an Ethernet header with all the tags that a link can have.
pub const LARGEST_HEADER: usize = 22;
/// The largest packet that fits in a frame, in bytes: the frame's length is a 16-bit number.
pub const MOST_MTU: u32 = u16::MAX as u32 - LARGEST_HEADER as u32;
/// Approximate size of all frames in memory together, in bytes.
const UMEM_BYTES: u32 = 64 << 20;
/// The least number of frames in memory: twice what may wait for neighbours.
const MIN_CHUNKS: u32 = 8192;

/// The largest MTU of a model's links.
fn mtu(model: &Model) -> usize {
    model.links.iter().map(|link| usize::from(link.mtu)).max().unwrap_or(1500)
}

/// Bytes of a chunk that holds packets of any of the model's MTUs, tags included.
#[must_use]
pub fn chunk_bytes(model: &Model) -> u32 {
    let frame = mtu(model) + LARGEST_HEADER;
    let sizes = [4096, 8192, 16_384];
    sizes.into_iter().find(|size| Umem::room_of(*size) >= frame).unwrap_or(32_768)
}

/// Allocates memory for the frames of all ports of a model, and of the rings of so many workers; `None` if that fails.
#[must_use]
pub fn umem(model: &Model, workers: usize) -> Option<Umem> {
    let whole = chunk_bytes(model);
    let fits = mtu(model) + LARGEST_HEADER <= Umem::room_of(2048);
    // The kernel accepts chunks of 2 or 4 KB; a larger frame takes several.
    let chunk = match queues(model).next() {
        None => whole,
        Some(_) if fits && !may_be_zero_copy(model) => 2048,
        Some(_) => 4096,
    };
    let held = queues(model).map(af_xdp::chunks_held).sum::<u32>();
    let handed_over = (workers as u32 - 1) * hand_over::FRAMES;
    let chunks = (UMEM_BYTES / chunk).max(MIN_CHUNKS) + held + handed_over;
    Umem::for_frames(chunks, chunk, mtu(model) + LARGEST_HEADER, sys::advise_huge_pages)
}

/// Returns further handles of the memory, one for each worker from number 1 on.
#[must_use]
pub fn share(umem: &Umem, others: usize) -> Vec<Umem> {
    let share = |_| {
        // SAFETY: a frame belongs to one worker at a time. It comes from the kernel by a socket, which one worker
        // has, or from the pool, or by the ring between two workers; it leaves by the same. The kernel gives back
        // only chunks that it was given (`Custody`). The path accesses a frame only within its chunks.
        unsafe { umem.share() }
    };
    (0..others).map(share).collect()
}

/// The largest number of workers that get a queue of a model's ports: the receive queues of one port. It is 1 at
/// least.
#[must_use]
pub fn most_workers(model: &Model) -> usize {
    queues(model).max().map_or(1, |queues| queues as usize).clamp(1, MOST_WORKERS)
}

/// The receive queues of each AF_XDP port.
fn queues(model: &Model) -> impl Iterator<Item = u32> {
    model.ports.iter().filter_map(|port| match &port.kind {
        PortKind::AfXdp { engine: Engine::Tc, .. } => None,
        PortKind::AfXdp { device, .. } => Some(af_xdp::queues(device)),
        _ => None,
    })
}

/// Whether some port may use zero copy.
///
/// Network cards use buffers of whole kilobytes. The kernel gives them 1,792 bytes of a 2 KB chunk,
/// which igb and igc round down to one: they drop frames of more than 1,024 bytes
/// (`igb_setup_srrctl`).
fn may_be_zero_copy(model: &Model) -> bool {
    model.ports.iter().any(|port| match &port.kind {
        PortKind::AfXdp { engine: Engine::Tc, .. }
        | PortKind::AfXdp { mode: AfXdpMode::Copy | AfXdpMode::Generic, .. } => false,
        PortKind::AfXdp { device, .. } => redirect::has_zero_copy(device),
        _ => false,
    })
}
