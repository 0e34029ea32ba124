//! The coverage of a router that runs, for those who ask.

use std::fmt;
use std::sync::{Arc, Mutex};

use super::Offload;
use crate::sync::lock;
use crate::xdp::CountMap;

/// Where the coverage of a router that runs is found; cheap to clone, every clone is the same.
#[derive(Clone, Default)]
pub struct Live {
    offload: Arc<Mutex<Arc<Offload>>>,
    counts: Option<CountMap>,
}

impl Live {
    /// Of a router with the XDP program's counts, if it has one.
    #[must_use]
    pub fn new(counts: Option<CountMap>) -> Self {
        Self { offload: Arc::default(), counts }
    }

    /// Says what is so from now on; to be called whenever it was judged anew and installed.
    pub fn set(&self, offload: Offload) {
        *lock(&self.offload) = Arc::new(offload);
    }

    /// What is so.
    #[must_use]
    pub fn get(&self) -> Arc<Offload> {
        Arc::clone(&lock(&self.offload))
    }

    /// What the XDP program counts.
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
