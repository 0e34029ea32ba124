//! Sends connections in pages while the kernel lists them: the router never has more than one page.

use std::io;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use tollway_conntrack::{Connection, Conntrack, Family};
use tollway_linux::sys::why;
use tollway_xdp::connections::ConnectionsByTuple;

use super::describe::describe;
use super::filter::ConnectionFilter;
use super::message::{self, ConnectionsPage};

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

/// The function that receives each connection.
type Take<'a> = &'a mut dyn FnMut(Connection) -> ControlFlow<()>;

/// The function that describes each connection.
type Describe<'a> = &'a dyn Fn(Connection) -> message::Connection;

/// Reads the connections of the router's network namespace.
pub fn tracked(family: Option<Family>, take: Take<'_>) -> io::Result<()> {
    Conntrack::open()?.each(family, take)
}

/// Sends the connections of a source that a filter selects, page by page, and an empty page at the end.
pub fn pages(
    (filter, entries): (&ConnectionFilter, &ConnectionsByTuple),
    source: impl FnOnce(Option<Family>, Take<'_>) -> io::Result<()>,
    send: &mut dyn FnMut(&ConnectionsPage) -> io::Result<()>,
) -> Result<(), PagesError> {
    pages_of((filter, &|connection| describe(connection, entries)), source, send)
}

/// Like [`pages`], of connections that the given function describes.
pub(super) fn pages_of(
    (filter, describe): (&ConnectionFilter, Describe<'_>),
    source: impl FnOnce(Option<Family>, Take<'_>) -> io::Result<()>,
    send: &mut dyn FnMut(&ConnectionsPage) -> io::Result<()>,
) -> Result<(), PagesError> {
    let page = ConnectionsPage { connections: Vec::new(), more: true };
    let mut pager = Pager { page, describe, sent: Instant::now(), send, failed: None };
    let read = source(filter.family(), &mut |connection| {
        pager.take(filter.selects(&connection).then_some(connection))
    });
    let Pager { page, send, failed, .. } = pager;
    if let Some(error) = failed {
        return Err(PagesError::Client(error));
    }
    read.map_err(PagesError::Kernel)?;
    if !page.connections.is_empty() {
        send(&page).map_err(PagesError::Client)?;
    }
    send(&ConnectionsPage::default()).map_err(PagesError::Client)
}

/// Collects a page, and sends it.
struct Pager<'a> {
    page: ConnectionsPage,
    describe: Describe<'a>,
    /// When the last page was sent.
    sent: Instant,
    send: &'a mut dyn FnMut(&ConnectionsPage) -> io::Result<()>,
    failed: Option<io::Error>,
}

impl Pager<'_> {
    /// Adds a connection to the page, or notes that one was passed over.
    fn take(&mut self, connection: Option<Connection>) -> ControlFlow<()> {
        self.page.connections.extend(connection.map(self.describe));
        if self.page.connections.len() < PAGE && self.sent.elapsed() < SILENCE {
            return ControlFlow::Continue(());
        }
        let sent = (self.send)(&self.page);
        self.page.connections.clear();
        self.sent = Instant::now();
        match sent {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                self.failed = Some(error);
                ControlFlow::Break(())
            }
        }
    }
}
