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
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use tollway_conntrack::Conntrack;
use tollway_dataplane::router::Router;
use tollway_linux::mailbox::Waker;
use tollway_xdp::State;
use tollway_xdp::connections::{ConnectionTable, Connections, ConnectionsByTuple, Queries};

pub use answer::key_of;
use thread::Thread;

/// The connections that the programs forward now; for any thread.
#[derive(Clone)]
pub struct LiveConnections {
    entries: Connections,
    state: State,
    entered: Arc<AtomicU64>,
}

impl LiveConnections {
    /// What the active entries have forwarded, by the packets' tuple.
    #[must_use]
    pub fn by_tuple(&self) -> ConnectionsByTuple {
        self.entries.by_tuple(self.state.connections_generation())
    }

    /// The number of directions of connections that the programs forward. This reads the whole table.
    #[must_use]
    pub fn forwarding(&self) -> u64 {
        self.entries.forwarding(self.state.connections_generation())
    }

    /// How often a direction of a connection has come to be forwarded.
    #[must_use]
    pub fn entered(&self) -> u64 {
        self.entered.load(Ordering::Relaxed)
    }
}

/// Enters connections on a thread of its own, until it is dropped.
pub struct ConnectionFollower {
    live: LiveConnections,
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
        let live = LiveConnections {
            entries: table.connections().clone(),
            state: state.clone(),
            entered: Arc::default(),
        };
        let entered = Arc::clone(&live.entered);
        let own = Thread::new(
            (table, queries, entered),
            (conntrack, wakes),
            (state, exact_counters),
            router,
        );
        let thread = std::thread::Builder::new().name("connections".to_owned());
        let thread = Some(thread.spawn(move || own.run())?);
        Ok(Self { live, waker: Some(waker), thread })
    }

    /// What the programs forward.
    #[must_use]
    pub const fn live(&self) -> &LiveConnections {
        &self.live
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
