//! Loads programs that call functions of a module.
//!
//! The system call needs the module's types in its `fd_array`, which aya never sets. So aya makes the maps, and this
//! takes the object apart once more with the parts of aya, links it, and makes the system call.

use std::collections::HashSet;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use aya::maps::Map;
use aya::programs::ProgramError;
use aya::{Btf, Ebpf};
use aya_obj::{Object, ProgramSection, VerifierLog};

use super::Hook;
use crate::sys::loading::{Linked, Records, load_program, load_types};

type Error = Box<dyn std::error::Error>;

/// Loads a program of a compiled object. `loaded` is what aya has made of the same object, and has the maps.
pub(crate) fn load(
    (compiled, hook): (&[u8], Hook),
    program: &str,
    loaded: &Ebpf,
    module: BorrowedFd<'_>,
) -> Result<OwnedFd, Error> {
    let mut object = Object::parse(compiled)?;
    let types = types(&mut object)?;
    link(&mut object, loaded)?;
    let parsed = object.programs.get(program).ok_or(ProgramError::NotLoaded)?;
    let function = object.functions.get(&parsed.function_key()).ok_or(ProgramError::NotLoaded)?;
    let linked = Linked {
        kind: hook.kind(),
        has_frags: matches!(parsed.section, ProgramSection::Xdp { frags: true, .. }),
        name: program,
        license: &parsed.license,
        instructions: &function.instructions,
        types: types.as_fd(),
        functions: Records {
            bytes: &function.func_info.func_info_bytes(),
            size: function.func_info_rec_size,
        },
        lines: Records {
            bytes: &function.line_info.line_info_bytes(),
            size: function.line_info_rec_size,
        },
        modules: &[module],
    };
    let loaded = load_program(&linked);
    loaded.map_err(|(io_error, log)| {
        let verifier_log = VerifierLog::new(log);
        ProgramError::LoadError { io_error, verifier_log }.into()
    })
}

/// Loads the types of an object's programs.
fn types(object: &mut Object) -> Result<OwnedFd, Error> {
    const NO_TYPES: &str = "the kernel takes no types of programs (CONFIG_DEBUG_INFO_BTF)";
    let features = aya::features().btf().ok_or(NO_TYPES)?;
    let types = object.fixup_and_sanitize_btf(features)?.ok_or(NO_TYPES)?;
    Ok(load_types(&types.to_bytes())?)
}

/// Enters into an object's instructions where the kernel has fields, the maps, and where functions are.
///
/// The fields are those of structures that the kernel describes among its own types: those of connections are there even
/// if the functions are a module's.
fn link(object: &mut Object, loaded: &Ebpf) -> Result<(), Error> {
    object.relocate_btf(&Btf::from_sys_fs()?)?;
    let sections: HashSet<usize> = object.functions.keys().map(|(section, _)| *section).collect();
    let maps = mem::take(&mut object.maps);
    let mut fds = Vec::new();
    for (name, map) in &maps {
        let fd = loaded.map(name).and_then(fd).ok_or_else(|| format!("no map {name}"))?;
        fds.push((name.as_str(), fd.as_raw_fd(), map));
    }
    object.relocate_maps(fds.into_iter(), &sections)?;
    object.relocate_calls(&sections)?;
    object.sanitize_functions(aya::features());
    Ok(())
}

/// The descriptor of a map of a kind that the programs have.
fn fd(map: &Map) -> Option<BorrowedFd<'_>> {
    match map {
        Map::Array(map)
        | Map::PerCpuArray(map)
        | Map::HashMap(map)
        | Map::RingBuf(map)
        | Map::DevMap(map)
        | Map::ProgramArray(map)
        | Map::XskMap(map) => Some(map.fd().as_fd()),
        _ => None,
    }
}
