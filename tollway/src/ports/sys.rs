//! The system calls that the standard library lacks; every unsafe operation of the program is here.

#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use libc::{c_int, c_void, ifreq};

/// Turns a system call's -1 into an error.
pub(crate) fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// The effective user of this process.
pub(crate) fn effective_user() -> libc::uid_t {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

/// The effective group of this process.
pub(crate) fn effective_group() -> libc::gid_t {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::getegid() }
}

/// Bytes of address space that this process may have.
pub(crate) fn address_space_limit() -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: there is room for the answer, which outlives the call.
    check(unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) })?;
    Ok(limit.rlim_cur)
}

/// Lifts this process's limit on locked memory.
pub(crate) fn lift_memory_limit() -> io::Result<()> {
    let all = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: reads the limits, which outlive the call.
    check(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const all) }).map(drop)
}

/// How the kernel schedules a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Schedule {
    /// By its nice value.
    Ordinary,
    /// As soon as it is runnable, unless a real-time thread already runs. Programs that it starts
    /// are ordinary.
    Realtime,
}

/// Permits this process real-time threads of the lowest priority, and threads of any nice value.
pub(crate) fn allow_priorities() -> io::Result<()> {
    for (resource, most) in [(libc::RLIMIT_RTPRIO, 1), (libc::RLIMIT_NICE, 40)] {
        let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
        // SAFETY: reads the limits, which outlive the call.
        check(unsafe { libc::setrlimit(resource, &raw const limit) })?;
    }
    Ok(())
}

/// Says whether this process may execute a file (faccessat(2), with its effective user).
pub(crate) fn may_execute(file: &Path) -> bool {
    let Ok(path) = CString::new(file.as_os_str().as_bytes()) else { return false };
    // SAFETY: the path is a string that ends with a zero byte, and outlives the call.
    let result =
        unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::X_OK, libc::AT_EACCESS) };
    result == 0
}

/// Sets the calling thread's nice value.
pub(crate) fn set_nice(nice: c_int) -> io::Result<()> {
    // SAFETY: takes numbers only.
    check(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) }).map(drop)
}

/// Processors that the process may use.
pub(crate) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Sets the calling thread's schedule.
pub(crate) fn set_schedule(schedule: Schedule) -> io::Result<()> {
    let (policy, sched_priority) = match schedule {
        Schedule::Ordinary => (libc::SCHED_OTHER, 0),
        Schedule::Realtime => (libc::SCHED_FIFO, 1),
    };
    let parameters = libc::sched_param { sched_priority };
    let policy = policy | libc::SCHED_RESET_ON_FORK;
    // SAFETY: reads the parameters, which outlive the call.
    check(unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) }).map(drop)
}

/// Ensures that no program that this process starts has more privileges than this process.
pub(crate) fn no_new_privileges() -> io::Result<()> {
    // SAFETY: takes numbers only.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }).map(drop)
}

/// Types of plain numbers, for which any bit pattern is valid.
///
/// # Safety
/// The type must be just that, without padding where the kernel reads it.
pub(crate) unsafe trait Plain: Copy {}
// SAFETY: numbers.
unsafe impl Plain for c_int {}
// SAFETY: four numbers of 32 bits.
unsafe impl Plain for libc::tpacket_req {}
// SAFETY: numbers and bytes without padding (4 + 2 + 2 + 8).
unsafe impl Plain for libc::packet_mreq {}
// SAFETY: two numbers of 32 bits.
unsafe impl Plain for libc::tpacket_stats {}
// SAFETY: three numbers of 32 bits.
unsafe impl Plain for libc::ucred {}

/// A packet socket; protocol 0 receives nothing.
pub(super) fn packet_socket(protocol: c_int) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    let protocol = c_int::from((protocol as u16).to_be());
    // SAFETY: takes numbers only.
    let fd = check(unsafe { libc::socket(libc::AF_PACKET, kind, protocol) })?;
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A raw socket (raw(7)) for the ICMP messages "destination unreachable" that the host receives.
pub(crate) fn unreachable_socket() -> io::Result<OwnedFd> {
    /// `ICMP_FILTER` of `linux/icmp.h`: a bit for each type of message that the socket does not
    /// receive.
    const ICMP_FILTER: c_int = 1;
    const UNREACHABLE: c_int = 3;
    /// Room for some thousand messages.
    const ROOM: c_int = 4 << 20;
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: takes numbers only.
    let socket = check(unsafe { libc::socket(libc::AF_INET, kind, libc::IPPROTO_ICMP) })?;
    // SAFETY: the descriptor is new and has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    set_option(socket.as_fd(), libc::SOL_RAW, ICMP_FILTER, &!(1 << UNREACHABLE))?;
    // Otherwise the kernel would treat messages as if they were about packets of this socket
    // (`raw_err`).
    let discover = libc::IP_PMTUDISC_INTERFACE;
    set_option(socket.as_fd(), libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, &discover)?;
    set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &ROOM)?;
    Ok(socket)
}

