//! A thread in which the kernel runs a generator's program with live frames until the thread is
//! stopped.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

use aya::Ebpf;
use aya::programs::Xdp;

use super::program_of;
use crate::sys;

/// A running program. Dropping this ends it.
pub(crate) struct Runner {
    thread: i32,
    /// Set to end it.
    stop: Arc<AtomicBool>,
    work: Option<JoinHandle<Result<(), String>>>,
}

impl Runner {
    /// Runs a program with copies of `frame`, in batches, in a new thread in the calling thread's
    /// namespace. The thread first calls `prepare`.
    ///
    /// # Errors
    /// A message, if no thread can start or no signal handler can be set.
    pub(crate) fn start(
        mut ebpf: Ebpf,
        name: &'static str,
        frame: Vec<u8>,
        batch: u32,
        prepare: impl FnOnce() -> std::io::Result<()> + Send + 'static,
    ) -> Result<Self, String> {
        Self::spawn(move |stop| {
            let failed =
                |error: &dyn std::fmt::Display| format!("the generator cannot run: {error}");
            prepare().map_err(|error| failed(&error))?;
            let program: &mut Xdp = program_of(&mut ebpf, name)?;
            let fd = program.fd().map_err(|error| failed(&error))?.as_fd();
            let call = || sys::run_live_frames(fd, &frame, u32::MAX, batch);
            repeat_until_stopped(stop, call).map_err(|error| failed(&error))
        })
    }

    fn spawn(
        work: impl FnOnce(&AtomicBool) -> Result<(), String> + Send + 'static,
    ) -> Result<Self, String> {
        sys::allow_waking()
            .map_err(|error| format!("cannot handle the signal that wakes the thread: {error}"))?;
        let stop = Arc::new(AtomicBool::new(false));
        let (ready, started) = channel();
        let until = Arc::clone(&stop);
        let work = move || {
            let _ = ready.send(sys::thread_id());
            work(&until)
        };
        let work = std::thread::Builder::new().name("generator".to_owned()).spawn(work);
        let work = work.map_err(|error| format!("no thread can be started: {error}"))?;
        let thread = started.recv().map_err(|_| "the generator's thread has ended".to_owned())?;
        Ok(Self { thread, stop, work: Some(work) })
    }

    /// Whether it has ended by itself, which happens only on failure.
    pub(crate) fn has_ended(&self) -> bool {
        self.work.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends the thread.
    ///
    /// # Errors
    /// A message, if the program has failed.
    pub(crate) fn end(&mut self) -> Result<(), String> {
        let Some(work) = self.work.take() else { return Ok(()) };
        self.stop.store(true, Ordering::Release);
        while !work.is_finished() {
            // Repeat the signal: the first may arrive before the call that it has to interrupt.
            sys::wake(self.thread);
            std::thread::sleep(Duration::from_millis(1));
        }
        work.join().unwrap_or_else(|_| Err("the generator's thread panicked".to_owned()))
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// Repeats a call until `stop` is set. One call makes at most 2^32 runs, idle ones included, which
/// a paced stream uses up in minutes. Any signal ends it, too.
fn repeat_until_stopped<E>(
    stop: &AtomicBool,
    mut call: impl FnMut() -> Result<(), E>,
) -> Result<(), E> {
    while !stop.load(Ordering::Acquire) {
        call()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_continue_until_they_are_stopped() {
        let stop = AtomicBool::new(false);
        let mut calls = 0;
        let call = || -> Result<(), ()> {
            calls += 1;
            stop.store(calls == 5, Ordering::Release);
            Ok(())
        };
        assert_eq!(repeat_until_stopped(&stop, call), Ok(()));
        assert_eq!(calls, 5);
        stop.store(false, Ordering::Release);
        assert_eq!(repeat_until_stopped(&stop, || Err("refused")), Err("refused"));
    }

    #[test]
    fn a_thread_ends_when_it_is_stopped_and_is_not_waited_for_when_it_has_failed() {
        let call = || {
            std::thread::sleep(Duration::from_millis(1));
            Ok(())
        };
        let mut runner = Runner::spawn(move |stop| repeat_until_stopped(stop, call)).unwrap();
        assert!(!runner.has_ended());
        assert_eq!(runner.end(), Ok(()));
        let mut runner = Runner::spawn(|_| panic!("what is to fail")).unwrap();
        assert_eq!(runner.end(), Err("the generator's thread panicked".to_owned()));
        assert!(runner.has_ended());
    }
}
