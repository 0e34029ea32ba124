//! Probes whether a device accepts redirected XDP frames, with a frame of the router's own
//! (`bpf/probe.c`).
//!
//! A driver may behave differently from its report, and a packet that it drops is lost. So the
//! first frame is one that no user misses: the loopback of the Ethernet configuration testing
//! protocol (EtherType 0x9000), from the device's address to itself. Switches send it to see
//! whether a port is alive. A neighbour ignores it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use aya::programs::Xdp;
use aya::{EbpfLoader, include_bytes_aligned};
use tollway_dataplane::id::PortId;
use tollway_dataplane::wire::eth;

use super::error::XdpError;
use super::sys;
use tollway_net::Mac;

static PROBE: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/probe.o"));

/// `ETH_P_LOOPBACK` of include/uapi/linux/if_ether.h.
const LOOPBACK: u16 = 0x9000;
/// The function of the protocol that causes no answer (Ethernet 2.0, 8.4.1).
const REPLY: u16 = 1;
/// The least length of a frame without its FCS (`ETH_ZLEN`).
const FRAME: usize = 60;

/// A port whose device is probed.
#[derive(Clone, Copy, Debug)]
pub struct ProbeTarget {
    /// The port.
    pub port: PortId,
    /// Its device.
    pub ifindex: u32,
    /// The device's address.
    pub mac: Mac,
}

impl ProbeTarget {
    fn frame(&self, is_bare: bool) -> [u8; FRAME] {
        let (skip_count, receipt) = (0_u16.to_le_bytes(), self.port.0.to_be_bytes());
        let header = [&self.mac.0[..], &self.mac.0, &LOOPBACK.to_be_bytes()].concat();
        let bare = [u8::from(is_bare)];
        let message = [&skip_count[..], &REPLY.to_le_bytes(), &receipt, &bare].concat();
        let mut frame = [0; FRAME];
        frame[..eth::LEN].copy_from_slice(&header);
        frame[eth::LEN..eth::LEN + message.len()].copy_from_slice(&message);
        frame
    }
}

/// The program that redirects the probe.
pub(super) struct Prober(OwnedFd);

impl Prober {
    /// Loads the program with the map `egress`, which the loader knows by its name.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(super) fn load(loader: &mut EbpfLoader<'_>) -> Result<Self, XdpError> {
        const WHAT: &str = "the probe of devices";
        let failed = |error: &(dyn std::error::Error + 'static)| XdpError::load(WHAT, error);
        let mut object = loader.load(PROBE).map_err(|error| failed(&error))?;
        let missing = aya::programs::ProgramError::NotLoaded;
        let program = object.program_mut("probe").ok_or(missing).map_err(|error| failed(&error))?;
        let program: &mut Xdp = program.try_into().map_err(|error| failed(&error))?;
        program.load().map_err(|error| failed(&error))?;
        let fd = program.fd().map_err(|error| failed(&error))?.as_fd().try_clone_to_owned();
        Ok(Self(fd.map_err(XdpError::system(WHAT, "keeping the program"))?))
    }

    /// Sends the probe; when this returns, the device has accepted or refused it. A bare frame has
    /// no headroom for a driver to write to.
    ///
    /// # Errors
    /// The kernel cannot run programs on frames that really leave (before Linux 5.18), or the
    /// device has no receive queue.
    pub(super) fn send(&self, target: &ProbeTarget, is_bare: bool) -> io::Result<()> {
        sys::run_live(self.0.as_fd(), &target.frame(is_bare), target.ifindex)
    }
}

impl std::fmt::Debug for Prober {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_tuple("Prober").field(&self.0.as_raw_fd()).finish()
    }
}
