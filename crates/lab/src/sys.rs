//! System calls that the standard library does not offer.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use tollway_linux::sys::cores::allowed_cores;
pub(crate) use tollway_linux::sys::cores::pin_to as pin;

use crate::frames::FRAME_LEN;

/// The command of bpf(2) that runs a program.
const BPF_PROG_TEST_RUN: libc::c_int = 10;
/// The command of bpf(2) that sets many elements of a map.
const BPF_MAP_UPDATE_BATCH: libc::c_int = 26;
/// Datagrams in one call of [`send_many`] or [`receive_many`].
const DATAGRAMS: usize = 64;
/// The kernel executes the program's XDP actions on real frames.
const BPF_F_TEST_XDP_LIVE_FRAMES: u32 = 2;

/// The attributes of [`BPF_PROG_TEST_RUN`] in bpf(2).
#[repr(C)]
#[derive(Default)]
struct TestRun {
    prog_fd: u32,
    retval: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    ctx_size_in: u32,
    ctx_size_out: u32,
    ctx_in: u64,
    ctx_out: u64,
    flags: u32,
    cpu: u32,
    batch_size: u32,
    padding: u32,
}

/// The attributes of [`BPF_MAP_UPDATE_BATCH`] in bpf(2).
#[repr(C)]
#[derive(Default)]
struct UpdateBatch {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map_fd: u32,
    elem_flags: u64,
    flags: u64,
}

fn checked(result: impl Into<i64>) -> io::Result<i64> {
    match result.into() {
        -1 => Err(io::Error::last_os_error()),
        value => Ok(value),
    }
}

/// Makes an XDP program handle live frames in batches, in the thread's network namespace. Each
/// frame starts as a copy of `frame`. Returns after `repeat` frames or a signal.
pub(crate) fn run_live_frames(
    program: BorrowedFd<'_>,
    frame: &[u8],
    repeat: u32,
    batch: u32,
) -> io::Result<()> {
    let attributes = TestRun {
        prog_fd: program.as_raw_fd().cast_unsigned(),
        data_size_in: u32::try_from(frame.len()).unwrap_or(u32::MAX),
        data_in: frame.as_ptr() as u64,
        repeat,
        flags: BPF_F_TEST_XDP_LIVE_FRAMES,
        batch_size: batch,
        ..TestRun::default()
    };
    let attributes = &raw const attributes;
    // SAFETY: the attributes have the given length, the frame has the length that they state, and
    // both outlive the call. The kernel writes no output, since the attributes name no buffer for
    // it.
    let done = unsafe {
        libc::syscall(libc::SYS_bpf, BPF_PROG_TEST_RUN, attributes, size_of::<TestRun>())
    };
    match checked(done) {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
        done => done.map(|_| ()),
    }
}

/// Sets the first elements of a BPF map of the type array whose values have 16 bytes.
pub(crate) fn fill_array(map: BorrowedFd<'_>, values: &[[u8; 16]]) -> io::Result<()> {
    let keys: Vec<u32> = (0..).take(values.len()).collect();
    let attributes = UpdateBatch {
        keys: keys.as_ptr() as u64,
        values: values.as_ptr() as u64,
        count: u32::try_from(values.len()).unwrap_or(u32::MAX),
        map_fd: map.as_raw_fd().cast_unsigned(),
        ..UpdateBatch::default()
    };
    let attributes = &raw const attributes;
    // SAFETY: the kernel reads as many keys of 4 bytes, and values of the map's size, as the attributes state; both
    // outlive the call. It writes the count of the elements that it has set into the attributes, which nobody reads.
    let done = unsafe {
        libc::syscall(libc::SYS_bpf, BPF_MAP_UPDATE_BATCH, attributes, size_of::<UpdateBatch>())
    };
    checked(done).map(|_| ())
}

