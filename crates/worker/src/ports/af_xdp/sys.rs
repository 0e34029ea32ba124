//! The system calls of AF_XDP (`linux/if_xdp.h`), and the memory of its rings.

#![allow(unsafe_code)]

use std::io;
use std::marker::PhantomData;
use std::mem::{align_of, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{NonNull, null, null_mut};
use std::sync::atomic::AtomicU32;

use libc::{c_int, c_void};
use tollway_dataplane::frame::{Area, HEADROOM};

use super::ring::Memory;
use tollway_linux::sys::{check, get_option, set_option};

/// The kernel's headroom before a received frame (XDP_PACKET_HEADROOM).
const KERNEL_HEADROOM: u32 = 256;
/// `setsockopt` since Linux 6.18: the most frames that one call sends in copy mode.
const XDP_MAX_TX_SKB_BUDGET: c_int = 9;
/// The most frames that one call is to send in copy mode (the default is 32).
const TX_BUDGET: c_int = 256;
/// Bytes that may be in transit through the kernel in copy mode.
const SEND_BYTES: c_int = 16 << 20;

/// The four rings of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Received frames.
    Rx,
    /// Frames to send.
    Tx,
    /// The fill ring: chunks to receive in.
    Fill,
    /// Chunks of frames that were sent.
    Completion,
}

impl Kind {
    const fn option(self) -> c_int {
        match self {
            Self::Rx => libc::XDP_RX_RING,
            Self::Tx => libc::XDP_TX_RING,
            Self::Fill => libc::XDP_UMEM_FILL_RING,
            Self::Completion => libc::XDP_UMEM_COMPLETION_RING,
        }
    }

    const fn page_offset(self) -> libc::off_t {
        match self {
            Self::Rx => libc::XDP_PGOFF_RX_RING,
            Self::Tx => libc::XDP_PGOFF_TX_RING,
            Self::Fill => libc::XDP_UMEM_PGOFF_FILL_RING as libc::off_t,
            Self::Completion => libc::XDP_UMEM_PGOFF_COMPLETION_RING as libc::off_t,
        }
    }

    const fn offsets(self, all: &libc::xdp_mmap_offsets) -> &libc::xdp_ring_offset {
        match self {
            Self::Rx => &all.rx,
            Self::Tx => &all.tx,
            Self::Fill => &all.fr,
            Self::Completion => &all.cr,
        }
    }
}

/// A new AF_XDP socket.
pub(super) fn socket() -> io::Result<OwnedFd> {
    // SAFETY: takes numbers only.
    let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    let fd = check(fd)?;
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Registers an area as the socket's UMEM. The area must live as long as the socket.
pub(super) fn register(socket: BorrowedFd<'_>, area: &Area) -> io::Result<()> {
    let registration = libc::xdp_umem_reg {
        addr: area.address() as u64,
        len: area.bytes() as u64,
        chunk_size: area.chunk_bytes(),
        headroom: HEADROOM - KERNEL_HEADROOM,
        flags: 0,
        tx_metadata_len: 0,
    };
    set_option(socket, libc::SOL_XDP, libc::XDP_UMEM_REG, &registration)
}

/// Gives the socket a ring of `size` slots, and maps it.
pub(super) fn ring<T: Slot>(
    socket: BorrowedFd<'_>,
    kind: Kind,
    size: u32,
) -> io::Result<Mapped<T>> {
    set_option(socket, libc::SOL_XDP, kind.option(), &(size as c_int))?;
    let zero = libc::xdp_ring_offset { producer: 0, consumer: 0, desc: 0, flags: 0 };
    let none = libc::xdp_mmap_offsets { rx: zero, tx: zero, fr: zero, cr: zero };
    let all = get_option(socket, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS, none)?;
    Mapped::new(socket, kind, size, kind.offsets(&all))
}

/// Sets options that make sending in bursts cheap; kernels without them are slower, not worse.
pub(super) fn prepare_sending(socket: BorrowedFd<'_>) {
    let _ = set_option(socket, libc::SOL_XDP, XDP_MAX_TX_SKB_BUDGET, &TX_BUDGET);
    let _ = set_option(socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &SEND_BYTES);
}

/// Binds a socket to a queue of an interface; `share` is a socket whose UMEM it uses.
pub(super) fn bind(
    socket: BorrowedFd<'_>,
    (ifindex, queue): (u32, u32),
    flags: u16,
    share: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        // A socket that shares inherits the flags of the one that registered.
        sxdp_flags: if share.is_some() { libc::XDP_SHARED_UMEM } else { flags },
        sxdp_ifindex: ifindex,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: share.map_or(0, |socket| socket.as_raw_fd() as u32),
    };
    let len = size_of::<libc::sockaddr_xdp>() as libc::socklen_t;
    // SAFETY: the address is a sockaddr_xdp of the given length and outlives the call.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) })?;
    Ok(())
}

