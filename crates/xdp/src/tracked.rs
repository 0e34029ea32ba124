//! The programs for links whose connections the kernel tracks (`bpf/take_tracked.h`), one for each family: a port's program
//! leaves their packets to them.

use std::os::fd::{AsFd, OwnedFd};

use aya::Ebpf;
use aya::maps::Map;
use aya::programs::ProgramError;

use super::kfuncs::{Functions, Hook, module};
use super::object;
use super::sys;

/// In the order of the map by which a port's program comes to them (`TRACKED4`, `TRACKED6`).
const PROGRAMS: [&str; 2] = ["tracked4", "tracked6"];
const MAP: &str = "tracked_programs";

/// Loads the programs of a compiled object, of which aya has made `loaded`. Returns the map with the programs, which the
/// kernel empties when no process has the map.
pub(super) fn load(
    (compiled, hook): (&[u8], Hook),
    loaded: &mut Ebpf,
    functions: &Functions,
) -> Result<OwnedFd, Box<dyn std::error::Error>> {
    let mut load = |name| match functions.module() {
        Some(module) => module::load((compiled, hook), name, loaded, module),
        None => object::load(loaded, hook, name),
    };
    let [v4, v6] = PROGRAMS.map(&mut load);
    let programs = [v4?, v6?];
    // Whoever keeps the rest of the object does not keep the programs.
    let Some(Map::ProgramArray(map)) = loaded.take_map(MAP) else {
        return Err(ProgramError::NotLoaded.into());
    };
    let map = map.fd().as_fd().try_clone_to_owned()?;
    for (index, program) in (0..).zip(&programs) {
        sys::set_at(map.as_fd(), index, program.as_fd())?;
    }
    Ok(map)
}