/// Binds a packet socket to an interface.
pub(super) fn bind(socket: BorrowedFd<'_>, interface: c_int, protocol: c_int) -> io::Result<()> {
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

/// Sets a socket option.
pub(crate) fn set_option<T: Plain>(
    socket: BorrowedFd<'_>,
    level: c_int,
    option: c_int,
    value: &T,
) -> io::Result<()> {
    let pointer: *const T = value;
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel reads at most `len` bytes of a value that is as long and borrowed.
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, pointer.cast(), len) })?;
    Ok(())
}

/// Reads a socket option; `value` is its initial value.
pub(super) fn get_option<T: Plain>(
    socket: BorrowedFd<'_>,
    level: c_int,
    option: c_int,
    mut value: T,
) -> io::Result<T> {
    let pointer: *mut T = &raw mut value;
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to a value that is as long and has no invalid
    // bit pattern.
    check(unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, option, pointer.cast(), &raw mut len)
    })?;
    Ok(value)
}

/// Reads a socket option of bytes; `value` is its initial value, and as long as what the kernel
/// writes.
pub(crate) fn get_bytes(
    socket: BorrowedFd<'_>,
    level: c_int,
    option: c_int,
    value: &mut [u8],
) -> io::Result<()> {
    let pointer = value.as_mut_ptr();
    let mut len =
        libc::socklen_t::try_from(value.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the kernel reads and writes at most `len` bytes, which are borrowed exclusively.
    check(unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, option, pointer.cast(), &raw mut len)
    })?;
    Ok(())
}

