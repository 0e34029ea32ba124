//! IPv4 options of transit packets: RFC 791, 3.1, as `__ip_options_compile` and
//! `ip_forward_options` (`net/ipv4/ip_options.c`) read and fill them.
//!
//! Limits: the host has no time of day, so it marks timestamps as non-standard (RFC 791: the high
//! bit is set). It does not read CIPSO.

use std::net::Ipv4Addr;

use crate::wire::ipv4;

pub(crate) const END: u8 = 0;
pub(crate) const NO_OPERATION: u8 = 1;
const RECORD_ROUTE: u8 = 7;
const TIMESTAMP: u8 = 68;
const LOOSE_SOURCE_ROUTE: u8 = 131;
const STRICT_SOURCE_ROUTE: u8 = 137;
const ROUTER_ALERT: u8 = 148;

/// The flag of a timestamp option that lists the addresses of the routers which fill in their time.
const PRESPECIFIED: u8 = 3;
const WITH_ADDRESS: u8 = 1;
const TIME_ONLY: u8 = 0;

/// Why a packet is not forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OptionsFault {
    /// An option is malformed; the wrong byte is at this offset.
    Malformed(u8),
    /// There is a source route, which this router does not follow (`accept_source_route` 0).
    SourceRoute,
}

/// What to fill into a packet's options, by offset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OptionsPlan {
    /// Offsets for the router's address.
    addresses: Vec<usize>,
    /// Offsets for the time.
    times: Vec<usize>,
    /// Bytes to replace: pointers, overflow counts, and bytes after the end marker.
    bytes: Vec<(usize, u8)>,
}

/// Reads the options of a packet with a valid header; `is_ours` says whether the router has an address.
pub(crate) fn read(
    packet: &[u8],
    is_ours: impl Fn(Ipv4Addr) -> bool,
) -> Result<OptionsPlan, OptionsFault> {
    let end = packet.first().map_or(0, |first| usize::from(first & 0x0f) * 4).min(packet.len());
    let header = &packet[..end];
    let mut plan = OptionsPlan::default();
    let (mut at, mut seen_route, mut seen_time, mut source_route) =
        (ipv4::LEN, false, false, false);
    while let Some(&kind) = header.get(at) {
        if kind == END {
            plan.bytes.extend((at..end).filter(|at| header[*at] != END).map(|at| (at, END)));
            break;
        }
        if kind == NO_OPERATION {
            at += 1;
            continue;
        }
        let len = header.get(at + 1).map_or(0, |len| usize::from(*len));
        if len < 2 || at + len > end {
            return Err(malformed(at));
        }
        let option = Option4 { at, bytes: &header[at..at + len] };
        match kind {
            LOOSE_SOURCE_ROUTE | STRICT_SOURCE_ROUTE => {
                option.check_pointer(3, 4)?;
                if std::mem::replace(&mut source_route, true) {
                    return Err(malformed(at));
                }
            }
            RECORD_ROUTE if std::mem::replace(&mut seen_route, true) => return Err(malformed(at)),
            RECORD_ROUTE => option.record_route(&mut plan)?,
            TIMESTAMP if std::mem::replace(&mut seen_time, true) => return Err(malformed(at)),
            TIMESTAMP => option.timestamp(&mut plan, &is_ours)?,
            ROUTER_ALERT if len < 4 => return Err(malformed(at + 2)),
            _ => {}
        }
        at += len;
    }
    if source_route { Err(OptionsFault::SourceRoute) } else { Ok(plan) }
}

const fn malformed(at: usize) -> OptionsFault {
    // A header has at most 60 bytes.
    OptionsFault::Malformed(at as u8)
}

/// One option; `bytes` holds its type, its length and its data.
#[derive(Clone, Copy)]
struct Option4<'a> {
    at: usize,
    bytes: &'a [u8],
}

