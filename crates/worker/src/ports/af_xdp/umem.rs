//! One area of memory for the frames of all ports, registered with the kernel.
//!
//! The first socket of a kind registers the area. The following sockets share that registration
//! (XDP_SHARED_UMEM), on any device and queue. The kernel allows one kind of binding per
//! registration, so zero-copy sockets have one and copy-mode sockets another, for the same memory.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, Weak};

use tollway_dataplane::frame::{Area, Umem};

use tollway_linux::sync::lock;

/// How a socket is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Binding {
    /// Whether the device itself reads and writes the chunks.
    pub(super) zero_copy: bool,
    /// Whether frames may have several chunks.
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

/// A socket and its binding.
type Owner = (Binding, Weak<OwnedFd>);

/// The area, and the sockets that registered it.
#[derive(Clone)]
pub struct SharedUmem {
    area: Arc<Area>,
    /// The largest frame in one chunk, and in several, in bytes.
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

    /// The largest frame in one chunk, in bytes.
    pub(super) const fn room(&self) -> usize {
        self.sizes.0
    }

    /// A socket whose registration can be shared by a socket with this binding.
    pub(super) fn owner(&self, binding: Binding) -> Option<Arc<OwnedFd>> {
        let mut owners = lock(&self.owners);
        owners.retain(|(_, fd)| fd.strong_count() > 0);
        owners.iter().filter(|(of, _)| *of == binding).find_map(|(_, fd)| fd.upgrade())
    }

    /// Records a bound socket, so that others can share its registration.
    pub(super) fn add(&self, binding: Binding, fd: &Arc<OwnedFd>) {
        let mut owners = lock(&self.owners);
        owners.push((binding, Arc::downgrade(fd)));
    }

    /// Removes a socket that is no longer bound.
    pub(super) fn forget(&self, fd: &Arc<OwnedFd>) {
        let mut owners = lock(&self.owners);
        owners.retain(|(_, other)| !std::ptr::eq(other.as_ptr(), Arc::as_ptr(fd)));
    }
}
