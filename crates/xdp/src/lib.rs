//! The dispatcher: the XDP program on each port.
//!
//! The program sends packets to the user path, repeats that path's decisions in the XDP path, and
//! passes the rest to the kernel.
//!
//! The program (`bpf/dispatcher.c`) passes these to the kernel, and counts them by
//! [`PassReason`](counts::PassReason):
//!
//! - everything, while the bypass of [`State`] is set
//! - everything, while nobody confirms the tables in [`State`]
//! - what is for user space in a queue whose worker writes no heartbeat there
//! - a family that takes the kernel path on its link
//! - frames for other stations, groups and broadcast
//! - everything except IPv4 and IPv6
//! - VLANs that are not configured
//! - malformed headers
//! - the router's own addresses, and addresses that are not routed
//! - packets with options, and packets whose TTL expires here
//! - checksums that a sender left to a network card (`bpf/checksum.h`), on devices whose senders can
//!   leave them
//!
//! The rest goes to the socket of its queue, if there is one.
//!
//! A packet of a flow in [`FlowMaps`] with an active generation leaves by the flow's device. Its
//! checksum must be right, it must fit the MTU, it must not be a fragment, and its TTL must not expire
//! here. The XDP path never drops.
//!
//! A port has the tc program (`bpf/tc.c`) instead if its frames are made by the kernel ([`Mode::TC`]). It forwards what
//! the tables decide, as the XDP program does, and leaves all else to the kernel. No user path is behind it.
//!
//! Limits: XDP cannot see a tag that the device removes before it. So devices with VLAN links need
//! `ethtool -K DEVICE rxvlan off`, and a veth needs `txvlan off` at its peer. [`refusals`] counts
//! redirected frames that a driver drops; on a kernel without BTF, only that device's statistics
//! count them.

mod addresses;
mod attach;
mod beside;
mod clock;
mod clsact;
pub mod connections;
mod context;
pub mod counts;
mod device;
mod error;
mod ethtool;
mod features;
pub mod flows;
mod grace;
mod home;
mod hook;
mod kfuncs;
mod links;
mod load;
mod locals;
pub mod maps;
mod object;
mod options;
mod page;
mod pin;
mod port;
mod prober;
mod program;
mod programs;
mod reading;
pub mod refusals;
pub mod regions;
mod shared;
mod sys;
mod tables;
mod tracked;
pub mod xdp_path;

pub use attach::Attached;
pub use clsact::is_own_filter;
pub use counts::PortCounts;
pub use device::{Tcx, tcx};
pub use error::XdpError;
pub use features::{
    driver, hashes, leaves_checksums, rx_checksums, rxvlan, sends_tags_beside, strips_tags,
};
pub use flows::FlowMaps;
pub use kfuncs::has_conntrack;
pub use links::netfilter_hooks;
pub use load::port_program;
pub use maps::{CountMap, Ruled, State, TcpSettings};
pub use options::{Mode, Options, prepare};
pub use page::MOST_WORKERS;
pub use pin::{clean, program_beside, program_of};
pub use port::{MOST_PORTS, MOST_QUEUES, XdpLink, XdpPort};
pub use prober::ProbeTarget;
pub use program::{Action, Program};
pub use programs::{BesideState, Preparation, Renewal, XdpPrograms};
pub use reading::SharedTables;
pub use refusals::Refusals;
pub use tables::TableMaps;

#[cfg(test)]
#[path = "../../dataplane/src/testkit/mod.rs"]
mod testkit;
