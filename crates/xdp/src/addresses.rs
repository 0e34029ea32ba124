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

/// Replaces what stands for the address of each part with the address of the value in its map.
pub(super) fn give(object: &mut [u8], maps: &[BorrowedFd<'_>; Part::ALL.len()]) {
    let (mut rest, _) = object.as_chunks_mut::<INSTRUCTION>();
    while let [load, behind @ ..] = rest {
        if load[0] == LOAD_64
            && let Some(second) = behind.first_mut()
            && let Some(map) = part_of(load, second).and_then(|part| maps.get(part))
        {
            load[1] |= ADDRESS_OF_VALUE << 4;
            load[4..].copy_from_slice(&map.as_raw_fd().to_ne_bytes());
            second[4..].fill(0);
        }
        rest = behind;
    }
}

/// The number of the part for whose address the operands of two instructions stand, if they do for one's.
fn part_of(load: &[u8; INSTRUCTION], second: &[u8; INSTRUCTION]) -> Option<usize> {
    let [low, high] = [load, second].map(|[.., a, b, c, d]| u32::from_ne_bytes([*a, *b, *c, *d]));
    let number = u64::from(high) << 32 | u64::from(low);
    number.checked_sub(UNKNOWN_ADDRESS)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use std::array;
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn only_the_part_gets_its_address() {
        let loads = |number: u64| {
            let [low, high] = [number as u32, (number >> 32) as u32].map(u32::to_ne_bytes);
            [&[LOAD_64, 3, 0, 0][..], &low, &[0; 4], &high].concat()
        };
        let others = [UNKNOWN_ADDRESS - 1, UNKNOWN_ADDRESS + Part::ALL.len() as u64];
        let maps: [_; Part::ALL.len()] = array::from_fn(|_| File::open("/dev/null").unwrap());
        let map = &maps[Part::Nodes4 as usize];
        let numbers = [others[0], UNKNOWN_ADDRESS + Part::Nodes4 as u64, others[1]];
        let mut object = numbers.map(loads).concat();
        give(&mut object, &maps.each_ref().map(File::as_fd));
        assert_eq!(object[..16], loads(others[0]));
        assert_eq!(object[16..20], [LOAD_64, 0x23, 0, 0]);
        assert_eq!(object[20..24], map.as_raw_fd().to_ne_bytes());
        assert_eq!(object[24..32], [0; 8]);
        assert_eq!(object[32..], loads(others[1]));
    }
}
