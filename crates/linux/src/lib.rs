//! Linux as Tollway needs it: system calls, netlink sockets, and what a process may do and how it runs.
//!
//! Nothing here knows packets or the router.

pub mod mailbox;
pub mod netlink;
pub mod priority;
pub mod privileges;
pub mod programs;
pub mod sync;
pub mod sys;
