//! Objects of compiled BPF.

use aya::Ebpf;

/// A program of an object, by its name.
///
/// # Errors
/// There is none, or it is of another kind.
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
