//! BPF programs of the benches: loading them, and running one with live frames.

pub(crate) mod runner;

use aya::Ebpf;
use aya::maps::DevMap;
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

/// Makes a generator's frames leave by the device of this ifindex (`bpf/out.h`).
pub(crate) fn leave_by(ebpf: &mut Ebpf, ifindex: u32) -> Result<(), String> {
    let failed = |error: &dyn std::error::Error| format!("the generator's map `out`: {error}");
    let map = ebpf.map_mut("out").ok_or("the generator has no map `out`")?;
    let mut out = DevMap::try_from(map).map_err(|error| failed(&error))?;
    out.set(0, ifindex, None, 0).map_err(|error| failed(&error))
}

/// A program in a BPF object, with its type.
pub(crate) fn program_of<'a, P>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut P, String>
where
    &'a mut P: TryFrom<&'a mut Program, Error = ProgramError>,
{
    let program = ebpf.program_mut(name).ok_or_else(|| format!("there is no program {name}"))?;
    program.try_into().map_err(|error| format!("{name} is of another kind: {error}"))
}
