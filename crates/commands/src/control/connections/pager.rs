//! Collects connections in a page, and sends it when it is full, or after a time.

use std::io;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use tollway_conntrack::Connection as Tracked;
use tollway_linux::sys::why;

use super::filter::ConnectionFilter;
use super::message::{Connection, ConnectionsPage};
use super::source::Source;

/// The most connections of a page.
const PAGE: usize = 500;
/// After so long without a line the router sends a page, with what it has: a client waits only for seconds.
const SILENCE: Duration = Duration::from_secs(1);

/// Why the pages end early.
#[derive(Debug, thiserror::Error)]
pub enum PagesError {
    /// The client does not take them.
    #[error("the client does not read: {}", why(.0))]
    Client(io::Error),
    /// The kernel does not list its connections.
    #[error(
        "the kernel does not list its connections: {}. It needs the module nf_conntrack_netlink",
        why(.0)
    )]
    Kernel(io::Error),
}

/// The function that sends a page.
pub(super) type SendPage<'a> = &'a mut dyn FnMut(&ConnectionsPage) -> io::Result<()>;

/// Calls `take` for each connection of which the kernel's entry fits a filter, and shows the client that it goes on.
pub(super) fn each<'a>(
    filter: &ConnectionFilter,
    source: &dyn Source,
    pager: &mut Pager<'a>,
    mut take: impl FnMut(Tracked, &mut Pager<'a>) -> io::Result<ControlFlow<()>>,
) -> Result<(), PagesError> {
    let mut failed = None;
    let read = source.each(filter.family(), &mut |connection| {
        let next = match filter.selects(&connection) {
            true => take(connection, pager),
            false => Ok(ControlFlow::Continue(())),
        };
        match next.and_then(|next| pager.go_on().map(|()| next)) {
            Ok(next) => next,
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        }
    });
    match failed {
        Some(error) => Err(PagesError::Client(error)),
        None => read.map_err(PagesError::Kernel),
    }
}

/// Collects a page, and sends it.
pub(super) struct Pager<'a> {
    page: ConnectionsPage,
    /// When the last page was sent.
    sent: Instant,
    send: SendPage<'a>,
}

impl<'a> Pager<'a> {
    pub(super) fn new(send: SendPage<'a>) -> Self {
        let page = ConnectionsPage { connections: Vec::new(), more: true };
        Self { page, sent: Instant::now(), send }
    }

    /// Adds a connection to the page.
    pub(super) fn add(&mut self, connection: Connection) -> io::Result<()> {
        self.page.connections.push(connection);
        if self.page.connections.len() < PAGE { Ok(()) } else { self.flush() }
    }

    /// Sends what there is after a time without a page.
    fn go_on(&mut self) -> io::Result<()> {
        if self.sent.elapsed() < SILENCE { Ok(()) } else { self.flush() }
    }

    /// Waits for a time, and shows the client meanwhile that the router is there.
    pub(super) fn rest(&mut self, time: Duration) -> io::Result<()> {
        let until = Instant::now() + time;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(SILENCE));
            self.go_on()?;
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        let sent = (self.send)(&self.page);
        self.page.connections.clear();
        self.sent = Instant::now();
        sent
    }

    pub(super) fn end(mut self) -> io::Result<()> {
        if !self.page.connections.is_empty() {
            self.flush()?;
        }
        (self.send)(&ConnectionsPage::default())
    }
}
