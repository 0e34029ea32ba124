//! Connections on a kernel whose conntrack is a module: the programs call functions of that.

use std::path::Path;

use super::namespaces::ready;
use super::running::KernelRouter;
use super::scene::{Net, carries_one, start};
use super::{running, tracked};

/// Where the kernel lists the module while it is loaded.
const MODULE: &str = "/sys/module/nf_conntrack";

/// By the tc program: datagrams, and a stream with the offloads of hosts.
pub fn tc() {
    let net = Net::new();
    let router = start("ra rb");
    assert!(Path::new(MODULE).exists(), "the router asks for the module");
    let _server = ready(&mut net.b.role("--role", "server"));
    tracked::is_forwarded(&router, &net.a);
    // The kernel forwards a connection's beginning. For one emulated processor, that may be much of a stream.
    carries_one(&router, (&net.a, &net.b), "10.0.2.2:5001", |(sent, kernel)| sent > kernel);
}

/// By the XDP program: datagrams.
pub fn xdp() {
    let net = running::Net::new();
    let router = KernelRouter::start("ra rb --engine xdp");
    let _server = ready(&mut net.b.role("--role", "server"));
    tracked::is_forwarded(&router, &net.a);
}