/// Makes the kernel process the TX ring. Errors only mean that frames are left, which the ring
/// shows, too.
pub(super) fn kick_tx(socket: BorrowedFd<'_>) {
    let (fd, flags) = (socket.as_raw_fd(), libc::MSG_DONTWAIT);
    // SAFETY: no bytes and no address are passed.
    let _ = unsafe { libc::sendto(fd, null(), 0, flags, null(), 0) };
}

/// Makes the kernel process the fill ring.
pub(super) fn kick_fill(socket: BorrowedFd<'_>) {
    let (fd, flags) = (socket.as_raw_fd(), libc::MSG_DONTWAIT);
    // SAFETY: no bytes are received and no address is requested.
    let _ = unsafe { libc::recvfrom(fd, null_mut(), 0, flags, null_mut(), null_mut()) };
}

/// The kernel's counters of frames dropped at the socket.
pub(super) fn statistics(socket: BorrowedFd<'_>) -> io::Result<libc::xdp_statistics> {
    let none = libc::xdp_statistics {
        rx_dropped: 0,
        rx_invalid_descs: 0,
        tx_invalid_descs: 0,
        rx_ring_full: 0,
        rx_fill_ring_empty_descs: 0,
        tx_ring_empty_descs: 0,
    };
    get_option(socket, libc::SOL_XDP, libc::XDP_STATISTICS, none)
}

/// Types in rings: plain numbers.
///
/// # Safety
/// Any bit pattern must be valid.
pub(super) unsafe trait Slot: Copy {}
// SAFETY: a number.
unsafe impl Slot for u64 {}
// SAFETY: a number of 64 bits and two of 32.
unsafe impl Slot for libc::xdp_desc {}

/// A ring's memory, shared with the kernel.
#[derive(Debug)]
pub(super) struct Mapped<T> {
    base: NonNull<u8>,
    bytes: usize,
    producer: usize,
    consumer: usize,
    flags: usize,
    slots: usize,
    size: u32,
    items: PhantomData<T>,
}

// SAFETY: this value owns the mapping, which is bound to no thread.
unsafe impl<T: Slot> Send for Mapped<T> {}

impl<T: Slot> Mapped<T> {
    fn new(
        socket: BorrowedFd<'_>,
        kind: Kind,
        size: u32,
        offsets: &libc::xdp_ring_offset,
    ) -> io::Result<Self> {
        let [producer, consumer, flags, slots] =
            [offsets.producer, offsets.consumer, offsets.flags, offsets.desc].map(|o| o as usize);
        let bytes = slots + size as usize * size_of::<T>();
        let fits = |offset: usize| offset.is_multiple_of(4) && offset + 4 <= bytes;
        // Kernels before 5.4 report no flags and shorter offsets.
        let sound = [producer, consumer, flags].into_iter().all(fits)
            && slots > 0
            && slots.is_multiple_of(align_of::<T>())
            && size.is_power_of_two();
        if !sound {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let mode = libc::MAP_SHARED | libc::MAP_POPULATE;
        let (fd, at) = (socket.as_raw_fd(), kind.page_offset());
        // SAFETY: a new mapping at an address of the kernel's choice.
        let memory = unsafe { libc::mmap(null_mut(), bytes, protection, mode, fd, at) };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(memory.cast()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { base, bytes, producer, consumer, flags, slots, size, items: PhantomData })
    }

    fn index(&self, offset: usize) -> &AtomicU32 {
        let pointer: *mut u32 = self.base.as_ptr().wrapping_add(offset).cast();
        // SAFETY: `new` has checked that four aligned bytes are there. The mapping lives as long as
        // self, and both sides access the index as a whole.
        unsafe { AtomicU32::from_ptr(pointer) }
    }
}

// SAFETY: `new` has mapped `size` slots from `slots` on, a power of two, aligned. The kernel is the
// other side and keeps the rule.
unsafe impl<T: Slot> Memory for Mapped<T> {
    type Item = T;

    fn producer(&self) -> &AtomicU32 {
        self.index(self.producer)
    }

    fn consumer(&self) -> &AtomicU32 {
        self.index(self.consumer)
    }

    fn flags(&self) -> &AtomicU32 {
        self.index(self.flags)
    }

    fn slots(&self) -> NonNull<T> {
        // SAFETY: the offset is within the mapping made by `new`.
        unsafe { self.base.add(self.slots) }.cast()
    }

    fn size(&self) -> u32 {
        self.size
    }
}

impl<T> Drop for Mapped<T> {
    fn drop(&mut self) {
        let memory: *mut c_void = self.base.as_ptr().cast();
        // SAFETY: the mapping of `new`, of which no borrow is left. An error could only mean that
        // it no longer exists.
        let _ = unsafe { libc::munmap(memory, self.bytes) };
    }
}

/// The pending error of a socket, if any.
pub(super) fn error(socket: &impl AsFd) -> Option<io::Error> {
    match get_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_ERROR, 0) {
        Ok(0) => None,
        Ok(code) => Some(io::Error::from_raw_os_error(code)),
        Err(error) => Some(error),
    }
}
