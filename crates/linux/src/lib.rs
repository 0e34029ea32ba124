//! Linux as Tollway needs it: system calls, netlink sockets, the privileges and priorities of a process.
//!
//! This crate knows neither packets nor the router.

pub mod kept_files;
pub mod mailbox;
pub mod netlink;
pub mod pace;
pub mod priority;
pub mod privileges;
pub mod programs;
pub mod sync;
pub mod sys;
