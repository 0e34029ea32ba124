//! How much may be lost when an event happens.

use std::time::Duration;

use super::events::Event;
use crate::numbered::Losses;

/// The dispatcher notices after 20 to 50 ms that a router was killed or hangs. An emulated machine may
/// take longer.
const NOTICED: Duration = Duration::from_millis(200);
/// How much one time differs from the next on an emulated machine, whose cards check their links
/// every 2 s.
const SPREAD: Duration = Duration::from_secs(3);

/// A card restarts when its sockets are closed and when others are bound, and loses what is in its
/// rings. Measured: 10 ms to 30 ms for both of two cards.
const BEGINS_ANEW: Duration = Duration::from_millis(300);

/// Returns the time for which an event may lose everything. `others` are the losses with the kernel
/// alone, which has no other bound, and in copy mode. In copy mode a successor loses nothing.
pub fn allowed(event: Event, is_zero_copy: bool, others: &[Losses]) -> Duration {
    match event {
        Event::Replace if is_zero_copy => BEGINS_ANEW,
        Event::Quiet | Event::Stop | Event::Replace => Duration::ZERO,
        Event::Kill => NOTICED,
        _ => {
            let most = others.iter().map(Losses::outage).max();
            most.map_or(Duration::MAX, |most| 2 * most + SPREAD)
        }
    }
}
