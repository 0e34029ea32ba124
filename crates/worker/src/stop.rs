//! The request to stop.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};
use tollway_linux::mailbox::{WakeReceiver, Waker};

/// The signals that request a stop.
const STOPS: [i32; 2] = [SIGINT, SIGTERM];

/// The request to stop, set by SIGINT and SIGTERM. The second such signal ends the process at once.
pub struct Stop {
    wanted: Arc<AtomicBool>,
    /// Becomes readable with the signal, so that a sleeping loop wakes up.
    wakes: WakeReceiver,
    waker: Waker,
}

/// A handle that stops the worker.
#[derive(Clone)]
pub struct Stopper {
    wanted: Arc<AtomicBool>,
    waker: Waker,
}

impl Stopper {
    /// Stops the worker after its current turn.
    pub fn stop(&self) {
        self.wanted.store(true, Ordering::Relaxed);
        self.waker.wake();
    }
}

/// Returns a flag that the first stop signal sets; the second signal ends the process at once.
///
/// # Errors
/// The system does not permit signal handlers.
pub fn stop_flag() -> io::Result<Arc<AtomicBool>> {
    let wanted = Arc::new(AtomicBool::new(false));
    for signal in STOPS {
        let code = 128 + signal;
        // The order matters: the first signal must find the flag not yet set.
        signal_hook::flag::register_conditional_shutdown(signal, code, Arc::clone(&wanted))?;
        signal_hook::flag::register(signal, Arc::clone(&wanted))?;
    }
    Ok(wanted)
}

impl Stop {
    /// Installs the signal handlers.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn on_signals() -> io::Result<Self> {
        let (waker, wakes) = Waker::pair()?;
        let wanted = stop_flag()?;
        for signal in STOPS {
            signal_hook::low_level::pipe::register(signal, waker.socket()?)?;
        }
        // A log or a capture at its size limit makes the write fail, instead of ending the process.
        signal_hook::flag::register(SIGXFSZ, Arc::default())?;
        Ok(Self { wanted, wakes, waker })
    }

    /// A handle with which other threads stop the worker.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper { wanted: Arc::clone(&self.wanted), waker: self.waker.clone() }
    }

    /// Becomes readable with the request.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.wakes.as_fd()
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }
}
