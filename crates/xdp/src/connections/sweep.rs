//! Finds connections of TCP that have gone quiet: the kernel would keep those for less time, of which a side waits.

use std::io;
use std::time::Instant;

use super::blocks::BLOCK_SLOTS;
use super::key::ConnectionKey;
use super::table::ConnectionTable;
use super::tracks::TrackState;
use crate::page::coarse_ns;
use tollway_dataplane::clock::{TICK_SHIFT, tick_of};

/// A connection without packets for this many ticks is quiet: 1 s.
const QUIET_TICKS: u16 = 15;
/// So many blocks are looked at before the time is.
const BLOCKS: usize = 8;

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
        for count in 0..self.blocks.len().div_ceil(part.of) {
            if count % BLOCKS == BLOCKS - 1 && Instant::now() >= part.until {
                break;
            }
            let block = self.blocks.next();
            if self.blocks.has_tracks[block] {
                self.blocks.has_tracks[block] = self.look_at_block(block, &mut quiet)?;
            }
        }
        Ok(())
    }

    /// Returns whether an entry of the block has a track.
    fn look_at_block(
        &mut self,
        block: usize,
        quiet: &mut impl FnMut(&ConnectionKey, u32, TrackState) -> io::Result<()>,
    ) -> io::Result<bool> {
        let first = block * BLOCK_SLOTS;
        let slots = first..self.connections.0.all_len().min(first + BLOCK_SLOTS);
        let now = tick_of(coarse_ns());
        let mut has_tracks = false;
        for slot in slots {
            has_tracks |= self.look_at(slot, now, quiet)?;
        }
        Ok(has_tracks)
    }

    /// Returns whether the slot has an entry with a track.
    fn look_at(
        &mut self,
        slot: usize,
        now: u32,
        quiet: &mut impl FnMut(&ConnectionKey, u32, TrackState) -> io::Result<()>,
    ) -> io::Result<bool> {
        let slot = self.connections.0.slot(slot);
        let idle = slot.idle(now as u16);
        if idle < QUIET_TICKS {
            return Ok(true);
        }
        let Some((key, connection, _)) = slot.read() else { return Ok(false) };
        let Some((track, _)) = connection.track else { return Ok(false) };
        if !self.tracks.is_current(track) {
            slot.end();
            return Ok(false);
        }
        if self.tracks.is_told(track, now.wrapping_sub(u32::from(idle))) {
            return Ok(true);
        }
        let state = self.tracks.read(track);
        let idle = now.wrapping_sub(state.tick);
        // The other direction may have had a packet.
        if (u32::from(QUIET_TICKS)..u32::MAX / 2).contains(&idle) {
            self.tracks.tell(track, now);
            quiet(&key, (u64::from(idle) << TICK_SHIFT >> 20) as u32, state)?;
        }
        Ok(true)
    }
}
