//! The programs of both engines, which run on frames in memory.

use tollway_dataplane::id::PortId;
use tollway_xdp::{Action, Mode, Program};

use crate::compared::Compared;

/// The program of port 0 in one engine.
pub struct Engine {
    program: Program,
    /// The device by which a tc program's frames arrive.
    device: Option<u32>,
}

impl Engine {
    /// XDP and tc.
    pub fn both(compared: &Compared) -> [Self; 2] {
        let device = compared.ports[0].ifindex;
        [(Mode::Native, None), (Mode::Tcx, Some(device))].map(|(mode, device)| Self {
            program: compared.programs.program(PortId(0), mode, true).unwrap(),
            device,
        })
    }

    /// Runs the program; returns its verdict, and the frame as it would leave.
    pub fn run(&self, frame: &[u8]) -> (Action, Vec<u8>) {
        match self.device {
            None => self.program.probe(frame).unwrap(),
            Some(device) => self.program.probe_on((device, 0), frame).unwrap(),
        }
    }
}
