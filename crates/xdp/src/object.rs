//! Finds programs in a compiled BPF object.

use aya::Ebpf;

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
