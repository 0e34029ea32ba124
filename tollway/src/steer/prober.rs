//! Asks a device if it takes frames that XDP redirects to it, by a frame of the router's own (`bpf/ask.c`).
//!
//! What a driver says of itself need not be what it does, and a packet that it drops is lost. So the first frame
//! is one that nobody misses: the loopback of the Ethernet configuration testing protocol (EtherType 0x9000) from
//! the device's address to itself, as switches send it to see if a port is alive. A neighbour ignores it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use aya::programs::Xdp;
use aya::{EbpfLoader, include_bytes_aligned};
use tollway_dataplane::id::PortId;
use tollway_dataplane::wire::eth;

use super::error::SteerError;
use super::pin::Names;
use super::sys;
use crate::model::Mac;

static ASK: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/ask.o"));

/// `ETH_P_LOOPBACK` of include/uapi/linux/if_ether.h.
const LOOPBACK: u16 = 0x9000;
/// The function of the protocol's messages that answers nothing (Ethernet 2.0, 8.4.1).
const REPLY: u16 = 1;
/// A frame without its checksum has as many bytes at least (`ETH_ZLEN`).
const FRAME: usize = 60;

/// A port whose device is asked.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// The port.
    pub port: PortId,
    /// Its device.
    pub ifindex: u32,
    /// The device's address.
    pub mac: Mac,
}

impl Asked {
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

/// The program that redirects such a frame.
pub(super) struct Prober(OwnedFd);

impl Prober {
    /// Loads it, with the map `egress` by its name.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(super) fn load(names: &Names) -> Result<Self, SteerError> {
        const WHAT: &str = "a question to devices";
        let mut loader = EbpfLoader::new();
        loader.map_pin_path("egress", names.path("egress"));
        let failed = |error: &(dyn std::error::Error + 'static)| SteerError::load(WHAT, error);
        let mut object = loader.load(ASK).map_err(|error| failed(&error))?;
        let missing = aya::programs::ProgramError::NotLoaded;
        let program = object.program_mut("ask").ok_or(missing).map_err(|error| failed(&error))?;
        let program: &mut Xdp = program.try_into().map_err(|error| failed(&error))?;
        program.load().map_err(|error| failed(&error))?;
        let fd = program.fd().map_err(|error| failed(&error))?.as_fd().try_clone_to_owned();
        Ok(Self(fd.map_err(SteerError::system(WHAT, "keeping the program"))?))
    }

    /// Sends the frame; when this returns, the device has taken it or not. A bare one has no room before it
    /// where a driver could write.
    ///
    /// # Errors
    /// The kernel cannot run programs on frames that really go out (before Linux 5.18), or the device has no
    /// queue to receive by.
    pub(super) fn ask(&self, asked: &Asked, is_bare: bool) -> io::Result<()> {
        sys::run_live(self.0.as_fd(), &asked.frame(is_bare), asked.ifindex)
    }
}

impl std::fmt::Debug for Prober {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_tuple("Prober").field(&self.0.as_raw_fd()).finish()
    }
}
