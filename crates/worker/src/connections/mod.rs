//! Enters connections that the kernel tracks into the table by which the programs forward their packets.
//!
//! ```text
//! program: a packet without an entry ─▶ the kernel        ring ─▶ this thread: GET by ctnetlink ─▶ table
//!          a second one ─▶ its key into a ring, and ─▶ the kernel      rules: Filter::of_flow
//! ```
//!
//! The kernel makes connections, translates addresses and ends connections; nobody listens to its events, which would
//! cost it up to half of its rate of new connections. The thread asks for one connection at a time, those whose packets
//! the programs have seen twice. If the kernel's entry qualifies ([`Connection::offload`]), the direction gets an entry:
//! how its packets leave, and what the rules do with all of them if they leave by the link that the program has found.
//! The program finds the link by the translated destination, so it asks twice where addresses change.
//!
//! A direction whose packets the kernel has to forward gets an entry that says so, until a time: 8 ms for
//! one that is about to qualify, longer for others.
//!
//! Limits: UDP and TCP over IPv4. Rules that give packets a mark, limit or log keep a connection on the kernel path; so do rules
//! that depend on more than addresses, ports, links, marks and what is known of the connection. A translated source may
//! be that of a device that packets no longer leave by (masquerade): before packets may leave by another link, the kernel
//! gets some for 8 ms, and deletes such a connection.
//!
//! [`Connection::offload`]: tollway_conntrack::Connection::offload

mod answer;
mod handover;
mod settings;
mod thread;

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use tollway_conntrack::Conntrack;
use tollway_dataplane::router::Router;
use tollway_linux::mailbox::Waker;
use tollway_xdp::State;
use tollway_xdp::connections::{ConnectionTable, Connections, Queries};

pub use answer::key_of;
use thread::Thread;

/// Enters connections on a thread of its own, until it is dropped.
pub struct ConnectionFollower {
    connections: Connections,
    waker: Option<Waker>,
    thread: Option<JoinHandle<()>>,
}

impl ConnectionFollower {
    /// Starts the thread. `router` has the rules. With `exact_counters`, connections are the kernel's while it counts their
    /// packets.
    ///
    /// # Errors
    /// The system refuses a netlink socket or a thread.
    pub fn start(
        (table, queries): (ConnectionTable, Queries),
        state: State,
        router: Arc<Router>,
        exact_counters: bool,
    ) -> io::Result<Self> {
        let conntrack = Conntrack::open()?;
        let (waker, wakes) = Waker::pair()?;
        let connections = table.connections().clone();
        let own =
            Thread::new((table, queries), (conntrack, wakes), (state, exact_counters), router);
        let thread = std::thread::Builder::new().name("connections".to_owned());
        let thread = Some(thread.spawn(move || own.run())?);
        Ok(Self { connections, waker: Some(waker), thread })
    }

    /// The entries.
    #[must_use]
    pub const fn connections(&self) -> &Connections {
        &self.connections
    }
}

impl Drop for ConnectionFollower {
    fn drop(&mut self) {
        drop(self.waker.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
