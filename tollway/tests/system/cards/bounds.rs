//! How much may be lost by what happens.

use std::time::Duration;

use super::events::Event;
use crate::numbered::Losses;

/// A router that is killed or hangs is noticed after 20 ms; on an emulated machine it may take some more.
const NOTICED: Duration = Duration::from_millis(200);
/// By how much one time differs from the next on an emulated machine, whose cards look for their cables each 2 s.
const SPREAD: Duration = Duration::from_secs(3);

/// A card begins again when its sockets are closed and when others are bound, and loses what is in its rings: 10 ms to
/// 30 ms were seen for both of two cards.
const BEGINS_ANEW: Duration = Duration::from_millis(300);

/// The time for which all may be lost by what happens; `others` is what was lost by the kernel alone, which has no
/// bound but its own, and with copies. With copies nothing is lost by a successor.
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
