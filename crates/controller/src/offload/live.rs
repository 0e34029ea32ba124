//! The published offload of a running router.

use std::fmt;
use std::sync::{Arc, Mutex};

use super::Offload;
use tollway_linux::sync::lock;
use tollway_xdp::CountMap;

/// The published offload of a running router; cheap to clone, all clones share it.
#[derive(Clone, Default)]
pub struct Live {
    offload: Arc<Mutex<Arc<Offload>>>,
    counts: Option<CountMap>,
}

impl Live {
    /// For a router with the XDP program's counts, if it has one.
    #[must_use]
    pub fn new(counts: Option<CountMap>) -> Self {
        Self { offload: Arc::default(), counts }
    }

    /// Publishes an offload. Call this whenever one has been evaluated and installed.
    pub fn set(&self, offload: Offload) {
        *lock(&self.offload) = Arc::new(offload);
    }

    /// The current offload.
    #[must_use]
    pub fn get(&self) -> Arc<Offload> {
        Arc::clone(&lock(&self.offload))
    }

    /// The counters of the XDP program.
    #[must_use]
    pub const fn counts(&self) -> Option<&CountMap> {
        self.counts.as_ref()
    }
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live").field("offload", &self.get()).finish_non_exhaustive()
    }
}
