//! Samples of where a thread is: a timer interrupts it, and a signal handler notes its stack.
//!
//! The timer is one of the system's (`timer_create`), which needs no counters of the processor's, so it works
//! in any virtual machine. It is the thread's own: no other is interrupted. What the handler notes is
//! addresses alone, in memory that was there before; they are named afterwards.
#![allow(unsafe_code)]

use std::io;
use std::marker::PhantomData;
use std::mem;
use std::ptr;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Addresses of a sample at most; what lies further out is left away.
const DEPTH: usize = 64;

/// Words that all samples share: each is a length and as many addresses.
const WORDS: usize = 1 << 21;

/// One thread at a time is sampled.
static IN_USE: Mutex<()> = Mutex::new(());

/// What the handler writes to. [`USED`] words are taken; it notes only where [`OPEN`] is not nought.
static NOTES: [AtomicUsize; WORDS] = [const { AtomicUsize::new(0) }; WORDS];
static USED: AtomicUsize = AtomicUsize::new(0);
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// A stack of addresses: the first is the instruction that the thread was at, the others are where calls
/// return to, from the inside out.
pub(super) type Addresses = Vec<usize>;

/// The sampling of the thread that began it. It ends with this.
pub(super) struct Sampler {
    timer: libc::timer_t,
    _lock: MutexGuard<'static, ()>,
    /// The thread that has begun it is the one that is interrupted.
    _thread: PhantomData<*const ()>,
}

impl Sampler {
    /// Has this thread interrupted so many times a second. Samples are noted between [`open`] and [`shut`].
    ///
    /// # Errors
    /// Where the system has no timer.
    pub(super) fn begin(rate: u32) -> io::Result<Self> {
        let lock = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
        shut();
        USED.store(0, Release);
        // Once beforehand: the first call may load a library, which a handler must not.
        backtrace::trace(|_| true);
        take_signal()?;
        let timer = timer(rate)?;
        Ok(Self { timer, _lock: lock, _thread: PhantomData })
    }

    /// Ends it.
    pub(super) fn end(self) -> Vec<Addresses> {
        shut();
        read()
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        shut();
        // SAFETY: the timer is one that `timer` made, and is deleted nowhere else. A signal that is already
        // on its way finds the handler in place, which notes nothing then.
        unsafe { libc::timer_delete(self.timer) };
    }
}

/// Has samples noted.
#[inline(always)]
pub(super) fn open() {
    OPEN.store(1, Release);
}

/// Has none noted.
#[inline(always)]
pub(super) fn shut() {
    OPEN.store(0, Release);
}

/// What was noted.
fn read() -> Vec<Addresses> {
    let used = USED.load(Acquire).min(WORDS);
    let words: Vec<usize> = NOTES[..used].iter().map(|word| word.load(Relaxed)).collect();
    let mut samples = Vec::new();
    let mut rest = &words[..];
    while let [length, after @ ..] = rest {
        let (addresses, next) = after.split_at((*length).min(after.len()));
        samples.push(addresses.to_vec());
        rest = next;
    }
    samples
}

/// Puts the handler in its place.
fn take_signal() -> io::Result<()> {
    // SAFETY: all zeroes are a valid `sigaction`: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = note;
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    // SAFETY: the action is whole, and its handler calls nothing that a handler may not.
    checked(unsafe { libc::sigaction(libc::SIGPROF, &raw const action, ptr::null_mut()) })
}

/// Starts a timer that interrupts this thread alone.
fn timer(rate: u32) -> io::Result<libc::timer_t> {
    // SAFETY: all zeroes are a valid `sigevent`.
    let mut event: libc::sigevent = unsafe { mem::zeroed() };
    event.sigev_notify = libc::SIGEV_THREAD_ID;
    event.sigev_signo = libc::SIGPROF;
    // SAFETY: it asks for the thread's number and cannot fail.
    event.sigev_notify_thread_id = unsafe { libc::gettid() };
    let mut timer: libc::timer_t = ptr::null_mut();
    // SAFETY: both point to values of this function's, which outlive the call.
    checked(unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer) })?;
    let period = Duration::from_secs(1) / rate.max(1);
    let period = libc::timespec {
        tv_sec: period.as_secs().cast_signed(),
        tv_nsec: i64::from(period.subsec_nanos()),
    };
    let times = libc::itimerspec { it_interval: period, it_value: period };
    // SAFETY: the timer was just made, and the times are a value of this function's.
    let set = unsafe { libc::timer_settime(timer, 0, &raw const times, ptr::null_mut()) };
    checked(set).inspect_err(|_| {
        // SAFETY: the timer was just made and is given to nobody.
        unsafe { libc::timer_delete(timer) };
    })?;
    Ok(timer)
}

fn checked(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Notes the stack of the thread that is interrupted. It allocates nothing and waits for nobody.
extern "C" fn note(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    if OPEN.load(Acquire) == 0 {
        return;
    }
    // SAFETY: with SA_SIGINFO the system gives the handler a whole context.
    let at = instruction(unsafe { &*context.cast::<libc::ucontext_t>() });
    let mut addresses = [at; DEPTH];
    let mut count = 1;
    let mut inside = false;
    // SAFETY: it is not to be called by two threads at once; only this one is interrupted, see `Sampler`.
    unsafe {
        backtrace::trace_unsynchronized(|frame| {
            let ip = frame.ip() as usize;
            // First come this handler and how it was called.
            if !inside {
                inside = ip == at;
                return true;
            }
            addresses[count] = ip;
            count += 1;
            count < DEPTH
        });
    }
    let start = USED.load(Relaxed);
    if start + 1 + count > WORDS {
        return;
    }
    NOTES[start].store(count, Relaxed);
    for (word, address) in NOTES[start + 1..].iter().zip(&addresses[..count]) {
        word.store(*address, Relaxed);
    }
    USED.store(start + 1 + count, Release);
}

/// The instruction that a thread was at.
fn instruction(context: &libc::ucontext_t) -> usize {
    #[cfg(target_arch = "x86_64")]
    return context.uc_mcontext.gregs[libc::REG_RIP as usize] as usize;
    #[cfg(target_arch = "aarch64")]
    return context.uc_mcontext.pc as usize;
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::time::Instant;

    use super::*;

    #[inline(never)]
    fn spin(time: Duration) {
        let start = Instant::now();
        while start.elapsed() < time {
            black_box(
                (0..1000_u64).fold(1, |sum: u64, next| black_box(sum.wrapping_mul(next | 1))),
            );
        }
    }

    #[test]
    fn a_thread_at_work_is_sampled_where_it_is() {
        let sampler = Sampler::begin(1000).unwrap();
        spin(Duration::from_millis(50));
        open();
        spin(Duration::from_millis(500));
        shut();
        spin(Duration::from_millis(50));
        let samples = sampler.end();
        assert!((50..=520).contains(&samples.len()), "{} samples of 500", samples.len());
        let within = |address: &usize| {
            let start = spin as *const () as usize;
            (start..start + 4096).contains(address)
        };
        let found = samples.iter().filter(|stack| stack.iter().any(within)).count();
        assert!(found * 10 > samples.len() * 9, "{found} of {}", samples.len());
    }

    #[test]
    fn nothing_is_noted_of_a_thread_that_sleeps_or_is_shut() {
        let sampler = Sampler::begin(1000).unwrap();
        spin(Duration::from_millis(20));
        assert_eq!(sampler.end(), Vec::<Addresses>::new());
    }
}
