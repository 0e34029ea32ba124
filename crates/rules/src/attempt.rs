//! One attempt to read the rules.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

use super::contents::{ContentsError, Filled};
use super::ipset::{IpSet, Watch};
use super::kernel::Kernel;
use super::message::Table;
use super::program::NftError;
use super::read::{self, ListingError, ParsedListing};
use super::socket::{Listener, NetfilterSocket};
use super::{contents, program};
use tollway_linux::mailbox::{WakeReceiver, Waker};
use tollway_linux::priority::be_nice;
use tollway_linux::sys::{self, why};

/// How often to check whether the sets of ipset are listed in time while the rules are read, in ms.
const LOOKS_MS: i32 = 10;

/// How an attempt to read the rules ended.
pub(super) enum Attempt {
    Read(Box<WholeReading>),
    /// The rules have changed meanwhile.
    Moved,
    /// A set has elements twice in its list: its table may have grown meanwhile.
    Doubled,
    /// The thread is to end.
    Stopped,
}

/// Why an attempt has failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum AttemptError {
    /// The kernel refuses to list its rules.
    #[error("the kernel does not list its rules; give CAP_NET_ADMIN, or start as root")]
    NotPermitted,
    /// The kernel does not answer.
    #[error("the kernel's rules cannot be queried: {}", why(.0))]
    NoAnswer(io::Error),
    /// nft gave no output.
    #[error(transparent)]
    Nft(#[from] NftError),
    /// Its output gives no rules.
    #[error(transparent)]
    Listing(#[from] ListingError),
    /// The elements of sets are unknown.
    #[error(transparent)]
    Contents(#[from] ContentsError),
    /// The system gives no thread.
    #[error("cannot start a thread that reads the rules: {0}")]
    NoThread(io::Error),
    /// The thread has panicked.
    #[error("the thread that reads the rules has panicked: a defect of Tollway")]
    Panicked,
}

impl AttemptError {
    /// The error for a failed query of the kernel.
    fn of_query(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EPERM) => Self::NotPermitted,
            _ => Self::NoAnswer(error),
        }
    }
}

/// A complete reading.
pub(super) struct WholeReading {
    pub(super) read: ParsedListing,
    pub(super) tables: Vec<Table>,
    /// The sets of ipset that rules look up.
    pub(super) ipsets: Vec<IpSet>,
}

impl WholeReading {
    fn of(read: ParsedListing) -> Self {
        Self { read, tables: Vec::new(), ipsets: Vec::new() }
    }
}

/// Reads the rules once, lists with elements twice as well if it `takes_doubles`.
pub(super) fn attempt(
    wakes: &WakeReceiver,
    socket: &mut NetfilterSocket,
    moving: &HashSet<String>,
    takes_doubles: bool,
) -> Result<Attempt, AttemptError> {
    let query_error = AttemptError::of_query;
    socket.wait_for_change().map_err(query_error)?;
    let Some(before) = socket.generation().map_err(query_error)? else {
        return Ok(Attempt::Read(Box::new(WholeReading::of(read::empty(0)))));
    };
    let tables = socket.tables().map_err(query_error)?;
    let (read, ipsets) = if tables.is_empty() {
        (read::empty(before), Vec::new())
    } else {
        let stopped = || wakes.has_ended();
        let Some(listing) = program::list(&stopped)? else { return Ok(Attempt::Stopped) };
        let mut value = read::parse(&listing)?;
        let kernel = Kernel::read(&tables, socket);
        let nft = |words: &[&str]| program::run_nft(words, &stopped);
        let filled = kernel.as_ref().map(|kernel| {
            kernel.complete(&mut value);
            contents::fill(&mut value, kernel, socket, &nft)
        });
        // Interrupted lists and sets that have disappeared meanwhile are not errors.
        if socket.generation().map_err(query_error)? != Some(before) {
            return Ok(Attempt::Moved);
        }
        let filled = filled.unwrap_or(Ok(Filled::Whole))?;
        let kernel = kernel.map_err(query_error)?;
        match filled {
            Filled::Doubled if !takes_doubles => return Ok(Attempt::Doubled),
            Filled::Whole | Filled::Doubled => {}
            Filled::Abandoned => return Ok(Attempt::Stopped),
        }
        kernel.add_ipsets(&mut value);
        (read::read(value, before, moving, Some(&kernel))?, kernel.ipsets())
    };
    Ok(match socket.generation().map_err(query_error)? == Some(before) {
        true => Attempt::Read(Box::new(WholeReading { read, tables, ipsets })),
        false => Attempt::Moved,
    })
}

/// Makes an attempt on a thread of its own. Calls `report_behind` as soon as the kernel notifies of a
/// change, or the sets of ipset change or are not listed in time.
pub(super) fn attempt_beside(
    attempt: impl FnOnce() -> Result<Attempt, AttemptError> + Send,
    listener: &Listener,
    mut ipsets: Option<&mut Watch>,
    report_behind: &mut dyn FnMut(),
) -> Result<Attempt, AttemptError> {
    std::thread::scope(|scope| {
        let Ok((waker, wakes)) = Waker::pair() else {
            report_behind();
            return attempt();
        };
        let thread = std::thread::Builder::new().name("rules-reader".to_owned());
        let reader = thread.spawn_scoped(scope, || {
            // Dropping it ends the wait.
            let _waker = waker;
            // A new thread does not inherit the nice value (SCHED_RESET_ON_FORK).
            let _ = be_nice();
            attempt()
        });
        let reader = reader.map_err(AttemptError::NoThread)?;
        let looks = ipsets.as_ref().map_or(-1, |ipsets| ipsets.fd().as_raw_fd());
        let mut fds =
            [wakes.as_fd().as_raw_fd(), listener.fd().as_raw_fd(), looks].map(sys::readable);
        while fds[0].revents == 0 {
            let patience = if ipsets.is_some() { LOOKS_MS } else { -1 };
            if sys::wait(&mut fds, patience).is_err() {
                report_behind();
                break;
            }
            if fds[1].revents != 0 {
                report_behind();
                // One report is enough.
                fds[1] = sys::readable(-1);
            }
            if let Some(ipsets) = &mut ipsets
                && (ipsets.receive() || ipsets.is_late())
            {
                report_behind();
                fds[2] = sys::readable(-1);
            }
        }
        reader.join().unwrap_or(Err(AttemptError::Panicked))
    })
}
