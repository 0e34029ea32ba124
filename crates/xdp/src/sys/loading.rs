//! Loads programs that call functions of the kernel's modules, which the loader of all other programs cannot.

use std::ffi::CStr;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use aya_obj::generated::bpf_insn;

use super::ids::{self, Ids};
use super::{Command, Info, address, bpf, number};

/// The kernel's information on types (`struct bpf_btf_info`).
#[derive(Default)]
#[repr(C)]
struct TypesInfo {
    types: u64,
    size: u32,
    id: u32,
    name: u64,
    name_len: u32,
    is_kernels: u32,
}

/// Arguments of BPF_BTF_LOAD.
#[derive(Default)]
#[repr(C)]
struct NewTypes {
    types: u64,
    log: u64,
    size: u32,
    log_size: u32,
    log_level: u32,
    pad: u32,
}

/// Arguments of BPF_PROG_LOAD.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct NewProgram {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    ifindex: u32,
    attach_type: u32,
    types: u32,
    func_info_size: u32,
    func_info: u64,
    func_info_count: u32,
    line_info_size: u32,
    line_info: u64,
    line_info_count: u32,
    attach_btf_id: u32,
    attach_program: u32,
    relocations: u32,
    fd_array: u64,
}

/// Bytes of the names of types, at most (`MODULE_NAME_LEN`).
const NAME_LEN: usize = 64;

/// The types and functions of a module of the kernel, by its name; none if it is not loaded.
///
/// # Errors
/// This needs `CAP_SYS_ADMIN`.
pub(crate) fn types_of_module(module: &str) -> io::Result<Option<OwnedFd>> {
    let mut last = 0;
    while let Some(id) = ids::next(Ids::Types, last)? {
        if let Some(types) = ids::open(Ids::Types, id)?
            && is_of_module(types.as_fd(), module)?
        {
            return Ok(Some(types));
        }
        last = id;
    }
    Ok(None)
}

/// Says whether types are those of a module.
fn is_of_module(types: BorrowedFd<'_>, module: &str) -> io::Result<bool> {
    let mut name = [0_u8; NAME_LEN];
    let mut about = TypesInfo {
        name: address(name.as_mut_ptr()),
        name_len: NAME_LEN as u32,
        ..TypesInfo::default()
    };
    let mut arguments = Info {
        fd: number(types),
        len: size_of::<TypesInfo>() as u32,
        info: address(&raw mut about),
    };
    // SAFETY: there is room for the information, and in it for a name of that length; both may be any bytes.
    unsafe { bpf(Command::ObjInfo, &mut arguments) }?;
    let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
    Ok(about.is_kernels != 0 && name.to_bytes() == module.as_bytes())
}

/// Loads the types of a program.
pub(crate) fn load_types(types: &[u8]) -> io::Result<OwnedFd> {
    let mut arguments = NewTypes {
        types: address(types.as_ptr()),
        size: types.len() as u32,
        ..NewTypes::default()
    };
    // SAFETY: the types are read, of the length given, and nothing is written.
    let fd = unsafe { bpf(Command::BtfLoad, &mut arguments) }?;
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A program that is to be loaded.
pub(crate) struct Linked<'a> {
    /// `BPF_PROG_TYPE_*`, and `BPF_XDP` or 0 (`enum bpf_attach_type`).
    pub(crate) kind: (u32, u32),
    /// `BPF_F_XDP_HAS_FRAGS`: it takes frames in parts.
    pub(crate) has_frags: bool,
    pub(crate) name: &'a str,
    pub(crate) license: &'a CStr,
    pub(crate) instructions: &'a [bpf_insn],
    /// The program's own types, and what has which of them: its functions and lines.
    pub(crate) types: BorrowedFd<'a>,
    pub(crate) functions: Records<'a>,
    pub(crate) lines: Records<'a>,
    /// The types of the modules whose functions it calls. The first one has the number 1 in the calls.
    pub(crate) modules: &'a [BorrowedFd<'a>],
}

/// Records of the same size.
#[derive(Clone, Copy)]
pub(crate) struct Records<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) size: usize,
}

impl Records<'_> {
    /// Their number; none if their size is unknown.
    fn count(self) -> u32 {
        self.bytes.len().checked_div(self.size).unwrap_or(0) as u32
    }
}

/// `BPF_F_XDP_HAS_FRAGS` of include/uapi/linux/bpf.h.
const HAS_FRAGS: u32 = 1 << 5;
/// How often a program is loaded while signals interrupt the verifier.
const TRIES: usize = 10;
/// The verifier's words are cut after so many bytes.
const LOG_LEN: usize = 1 << 20;

/// Loads a program. An error comes with the verifier's words.
pub(crate) fn load_program(linked: &Linked<'_>) -> Result<OwnedFd, (io::Error, String)> {
    load_in_peace(linked, &mut []).or_else(|_| {
        let mut log = vec![0; LOG_LEN];
        load_in_peace(linked, &mut log).map_err(|error| {
            let words = CStr::from_bytes_until_nul(&log).unwrap_or_default();
            (error, words.to_string_lossy().into_owned())
        })
    })
}

/// Loads a program, again if a signal interrupts the verifier.
fn load_in_peace(linked: &Linked<'_>, log: &mut [u8]) -> io::Result<OwnedFd> {
    let is_interrupted = |error: &io::Error| error.raw_os_error() == Some(libc::EAGAIN);
    for _ in 1..TRIES {
        match load_with(linked, log) {
            Err(error) if is_interrupted(&error) => {}
            done => return done,
        }
    }
    load_with(linked, log)
}

/// Loads a program; the verifier speaks if there is room.
fn load_with(linked: &Linked<'_>, log: &mut [u8]) -> io::Result<OwnedFd> {
    let fds: Vec<u32> =
        std::iter::once(0).chain(linked.modules.iter().map(|types| number(*types))).collect();
    let mut arguments = arguments(linked);
    arguments.fd_array = address(fds.as_ptr());
    if !log.is_empty() {
        arguments.log_level = 1;
        arguments.log_size = log.len() as u32;
        arguments.log = address(log.as_mut_ptr());
    }
    // SAFETY: all is read, of the lengths given, but the log, which is written and may be any bytes. Each number of a
    // descriptor in the calls is below the length of `fds`, or the kernel refuses what lies behind as no descriptor.
    let fd = unsafe { bpf(Command::ProgLoad, &mut arguments) }?;
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn arguments(linked: &Linked<'_>) -> NewProgram {
    let (kind, attach_type) = linked.kind;
    let mut name = [0; 16];
    for (to, from) in name[..15].iter_mut().zip(linked.name.bytes()) {
        *to = from;
    }
    NewProgram {
        kind,
        flags: if linked.has_frags { HAS_FRAGS } else { 0 },
        count: linked.instructions.len() as u32,
        instructions: address(linked.instructions.as_ptr()),
        license: address(linked.license.as_ptr()),
        name,
        attach_type,
        types: number(linked.types),
        func_info_size: linked.functions.size as u32,
        func_info: address(linked.functions.bytes.as_ptr()),
        func_info_count: linked.functions.count(),
        line_info_size: linked.lines.size as u32,
        line_info: address(linked.lines.bytes.as_ptr()),
        line_info_count: linked.lines.count(),
        ..NewProgram::default()
    }
}
