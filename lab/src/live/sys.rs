//! The system calls that the standard library has no word for.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The command of bpf(2) that runs a program.
const BPF_PROG_TEST_RUN: libc::c_int = 10;
/// XDP frames go where the program sends them.
const BPF_F_TEST_XDP_LIVE_FRAMES: u32 = 2;

/// What bpf(2) reads for [`BPF_PROG_TEST_RUN`].
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

fn checked(result: impl Into<i64>) -> io::Result<i64> {
    match result.into() {
        -1 => Err(io::Error::last_os_error()),
        value => Ok(value),
    }
}

/// Has an XDP program handle live frames, each first a copy of `frame`, in batches, as seen from
/// the thread's network namespace; returns when `repeat` were, or a signal arrives.
pub(super) fn run_live_frames(
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
    // SAFETY: the attributes are as long as said, the frame they point to as long as they say, and
    // both outlive the call; the kernel writes no output where there is no room for any.
    let done = unsafe {
        libc::syscall(libc::SYS_bpf, BPF_PROG_TEST_RUN, attributes, size_of::<TestRun>())
    };
    match checked(done) {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
        done => done.map(|_| ()),
    }
}

/// The signal that ends a generator's call.
const WAKE: libc::c_int = libc::SIGUSR1;

extern "C" fn nothing(_signal: libc::c_int) {}

/// Lets [`wake`] interrupt system calls of this process instead of ending it.
pub(super) fn allow_waking() -> io::Result<()> {
    // SAFETY: a structure of integers, for which all zeros is a value: no flag, SA_RESTART least.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
    // SAFETY: the handler does nothing, and the old one is not asked for.
    checked(unsafe { libc::sigaction(WAKE, &raw const action, std::ptr::null_mut()) }).map(|_| ())
}

/// Interrupts the system call that a thread of this process is in.
pub(super) fn wake(thread: i32) {
    let process = std::process::id().cast_signed();
    // SAFETY: it takes numbers only. A thread that has gone is refused.
    let _ = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, WAKE) };
}

/// The number of an interface where the calling thread lives.
pub(crate) fn interface_number(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    // SAFETY: the name ends in a zero and outlives the call.
    let number = unsafe { libc::if_nametoindex(name.as_ptr()) };
    (number != 0).then_some(number)
}

/// The calling thread's number.
pub(super) fn thread_id() -> i32 {
    // SAFETY: it takes nothing and can not fail.
    unsafe { libc::gettid() }
}

/// Whether this process is root's.
pub(crate) fn is_root() -> bool {
    // SAFETY: it takes nothing and can not fail.
    unsafe { libc::geteuid() == 0 }
}

/// Gives the calling thread a network and a mount namespace of its own.
pub(crate) fn leave_namespaces() -> io::Result<()> {
    // SAFETY: it takes numbers only; only the calling thread moves.
    checked(unsafe { libc::unshare(libc::CLONE_NEWNET | libc::CLONE_NEWNS) }).map(|_| ())
}

/// Mounts a file system of a kind; without a kind, keeps what is mounted below from spreading to
/// other namespaces.
pub(crate) fn mount(kind: Option<&str>, at: &str) -> io::Result<()> {
    let at = CString::new(at)?;
    let name = CString::new(kind.unwrap_or("none"))?;
    let flags = if kind.is_none() { libc::MS_REC | libc::MS_PRIVATE } else { 0 };
    let kind = if kind.is_none() { std::ptr::null() } else { name.as_ptr() };
    // SAFETY: all strings end in a zero and outlive the call; there is no data.
    let done = unsafe { libc::mount(name.as_ptr(), at.as_ptr(), kind, flags, std::ptr::null()) };
    checked(done).map(|_| ())
}

/// The processors that the process may use.
pub(crate) fn processors() -> Vec<usize> {
    // SAFETY: a set of bits, for which all zeros is a value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is as large as said and writable.
    let done = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) };
    if done != 0 {
        return vec![0];
    }
    let size = usize::try_from(libc::CPU_SETSIZE).unwrap_or(0);
    // SAFETY: the number is one within the set.
    (0..size).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect()
}

/// Keeps the calling thread, and what it starts, on these processors.
pub(crate) fn pin(processors: &[usize]) -> io::Result<()> {
    // SAFETY: a set of bits, for which all zeros is a value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &cpu in processors {
        // SAFETY: a number beyond the set is ignored.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    // SAFETY: the set is as large as said.
    checked(unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) }).map(|_| ())
}

/// Has the calling thread go before all that are not in real time.
pub(crate) fn hurry() -> io::Result<()> {
    schedule(0, libc::SCHED_FIFO, 1)
}

/// Has a thread of any process run only while nobody else wants its processor, or as others do again.
pub(super) fn let_idle(thread: i32, idle: bool) -> io::Result<()> {
    schedule(thread, if idle { libc::SCHED_IDLE } else { libc::SCHED_OTHER }, 0)
}

/// Has a thread, 0 for the calling one, run by a policy.
fn schedule(thread: i32, policy: libc::c_int, sched_priority: libc::c_int) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority };
    // SAFETY: the parameters outlive the call.
    checked(unsafe { libc::sched_setscheduler(thread, policy, &raw const parameters) }).map(|_| ())
}

/// Gives the calling thread the largest share of its processor.
pub(crate) fn insist() -> io::Result<()> {
    // SAFETY: it takes numbers only; 0 is the calling thread.
    checked(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) }).map(|_| ())
}

/// Has a command's process run on these processors, go before others, and end with the thread that
/// starts it. It gets a session of its own, by which the scheduler shares a processor out.
pub(crate) fn bind(command: &mut Command, processors: Vec<usize>) {
    let prepare = move || {
        pin(&processors)?;
        // SAFETY: it takes nothing.
        checked(unsafe { libc::setsid() })?;
        // SAFETY: it takes numbers only.
        checked(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) })?;
        // SAFETY: it takes numbers only.
        checked(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })?;
        // Not every kernel has groups by session.
        let _ = std::fs::write("/proc/self/autogroup", "-20");
        Ok(())
    };
    // SAFETY: between fork and exec this makes system calls and nothing else: no allocation, no lock.
    unsafe { command.pre_exec(prepare) };
}

/// Sends a child a signal.
pub(crate) fn signal(process: u32, signal: libc::c_int) -> io::Result<()> {
    // SAFETY: it takes numbers only.
    checked(unsafe { libc::kill(process.cast_signed(), signal) }).map(|_| ())
}

/// The time of the clock that is called monotonic, which BPF programs have too: ns since some start.
#[inline]
pub(crate) fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is writable, and this clock is always there.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// A socket for ICMP over IPv4 whose calls do not wait.
pub(crate) fn icmp_socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: it takes numbers only.
    let socket = checked(unsafe { libc::socket(libc::AF_INET, kind, libc::IPPROTO_ICMP) })?;
    // SAFETY: the descriptor is new, and nobody else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(i32::try_from(socket).unwrap_or(-1)) })
}
