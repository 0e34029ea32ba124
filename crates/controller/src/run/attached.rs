//! Decides which ports should have their programs attached.
//!
//! A port is attached as soon as any of its traffic could take the fast path. It is detached only after none
//! could for a while, so a replacement of rules in two steps does not detach it, nor a device that has just come and
//! is not queried yet.

use std::time::{Duration, Instant};

use crate::offload::Offload;
use crate::ports::Port;

/// A port is detached after no traffic could take the fast path for this long.
const AFTER: Duration = Duration::from_secs(3);

/// The wanted state of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
enum AttachRequest {
    /// Its program is attached.
    Attached,
    /// Its program stays attached until that time, although no traffic could be fast, for that reason.
    Waiting(Instant, String),
    /// Its program is detached, for that reason.
    Detached(String),
}

impl AttachRequest {
    /// The next state of a port, if `idle` is the reason why it has nothing to do now.
    fn next(&self, idle: Option<String>, now: Instant) -> Self {
        match (self, idle) {
            (_, None) => Self::Attached,
            (Self::Attached, Some(why)) => Self::Waiting(now + AFTER, why),
            (Self::Waiting(until, _), Some(why)) if now < *until => Self::Waiting(*until, why),
            (Self::Waiting(..) | Self::Detached(_), Some(why)) => Self::Detached(why),
        }
    }

    /// The next state while nobody knows what a port gains.
    fn postponed(&self, now: Instant) -> Self {
        match self {
            Self::Waiting(_, why) => Self::Waiting(now + AFTER, why.clone()),
            known => known.clone(),
        }
    }
}

/// The wanted state of each port.
#[derive(Clone, Debug)]
pub(super) struct AttachRequests(Vec<AttachRequest>);

impl AttachRequests {
    /// The states in which the ports were opened.
    pub(super) fn new(idle: Vec<Option<String>>) -> Self {
        Self(
            idle.into_iter()
                .map(|why| why.map_or(AttachRequest::Attached, AttachRequest::Detached))
                .collect(),
        )
    }

    /// Derives the wanted states from an offload; returns whether a port's wanted state has
    /// changed.
    pub(super) fn update(&mut self, offload: &Offload, ports: &[Port], now: Instant) -> bool {
        let before = self.idle();
        for (request, port) in self.0.iter_mut().zip(ports) {
            // The offload says nothing about a port whose device has gone.
            if let Some(device) = port.device {
                *request = match offload.idle(device) {
                    Some(_) if offload.has_new_links() => request.postponed(now),
                    idle => request.next(idle, now),
                };
            }
        }
        self.idle() != before
    }

    /// Returns whether a port's waiting time has ended, so that it should be detached.
    pub(super) fn expire(&mut self, now: Instant) -> bool {
        let mut expired = false;
        for request in &mut self.0 {
            if let AttachRequest::Waiting(until, why) = request
                && *until <= now
            {
                *request = AttachRequest::Detached(std::mem::take(why));
                expired = true;
            }
        }
        expired
    }

    /// When the first port's waiting time ends.
    pub(super) fn due(&self) -> Option<Instant> {
        let until = |request: &AttachRequest| match request {
            AttachRequest::Waiting(until, _) => Some(*until),
            AttachRequest::Attached | AttachRequest::Detached(_) => None,
        };
        self.0.iter().filter_map(until).min()
    }

    /// For each port, why it should be detached, if it should.
    pub(super) fn idle(&self) -> Vec<Option<String>> {
        let idle = |request: &AttachRequest| match request {
            AttachRequest::Detached(why) => Some(why.clone()),
            AttachRequest::Attached | AttachRequest::Waiting(..) => None,
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
        let waiting = AttachRequest::Attached.next(why(), now);
        assert_eq!(waiting, AttachRequest::Waiting(now + AFTER, "of it".to_owned()));
        let other = waiting.next(Some("of that".to_owned()), now + AFTER / 2);
        assert_eq!(other, AttachRequest::Waiting(now + AFTER, "of that".to_owned()), "no new time");
        assert_eq!(other.next(None, now), AttachRequest::Attached);
        let detached = other.next(why(), now + AFTER);
        assert_eq!(detached, AttachRequest::Detached("of it".to_owned()));
        assert_eq!(detached.next(None, now), AttachRequest::Attached);
    }

    #[test]
    fn a_new_device_says_nothing() {
        let now = Instant::now();
        let why = || "of it".to_owned();
        let waiting = AttachRequest::Waiting(now + AFTER / 3, why()).postponed(now);
        assert_eq!(waiting, AttachRequest::Waiting(now + AFTER, why()));
        let others = [AttachRequest::Attached, AttachRequest::Detached(why())];
        assert_eq!(others.clone().map(|other| other.postponed(now)), others);
    }

    #[test]
    fn an_expired_wait_is_reported_once() {
        let now = Instant::now();
        let mut attach_requests = AttachRequests::new(vec![None, Some("of it".to_owned())]);
        assert_eq!((attach_requests.due(), attach_requests.expire(now)), (None, false));
        attach_requests.0[0] = AttachRequest::Waiting(now + AFTER, "of that".to_owned());
        assert_eq!(
            (attach_requests.due(), attach_requests.expire(now)),
            (Some(now + AFTER), false)
        );
        assert_eq!(attach_requests.idle(), [None, Some("of it".to_owned())]);
        assert!(attach_requests.expire(now + AFTER) && !attach_requests.expire(now + AFTER));
        assert_eq!(attach_requests.idle()[0].as_deref(), Some("of that"));
    }
}
