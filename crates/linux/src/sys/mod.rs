//! The system calls that the standard library lacks, and errors of the system in words.

#![allow(unsafe_code)]

pub mod cores;
pub mod netdevice;
pub mod tap;

use std::ffi::CString;
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::time::Duration;

use libc::{c_int, ifreq};

/// An error in words, without its number.
pub fn why(error: &io::Error) -> String {
    let text = error.to_string();
    match text.split_once(" (os error") {
        Some((words, _)) => words.to_lowercase(),
        None => text,
    }
}

/// Turns a system call's -1 into an error.
pub fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// The effective user of this process.
pub fn effective_user() -> libc::uid_t {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

/// The effective group of this process.
pub fn effective_group() -> libc::gid_t {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::getegid() }
}

/// Bytes of address space that this process may have.
pub fn address_space_limit() -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: there is room for the answer, which outlives the call.
    check(unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) })?;
    Ok(limit.rlim_cur)
}

/// Lifts this process's limit on locked memory.
pub fn lift_memory_limit() -> io::Result<()> {
    let all = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: reads the limits, which outlive the call.
    check(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const all) }).map(drop)
}

/// Requests huge pages for an area of memory (madvise(2)). If the kernel refuses, the pages stay
/// ordinary ones: slower, but correct.
pub fn advise_huge_pages(area: *mut u8, bytes: usize) {
    // SAFETY: this advice changes no content, and the kernel checks the range.
    let _ = unsafe { libc::madvise(area.cast(), bytes, libc::MADV_HUGEPAGE) };
}

/// How the kernel schedules a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// By its nice value.
    Ordinary,
    /// As soon as it is runnable, unless a real-time thread already runs. Programs that it starts
    /// are ordinary.
    Realtime,
}

/// Permits this process real-time threads of the lowest priority, and threads of any nice value.
pub fn allow_priorities() -> io::Result<()> {
    for (resource, most) in [(libc::RLIMIT_RTPRIO, 1), (libc::RLIMIT_NICE, 40)] {
        let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
        // SAFETY: reads the limits, which outlive the call.
        check(unsafe { libc::setrlimit(resource, &raw const limit) })?;
    }
    Ok(())
}

/// Says whether this process may execute a file (faccessat(2), with its effective user).
pub fn may_execute(file: &Path) -> bool {
    let Ok(path) = CString::new(file.as_os_str().as_bytes()) else { return false };
    // SAFETY: the path is a string that ends with a zero byte, and outlives the call.
    let result =
        unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::X_OK, libc::AT_EACCESS) };
    result == 0
}

/// Sets the calling thread's nice value.
pub fn set_nice(nice: c_int) -> io::Result<()> {
    // SAFETY: takes numbers only.
    check(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) }).map(drop)
}

