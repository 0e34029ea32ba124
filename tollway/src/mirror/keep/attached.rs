//! Which ports are to carry their programs, and since when not.
//!
//! A port is attached at once when something there could be fast, and left to the kernel when nothing could be
//! for a while: rules that are replaced in two steps cost no attaching.

use std::time::{Duration, Instant};

use crate::mirror::coverage::Coverage;
use crate::mirror::ports::Port;

/// Nothing could be fast for so long before a port is detached.
const AFTER: Duration = Duration::from_secs(3);

/// What a port is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Wish {
    /// It carries its program.
    Attached,
    /// It still does, until that time, though for that reason nothing could be fast.
    Waiting(Instant, String),
    /// It does not, for that reason.
    Detached(String),
}

impl Wish {
    /// What follows where a port has such a reason to be idle now.
    fn next(&self, idle: Option<String>, now: Instant) -> Self {
        match (self, idle) {
            (_, None) => Self::Attached,
            (Self::Attached, Some(why)) => Self::Waiting(now + AFTER, why),
            (Self::Waiting(until, _), Some(why)) if now < *until => Self::Waiting(*until, why),
            (Self::Waiting(..) | Self::Detached(_), Some(why)) => Self::Detached(why),
        }
    }
}

/// What each port is to be.
#[derive(Clone, Debug)]
pub(super) struct Wishes(Vec<Wish>);

impl Wishes {
    /// As the ports were opened.
    pub(super) fn new(idle: Vec<Option<String>>) -> Self {
        Self(idle.into_iter().map(|why| why.map_or(Wish::Attached, Wish::Detached)).collect())
    }

    /// Takes which traffic takes which road; says if the ports are to be told.
    pub(super) fn judge(&mut self, coverage: &Coverage, ports: &[Port], now: Instant) -> bool {
        let before = self.idle();
        for (wish, port) in self.0.iter_mut().zip(ports) {
            // Of a port whose device has gone there is nothing to be said.
            if let Some(device) = port.device {
                *wish = wish.next(coverage.idle(device), now);
            }
        }
        self.idle() != before
    }

    /// Says if a port's time is over, so that it is to be told.
    pub(super) fn expire(&mut self, now: Instant) -> bool {
        let mut expired = false;
        for wish in &mut self.0 {
            if let Wish::Waiting(until, why) = wish
                && *until <= now
            {
                *wish = Wish::Detached(std::mem::take(why));
                expired = true;
            }
        }
        expired
    }

    /// When the first port's time is over.
    pub(super) fn due(&self) -> Option<Instant> {
        let until = |wish: &Wish| match wish {
            Wish::Waiting(until, _) => Some(*until),
            Wish::Attached | Wish::Detached(_) => None,
        };
        self.0.iter().filter_map(until).min()
    }

    /// Of each port, why it is to be detached, if it is.
    pub(super) fn idle(&self) -> Vec<Option<String>> {
        let idle = |wish: &Wish| match wish {
            Wish::Detached(why) => Some(why.clone()),
            Wish::Attached | Wish::Waiting(..) => None,
        };
        self.0.iter().map(idle).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_attached_at_once_and_detached_after_a_while() {
        let now = Instant::now();
        let why = || Some("of it".to_owned());
        let waiting = Wish::Attached.next(why(), now);
        assert_eq!(waiting, Wish::Waiting(now + AFTER, "of it".to_owned()));
        let other = waiting.next(Some("of that".to_owned()), now + AFTER / 2);
        assert_eq!(other, Wish::Waiting(now + AFTER, "of that".to_owned()), "no new time");
        assert_eq!(other.next(None, now), Wish::Attached);
        let detached = other.next(why(), now + AFTER);
        assert_eq!(detached, Wish::Detached("of it".to_owned()));
        assert_eq!(detached.next(None, now), Wish::Attached);
    }

    #[test]
    fn a_time_that_is_over_is_told_once() {
        let now = Instant::now();
        let mut wishes = Wishes::new(vec![None, Some("of it".to_owned())]);
        assert_eq!((wishes.due(), wishes.expire(now)), (None, false));
        wishes.0[0] = Wish::Waiting(now + AFTER, "of that".to_owned());
        assert_eq!((wishes.due(), wishes.expire(now)), (Some(now + AFTER), false));
        assert_eq!(wishes.idle(), [None, Some("of it".to_owned())]);
        assert!(wishes.expire(now + AFTER) && !wishes.expire(now + AFTER));
        assert_eq!(wishes.idle()[0].as_deref(), Some("of that"));
    }
}
