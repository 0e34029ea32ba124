//! The addresses of tables in a compiled object: it has a number in the place of each (`FIRST` of bpf/fib.h). The
//! loader knows the addresses of its own variables only, over which it writes.

use std::os::fd::{AsRawFd, BorrowedFd};

use tollway_dataplane::memory::Part;

/// `UNKNOWN_ADDRESS` of bpf/fib.h, to which the part's number is added.
const UNKNOWN_ADDRESS: u64 = 0x746f_6c6c_7761_7900;
/// Bytes of an instruction; a load of 64 bits takes two (RFC 9669, 5.4).
const INSTRUCTION: usize = 8;
/// The operation that loads 64 bits.
const LOAD_64: u8 = 0x18;
/// In the place of the source register: the number is a map's, and the address that of its value
/// (`BPF_PSEUDO_MAP_VALUE`).
const ADDRESS_OF_VALUE: u8 = 2;

/// Replaces what stands for the address of a part with the address of the value in its map.
pub(super) fn give(object: &mut [u8], part: Part, map: BorrowedFd<'_>) {
    let [low, high] = halves(UNKNOWN_ADDRESS + part as u64);
    let (instructions, _) = object.as_chunks_mut::<INSTRUCTION>();
    for first in 1..instructions.len() {
        let [load, second] = &mut instructions[first - 1..=first] else { unreachable!() };
        if load[0] == LOAD_64 && load[4..] == low && second[4..] == high {
            load[1] |= ADDRESS_OF_VALUE << 4;
            load[4..].copy_from_slice(&map.as_raw_fd().to_ne_bytes());
            second[4..].fill(0);
        }
    }
}

/// The halves of a number as two instructions have them.
fn halves(number: u64) -> [[u8; 4]; 2] {
    [(number as u32).to_ne_bytes(), ((number >> 32) as u32).to_ne_bytes()]
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn only_the_part_gets_its_address() {
        let loads = |part: Part| {
            let [low, high] = halves(UNKNOWN_ADDRESS + part as u64);
            [&[LOAD_64, 3, 0, 0][..], &low, &[0; 4], &high].concat()
        };
        let map = File::open("/dev/null").unwrap();
        let mut object = [loads(Part::Roots4), loads(Part::Nodes4)].concat();
        give(&mut object, Part::Nodes4, map.as_fd());
        assert_eq!(object[..16], loads(Part::Roots4));
        assert_eq!(object[16..20], [LOAD_64, 0x23, 0, 0]);
        assert_eq!(object[20..24], map.as_raw_fd().to_ne_bytes());
        assert_eq!(object[24..], [0; 8]);
    }
}
