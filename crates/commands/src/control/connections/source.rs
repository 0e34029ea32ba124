//! Where connections come from: the kernel, or the rules of a file.

use std::io;
use std::ops::ControlFlow;

use tollway_conntrack::{Connection as Tracked, Conntrack, Family};
use tollway_worker::connections::LiveConnections;

use super::describe::{Programs, Sum, describe, fast};
use super::message::Connection;

/// The function that receives each connection.
pub type Take<'a> = &'a mut dyn FnMut(Tracked) -> ControlFlow<()>;

/// A source of connections, and what is known of each beside it.
pub trait Source {
    /// Learns now what [`Source::fast`] and [`Source::describe`] say.
    fn refresh(&mut self);

    /// Calls `take` for each connection of a family, or of both, until it breaks.
    ///
    /// # Errors
    /// The kernel does not list them.
    fn each(&self, family: Option<Family>, take: Take<'_>) -> io::Result<()>;

    /// What the programs have forwarded of a connection, which its own counters lack.
    fn fast(&self, connection: &Tracked) -> Sum;

    /// Describes a connection.
    fn describe(&self, connection: Tracked) -> Connection;
}

/// The connections of the router's network namespace.
pub struct KernelConnections<'a> {
    live: Option<&'a LiveConnections>,
    programs: Programs,
}

impl<'a> KernelConnections<'a> {
    /// The connections, and what the programs do with them; `links` are the names of all links, and `all_by_kernel` says why
    /// all packets of IPv4 and IPv6 take the kernel path, if they do.
    pub fn new(
        live: Option<&'a LiveConnections>,
        links: Vec<String>,
        all_by_kernel: [Option<String>; 2],
    ) -> Self {
        Self { live, programs: Programs { links, all_by_kernel, ..Programs::default() } }
    }
}

impl Source for KernelConnections<'_> {
    fn refresh(&mut self) {
        // Not both at once: that of a large table takes a hundred megabytes.
        drop(std::mem::take(&mut self.programs.entries));
        self.programs.entries = self.live.map(LiveConnections::by_tuple).unwrap_or_default();
    }

    fn each(&self, family: Option<Family>, take: Take<'_>) -> io::Result<()> {
        Conntrack::open()?.each(family, take)
    }

    fn fast(&self, connection: &Tracked) -> Sum {
        fast(connection, &self.programs)
    }

    fn describe(&self, connection: Tracked) -> Connection {
        describe(connection, &self.programs)
    }
}
