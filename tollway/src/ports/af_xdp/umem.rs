//! One area of memory for the frames of all ports, registered with the kernel.
//!
//! The first socket of a kind registers it, those that follow share that registration
//! (XDP_SHARED_UMEM), on whatever device and queue they are. The kernel has one kind of binding for
//! each registration, so zero-copy sockets have one and copying ones have another, of the same
//! memory.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, Weak};

use tollway_dataplane::frame::{Area, Umem};

use crate::sync::lock;

/// How a socket is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Binding {
    /// The device writes to and reads from the chunks itself.
    pub(super) zero_copy: bool,
    /// Frames may have several chunks.
    pub(super) multi_buffer: bool,
}

impl Binding {
    /// The flags of `bind`.
    pub(super) const fn flags(self) -> u16 {
        let copy = if self.zero_copy { libc::XDP_ZEROCOPY } else { libc::XDP_COPY };
        let chains = if self.multi_buffer { libc::XDP_USE_SG } else { 0 };
        copy | chains | libc::XDP_USE_NEED_WAKEUP
    }
}

/// A socket and how it is bound.
type Owner = (Binding, Weak<OwnedFd>);

/// The area, and the sockets by which it is registered.
#[derive(Clone)]
pub struct SharedUmem {
    area: Arc<Area>,
    /// Bytes that a frame can have in one chunk, and in all that it may have.
    sizes: (usize, usize),
    owners: Arc<Mutex<Vec<Owner>>>,
}

impl SharedUmem {
    /// The memory of `umem`.
    #[must_use]
    pub fn new(umem: &Umem) -> Self {
        Self {
            area: Arc::clone(umem.area()),
            sizes: (umem.room(), umem.limit()),
            owners: Arc::default(),
        }
    }

    pub(super) fn area(&self) -> &Arc<Area> {
        &self.area
    }

    /// Whether frames may need several chunks.
    pub(super) const fn multi_buffer(&self) -> bool {
        self.sizes.1 > self.sizes.0
    }

    /// Bytes that a frame can have in one chunk.
    pub(super) const fn room(&self) -> usize {
        self.sizes.0
    }

    /// A socket whose registration one that is bound like this can share.
    pub(super) fn owner(&self, binding: Binding) -> Option<Arc<OwnedFd>> {
        let mut owners = lock(&self.owners);
        owners.retain(|(_, fd)| fd.strong_count() > 0);
        owners.iter().filter(|(of, _)| *of == binding).find_map(|(_, fd)| fd.upgrade())
    }

    /// Says that a socket is bound, so that others can share.
    pub(super) fn add(&self, binding: Binding, fd: &Arc<OwnedFd>) {
        let mut owners = lock(&self.owners);
        owners.push((binding, Arc::downgrade(fd)));
    }

    /// Says that a socket is bound no longer.
    pub(super) fn forget(&self, fd: &Arc<OwnedFd>) {
        let mut owners = lock(&self.owners);
        owners.retain(|(_, other)| !std::ptr::eq(other.as_ptr(), Arc::as_ptr(fd)));
    }
}
