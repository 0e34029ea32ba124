//! One attempt to read the rules.

use std::collections::HashSet;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use super::ipset::IpSet;
use super::kernel::Kernel;
use super::message::Table;
use super::read::{self, Read};
use super::socket::Asker;
use super::{contents, program};
use crate::ports::{sys, why};

/// How an attempt to read the rules ended.
pub(super) enum Attempt {
    Read(Box<Whole>),
    /// The rules have changed meanwhile.
    Moved,
    /// The thread is to end.
    Stopped,
}

/// Everything that was read.
pub(super) struct Whole {
    pub(super) read: Read,
    pub(super) tables: Vec<Table>,
    /// The sets of ipset that rules look up.
    pub(super) ipsets: Vec<IpSet>,
    /// Before they were listed.
    pub(super) listed_at: Instant,
}

impl Whole {
    fn of(read: Read) -> Self {
        Self { read, tables: Vec::new(), ipsets: Vec::new(), listed_at: Instant::now() }
    }
}

/// Reads the rules once.
pub(super) fn attempt(
    wake: &UnixStream,
    asker: &mut Asker,
    moving: &HashSet<String>,
) -> Result<Attempt, String> {
    let unasked = |error: io::Error| match error.raw_os_error() {
        Some(libc::EPERM) => {
            "the kernel does not tell its rules; give CAP_NET_ADMIN, or start as root".to_owned()
        }
        _ => format!("the kernel cannot be asked for its rules: {}", why(&error)),
    };
    let Some(before) = asker.generation().map_err(unasked)? else {
        return Ok(Attempt::Read(Box::new(Whole::of(read::empty(0)))));
    };
    let tables = asker.tables().map_err(unasked)?;
    let listed_at = Instant::now();
    let (read, ipsets) = if tables.is_empty() {
        (read::empty(before), Vec::new())
    } else {
        let stopped = || is_closed(wake);
        let Some(listing) = program::list(&stopped)? else { return Ok(Attempt::Stopped) };
        let mut value = read::parse(&listing)?;
        let kernel = Kernel::read(&tables, asker);
        let nft = |words: &[&str]| program::ask(words, &stopped);
        let filled = kernel.as_ref().map(|kernel| {
            kernel.complete(&mut value);
            contents::fill(&mut value, kernel, asker, &nft)
        });
        // Interrupted lists and sets that have disappeared meanwhile are not errors.
        if asker.generation().map_err(unasked)? != Some(before) {
            return Ok(Attempt::Moved);
        }
        let is_filled = filled.unwrap_or(Ok(true))?;
        let kernel = kernel.map_err(unasked)?;
        if !is_filled {
            return Ok(Attempt::Stopped);
        }
        kernel.add_ipsets(&mut value);
        (read::read(value, before, moving, Some(&kernel))?, kernel.ipsets())
    };
    Ok(match asker.generation().map_err(unasked)? == Some(before) {
        true => Attempt::Read(Box::new(Whole { read, tables, ipsets, listed_at })),
        false => Attempt::Moved,
    })
}

/// Says whether the other end is closed; does not consume what it has written.
fn is_closed(wake: &UnixStream) -> bool {
    let fd = wake.as_raw_fd();
    let mut fds = [libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 }];
    sys::wait(&mut fds, 0).is_ok() && fds[0].revents & (libc::POLLRDHUP | libc::POLLHUP) != 0
}
