//! BPF programs of the benches: loading them, and running one with live frames.

pub(crate) mod runner;

use aya::Ebpf;
use aya::programs::{Program, ProgramError};

/// The message that the kernel refuses a program, with its reason.
pub(crate) fn refused(name: &str, error: &dyn std::error::Error) -> String {
    // The kernel's own message is the last cause.
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    format!("the kernel refuses the BPF program {name}: {error}: {cause}")
}

/// A program in a BPF object, with its type.
pub(crate) fn program_of<'a, P>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut P, String>
where
    &'a mut P: TryFrom<&'a mut Program, Error = ProgramError>,
{
    let program = ebpf.program_mut(name).ok_or_else(|| format!("there is no program {name}"))?;
    program.try_into().map_err(|error| format!("{name} is of another kind: {error}"))
}
