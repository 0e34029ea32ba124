//! Finds programs in a compiled BPF object, and loads them.

use std::os::fd::{AsFd, OwnedFd};

use aya::Ebpf;
use aya::programs::{SchedClassifier, Xdp};

use super::kfuncs::Hook;

/// Finds a program of an object by its name.
///
/// # Errors
/// If the object has no program of that name, or the program is not of type `P`.
pub(super) fn program<'a, P>(
    object: &'a mut Ebpf,
    name: &str,
) -> Result<&'a mut P, aya::programs::ProgramError>
where
    &'a mut P: TryFrom<&'a mut aya::programs::Program, Error = aya::programs::ProgramError>,
{
    let missing = aya::programs::ProgramError::NotLoaded;
    object.program_mut(name).ok_or(missing)?.try_into()
}

/// Loads a program of an object, and leaves it to the caller alone.
pub(super) fn load(
    object: &mut Ebpf,
    hook: Hook,
    name: &str,
) -> Result<OwnedFd, Box<dyn std::error::Error>> {
    match hook {
        Hook::Xdp => {
            let program: &mut Xdp = program(object, name)?;
            program.load()?;
            let fd = program.fd()?.as_fd().try_clone_to_owned()?;
            program.unload()?;
            Ok(fd)
        }
        Hook::Tc => {
            let program: &mut SchedClassifier = program(object, name)?;
            program.load()?;
            Ok(program.fd()?.as_fd().try_clone_to_owned()?)
        }
    }
}
