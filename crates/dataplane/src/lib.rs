//! The data plane of Tollway: it forwards packets from port to port in bursts, without system calls.
//!
//! Read [`path`] first: it calls every stage in order, on one screen. Each stage is one folder under
//! [`stages`]. Each stage reads its part of [`tables::Tables`] and gives each packet that exits the path
//! a [`verdict::Verdict`]. [`host::Host`] acts for the router itself (ARP, ND, ICMP).
//! [`router::Router`] has the tables and the host; each [`worker::Worker`] forwards by them.
//!
//! A module imports only from modules below it. From the bottom: numbers and header views ([`id`],
//! [`wire`], [`ip`]); memory that changes while it is read ([`memory`], [`epoch`]); bursts ([`frame`],
//! [`burst`], [`hand_over`]); what all stages share ([`fib`], [`next_hops`], [`links`]); [`stages`]; [`tables`], which
//! owns what they read; [`path`] and [`host`]; [`router`]; [`worker`].

// The test kit refers to the crate by its external name, because the integration tests share it.
#[cfg(test)]
extern crate self as tollway_dataplane;

pub mod burst;
pub mod changes;
pub mod clock;
pub mod counters;
pub mod cpu;
pub mod dispatch;
pub mod epoch;
mod features;
pub mod fib;
pub mod frame;
pub mod hand_over;
pub mod host;
pub mod id;
pub mod ip;
pub mod links;
pub mod memory;
pub mod next_hops;
pub mod path;
pub mod port;
pub mod prefix;
pub mod punts;
pub mod router;
mod rule_counts;
pub mod stages;
mod sync;
pub mod tables;
#[cfg(test)]
mod testkit;
mod token_bucket;
pub mod tolls;
pub mod verdict;
pub mod wire;
pub mod worker;
pub mod xdp_path;
