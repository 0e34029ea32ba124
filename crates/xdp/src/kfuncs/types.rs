//! Finds functions among the types of the kernel or of a module (Documentation/bpf/btf.rst).

/// Words of the header, and of a type before what its kind adds.
const HEADER_WORDS: usize = 6;
const TYPE: usize = 12;
/// The kind of functions.
const FUNCTION: u32 = 12;

/// Types as the kernel describes them.
#[derive(Clone, Copy)]
pub(super) struct Types<'a> {
    types: &'a [u8],
    strings: &'a [u8],
}

impl<'a> Types<'a> {
    /// Takes a description apart; none if it is not readable.
    pub(super) fn read(bytes: &'a [u8]) -> Option<Self> {
        // Behind magic number, version and flags.
        let header_len = word(bytes, 4)? as usize;
        if header_len < 4 * HEADER_WORDS {
            return None;
        }
        let part = |at: usize| {
            let start = header_len.checked_add(word(bytes, at)? as usize)?;
            bytes.get(start..start.checked_add(word(bytes, at + 4)? as usize)?)
        };
        Some(Self { types: part(8)?, strings: part(16)? })
    }

    /// The numbers of functions by their names; none if one is missing. The numbers of a module's types, and the places
    /// of their names, go on where those of the kernel (`base`) end.
    pub(super) fn numbers<const COUNT: usize>(
        self,
        base: Option<Self>,
        names: [&str; COUNT],
    ) -> Option<[u32; COUNT]> {
        let mut found = [0; COUNT];
        let mut number = base.map_or(Some(0), Self::count)?;
        let base_strings = base.map_or(&[][..], |base| base.strings);
        self.each(|name, kind| {
            number += 1;
            if kind != FUNCTION {
                return Some(());
            }
            let name = name as usize;
            let own = || self.strings.get(name - base_strings.len()..);
            let name = base_strings.get(name..).filter(|rest| !rest.is_empty()).or_else(own)?;
            let name = name.split(|byte| *byte == 0).next()?;
            if let Some(place) = names.iter().position(|known| known.as_bytes() == name) {
                *found.get_mut(place)? = number;
            }
            Some(())
        })?;
        (!found.contains(&0)).then_some(found)
    }

    /// The number of types.
    fn count(self) -> Option<u32> {
        let mut count = 0;
        self.each(|_, _| {
            count += 1;
            Some(())
        })?;
        Some(count)
    }

    /// Calls a function with each type's place of its name, and its kind; none if a type is not readable.
    fn each(self, mut take: impl FnMut(u32, u32) -> Option<()>) -> Option<()> {
        let mut at = 0;
        while at < self.types.len() {
            let (name, info) = (word(self.types, at)?, word(self.types, at + 4)?);
            let kind = info >> 24 & 0x1f;
            take(name, kind)?;
            at += TYPE + members_len(kind, (info & 0xffff) as usize)?;
        }
        Some(())
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.first_chunk().copied().map(u32::from_ne_bytes)
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

    fn function(name: u32) -> [u32; 3] {
        [name, FUNCTION << 24, 0]
    }

    fn described(types: &[&[u32]], strings: &[u8]) -> Vec<u8> {
        let types: Vec<u8> = types.concat().into_iter().flat_map(u32::to_ne_bytes).collect();
        let len = types.len() as u32;
        let header = [0x0001_eb9f, 24, 0, len, len, strings.len() as u32];
        let header: Vec<u8> = header.into_iter().flat_map(u32::to_ne_bytes).collect();
        [&header, &types, strings].concat()
    }

    #[test]
    fn functions_are_found_among_types() {
        let pointer = [0, 2 << 24, 0];
        let structure = [0, 4 << 24 | 2, 8, 1, 1, 0, 1, 1, 32];
        let types: [&[u32]; 4] = [&function(1), &pointer, &structure, &function(7)];
        let whole = described(&types, b"\0first\0second\0");
        let numbers = |bytes, names| Types::read(bytes)?.numbers(None, names);
        assert_eq!(numbers(&whole, ["second", "first"]), Some([4, 1]));
        assert_eq!(numbers(&whole, ["second", "third"]), None);
        for len in 0..whole.len() {
            let _ = numbers(&whole[..len], ["second", "first"]);
        }
    }

    #[test]
    fn types_of_a_module_follow_those_of_the_kernel() {
        let kernel = described(&[&function(1), &[0, 2 << 24, 0]], b"\0first\0second\0");
        // 14 is where the kernel's names end; the module has none of its own for the second function.
        let module = described(&[&function(15), &function(7), &function(21)], b"\0third\0fourth\0");
        let base = Types::read(&kernel);
        let numbers = |names| Types::read(&module).unwrap().numbers(base, names);
        assert_eq!(numbers(["third", "second", "fourth"]), Some([3, 4, 5]));
        assert_eq!(numbers(["first", "second", "third"]), None);
        for len in 0..module.len() {
            let _ = Types::read(&module[..len]).map(|types| types.numbers(base, ["third"]));
        }
    }
}
