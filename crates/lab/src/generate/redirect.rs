//! The XDP program that redirects frames to the AF_XDP sockets of a sink.

use std::os::fd::BorrowedFd;

use aya::maps::XskMap;
use aya::programs::Xdp;
use aya::programs::xdp::{XdpLinkId, XdpMode};
use aya::{Ebpf, EbpfLoader};

use crate::bpf::{program_of, refused};

/// `bpf/xsk.c`.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/xsk.o"));

/// The loaded program, attached to at most one device.
pub struct Redirect {
    ebpf: Ebpf,
    link: Option<XdpLinkId>,
}

impl Redirect {
    /// Loads the program.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn load() -> Result<Self, String> {
        let failed = |error: &dyn std::error::Error| refused("xsk", error);
        let mut ebpf = EbpfLoader::new().load(OBJECT).map_err(|error| failed(&error))?;
        let program: &mut Xdp = program_of(&mut ebpf, "xsk")?;
        program.load().map_err(|error| failed(&error))?;
        Ok(Self { ebpf, link: None })
    }

    /// Attaches the program to a device, in the driver or in generic mode, and detaches it from any
    /// other.
    ///
    /// # Errors
    /// The kernel or the driver refuses it.
    pub fn attach(&mut self, device: &str, generic: bool) -> Result<(), String> {
        self.detach();
        let mode = if generic { XdpMode::Skb } else { XdpMode::Driver };
        let program: &mut Xdp = program_of(&mut self.ebpf, "xsk")?;
        let link = program.attach(device, mode).map_err(|error| refused("xsk", &error))?;
        self.link = Some(link);
        Ok(())
    }

    /// Sets the socket that receives a queue's frames.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn set_socket(&mut self, queue: u32, socket: BorrowedFd<'_>) -> Result<(), String> {
        let map = self.ebpf.map_mut("sockets").ok_or("xsk has no map `sockets`")?;
        let failed = |error: aya::maps::MapError| refused("xsk", &error);
        let mut sockets = XskMap::try_from(map).map_err(failed)?;
        sockets.set(queue, socket, 0).map_err(failed)
    }

    /// Detaches the program from its device.
    pub fn detach(&mut self) {
        let Some(link) = self.link.take() else { return };
        let program: Result<&mut Xdp, _> = program_of(&mut self.ebpf, "xsk");
        if let Ok(program) = program {
            // A device that has disappeared has already dropped the program.
            let _ = program.detach(link);
        }
    }
}
