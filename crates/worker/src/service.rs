//! Notifications to the service manager (sd_notify(3)): the router forwards, and it is alive.
//!
//! Without a manager, nothing is sent. Nothing here waits for a manager that does not read.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The service manager of this process, if there is one that wants notifications.
#[derive(Debug, Default)]
pub struct Service {
    manager: Option<UnixDatagram>,
    /// The watchdog interval that the manager expects.
    watchdog: Option<Duration>,
}

impl Service {
    /// Reads the manager's environment variables: `NOTIFY_SOCKET`, and `WATCHDOG_USEC` unless
    /// `WATCHDOG_PID` names another process.
    #[must_use]
    pub fn from_environment() -> Self {
        let text = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
        let Some(address) = text("NOTIFY_SOCKET") else { return Self::default() };
        let manager = connect(&address)
            .inspect_err(|error| tracing::warn!("the service manager cannot be notified: {error}"));
        let own = std::process::id().to_string();
        let is_other = text("WATCHDOG_PID").is_some_and(|pid| pid != own);
        let watchdog = text("WATCHDOG_USEC").filter(|_| !is_other);
        let watchdog = watchdog.and_then(|usec| usec.parse().ok()).map(Duration::from_micros);
        Self { manager: manager.ok(), watchdog }
    }

    /// The watchdog interval, if the manager expects one.
    #[must_use]
    pub const fn watchdog(&self) -> Option<Duration> {
        self.watchdog
    }

    /// The router forwards.
    pub fn ready(&self) {
        self.notify("READY=1");
    }

    /// The router ends.
    pub fn stopping(&self) {
        self.notify("STOPPING=1");
    }

    /// The router is alive.
    pub fn lives(&self) {
        self.notify("WATCHDOG=1");
    }

    fn notify(&self, state: &str) {
        if let Some(manager) = &self.manager {
            // The manager has gone, or does not read; it will notice.
            let _ = manager.send(state.as_bytes());
        }
    }
}

/// The heartbeat of a part of the router: the time when the part last worked.
#[derive(Clone, Debug)]
pub struct Beat(Arc<(Instant, AtomicU64)>);

impl Default for Beat {
    /// A heartbeat of just now.
    fn default() -> Self {
        Self(Arc::new((Instant::now(), AtomicU64::new(0))))
    }
}

impl Beat {
    /// Records that the part works.
    pub fn beat(&self) {
        let (start, last_ms) = &*self.0;
        last_ms.store(start.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// The time since the last heartbeat.
    #[must_use]
    pub fn silence(&self) -> Duration {
        let (start, last_ms) = &*self.0;
        start.elapsed().saturating_sub(Duration::from_millis(last_ms.load(Ordering::Relaxed)))
    }
}

/// Notifies the manager that the router is alive, as long as all of its parts are. The worker calls
/// it, so the worker is one of them.
#[derive(Debug, Default)]
pub struct Watchdog {
    service: Service,
    parts: Vec<Beat>,
    next_ns: u64,
}

impl Watchdog {
    /// Watches the worker and these parts.
    #[must_use]
    pub const fn new(service: Service, parts: Vec<Beat>) -> Self {
        Self { service, parts, next_ns: 0 }
    }

    /// The parts of the router that it watches besides the worker.
    pub(crate) fn parts(&self) -> &[Beat] {
        &self.parts
    }

    /// To be called at least twice per watchdog interval.
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

/// Connects to a path, or to an abstract name (`@NAME`).
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
    fn the_manager_is_notified_at_a_path_and_at_a_name() {
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
        let mut is_notified = |now_ms: u64| {
            watchdog.tick(now_ms * 1_000_000);
            let mut bytes = [0; 64];
            manager.recv(&mut bytes).is_ok_and(|len| &bytes[..len] == b"WATCHDOG=1")
        };
        part.beat();
        assert!(is_notified(1), "at once");
        assert!(!is_notified(2), "not due");
        part.beat();
        assert!(is_notified(20));
        std::thread::sleep(limit);
        assert!(!is_notified(60), "it has been silent for as long");
        part.beat();
        assert!(is_notified(90));
    }
}
