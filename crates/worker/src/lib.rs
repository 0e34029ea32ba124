//! The workers: each a loop over its queues of all ports, which sleeps when there is nothing to do.
//!
//! [`ports`] are what they receive from and send to. Between two bursts a worker does the jobs that other threads
//! post to its mailbox: the [`installer`] swaps tables. Other changes of tables happen on the thread that makes
//! them ([`Updater`]): [`neighbours`] follows the kernel's neighbours, [`fdb`] what its bridges have learned.

// These macros panic on a closed pipe. Only `tollway-commands` prints, by functions that do not panic.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod activity;
pub mod connections;
mod cores;
pub mod fdb;
mod guard;
pub mod hand_over;
mod heartbeat;
pub mod installer;
mod losses;
mod mailbox;
pub mod neighbours;
pub mod ports;
pub mod priority;
pub mod service;
mod silence;
mod sleep;
mod stop;
mod sweep;
mod turns;
mod update;
mod valve;
mod waiter;
mod wake;
mod workers;

pub use activity::{Activity, Usage};
pub use heartbeat::OnPause;
pub use mailbox::{Job, Overdue, WorkerMailbox, WorkerMailboxReceiver, mailbox};
pub use stop::{Stop, Stopper, stop_flag};
pub use update::Updater;
pub use workers::{Duties, First, Other, run};