/// Processors that the process may use.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Sets the calling thread's schedule.
pub fn set_schedule(schedule: Schedule) -> io::Result<()> {
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
pub fn no_new_privileges() -> io::Result<()> {
    // SAFETY: takes numbers only.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }).map(drop)
}

/// Types of plain numbers, for which any bit pattern is valid.
///
/// # Safety
/// The type must be just that, without padding where the kernel reads it.
pub unsafe trait Plain: Copy {}
// SAFETY: numbers.
unsafe impl Plain for c_int {}
// SAFETY: four numbers of 32 bits.
unsafe impl Plain for libc::tpacket_req {}
// SAFETY: numbers and bytes without padding (4 + 2 + 2 + 8).
unsafe impl Plain for libc::packet_mreq {}
// SAFETY: two numbers of 32 bits.
unsafe impl Plain for libc::tpacket_stats {}
// SAFETY: numbers, four of 64 bits for each of four rings.
unsafe impl Plain for libc::xdp_mmap_offsets {}
// SAFETY: two numbers of 64 bits and four of 32.
unsafe impl Plain for libc::xdp_umem_reg {}
// SAFETY: six numbers of 64 bits.
unsafe impl Plain for libc::xdp_statistics {}
// SAFETY: three numbers of 32 bits.
unsafe impl Plain for libc::ucred {}

/// A raw socket (raw(7)) for the ICMP messages "destination unreachable" that the host receives.
pub fn unreachable_socket() -> io::Result<OwnedFd> {
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

/// Sets a socket option.
pub fn set_option<T: Plain>(
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

/// Lets a filter (socket(7), `SO_ATTACH_FILTER`) select what a socket receives from now on.
pub fn attach_filter(socket: BorrowedFd<'_>, filter: &[libc::sock_filter]) -> io::Result<()> {
    let len = u16::try_from(filter.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let program = libc::sock_fprog { len, filter: filter.as_ptr().cast_mut() };
    let (pointer, size) = (&raw const program, size_of_val(&program) as libc::socklen_t);
    let (level, option) = (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER);
    // SAFETY: the kernel copies `len` instructions, which are borrowed, and changes none.
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, pointer.cast(), size) })?;
    Ok(())
}

/// Reads a socket option; `value` is its initial value.
pub fn get_option<T: Plain>(
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
pub fn get_bytes(
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
pub fn peer_process(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let fd: c_int = get_option(socket, libc::SOL_SOCKET, libc::SO_PEERPIDFD, -1)?;
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The id of the process at the other end of a UNIX socket; 0 if it is in a PID namespace that is
/// not visible from this one.
pub fn peer_number(socket: BorrowedFd<'_>) -> io::Result<libc::pid_t> {
    let nobody = libc::ucred { pid: 0, uid: 0, gid: 0 };
    get_option(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, nobody).map(|peer| peer.pid)
}

/// A descriptor of a process, by its id.
pub fn process(number: libc::pid_t) -> io::Result<OwnedFd> {
    // SAFETY: takes numbers only.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, number, 0) };
    let fd = check(fd as c_int)?;
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// An interface request for a device name of at most 15 bytes; all other fields are zero.
pub fn request(name: &str) -> io::Result<ifreq> {
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

/// The processor time of the calling thread.
pub fn thread_time() -> Duration {
    time_of(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// The time of the monotonic clock, by which waits end.
pub fn monotonic_time() -> Duration {
    time_of(libc::CLOCK_MONOTONIC)
}

/// The time of a clock that every kernel has.
fn time_of(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the timespec, which is borrowed exclusively. It cannot fail: the clock exists.
    let _ = unsafe { libc::clock_gettime(clock, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// An entry of [`wait`]: the descriptor is ready when there is something to read.
pub const fn readable(fd: RawFd) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}

/// The timeout of [`wait`] that is not shorter than a time: one that is rounded down makes a loop spin before its time comes.
pub fn timeout_ms(time: Duration) -> c_int {
    c_int::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(c_int::MAX)
}

/// Waits until a descriptor is ready or `timeout_ms` have passed; a signal ends the wait.
pub fn wait(fds: &mut [libc::pollfd], timeout_ms: c_int) -> io::Result<()> {
    // SAFETY: the pointer and the length are those of a slice that is borrowed exclusively.
    let result = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout_ms) };
    unless_interrupted(check(result))
}

/// As [`wait`], to the nanosecond: who waits for a moment of [`pace`](crate::pace) comes with the others.
pub fn wait_for(fds: &mut [libc::pollfd], time: Duration) -> io::Result<()> {
    let seconds = time.as_secs().try_into().unwrap_or(libc::time_t::MAX);
    let time = libc::timespec { tv_sec: seconds, tv_nsec: time.subsec_nanos().into() };
    let len = fds.len() as libc::nfds_t;
    // SAFETY: the pointers are those of a slice that is borrowed exclusively, with its length, and of a time that
    // outlives the call; none is a signal mask.
    let result = unsafe { libc::ppoll(fds.as_mut_ptr(), len, &raw const time, ptr::null()) };
    unless_interrupted(check(result))
}

fn unless_interrupted(result: io::Result<c_int>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
        _ => Ok(()),
    }
}
