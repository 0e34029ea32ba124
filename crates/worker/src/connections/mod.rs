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
//! Rules may keep a direction's packets out of connection tracking (`notrack`). It gets an entry by which the programs forward
//! them without the kernel's connection, if the rules accept them all.
//!
//! Limits: UDP and TCP. Rules that give packets a mark, limit or log keep a connection on the kernel path; so do rules
//! that depend on more than addresses, ports, links, marks and what is known of the connection. A translated source may
//! be that of a device that packets no longer leave by (masquerade): before packets may leave by another link, the kernel
//! gets some for 8 ms, and deletes such a connection.
//!
//! [`Connection::offload`]: tollway_conntrack::Connection::offload

mod answer;
mod handover;
mod reason;
mod settings;
mod thread;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use tollway_conntrack::Conntrack;
use tollway_dataplane::router::Router;
use tollway_linux::kept_files::KeptFiles;
use tollway_linux::mailbox::Waker;
use tollway_xdp::State;
use tollway_xdp::connections::{ConnectionTable, Connections, ConnectionsByTuple, Queries, Tally};

pub use answer::key_of;
pub use reason::KernelReason;
use settings::Settings;
use thread::Thread;

/// The connections that the programs forward now; for any thread.
#[derive(Clone)]
pub struct LiveConnections {
    entries: Connections,
    state: State,
    counts: Arc<Counts>,
    counted: Arc<Mutex<Option<Counted>>>,
    exact_counters: bool,
}

/// The last count of the entries, and until when it is new enough.
struct Counted {
    tally: Tally,
    until: Instant,
}

/// Who counts the entries takes one in so many of its time, however often somebody asks.
const COUNT_SHARE: u32 = 32;

/// What the thread has done since its start.
#[derive(Debug, Default)]
struct Counts {
    /// How often a direction of a connection has come to be forwarded.
    entered: AtomicU64,
    answers: AtomicU64,
    /// Answers that say to forward packets, for which there was no room.
    without_room: AtomicU64,
}

impl LiveConnections {
    /// What the active entries have forwarded, by the packets' tuple.
    #[must_use]
    pub fn by_tuple(&self) -> ConnectionsByTuple {
        self.entries.by_tuple(self.state.connections_generation())
    }

    /// The numbers of directions of connections in the table. Of a large table, that is the count of some seconds ago.
    #[must_use]
    pub fn tally(&self) -> Tally {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let began = Instant::now();
        if let Some(Counted { tally, .. }) = counted.as_ref().filter(|one| began < one.until) {
            return tally.clone();
        }
        let tally = self.entries.tally(self.state.connections_generation());
        let now = Instant::now();
        let until = now + (now - began) * COUNT_SHARE;
        *counted = Some(Counted { tally: tally.clone(), until });
        tally
    }

    /// How often a direction of a connection has come to be forwarded.
    #[must_use]
    pub fn entered(&self) -> u64 {
        self.counts.entered.load(Ordering::Relaxed)
    }

    /// Whether all connections are the kernel's now, since it has to count their packets exactly.
    #[must_use]
    pub fn are_kernels(&self) -> bool {
        Settings::must_count(&mut KeptFiles::default(), self.exact_counters)
    }

    /// How often the programs have asked about a direction, and got an answer.
    #[must_use]
    pub fn answers(&self) -> u64 {
        self.counts.answers.load(Ordering::Relaxed)
    }

    /// The answers of which nothing came for want of room in the table.
    #[must_use]
    pub fn without_room(&self) -> u64 {
        self.counts.without_room.load(Ordering::Relaxed)
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
            counts: Arc::default(),
            counted: Arc::default(),
            exact_counters,
        };
        let counts = Arc::clone(&live.counts);
        let own = Thread::new(
            (table, queries, counts),
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
