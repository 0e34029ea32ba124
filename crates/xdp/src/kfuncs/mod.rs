//! Calls of the kernel's functions in a compiled object, which has a number in the place of each (`KFUNC` of
//! bpf/conntrack.h): the loader knows no such calls.
//!
//! The functions are in the kernel itself, or in its module nf_conntrack. Calls of a module's functions name the module
//! by a descriptor, to which [`module`] loads the programs.

pub(super) mod module;
mod types;

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use tollway_linux::sync::lock;

use super::error::XdpError;
use super::sys::{self, loading::types_of_module};
use types::Types;

/// Where the kernel describes its own types and functions, and where those of the module.
const KERNEL_TYPES: &str = "/sys/kernel/btf/vmlinux";
const MODULE_TYPES: &str = "/sys/kernel/btf/nf_conntrack";
const MODULE: &str = "nf_conntrack";
/// Bytes of an instruction.
const INSTRUCTION: usize = 8;
/// The operation that calls, and the one that sets a register.
const CALL: u8 = 0x85;
const SET: u8 = 0xb7;
/// In the place of the source register: what is called is a function of the kernel (`BPF_PSEUDO_KFUNC_CALL`).
const KFUNC: u8 = 2;
/// The number that stands for a function, without the function's own number in its lowest byte.
const UNKNOWN: u32 = 0x746c_6c00;
/// The place of the module among those that a program is loaded with; 0 is the kernel itself.
const FIRST_MODULE: u16 = 1;

/// The kind of a program, by which the kernel's function for a lookup differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hook {
    Xdp,
    Tc,
}

impl Hook {
    /// `BPF_PROG_TYPE_XDP` or `BPF_PROG_TYPE_SCHED_CLS`, and where it is attached, if the kernel wants to know.
    const fn kind(self) -> (u32, u32) {
        match self {
            Self::Xdp => (6, sys::XDP),
            Self::Tc => (3, 0),
        }
    }
}

/// The numbers of the functions among the kernel's types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Numbers {
    xdp_lookup: u32,
    skb_lookup: u32,
    release: u32,
    change_timeout: u32,
}

/// The kernel's functions.
#[derive(Clone, Debug)]
pub(super) struct Functions {
    numbers: Numbers,
    /// The types of the module that has them.
    module: Option<Arc<OwnedFd>>,
}

impl Functions {
    /// The module that has them, if it is one.
    pub(super) fn module(&self) -> Option<BorrowedFd<'_>> {
        self.module.as_ref().map(|module| module.as_fd())
    }
}

/// Says whether programs can ask the kernel for the entry of a connection.
#[must_use]
pub fn has_conntrack() -> bool {
    functions().is_some()
}

/// Replaces what stands for each function with a call of it. Without these functions, the calls find no connection.
pub(super) fn give(object: &mut [u8], hook: Hook, functions: Option<&Functions>) {
    for instruction in object.as_chunks_mut::<INSTRUCTION>().0 {
        let Some(number) = number_of(instruction) else { continue };
        let function = functions.and_then(|Functions { numbers, module }| {
            let module = module.as_ref().map_or(0, |_| FIRST_MODULE);
            let function = match (number, hook) {
                (1, Hook::Xdp) => numbers.xdp_lookup,
                (1, Hook::Tc) => numbers.skb_lookup,
                (2, _) => numbers.release,
                (3, _) => numbers.change_timeout,
                _ => return None,
            };
            Some((module, function))
        });
        match function {
            Some((module, function)) => {
                instruction[2..4].copy_from_slice(&module.to_ne_bytes());
                instruction[4..].copy_from_slice(&function.to_ne_bytes());
            }
            // r0 = 0
            None => *instruction = [SET, 0, 0, 0, 0, 0, 0, 0],
        }
    }
}

