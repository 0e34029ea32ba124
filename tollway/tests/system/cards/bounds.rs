//! How much may be lost by what happens.

use std::time::Duration;

use super::events::Event;
use crate::numbered::Losses;

/// A router that is killed or hangs is noticed after 20 ms; on an emulated machine it may take some more.
const NOTICED: Duration = Duration::from_millis(200);
/// By how much one time differs from the next on an emulated machine, whose cards look for their cables each 2 s.
const SPREAD: Duration = Duration::from_secs(3);

/// The time for which all may be lost by what took so long; `others` is what was lost by the kernel alone, which has no
/// bound but its own, and with copies.
///
/// A device has one zero-copy socket a queue, so the successor's wait until the predecessor's are closed, and each change
/// has the card begin anew: that took 0.7 s to 8.3 s of the 15 s to 56 s that an emulated machine needs to start another
/// router. Nothing is lost any more once that forwards. With copies nothing is lost at all.
pub fn allowed(event: Event, took: Duration, is_zero_copy: bool, others: &[Losses]) -> Duration {
    match event {
        Event::Replace if is_zero_copy => took,
        Event::Quiet | Event::Stop | Event::Replace => Duration::ZERO,
        Event::Kill => NOTICED,
        _ => {
            let most = others.iter().map(Losses::outage).max();
            most.map_or(Duration::MAX, |most| 2 * most + SPREAD)
        }
    }
}
