//! Ports on network devices, for the generator and its sink.

use std::os::fd::BorrowedFd;

use tollway_dataplane::id::PortId;
use tollway_lab::generate::redirect::Redirect;
use tollway_lab::generate::{Error, Opened};
use tollway_lab::memory;

use tollway_model::AfXdpMode;
use tollway_worker::ports::af_packet::AfPacket;
use tollway_worker::ports::af_xdp::{
    AfXdp, Failure, OwnedProgram, Peers, Program, Refusal, Setup, SharedUmem, Target, list,
};
use tollway_worker::ports::redirect;

/// The number of chunks in a port's memory: both rings, and a reserve.
const CHUNKS: u32 = 16_384;
/// The size of a chunk that the kernel accepts, bytes.
const CHUNK_BYTES: u32 = 4096;

/// How frames are sent or received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Via {
    /// xdp if the device takes redirected frames, else af_packet
    Auto,
    /// A BPF program that the kernel runs with live frames
    Xdp,
    /// AF_XDP sockets
    #[value(name = "af_xdp")]
    AfXdp,
    /// Packet sockets
    #[value(name = "af_packet")]
    AfPacket,
    /// Memory, without a device
    Memory,
}

impl Via {
    /// Resolves `auto` for a device that sends, and checks the method.
    pub(super) fn for_sender(self, device: &str) -> Result<Self, Error> {
        match self {
            Self::Auto if redirect::takes_redirected(device) => Ok(Self::Xdp),
            Self::Auto => Ok(Self::AfPacket),
            Self::Xdp if !redirect::takes_redirected(device) => Err(Error::usage(
                format!(
                    "{device} does not accept the redirected frames that the BPF program sends"
                ),
                format!(
                    "Switch GRO on where it leads to (for a veth `ethtool -K PEER gro on`) with \
                     {device} up, or say --via af_packet"
                ),
            )),
            known => Ok(known),
        }
    }

    /// Opens a port on a device.
    pub(super) fn open(self, device: &str, receives: bool) -> Result<Opened, Error> {
        let failed = || Error::failed("there is no memory for frames", "Free some");
        let mut umem = memory::umem(CHUNKS, CHUNK_BYTES).ok_or_else(failed)?;
        if self != Self::AfXdp {
            let port = AfPacket::open("lab", device, umem.limit()).map_err(|error| {
                Error::failed(format!("{device} cannot be opened: {error}"), error.remedy())
            })?;
            return Ok((Box::new(port), umem));
        }
        let program = match receives {
            true => Steps(Some(
                Redirect::load().map_err(|what| Error::failed(what, "Say --sink-via af_packet"))?,
            )),
            false => Steps(None),
        };
        let shared = SharedUmem::new(&umem);
        let setup = Setup {
            port: "lab",
            id: PortId(0),
            device,
            mode: AfXdpMode::Best,
            umem: &shared,
            peers: &Peers::default(),
            idle: None,
        };
        let port = AfXdp::open(setup, &mut umem, Box::new(program));
        let port = port.map_err(|failure| match failure {
            Failure::Fatal(error) => Error::failed(&error, error.remedy()),
            Failure::NotOffered(causes) => {
                let what = format!("{device} offers no AF_XDP ({})", list(&causes));
                Error::failed(what, "Use packet sockets: af_packet")
            }
        })?;
        Ok((Box::new(port), umem))
    }
}

/// The XDP program of a receiving port; none for a port that only sends.
struct Steps(Option<Redirect>);

fn refusal(what: String) -> Refusal {
    Refusal { what, remedy: "Use packet sockets: af_packet".to_owned(), is_final: false }
}

impl Program for Steps {
    fn attach(&mut self, target: Target<'_>, generic: bool) -> Result<(), Refusal> {
        let program = self.0.as_mut();
        program.map_or(Ok(()), |program| program.attach(target.device, generic)).map_err(refusal)
    }

    fn set_socket(&mut self, queue: u32, socket: BorrowedFd<'_>) -> Result<(), Refusal> {
        let program = self.0.as_mut();
        program.map_or(Ok(()), |program| program.set_socket(queue, socket)).map_err(refusal)
    }

    fn detach(&mut self) {
        if let Some(program) = &mut self.0 {
            program.detach();
        }
    }
}

impl OwnedProgram for Steps {
    fn is_attached(&self) -> bool {
        true
    }
}