/// Sends copies of a datagram by a connected socket. Returns how many the kernel took.
pub(crate) fn send_many(socket: BorrowedFd<'_>, payload: &[u8]) -> io::Result<usize> {
    let mut bytes =
        libc::iovec { iov_base: payload.as_ptr().cast_mut().cast(), iov_len: payload.len() };
    let mut datagrams = datagrams(&mut bytes);
    // SAFETY: all headers have the one vector, and the kernel only reads the bytes that it names; headers, vector and
    // bytes outlive the call.
    let sent = unsafe {
        libc::sendmmsg(socket.as_raw_fd(), datagrams.as_mut_ptr(), DATAGRAMS as libc::c_uint, 0)
    };
    checked(sent).map(|sent| sent.unsigned_abs() as usize)
}

/// Receives datagrams and forgets what is in them, waiting for the first. Returns their number.
pub(crate) fn receive_many(socket: BorrowedFd<'_>) -> io::Result<usize> {
    let mut buffer = [0_u8; 256];
    let mut bytes = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut datagrams = datagrams(&mut bytes);
    // SAFETY: all headers have the one vector, whose bytes are writable, and which the kernel writes one after the
    // other; headers, vector and bytes outlive the call. There is no time limit to read.
    let received = unsafe {
        libc::recvmmsg(
            socket.as_raw_fd(),
            datagrams.as_mut_ptr(),
            DATAGRAMS as libc::c_uint,
            libc::MSG_WAITFORONE,
            std::ptr::null_mut(),
        )
    };
    checked(received).map(|received| received.unsigned_abs() as usize)
}

/// Headers of datagrams that all have the same bytes.
fn datagrams(bytes: &mut libc::iovec) -> [libc::mmsghdr; DATAGRAMS] {
    // SAFETY: all zeros is valid for a structure of integers and null pointers.
    let mut datagram: libc::mmsghdr = unsafe { std::mem::zeroed() };
    datagram.msg_hdr.msg_iov = bytes;
    datagram.msg_hdr.msg_iovlen = 1;
    [datagram; DATAGRAMS]
}

/// The signal that interrupts a generator's call.
const WAKE: libc::c_int = libc::SIGUSR1;

extern "C" fn nothing(_signal: libc::c_int) {}

/// Makes [`wake`] interrupt system calls of this process instead of ending it.
pub(crate) fn allow_waking() -> io::Result<()> {
    // SAFETY: all zeros is valid for a structure of integers, and means no flags, in particular no
    // SA_RESTART.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
    // SAFETY: the handler does nothing, and the old action is not requested.
    checked(unsafe { libc::sigaction(WAKE, &raw const action, std::ptr::null_mut()) }).map(|_| ())
}

/// Interrupts the current system call of a thread of this process.
pub(crate) fn wake(thread: i32) {
    let process = std::process::id().cast_signed();
    // SAFETY: the call takes numbers only. The kernel refuses a thread that has ended.
    let _ = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, WAKE) };
}

/// The index of an interface in the calling thread's namespace.
pub(crate) fn ifindex(name: &str) -> Result<u32, String> {
    let missing = || format!("there is no interface {name}");
    let text = CString::new(name).map_err(|_| missing())?;
    // SAFETY: the name ends with a zero byte and outlives the call.
    let index = unsafe { libc::if_nametoindex(text.as_ptr()) };
    if index == 0 { Err(missing()) } else { Ok(index) }
}

/// The calling thread's id.
pub(crate) fn thread_id() -> i32 {
    // SAFETY: the call takes no argument and cannot fail.
    unsafe { libc::gettid() }
}

