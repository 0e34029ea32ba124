//! The program for links whose connections the kernel tracks (`bpf/tracked.h`): a port's program leaves their packets to it.

use std::os::fd::{AsFd, OwnedFd};

use aya::Ebpf;
use aya::maps::Map;
use aya::programs::ProgramError;

use super::kfuncs::{Functions, Hook, module};
use super::object;
use super::sys;

const PROGRAM: &str = "tracked";
/// The map by which a port's program comes to it.
const MAP: &str = "tracked_program";

/// Loads the program of a compiled object, of which aya has made `loaded`. Returns the map with the program, which the
/// kernel empties when no process has the map.
pub(super) fn load(
    (compiled, hook): (&[u8], Hook),
    loaded: &mut Ebpf,
    functions: &Functions,
) -> Result<OwnedFd, Box<dyn std::error::Error>> {
    let program = match functions.module() {
        Some(module) => module::load((compiled, hook), PROGRAM, loaded, module)?,
        None => object::load(loaded, hook, PROGRAM)?,
    };
    // Whoever keeps the rest of the object does not keep the program.
    let Some(Map::ProgramArray(map)) = loaded.take_map(MAP) else {
        return Err(ProgramError::NotLoaded.into());
    };
    let map = map.fd().as_fd().try_clone_to_owned()?;
    sys::set_only(map.as_fd(), program.as_fd())?;
    Ok(map)
}
