//! The system calls for devices (netdevice(7)) and packet sockets (packet(7)).

#![allow(unsafe_code)]

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{c_int, c_void, ifreq};

use super::{check, request};

/// A packet socket; protocol 0 receives nothing.
pub fn packet_socket(protocol: c_int) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    let protocol = c_int::from((protocol as u16).to_be());
    // SAFETY: takes numbers only.
    let fd = check(unsafe { libc::socket(libc::AF_PACKET, kind, protocol) })?;
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Binds a packet socket to an interface.
pub fn bind(socket: BorrowedFd<'_>, interface: c_int, protocol: c_int) -> io::Result<()> {
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: (protocol as u16).to_be(),
        sll_ifindex: interface,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the address is a sockaddr_ll of the given length and outlives the call.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) })?;
    Ok(())
}

/// Interface requests (netdevice(7)) and TUNSETIFF; each reads or writes just the ifreq.
#[derive(Clone, Copy)]
pub enum Call {
    /// The ifindex.
    Index,
    /// The Ethernet address.
    Address,
    /// The MTU, in bytes.
    Mtu,
    /// Sets the MTU.
    SetMtu,
    /// The flags (`IFF_*`).
    Flags,
    /// Sets the flags.
    SetFlags,
    /// Makes a TAP device of a descriptor of `/dev/net/tun`.
    MakeTap,
    /// The name of the TAP device behind a descriptor; an error if it no longer exists.
    TapName,
    /// The name of an interface, by ifindex.
    Name,
    /// `ethtool`.
    Ethtool,
}

/// Performs an interface request.
pub fn interface_call(fd: BorrowedFd<'_>, call: Call, request: &mut ifreq) -> io::Result<()> {
    let number = match call {
        Call::Index => libc::SIOCGIFINDEX,
        Call::Address => libc::SIOCGIFHWADDR,
        Call::Mtu => libc::SIOCGIFMTU,
        Call::SetMtu => libc::SIOCSIFMTU,
        Call::Flags => libc::SIOCGIFFLAGS,
        Call::SetFlags => libc::SIOCSIFFLAGS,
        Call::MakeTap => libc::TUNSETIFF,
        Call::TapName => libc::TUNGETIFF,
        Call::Name => libc::SIOCGIFNAME,
        Call::Ethtool => libc::SIOCETHTOOL,
    };
    let pointer: *mut ifreq = request;
    // SAFETY: all these calls take a pointer to an ifreq, which is borrowed exclusively. What the
    // ifreq itself points to (`ethtool`) outlives the call: see `receive_queues`.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), number, pointer) })?;
    Ok(())
}

/// An interface request for an ifindex; all other fields are zero.
pub fn numbered(index: c_int) -> ifreq {
    let zero = MaybeUninit::<ifreq>::zeroed();
    // SAFETY: an ifreq is bytes and numbers, for which zero is valid.
    let mut request = unsafe { zero.assume_init() };
    request.ifr_ifru.ifru_ifindex = index;
    request
}

/// The interface's name in a completed request for it.
pub fn name(request: &ifreq) -> String {
    let bytes = request.ifr_name.iter().map(|c| *c as u8).take_while(|byte| *byte != 0);
    String::from_utf8_lossy(&bytes.collect::<Vec<_>>()).into_owned()
}

/// `struct ethtool_channels` (`linux/ethtool.h`).
#[derive(Default)]
#[repr(C)]
struct Channels {
    cmd: u32,
    max: [u32; 4],
    rx: u32,
    tx: u32,
    other: u32,
    combined: u32,
}

/// ETHTOOL_GCHANNELS.
const GET_CHANNELS: u32 = 0x3c;

/// The number of an interface's receive queues.
pub fn receive_queues(socket: BorrowedFd<'_>, device: &str) -> io::Result<u32> {
    let mut channels = Channels { cmd: GET_CHANNELS, ..Channels::default() };
    let mut request = request(device)?;
    request.ifr_ifru.ifru_data = (&raw mut channels).cast();
    interface_call(socket, Call::Ethtool, &mut request)?;
    Ok(channels.rx + channels.combined)
}

/// The ifindex in a completed request for it.
pub fn index(request: &ifreq) -> c_int {
    // SAFETY: any bit pattern is a valid number.
    unsafe { request.ifr_ifru.ifru_ifindex }
}

/// The MTU in a completed request for it (the kernel's `ifr_mtu` shares memory with `ifr_ifindex`).
pub fn mtu(request: &ifreq) -> c_int {
    index(request)
}

/// The flags in a completed request for them.
pub fn flags(request: &ifreq) -> c_int {
    // SAFETY: any bit pattern is a valid number.
    c_int::from(unsafe { request.ifr_ifru.ifru_flags })
}

/// The hardware type (ARPHRD_*) and the address in a completed request for them.
pub fn address(request: &ifreq) -> (u16, [u8; 6]) {
    // SAFETY: a sockaddr is numbers and bytes, of which any bit pattern is valid.
    let address = unsafe { request.ifr_ifru.ifru_hwaddr };
    let [a, b, c, d, e, f, ..] = address.sa_data.map(|byte| byte as u8);
    (address.sa_family, [a, b, c, d, e, f])
}

