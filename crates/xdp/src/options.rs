//! What is the same for all ports, and where a program runs.

use crate::home;
use crate::kfuncs::has_conntrack;

/// Options for all ports, fixed when the maps are created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The most IPv4 flows in the XDP path, 64 bytes each; rounded up to a power of two.
    pub flows4: u32,
    /// The most IPv6 flows in the XDP path, 128 bytes each; rounded up likewise.
    pub flows6: u32,
    /// The most directions of IPv4 connections whose packets the programs forward, 64 bytes each; rounded up likewise.
    pub connections4: u32,
    /// The most directions of IPv6 connections, 128 bytes each; likewise. Half as many take as much memory.
    pub connections6: u32,
    /// Whether to take ports over from a Tollway that still serves them.
    pub replace: bool,
}

impl Default for Options {
    fn default() -> Self {
        let most = 1 << 17;
        Self {
            flows4: most,
            flows6: most,
            connections4: most,
            connections6: most / 2,
            replace: false,
        }
    }
}

/// Does what needs more privileges than to load programs. Mounts the BPF file system if necessary and permitted; if that
/// fails, [`XdpPrograms::load`](crate::XdpPrograms::load) reports it. Opens the types of the module nf_conntrack, if the
/// functions of [`has_conntrack`] are there; this takes `CAP_SYS_ADMIN`.
pub fn prepare() {
    let _ = home::Home::make();
    let _ = has_conntrack();
}

/// Where the program runs on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In the driver.
    Native,
    /// Behind the driver, in the kernel's own receive function; works on any device, but slower.
    Generic,
    /// As a program of tc, the last one at the device's ingress (tcx, Linux 6.6). It needs no sockets.
    Tcx,
    /// The same as a filter of the queueing discipline `clsact`.
    Clsact,
}

impl Mode {
    /// All modes of XDP, the best one first; the last one works on any device.
    pub const ALL: [Self; 2] = [Self::Native, Self::Generic];
    /// The modes of tc, likewise.
    pub const TC: [Self; 2] = [Self::Tcx, Self::Clsact];

    /// Whether the program is that of tc.
    #[must_use]
    pub const fn is_tc(self) -> bool {
        matches!(self, Self::Tcx | Self::Clsact)
    }
}