/// Whether this process runs as root.
pub(crate) fn is_root() -> bool {
    // SAFETY: the call takes no argument and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Moves the calling thread into new network and mount namespaces.
pub(crate) fn leave_namespaces() -> io::Result<()> {
    // SAFETY: the call takes numbers only, and only the calling thread moves.
    checked(unsafe { libc::unshare(libc::CLONE_NEWNET | libc::CLONE_NEWNS) }).map(|_| ())
}

/// Mounts a file system of a kind. Without a kind, keeps the mounts below from propagating to other
/// namespaces.
pub(crate) fn mount(kind: Option<&str>, at: &str) -> io::Result<()> {
    let at = CString::new(at)?;
    let name = CString::new(kind.unwrap_or("none"))?;
    let flags = if kind.is_none() { libc::MS_REC | libc::MS_PRIVATE } else { 0 };
    let kind = if kind.is_none() { std::ptr::null() } else { name.as_ptr() };
    // SAFETY: all strings end with a zero byte and outlive the call; there is no data.
    let done = unsafe { libc::mount(name.as_ptr(), at.as_ptr(), kind, flags, std::ptr::null()) };
    checked(done).map(|_| ())
}

/// The processors that the process may use.
pub(crate) fn processors() -> Vec<usize> {
    allowed_cores().unwrap_or_else(|_| vec![0])
}

/// Gives the calling thread priority over all threads that are not real-time.
pub(crate) fn set_realtime() -> io::Result<()> {
    schedule(0, libc::SCHED_FIFO, 1)
}

/// Makes a thread of any process run only when its processor is otherwise idle, or normally again.
pub(crate) fn set_idle_policy(thread: i32, idle: bool) -> io::Result<()> {
    schedule(thread, if idle { libc::SCHED_IDLE } else { libc::SCHED_OTHER }, 0)
}

/// Sets the scheduling policy of a thread; 0 is the calling one.
fn schedule(thread: i32, policy: libc::c_int, sched_priority: libc::c_int) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority };
    // SAFETY: the parameters outlive the call.
    checked(unsafe { libc::sched_setscheduler(thread, policy, &raw const parameters) }).map(|_| ())
}

/// Gives the calling thread the largest share of its processor.
pub(crate) fn set_highest_nice() -> io::Result<()> {
    // SAFETY: the call takes numbers only; 0 is the calling thread.
    checked(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) }).map(|_| ())
}

/// Makes a command's process run on these processors, with high priority, and end with the thread
/// that starts it. The process gets a new session, since the scheduler shares a processor between
/// sessions.
pub(crate) fn bind(command: &mut Command, processors: Vec<usize>) {
    let prepare = move || {
        pin(&processors)?;
        // SAFETY: the call takes no argument.
        checked(unsafe { libc::setsid() })?;
        // SAFETY: the call takes numbers only.
        checked(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) })?;
        // SAFETY: the call takes numbers only.
        checked(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })?;
        // Not every kernel groups tasks by session.
        let _ = std::fs::write("/proc/self/autogroup", "-20");
        Ok(())
    };
    // SAFETY: between fork and exec this only makes system calls: no allocation, no lock.
    unsafe { command.pre_exec(prepare) };
}

/// Sends a signal to a child.
pub(crate) fn signal(process: u32, signal: libc::c_int) -> io::Result<()> {
    // SAFETY: the call takes numbers only.
    checked(unsafe { libc::kill(process.cast_signed(), signal) }).map(|_| ())
}

/// The time of the monotonic clock in ns since some start, which BPF programs read, too.
#[inline]
pub(crate) fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is writable, and this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// Removes the cache lines of these frames from all caches and writes them to memory. Returns when that is done. Does
/// nothing on processors without such an instruction for programs: there, no row needs it.
pub(crate) fn flush<'a>(frames: impl Iterator<Item = &'a [u8; FRAME_LEN]>) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_mm_clflush, _mm_mfence};
        for frame in frames {
            for line in [&frame[0], &frame[FRAME_LEN - 1]] {
                // SAFETY: the byte is borrowed, so its line can be accessed; every x86-64 has the instruction, and no
                // byte changes.
                unsafe { _mm_clflush(line) };
            }
        }
        // SAFETY: every x86-64 has the instruction.
        unsafe { _mm_mfence() };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = frames;
}

/// A non-blocking socket for ICMP over IPv4.
pub(crate) fn icmp_socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: the call takes numbers only.
    let socket = checked(unsafe { libc::socket(libc::AF_INET, kind, libc::IPPROTO_ICMP) })?;
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(i32::try_from(socket).unwrap_or(-1)) })
}
