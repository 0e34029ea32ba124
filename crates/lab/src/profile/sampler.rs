//! Samples where a thread is: a timer interrupts it, and a signal handler records its stack.
//!
//! The timer comes from the system (`timer_create`) and needs no performance counters, so it works
//! in any virtual machine. It interrupts only its own thread. The handler records only addresses,
//! in memory allocated before; the names are resolved afterwards.
#![allow(unsafe_code)]

use std::io;
use std::marker::PhantomData;
use std::mem;
use std::ptr;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The most addresses of a sample; outer ones are cut off.
const DEPTH: usize = 64;

/// Words that all samples share: each sample is a length and that many addresses.
const WORDS: usize = 1 << 21;

/// Only one thread at a time can be sampled.
static IN_USE: Mutex<()> = Mutex::new(());

/// The handler's buffer. [`USED`] words are taken; the handler records only while [`RECORDING`] is not
/// zero.
static SAMPLES: [AtomicUsize; WORDS] = [const { AtomicUsize::new(0) }; WORDS];
static USED: AtomicUsize = AtomicUsize::new(0);
static RECORDING: AtomicUsize = AtomicUsize::new(0);

/// A stack of addresses, innermost first: the interrupted instruction, then the return addresses.
pub(super) type Addresses = Vec<usize>;

/// The sampling of the thread that started it. Dropping this ends it.
pub(super) struct Sampler {
    timer: libc::timer_t,
    _lock: MutexGuard<'static, ()>,
    /// Ties this to the thread that started it, which is the one that is interrupted.
    _thread: PhantomData<*const ()>,
}

impl Sampler {
    /// Interrupts this thread `rate` times per second. Records samples between [`start_recording`] and
    /// [`stop_recording`].
    ///
    /// # Errors
    /// The system has no timer.
    pub(super) fn begin(rate: u32) -> io::Result<Self> {
        let lock = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
        stop_recording();
        USED.store(0, Release);
        // Trace once beforehand: the first call may load a library, which a handler must not.
        backtrace::trace(|_| true);
        install_handler()?;
        let timer = timer(rate)?;
        Ok(Self { timer, _lock: lock, _thread: PhantomData })
    }

    /// Ends the sampling and returns the samples.
    pub(super) fn end(self) -> Vec<Addresses> {
        stop_recording();
        read()
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        stop_recording();
        // SAFETY: `timer` created the timer, and only this deletes it. A pending signal still finds
        // the handler, which then records nothing.
        unsafe { libc::timer_delete(self.timer) };
    }
}

/// Starts the recording of samples.
#[inline(always)]
pub(super) fn start_recording() {
    RECORDING.store(1, Release);
}

/// Stops the recording of samples.
#[inline(always)]
pub(super) fn stop_recording() {
    RECORDING.store(0, Release);
}

/// The recorded samples.
fn read() -> Vec<Addresses> {
    let used = USED.load(Acquire).min(WORDS);
    let words: Vec<usize> = SAMPLES[..used].iter().map(|word| word.load(Relaxed)).collect();
    let mut samples = Vec::new();
    let mut rest = &words[..];
    while let [length, after @ ..] = rest {
        let (addresses, next) = after.split_at((*length).min(after.len()));
        samples.push(addresses.to_vec());
        rest = next;
    }
    samples
}

/// Installs the signal handler.
fn install_handler() -> io::Result<()> {
    // SAFETY: all zeroes are a valid `sigaction`: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
        record_sample;
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    // SAFETY: the action is complete, and its handler calls only what a handler may call.
    checked(unsafe { libc::sigaction(libc::SIGPROF, &raw const action, ptr::null_mut()) })
}

/// Starts a timer that interrupts only this thread.
fn timer(rate: u32) -> io::Result<libc::timer_t> {
    // SAFETY: all zeroes are a valid `sigevent`.
    let mut event: libc::sigevent = unsafe { mem::zeroed() };
    event.sigev_notify = libc::SIGEV_THREAD_ID;
    event.sigev_signo = libc::SIGPROF;
    // SAFETY: the call returns the thread's id and cannot fail.
    event.sigev_notify_thread_id = unsafe { libc::gettid() };
    let mut timer: libc::timer_t = ptr::null_mut();
    // SAFETY: both pointers refer to local variables that outlive the call.
    checked(unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer) })?;
    let period = Duration::from_secs(1) / rate.max(1);
    let period = libc::timespec {
        tv_sec: period.as_secs().cast_signed(),
        tv_nsec: i64::from(period.subsec_nanos()),
    };
    let times = libc::itimerspec { it_interval: period, it_value: period };
    // SAFETY: the timer was just created, and the times are a local variable.
    let set = unsafe { libc::timer_settime(timer, 0, &raw const times, ptr::null_mut()) };
    checked(set).inspect_err(|_| {
        // SAFETY: the timer was just created and has no other user.
        unsafe { libc::timer_delete(timer) };
    })?;
    Ok(timer)
}

fn checked(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Records the stack of the interrupted thread. It neither allocates nor blocks.
extern "C" fn record_sample(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    if RECORDING.load(Acquire) == 0 {
        return;
    }
    // SAFETY: with SA_SIGINFO the system passes a complete context to the handler.
    let at = instruction(unsafe { &*context.cast::<libc::ucontext_t>() });
    let mut addresses = [at; DEPTH];
    let mut count = 1;
    let mut inside = false;
    // SAFETY: two threads must not call this at once; only this thread is interrupted, see
    // `Sampler`.
    unsafe {
        backtrace::trace_unsynchronized(|frame| {
            let ip = frame.ip() as usize;
            // The first frames are this handler and its caller.
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
    SAMPLES[start].store(count, Relaxed);
    for (word, address) in SAMPLES[start + 1..].iter().zip(&addresses[..count]) {
        word.store(*address, Relaxed);
    }
    USED.store(start + 1 + count, Release);
}

/// The instruction at which a thread was interrupted.
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
        start_recording();
        spin(Duration::from_millis(500));
        stop_recording();
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
    fn nothing_is_recorded_before_recording_starts() {
        let sampler = Sampler::begin(1000).unwrap();
        spin(Duration::from_millis(20));
        assert_eq!(sampler.end(), Vec::<Addresses>::new());
    }
}