/// The number of the function that an instruction stands for, if it does for one.
fn number_of(instruction: &[u8; INSTRUCTION]) -> Option<u32> {
    let [operation, registers, _, _, a, b, c, d] = *instruction;
    let source = if cfg!(target_endian = "big") { registers & 0xf } else { registers >> 4 };
    let number = u32::from_ne_bytes([a, b, c, d]).checked_sub(UNKNOWN)?;
    (operation == CALL && source == KFUNC && number < 256).then_some(number)
}

/// Whether the kernel has refused programs that call the functions.
static ARE_REFUSED: AtomicBool = AtomicBool::new(false);

/// The kernel's functions, if it has all of them.
pub(super) fn functions() -> Option<Functions> {
    if ARE_REFUSED.load(Ordering::Relaxed) {
        return None;
    }
    of_kernel().map(|numbers| Functions { numbers, module: None }).or_else(of_module)
}

/// Does without the functions from now on.
pub(super) fn renounce(error: &XdpError) {
    ARE_REFUSED.store(true, Ordering::Relaxed);
    tracing::warn!("the kernel forwards all connections that it tracks: {error}");
}

/// The functions of the kernel itself; they stay what they are until it ends.
fn of_kernel() -> Option<Numbers> {
    static NUMBERS: OnceLock<Option<Numbers>> = OnceLock::new();
    *NUMBERS.get_or_init(|| numbers(&fs::read(KERNEL_TYPES).ok()?, None))
}

/// The module's functions, if it is there by now. It cannot be unloaded while a program calls them.
fn of_module() -> Option<Functions> {
    static FOUND: Mutex<Option<Functions>> = Mutex::new(None);
    let mut found = lock(&FOUND);
    if found.is_none() {
        let types = fs::read(MODULE_TYPES).ok()?;
        let module = types_of_module(MODULE).ok()??;
        let numbers = numbers(&types, Some(&fs::read(KERNEL_TYPES).ok()?))?;
        *found = Some(Functions { numbers, module: Some(Arc::new(module)) });
    }
    found.clone()
}

fn numbers(types: &[u8], base: Option<&[u8]>) -> Option<Numbers> {
    let names =
        ["bpf_xdp_ct_lookup", "bpf_skb_ct_lookup", "bpf_ct_release", "bpf_ct_change_timeout"];
    let base = base.map(|base| Types::read(base).ok_or(())).transpose().ok()?;
    let [xdp_lookup, skb_lookup, release, change_timeout] =
        Types::read(types)?.numbers(base, names)?;
    Some(Numbers { xdp_lookup, skb_lookup, release, change_timeout })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(module: u16, number: u32) -> [u8; INSTRUCTION] {
        let registers = if cfg!(target_endian = "big") { KFUNC } else { KFUNC << 4 };
        let mut bytes = [CALL, registers, 0, 0, 0, 0, 0, 0];
        bytes[2..4].copy_from_slice(&module.to_ne_bytes());
        bytes[4..].copy_from_slice(&number.to_ne_bytes());
        bytes
    }

    #[test]
    fn calls_get_the_numbers_of_the_kernels_functions() {
        let numbers =
            Numbers { xdp_lookup: 11, skb_lookup: 12, release: 100_013, change_timeout: 14 };
        let given = |functions: Option<&Functions>| {
            let other = call(0, UNKNOWN - 1);
            let mut object = [other, call(0, UNKNOWN + 1), call(0, UNKNOWN + 2)].concat();
            give(&mut object, Hook::Xdp, functions);
            assert_eq!(object[..8], other);
            object[8..].to_vec()
        };
        let kernels = Functions { numbers, module: None };
        assert_eq!(given(Some(&kernels)), [call(0, 11), call(0, 100_013)].concat());
        let module = Arc::new(fs::File::open("/dev/null").unwrap().into());
        let modules = Functions { numbers, module: Some(module) };
        assert_eq!(given(Some(&modules)), [call(1, 11), call(1, 100_013)].concat());
        assert_eq!(given(None), [SET, 0, 0, 0, 0, 0, 0, 0].repeat(2));
    }
}
