//! What the service manager is told (sd_notify(3)): that the router forwards, and that it lives.
//!
//! Without a manager nothing is told. Nothing here waits: a manager that does not read is left to find
//! out.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The manager of this process, if there is one that wants to hear of it.
#[derive(Debug, Default)]
pub struct Service {
    manager: Option<UnixDatagram>,
    /// A sign of life is expected so often.
    watchdog: Option<Duration>,
}

impl Service {
    /// By what the manager has left in the environment: `NOTIFY_SOCKET`, and `WATCHDOG_USEC` where
    /// `WATCHDOG_PID` is nobody else.
    #[must_use]
    pub fn from_environment() -> Self {
        let text = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
        let Some(address) = text("NOTIFY_SOCKET") else { return Self::default() };
        let manager = connect(&address)
            .inspect_err(|error| tracing::warn!("the service manager can not be told: {error}"));
        let own = std::process::id().to_string();
        let is_other = text("WATCHDOG_PID").is_some_and(|pid| pid != own);
        let watchdog = text("WATCHDOG_USEC").filter(|_| !is_other);
        let watchdog = watchdog.and_then(|usec| usec.parse().ok()).map(Duration::from_micros);
        Self { manager: manager.ok(), watchdog }
    }

    /// How often a sign of life is expected, if it is.
    #[must_use]
    pub const fn watchdog(&self) -> Option<Duration> {
        self.watchdog
    }

    /// The router forwards.
    pub fn ready(&self) {
        self.tell("READY=1");
    }

    /// The router ends.
    pub fn stopping(&self) {
        self.tell("STOPPING=1");
    }

    /// The router lives.
    pub fn lives(&self) {
        self.tell("WATCHDOG=1");
    }

    fn tell(&self, state: &str) {
        if let Some(manager) = &self.manager {
            // It has gone, or does not read: it knows.
            let _ = manager.send(state.as_bytes());
        }
    }
}

/// A part of the router that shows by the hand of a clock that it works.
#[derive(Clone, Debug)]
pub struct Beat(Arc<(Instant, AtomicU64)>);

impl Default for Beat {
    /// One that has just shown it.
    fn default() -> Self {
        Self(Arc::new((Instant::now(), AtomicU64::new(0))))
    }
}

impl Beat {
    /// Shows that its part works.
    pub fn beat(&self) {
        let (start, last_ms) = &*self.0;
        last_ms.store(start.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// How long it has not.
    #[must_use]
    pub fn silence(&self) -> Duration {
        let (start, last_ms) = &*self.0;
        start.elapsed().saturating_sub(Duration::from_millis(last_ms.load(Ordering::Relaxed)))
    }
}

/// Tells the manager that the router lives, for as long as all of its parts show that they do. The
/// worker asks for it: so that is one of them.
#[derive(Debug, Default)]
pub struct Watchdog {
    service: Service,
    parts: Vec<Beat>,
    next_ns: u64,
}

impl Watchdog {
    /// For the worker and these parts.
    #[must_use]
    pub const fn new(service: Service, parts: Vec<Beat>) -> Self {
        Self { service, parts, next_ns: 0 }
    }

    /// To be called at least twice as often as a sign of life is expected.
    pub fn tick(&mut self, now_ns: u64) {
        let Some(limit) = self.service.watchdog().filter(|_| now_ns >= self.next_ns) else {
            return;
        };
        if self.parts.iter().all(|part| part.silence() < limit) {
            self.service.lives();
        }
        self.next_ns = now_ns + limit.as_nanos() as u64 / 3;
    }

    /// The manager.
    #[must_use]
    pub const fn service(&self) -> &Service {
        &self.service
    }
}

/// To a path, or to a name without one (`@NAME`).
fn connect(address: &str) -> io::Result<UnixDatagram> {
    let address = match address.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(address)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.connect_addr(&address)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manager_hears_at_a_path_and_at_a_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify").to_str().unwrap().to_owned();
        let name = format!("@tollway-test-{}", std::process::id());
        let abstract_name = SocketAddr::from_abstract_name(&name[1..]).unwrap();
        let managers = [
            (UnixDatagram::bind(&path).unwrap(), path),
            (UnixDatagram::bind_addr(&abstract_name).unwrap(), name),
        ];
        for (manager, address) in managers {
            let service = Service { manager: Some(connect(&address).unwrap()), watchdog: None };
            service.ready();
            service.lives();
            service.stopping();
            let mut bytes = [0; 64];
            for expected in ["READY=1", "WATCHDOG=1", "STOPPING=1"] {
                let len = manager.recv(&mut bytes).unwrap();
                assert_eq!(&bytes[..len], expected.as_bytes());
            }
            drop(manager);
            service.lives();
        }
        assert!(connect("/nowhere/at/all").is_err());
        Service::default().ready();
    }

    #[test]
    fn a_part_that_is_silent_is_seen_by_the_manager() {
        let (manager, own) = UnixDatagram::pair().unwrap();
        manager.set_nonblocking(true).unwrap();
        let limit = Duration::from_millis(50);
        let service = Service { manager: Some(own), watchdog: Some(limit) };
        let part = Beat::default();
        let mut watchdog = Watchdog::new(service, vec![part.clone()]);
        let mut heard = |now_ms: u64| {
            watchdog.tick(now_ms * 1_000_000);
            let mut bytes = [0; 64];
            manager.recv(&mut bytes).is_ok_and(|len| &bytes[..len] == b"WATCHDOG=1")
        };
        part.beat();
        assert!(heard(1), "at once");
        assert!(!heard(2), "not due");
        part.beat();
        assert!(heard(20));
        std::thread::sleep(limit);
        assert!(!heard(60), "it has been silent for as long");
        part.beat();
        assert!(heard(90));
    }
}
