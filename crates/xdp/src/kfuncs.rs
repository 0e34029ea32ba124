//! Calls of the kernel's functions in a compiled object, which has a number in the place of each (`KFUNC` of
//! bpf/conntrack.h): the loader knows no such calls.

use std::fs;
use std::sync::OnceLock;

/// Where the kernel describes its own types and functions.
const KERNEL_TYPES: &str = "/sys/kernel/btf/vmlinux";
/// Bytes of an instruction.
const INSTRUCTION: usize = 8;
/// The operation that calls, and the one that sets a register.
const CALL: u8 = 0x85;
const SET: u8 = 0xb7;
/// In the place of the source register: what is called is a function of the kernel (`BPF_PSEUDO_KFUNC_CALL`).
const KFUNC: u8 = 2;
/// The number that stands for a function, without the function's own number in its lowest byte.
const UNKNOWN: u32 = 0x746c_6c00;

/// The kind of a program, by which the kernel's function for a lookup differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hook {
    Xdp,
    Tc,
}

/// The numbers of the functions among the kernel's types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Functions {
    xdp_lookup: u32,
    skb_lookup: u32,
    release: u32,
    change_timeout: u32,
}

/// Says whether programs can ask the kernel for the entry of a connection.
#[must_use]
pub fn has_conntrack() -> bool {
    functions().is_some()
}

/// Replaces what stands for each function with its number among the kernel's types. Without these functions, the
/// calls find no connection.
pub(super) fn give(object: &mut [u8], hook: Hook) {
    let functions = functions();
    for instruction in object.as_chunks_mut::<INSTRUCTION>().0 {
        let Some(number) = number_of(instruction) else { continue };
        let function = functions.and_then(|known| match (number, hook) {
            (1, Hook::Xdp) => Some(known.xdp_lookup),
            (1, Hook::Tc) => Some(known.skb_lookup),
            (2, _) => Some(known.release),
            (3, _) => Some(known.change_timeout),
            _ => None,
        });
        match function {
            Some(function) => instruction[4..].copy_from_slice(&function.to_ne_bytes()),
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

/// The kernel's functions, if it has all of them. They stay what they are until it ends.
fn functions() -> Option<Functions> {
    static FUNCTIONS: OnceLock<Option<Functions>> = OnceLock::new();
    *FUNCTIONS.get_or_init(|| {
        let types = fs::read(KERNEL_TYPES).ok()?;
        let names =
            ["bpf_xdp_ct_lookup", "bpf_skb_ct_lookup", "bpf_ct_release", "bpf_ct_change_timeout"];
        let [xdp_lookup, skb_lookup, release, change_timeout] = numbers(&types, names)?;
        Some(Functions { xdp_lookup, skb_lookup, release, change_timeout })
    })
}

/// Words of the header, and of a type before what its kind adds (Documentation/bpf/btf.rst).
const HEADER_WORDS: usize = 6;
const TYPE: usize = 12;
/// The kind of functions.
const FUNCTION: u32 = 12;

/// The numbers of functions by their names; none if one is missing, or the types are not readable.
fn numbers<const COUNT: usize>(types: &[u8], names: [&str; COUNT]) -> Option<[u32; COUNT]> {
    let word = |at: usize| {
        types.get(at..at + 4).and_then(|bytes| bytes.first_chunk().copied()).map(u32::from_ne_bytes)
    };
    // Behind magic number, version and flags.
    let header_len = word(4)? as usize;
    let [types_at, types_len, strings_at, strings_len] =
        [2, 3, 4, 5].map(|at| word(4 * at).map(|word| word as usize));
    if header_len < 4 * HEADER_WORDS {
        return None;
    }
    let strings = header_len.checked_add(strings_at?)?;
    let strings = types.get(strings..strings.checked_add(strings_len?)?)?;
    let mut at = header_len.checked_add(types_at?)?;
    let end = at.checked_add(types_len?)?;
    let mut found = [None; COUNT];
    let mut number = 0_u32;
    while at < end {
        number += 1;
        let (name, info) = (word(at)? as usize, word(at + 4)?);
        let kind = info >> 24 & 0x1f;
        if kind == FUNCTION {
            let name = strings.get(name..)?;
            let name = name.split(|byte| *byte == 0).next()?;
            let known = names.iter().position(|known| known.as_bytes() == name);
            if let Some(place) = known.and_then(|known| found.get_mut(known)) {
                *place = Some(number);
            }
        }
        at += TYPE + members_len(kind, (info & 0xffff) as usize)?;
    }
    let numbers = found.map(Option::unwrap_or_default);
    (!numbers.contains(&0)).then_some(numbers)
}

/// Bytes behind a type of a kind with so many members.
fn members_len(kind: u32, members: usize) -> Option<usize> {
    Some(match kind {
        // Pointers, forward declarations, typedefs, qualifiers, functions, floats, type tags.
        2 | 7..=12 | 16 | 18 => 0,
        // Integers, variables, declaration tags.
        1 | 14 | 17 => 4,
        // Arrays.
        3 => 12,
        // Structures, unions, sections, and enumerations of 64 bits.
        4 | 5 | 15 | 19 => 12 * members,
        // Enumerations, and parameters of functions.
        6 | 13 => 8 * members,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_get_the_numbers_of_the_kernels_functions() {
        let call = |number: u32| {
            let registers = if cfg!(target_endian = "big") { KFUNC } else { KFUNC << 4 };
            let mut bytes = [CALL, registers, 0, 0, 0, 0, 0, 0];
            bytes[4..].copy_from_slice(&number.to_ne_bytes());
            bytes
        };
        let other = call(UNKNOWN - 1);
        let mut object = [other, call(UNKNOWN + 1), call(UNKNOWN + 2)].concat();
        give(&mut object, Hook::Xdp);
        assert_eq!(object[..8], other);
        match functions() {
            Some(known) => {
                assert_eq!(object[8..16], call(known.xdp_lookup));
                assert_eq!(object[16..], call(known.release));
            }
            None => assert_eq!(object[8..], [SET, 0, 0, 0, 0, 0, 0, 0].repeat(2)),
        }
    }

    #[test]
    fn functions_are_found_among_types() {
        let strings = b"\0first\0second\0";
        let function = |name: u32| [name, FUNCTION << 24, 0];
        let pointer = [0, 2 << 24, 0];
        let structure = [0, 4 << 24 | 2, 8, 1, 1, 0, 1, 1, 32];
        let types = [&function(1)[..], &pointer, &structure, &function(7)].concat().into_iter();
        let types: Vec<u8> = types.flat_map(u32::to_ne_bytes).collect();
        let len = types.len() as u32;
        let header = [0x0001_eb9f, 24, 0, len, len, strings.len() as u32];
        let whole: Vec<u8> = header.into_iter().flat_map(u32::to_ne_bytes).chain(types).collect();
        let whole = [&whole[..], strings].concat();
        assert_eq!(numbers(&whole, ["second", "first"]), Some([4, 1]));
        assert_eq!(numbers(&whole, ["second", "third"]), None);
        for len in 0..whole.len() {
            let _ = numbers(&whole[..len], ["second", "first"]);
        }
    }
}