/// A descriptor of the process at the other end of a UNIX socket (SO_PEERPIDFD, since Linux 6.5).
pub(crate) fn peer_process(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let fd: c_int = get_option(socket, libc::SOL_SOCKET, libc::SO_PEERPIDFD, -1)?;
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The id of the process at the other end of a UNIX socket; 0 if it is in a PID namespace that is
/// not visible from this one.
pub(crate) fn peer_number(socket: BorrowedFd<'_>) -> io::Result<libc::pid_t> {
    let nobody = libc::ucred { pid: 0, uid: 0, gid: 0 };
    get_option(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, nobody).map(|peer| peer.pid)
}

/// A descriptor of a process, by its id.
pub(crate) fn process(number: libc::pid_t) -> io::Result<OwnedFd> {
    // SAFETY: takes numbers only.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, number, 0) };
    let fd = check(fd as c_int)?;
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// An interface request for a device name of at most 15 bytes; all other fields are zero.
pub(crate) fn request(name: &str) -> io::Result<ifreq> {
    if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains('\0') {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let zero = MaybeUninit::<ifreq>::zeroed();
    // SAFETY: an ifreq is bytes and numbers, for which zero is valid.
    let mut request = unsafe { zero.assume_init() };
    for (slot, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *slot = byte as libc::c_char;
    }
    Ok(request)
}

/// Interface requests (netdevice(7)) and TUNSETIFF; each reads or writes just the ifreq.
#[derive(Clone, Copy)]
pub(super) enum Call {
    Index,
    Address,
    Mtu,
    SetMtu,
    Flags,
    SetFlags,
    MakeTap,
    /// The name of the TAP device behind a descriptor; an error if it no longer exists.
    TapName,
    /// The name of an interface, by ifindex.
    Name,
    /// `ethtool`.
    Ethtool,
}

/// Performs an interface request.
pub(super) fn interface_call(
    fd: BorrowedFd<'_>,
    call: Call,
    request: &mut ifreq,
) -> io::Result<()> {
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
pub(super) fn numbered(index: c_int) -> ifreq {
    let zero = MaybeUninit::<ifreq>::zeroed();
    // SAFETY: an ifreq is bytes and numbers, for which zero is valid.
    let mut request = unsafe { zero.assume_init() };
    request.ifr_ifru.ifru_ifindex = index;
    request
}

/// The interface's name in a completed request for it.
pub(super) fn name(request: &ifreq) -> String {
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
pub(super) fn receive_queues(socket: BorrowedFd<'_>, device: &str) -> io::Result<u32> {
    let mut channels = Channels { cmd: GET_CHANNELS, ..Channels::default() };
    let mut request = request(device)?;
    request.ifr_ifru.ifru_data = (&raw mut channels).cast();
    interface_call(socket, Call::Ethtool, &mut request)?;
    Ok(channels.rx + channels.combined)
}

/// The ifindex in a completed request for it.
pub(super) fn index(request: &ifreq) -> c_int {
    // SAFETY: any bit pattern is a valid number.
    unsafe { request.ifr_ifru.ifru_ifindex }
}

/// The MTU in a completed request for it (the kernel's `ifr_mtu` shares memory with `ifr_ifindex`).
pub(super) fn mtu(request: &ifreq) -> c_int {
    index(request)
}

/// The flags in a completed request for them.
pub(super) fn flags(request: &ifreq) -> c_int {
    // SAFETY: any bit pattern is a valid number.
    c_int::from(unsafe { request.ifr_ifru.ifru_flags })
}

/// The hardware type (ARPHRD_*) and the address in a completed request for them.
pub(super) fn address(request: &ifreq) -> (u16, [u8; 6]) {
    // SAFETY: a sockaddr is numbers and bytes, of which any bit pattern is valid.
    let address = unsafe { request.ifr_ifru.ifru_hwaddr };
    let [a, b, c, d, e, f, ..] = address.sa_data.map(|byte| byte as u8);
    (address.sa_family, [a, b, c, d, e, f])
}

/// Sets the MTU in a request.
pub(super) fn set_mtu(request: &mut ifreq, mtu: c_int) {
    request.ifr_ifru.ifru_ifindex = mtu;
}

/// Sets the flags in a request.
pub(super) fn set_flags(request: &mut ifreq, flags: c_int) {
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
}

/// The most frames per call to the kernel.
pub(super) const BATCH: usize = 64;

/// Sends frames by a bound packet socket; returns how many were accepted before the first refusal.
pub(super) fn send(socket: BorrowedFd<'_>, frames: &[&[u8]]) -> io::Result<usize> {
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

/// The processor time of the calling thread.
pub(crate) fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the timespec, which is borrowed exclusively. It cannot fail: the clock exists.
    let _ = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// An entry of [`wait`]: the descriptor is ready when there is something to read.
pub(crate) const fn readable(fd: RawFd) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}

/// Waits until a descriptor is ready or `timeout_ms` have passed; a signal ends the wait.
pub(crate) fn wait(fds: &mut [libc::pollfd], timeout_ms: c_int) -> io::Result<()> {
    // SAFETY: the pointer and the length are those of a slice that is borrowed exclusively.
    let result = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout_ms) };
    match check(result) {
        Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
        _ => Ok(()),
    }
}

/// The receive ring of a packet socket (TPACKET_V2), shared with the kernel.
pub(super) struct Ring {
    base: NonNull<u8>,
    frames: usize,
    frame_bytes: usize,
}

impl Ring {
    /// Maps a ring that PACKET_RX_RING has set up with these sizes, in contiguous frames.
    pub(super) fn map(
        socket: BorrowedFd<'_>,
        frames: usize,
        frame_bytes: usize,
    ) -> io::Result<Self> {
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
    pub(super) fn status(&self, index: usize) -> u32 {
        let pointer: *mut u32 = self.frame(index).cast();
        // SAFETY: a frame begins with its status, 4 bytes, aligned as frames are (TPACKET_ALIGNMENT);
        // the kernel and this program both access it as a whole.
        let status = unsafe { AtomicU32::from_ptr(pointer) };
        status.load(Ordering::Acquire)
    }

    /// Returns a frame to the kernel.
    pub(super) fn release(&self, index: usize) {
        let pointer: *mut u32 = self.frame(index).cast();
        // SAFETY: as in `status`.
        let status = unsafe { AtomicU32::from_ptr(pointer) };
        status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
    }

    /// A frame's header; to be read only while this program owns the frame.
    pub(super) fn header(&self, index: usize) -> libc::tpacket2_hdr {
        let pointer: *const libc::tpacket2_hdr = self.frame(index).cast();
        // SAFETY: a frame begins with its header, which is numbers; frames are larger than it.
        unsafe { pointer.read() }
    }

    /// Bytes of a frame, fewer at its end; to be read only while this program owns the frame.
    pub(super) fn bytes(&self, index: usize, offset: usize, len: usize) -> &[u8] {
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
