//! Finds connections of TCP that have gone quiet: the kernel would keep those for less time, of which a side waits.

use std::io;
use std::time::Instant;

use super::key::ConnectionKey;
use super::table::ConnectionTable;
use super::tracks::TrackState;
use crate::flows::TICK_SHIFT;
use crate::page::coarse_ns;

/// A connection without packets for this many ticks is quiet: 1 s.
const QUIET_TICKS: u16 = 15;
/// So many slots are looked at before the time is.
const SLOTS: usize = 256;

/// How much of the table one call looks at.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// One slot in so many.
    pub of: usize,
    /// It ends then, wherever it is.
    pub until: Instant,
}

impl ConnectionTable {
    /// Looks at a part of the tables, from where the last call has ended. Calls `quiet` for each connection of TCP without
    /// packets for a second, once until its next packet: with the key of either direction, the time since the last packet
    /// in milliseconds, and what the track says. Ends entries whose track is another connection's by now.
    ///
    /// # Errors
    /// The system refused, or `quiet` did.
    pub fn sweep(
        &mut self,
        part: Part,
        mut quiet: impl FnMut(&ConnectionKey, u32, TrackState) -> io::Result<()>,
    ) -> io::Result<()> {
        let slots = self.connections.0.len();
        let mut left = slots.div_ceil(part.of);
        while left > 0 {
            let count = left.min(SLOTS);
            for _ in 0..count {
                self.look_at(self.swept, &mut quiet)?;
                self.swept = (self.swept + 1) % slots;
            }
            left -= count;
            if Instant::now() >= part.until {
                break;
            }
        }
        Ok(())
    }

    fn look_at(
        &mut self,
        slot: usize,
        quiet: &mut impl FnMut(&ConnectionKey, u32, TrackState) -> io::Result<()>,
    ) -> io::Result<()> {
        let slot = self.connections.0.slot(slot);
        let now = (coarse_ns() >> TICK_SHIFT) as u32;
        let idle = slot.idle(now as u16);
        if idle < QUIET_TICKS {
            return Ok(());
        }
        let Some((key, connection, _)) = slot.read() else { return Ok(()) };
        let Some((track, _)) = connection.track else { return Ok(()) };
        if !self.tracks.is_current(track) {
            slot.end();
            return Ok(());
        }
        if self.tracks.is_told(track, now.wrapping_sub(u32::from(idle))) {
            return Ok(());
        }
        let state = self.tracks.read(track);
        let idle = now.wrapping_sub(state.tick);
        // The other direction may have had a packet.
        if (u32::from(QUIET_TICKS)..u32::MAX / 2).contains(&idle) {
            self.tracks.tell(track, now);
            quiet(&key, (u64::from(idle) << TICK_SHIFT >> 20) as u32, state)?;
        }
        Ok(())
    }
}