/// Says whether the packets of a device of this hardware type have no header of layer 2 (`dev_is_mac_header_xmit` in
/// `include/linux/if_arp.h`): tun, tunnels of IP packets, PPP.
pub fn is_layer3(hardware_type: u16) -> bool {
    /// `ARPHRD_RAWIP`, `ARPHRD_IP6GRE`.
    const RAWIP: u16 = 519;
    const IP6GRE: u16 = 823;
    use libc::{ARPHRD_IPGRE, ARPHRD_NONE, ARPHRD_PPP, ARPHRD_SIT, ARPHRD_TUNNEL, ARPHRD_TUNNEL6};
    let tunnels = [ARPHRD_TUNNEL, ARPHRD_TUNNEL6, ARPHRD_SIT, ARPHRD_IPGRE, IP6GRE];
    tunnels.contains(&hardware_type) || matches!(hardware_type, ARPHRD_NONE | RAWIP | ARPHRD_PPP)
}

/// Sets the MTU in a request.
pub fn set_mtu(request: &mut ifreq, mtu: c_int) {
    request.ifr_ifru.ifru_ifindex = mtu;
}

/// Sets the flags in a request.
pub fn set_flags(request: &mut ifreq, flags: c_int) {
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
}

/// The most frames per call to the kernel.
pub const BATCH: usize = 64;

/// Sends frames by a bound packet socket; returns how many were accepted before the first refusal.
pub fn send(socket: BorrowedFd<'_>, frames: &[&[u8]]) -> io::Result<usize> {
    let mut parts = [libc::iovec { iov_base: null_mut(), iov_len: 0 }; BATCH];
    let count = frames.len().min(BATCH);
    for (part, frame) in parts.iter_mut().zip(frames) {
        *part = libc::iovec { iov_base: frame.as_ptr().cast_mut().cast(), iov_len: frame.len() };
    }
    let first: *mut libc::iovec = parts.as_mut_ptr();
    let message = |index: usize| {
        let header = libc::msghdr {
            msg_name: null_mut(),
            msg_namelen: 0,
            msg_iov: first.wrapping_add(index),
            msg_iovlen: 1,
            msg_control: null_mut(),
            msg_controllen: 0,
            msg_flags: 0,
        };
        libc::mmsghdr { msg_hdr: header, msg_len: 0 }
    };
    let mut messages: [libc::mmsghdr; BATCH] = std::array::from_fn(message);
    let flags = libc::MSG_DONTWAIT as _;
    // SAFETY: `count` messages, each of one part, each of a borrowed frame, which the kernel only
    // reads; all outlive the call.
    let sent = unsafe {
        libc::sendmmsg(socket.as_raw_fd(), messages.as_mut_ptr(), count as libc::c_uint, flags)
    };
    Ok(check(sent)? as usize)
}

/// The receive ring of a packet socket (TPACKET_V2), shared with the kernel.
pub struct Ring {
    base: NonNull<u8>,
    frames: usize,
    frame_bytes: usize,
}

// SAFETY: this value owns the mapping; nothing in it is bound to a thread.
unsafe impl Send for Ring {}

impl Ring {
    /// Maps a ring that PACKET_RX_RING has set up with these sizes, in contiguous frames.
    pub fn map(socket: BorrowedFd<'_>, frames: usize, frame_bytes: usize) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let (bytes, fd) = (frames * frame_bytes, socket.as_raw_fd());
        // SAFETY: a new mapping at an address of the kernel's choice.
        let memory = unsafe { libc::mmap(null_mut(), bytes, protection, libc::MAP_SHARED, fd, 0) };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(memory.cast()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { base, frames, frame_bytes })
    }

    /// The start of frame `index`, modulo the number of frames.
    fn frame(&self, index: usize) -> *mut u8 {
        let offset = index % self.frames * self.frame_bytes;
        // SAFETY: the offset is that of a frame, so within the mapping.
        unsafe { self.base.add(offset) }.as_ptr()
    }

    /// The frame's owner and its flags; what the kernel wrote before is visible after this.
    pub fn status(&self, index: usize) -> u32 {
        let pointer: *mut u32 = self.frame(index).cast();
        // SAFETY: a frame begins with its status, 4 bytes, aligned as frames are (TPACKET_ALIGNMENT);
        // the kernel and this program both access it as a whole.
        let status = unsafe { AtomicU32::from_ptr(pointer) };
        status.load(Ordering::Acquire)
    }

    /// Returns a frame to the kernel.
    pub fn release(&self, index: usize) {
        let pointer: *mut u32 = self.frame(index).cast();
        // SAFETY: as in `status`.
        let status = unsafe { AtomicU32::from_ptr(pointer) };
        status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
    }

    /// A frame's header; to be read only while this program owns the frame.
    pub fn header(&self, index: usize) -> libc::tpacket2_hdr {
        let pointer: *const libc::tpacket2_hdr = self.frame(index).cast();
        // SAFETY: a frame begins with its header, which is numbers; frames are larger than it.
        unsafe { pointer.read() }
    }

    /// Bytes of a frame, fewer at its end; to be read only while this program owns the frame.
    pub fn bytes(&self, index: usize, offset: usize, len: usize) -> &[u8] {
        let start = offset.min(self.frame_bytes);
        let len = len.min(self.frame_bytes - start);
        let pointer = self.frame(index).wrapping_add(start).cast_const();
        // SAFETY: start + len is at most frame_bytes. The kernel does not access the frame until it
        // is released, which ends the callers' use of the bytes.
        unsafe { std::slice::from_raw_parts(pointer, len) }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let memory: *mut c_void = self.base.as_ptr().cast();
        // SAFETY: the mapping of `map`, of which no borrow is left. An error could only mean that
        // it no longer exists.
        let _ = unsafe { libc::munmap(memory, self.frames * self.frame_bytes) };
    }
}