impl Option4<'_> {
    /// The pointer, counted from 1; an error if the option is too short or the pointer too small.
    fn check_pointer(self, least_len: usize, least: usize) -> Result<usize, OptionsFault> {
        if self.bytes.len() < least_len {
            return Err(malformed(self.at + 1));
        }
        let pointer = usize::from(self.bytes[2]);
        if pointer < least { Err(malformed(self.at + 2)) } else { Ok(pointer) }
    }

    /// The offset in the packet that the pointer refers to, with room for `len` bytes; `None` if
    /// the option is full.
    fn slot(self, pointer: usize, len: usize) -> Result<Option<usize>, OptionsFault> {
        if pointer > self.bytes.len() {
            return Ok(None);
        }
        if pointer + len - 1 > self.bytes.len() {
            return Err(malformed(self.at + 2));
        }
        Ok(Some(self.at + pointer - 1))
    }

    fn advance(self, plan: &mut OptionsPlan, pointer: usize, len: usize) {
        plan.bytes.push((self.at + 2, (pointer + len) as u8));
    }

    fn record_route(self, plan: &mut OptionsPlan) -> Result<(), OptionsFault> {
        let pointer = self.check_pointer(3, 4)?;
        if let Some(slot) = self.slot(pointer, 4)? {
            plan.addresses.push(slot);
            self.advance(plan, pointer, 4);
        }
        Ok(())
    }

    fn timestamp(
        self,
        plan: &mut OptionsPlan,
        is_ours: impl Fn(Ipv4Addr) -> bool,
    ) -> Result<(), OptionsFault> {
        let pointer = self.check_pointer(4, 5)?;
        let (overflow, flag) = (self.bytes[3] >> 4, self.bytes[3] & 0x0f);
        let Some(slot) = self.slot(pointer, 4)? else {
            return self.count_overflow(plan, overflow, flag);
        };
        match flag {
            TIME_ONLY => {
                plan.times.push(slot);
                self.advance(plan, pointer, 4);
            }
            WITH_ADDRESS => {
                self.slot(pointer, 8)?;
                plan.addresses.push(slot);
                plan.times.push(slot + 4);
                self.advance(plan, pointer, 8);
            }
            PRESPECIFIED => {
                self.slot(pointer, 8)?;
                let named = self.bytes[pointer - 1..].first_chunk::<4>().copied();
                if is_ours(Ipv4Addr::from(named.unwrap_or_default())) {
                    plan.times.push(slot + 4);
                    self.advance(plan, pointer, 8);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Counts this router in the option's overflow field, since the option has no room for it.
    fn count_overflow(
        self,
        plan: &mut OptionsPlan,
        overflow: u8,
        flag: u8,
    ) -> Result<(), OptionsFault> {
        if flag == PRESPECIFIED {
            return Ok(());
        }
        if overflow == 15 {
            return Err(malformed(self.at + 3));
        }
        plan.bytes.push((self.at + 3, (overflow + 1) << 4 | flag));
        Ok(())
    }
}

impl OptionsPlan {
    /// Fills in the options; the caller updates the checksum.
    pub(crate) fn apply(&self, packet: &mut [u8], own: Ipv4Addr, now_ns: u64) {
        let time = (now_ns / 1_000_000) as u32 | 1 << 31;
        let mut put = |at: usize, bytes: &[u8]| {
            if let Some(field) = packet.get_mut(at..at + bytes.len()) {
                field.copy_from_slice(bytes);
            }
        };
        for (at, byte) in &self.bytes {
            put(*at, &[*byte]);
        }
        for at in &self.addresses {
            put(*at, &own.octets());
        }
        for at in &self.times {
            put(*at, &time.to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 254);

    /// A header with these options, padded with the end marker.
    fn packet(options: &[u8]) -> Vec<u8> {
        let len = 20 + options.len().next_multiple_of(4);
        let mut bytes = vec![0; len];
        bytes[0] = 0x40 | (len / 4) as u8;
        bytes[20..20 + options.len()].copy_from_slice(options);
        bytes
    }

    fn filled(options: &[u8]) -> Result<Vec<u8>, OptionsFault> {
        let mut packet = packet(options);
        let plan = read(&packet, |address| address == OWN)?;
        plan.apply(&mut packet, OWN, 5_000_000);
        Ok(packet[20..20 + options.len()].to_vec())
    }

    #[test]
    fn a_route_is_recorded_where_there_is_room() {
        assert_eq!(filled(&[7, 7, 4, 0, 0, 0, 0]).unwrap(), [7, 7, 8, 10, 0, 0, 254]);
        assert_eq!(filled(&[7, 7, 8, 1, 2, 3, 4]).unwrap(), [7, 7, 8, 1, 2, 3, 4]);
    }

    #[test]
    fn timestamps_of_each_kind_are_filled_in() {
        let time = [0x80, 0, 0, 5];
        let only = filled(&[68, 8, 5, 0, 0, 0, 0, 0]).unwrap();
        assert_eq!(only, [&[68, 8, 9, 0][..], &time].concat());
        let with = filled(&[68, 12, 5, 1, 0, 0, 0, 0, 0, 0, 0, 0]).unwrap();
        assert_eq!(with, [&[68, 12, 13, 1, 10, 0, 0, 254][..], &time].concat());
        let named = filled(&[68, 12, 5, 3, 10, 0, 0, 254, 0, 0, 0, 0]).unwrap();
        assert_eq!(named, [&[68, 12, 13, 3, 10, 0, 0, 254][..], &time].concat());
        let other = [68, 12, 5, 3, 10, 0, 0, 9, 0, 0, 0, 0];
        assert_eq!(filled(&other).unwrap(), other);
        assert_eq!(filled(&[68, 4, 5, 0x20]).unwrap(), [68, 4, 5, 0x30]);
        assert_eq!(filled(&[68, 4, 5, 0x23]).unwrap(), [68, 4, 5, 0x23]);
    }

    #[test]
    fn faults_have_the_offset_of_the_wrong_byte() {
        let at = |options: &[u8]| filled(options).unwrap_err();
        assert_eq!(at(&[1, 1, 1, 7]), OptionsFault::Malformed(23));
        assert_eq!(at(&[7, 1, 0, 0]), OptionsFault::Malformed(20));
        assert_eq!(at(&[7, 9, 4, 0]), OptionsFault::Malformed(20));
        assert_eq!(at(&[7, 2, 1, 1]), OptionsFault::Malformed(21));
        assert_eq!(at(&[7, 7, 3, 0, 0, 0, 0]), OptionsFault::Malformed(22));
        assert_eq!(at(&[7, 7, 5, 0, 0, 0, 0]), OptionsFault::Malformed(22));
        assert_eq!(at(&[7, 3, 4, 7, 3, 4]), OptionsFault::Malformed(23));
        assert_eq!(at(&[68, 3, 5]), OptionsFault::Malformed(21));
        assert_eq!(at(&[68, 8, 4, 0, 0, 0, 0, 0]), OptionsFault::Malformed(22));
        assert_eq!(at(&[68, 8, 5, 1, 0, 0, 0, 0]), OptionsFault::Malformed(22));
        assert_eq!(at(&[68, 4, 5, 0xf0]), OptionsFault::Malformed(23));
        assert_eq!(at(&[148, 3, 0, 0]), OptionsFault::Malformed(22));
    }

    #[test]
    fn source_routes_are_not_followed() {
        for kind in [LOOSE_SOURCE_ROUTE, STRICT_SOURCE_ROUTE] {
            assert_eq!(filled(&[kind, 7, 4, 1, 2, 3, 4]), Err(OptionsFault::SourceRoute));
            assert_eq!(filled(&[kind, 7, 3, 1, 2, 3, 4]), Err(OptionsFault::Malformed(22)));
            let twice = [kind, 3, 4, kind, 3, 4];
            assert_eq!(filled(&twice), Err(OptionsFault::Malformed(23)));
        }
    }

    #[test]
    fn options_that_need_no_action_pass_unchanged() {
        for options in [&[148, 4, 0, 0][..], &[1, 1, 1, 0], &[0x99, 4, 1, 2], &[130, 3, 0]] {
            assert_eq!(filled(options).unwrap(), options);
        }
        assert_eq!(filled(&[0, 7, 1, 1]).unwrap(), [0, 0, 0, 0]);
    }

    proptest::proptest! {
        #[test]
        fn any_options_are_read_without_a_panic(options in proptest::collection::vec(0_u8.., 0..40)) {
            let _ = filled(&options);
        }
    }
}
