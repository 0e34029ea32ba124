//! The packet's path of Tollway: from port to port in bursts, without system calls.
//!
//! Read [`path`] first: it is the whole way of a packet, in order, on one screen. A stage is one
//! folder under [`stages`]. What the stages read is [`tables::Tables`]; what they say about a
//! packet is a [`verdict::Verdict`]; who speaks for the router itself (ARP, ND, ICMP) is
//! [`host::Host`]; and
//! [`router::Router`] holds all of it together for one worker.

// The test kit names the crate from outside, because the integration tests share it.
#[cfg(test)]
extern crate self as tollway_dataplane;

pub mod burst;
pub mod changes;
pub mod clock;
pub mod counters;
pub mod cpu;
pub mod dispatch;
pub mod epoch;
pub mod express;
pub mod frame;
pub mod host;
pub mod id;
pub mod memory;
pub mod path;
pub mod port;
pub mod punts;
mod retired;
pub mod router;
pub mod stages;
mod sync;
pub mod tables;
#[cfg(test)]
mod testkit;
pub mod tolls;
pub mod verdict;
pub mod wire;
