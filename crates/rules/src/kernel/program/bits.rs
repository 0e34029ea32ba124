//! What expressions do to the bits in a register.

use super::super::condition::Load;
use super::super::expression::Register;
use super::{RuleReader, Value, host_number, number};

impl RuleReader<'_> {
    pub(super) fn mask(
        &mut self,
        from: Register,
        to: Register,
        mask: &[u8],
        flip: &[u8],
    ) -> Option<()> {
        let Value::Load { load, flip: before, is_host, shift: 0 } = *self.value(from)? else {
            return None;
        };
        let read = |data: &[u8]| match is_host {
            true => host_number(data, load.bytes),
            false => number(data, load.bytes),
        };
        let (mask, flip) = (read(mask)?, read(flip)?);
        let load = Load { mask: load.mask & mask, ..load };
        self.store(to, Value::Load { load, flip: before & mask ^ flip, is_host, shift: 0 });
        Some(())
    }

    /// Shifts one byte, or a number in host order.
    pub(super) fn shift(&mut self, from: Register, to: Register, bits: u32) -> Option<()> {
        let Value::Load { load, flip: 0, is_host, shift: 0 } = *self.value(from)? else {
            return None;
        };
        let is_number = load.bytes == 1 || is_host;
        // The shift must not lose a bit of the mask.
        if !is_number || load.mask.trailing_zeros() < bits {
            return None;
        }
        self.store(to, Value::Load { load, flip: 0, is_host, shift: bits });
        Some(())
    }

    pub(super) fn swap(&mut self, from: Register, to: Register, len: u32, size: u32) -> Option<()> {
        let Value::Load { load, flip, is_host, shift } = *self.value(from)? else {
            return None;
        };
        if len != load.bytes || size != len || !matches!(size, 2 | 4) {
            return None;
        }
        self.store(to, Value::Load { load, flip, is_host: !is_host, shift });
        Some(())
    }
}
