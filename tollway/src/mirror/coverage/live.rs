//! The coverage of a router that runs, for those who ask.

use std::fmt;
use std::sync::{Arc, Mutex};

use super::Coverage;
use crate::steer::CountMap;
use crate::sync::lock;

/// Where the coverage of a router that runs is found; cheap to clone, every clone is the same.
#[derive(Clone, Default)]
pub struct Live {
    coverage: Arc<Mutex<Arc<Coverage>>>,
    counts: Option<CountMap>,
}

impl Live {
    /// Of a router with the steering program's counts, if it has one.
    #[must_use]
    pub fn new(counts: Option<CountMap>) -> Self {
        Self { coverage: Arc::default(), counts }
    }

    /// Says what is so from now on; to be called whenever it was judged anew and put in force.
    pub fn set(&self, coverage: Coverage) {
        *lock(&self.coverage) = Arc::new(coverage);
    }

    /// What is so.
    #[must_use]
    pub fn get(&self) -> Arc<Coverage> {
        Arc::clone(&lock(&self.coverage))
    }

    /// What the steering program counts.
    #[must_use]
    pub const fn counts(&self) -> Option<&CountMap> {
        self.counts.as_ref()
    }
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live").field("coverage", &self.get()).finish_non_exhaustive()
    }
}
