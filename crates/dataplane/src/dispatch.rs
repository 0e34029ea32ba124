//! Builds of the path for several instruction sets; the program picks the widest of the machine at
//! start.

use crate::burst::Burst;
use crate::cpu::Level;
use crate::features::{AllStages, Features, NoStages};
use crate::frame::Umem;
use crate::path::forward;
use crate::stages::filter::State;
use crate::stages::transmit::Egress;
use crate::tables::ForwardingState;
use crate::tolls::Tolls;

/// One build of [`crate::path`]; the timed variant handles the sampled bursts.
type Forward =
    unsafe fn(&mut Burst, &mut Umem, &ForwardingState, &mut Tolls, &mut Egress, &mut State);

/// The path for one instruction set.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    level: Level,
    plain: Forward,
    timed: Forward,
}

// Only these functions name the builds, and they are inlined nowhere: each build is compiled once, with this
// crate, and not once more in every program.
impl Path {
    /// The path with all stages, for the widest instructions of this machine.
    #[must_use]
    #[inline(never)]
    pub fn detect() -> Self {
        Self::build::<AllStages>(Level::detect())
    }

    /// The path for `level`; none if this machine does not support it.
    #[must_use]
    #[inline(never)]
    pub fn at(level: Level) -> Option<Self> {
        (level <= Level::detect()).then(|| Self::build::<AllStages>(level))
    }

    /// The path without optional stages: the lab measures what those cost that are compiled in but not
    /// configured.
    #[must_use]
    #[inline(never)]
    pub fn without_optional_stages() -> Self {
        Self::build::<NoStages>(Level::detect())
    }

    /// The instruction set that it uses.
    #[must_use]
    pub const fn level(&self) -> Level {
        self.level
    }

    fn build<F: Features>(level: Level) -> Self {
        let (plain, timed): (Forward, Forward) = match level {
            Level::Baseline => (baseline::<F, false>, baseline::<F, true>),
            #[cfg(target_arch = "x86_64")]
            Level::V3 => (v3::<F, false>, v3::<F, true>),
            #[cfg(target_arch = "x86_64")]
            Level::V4 => (v4::<F, false>, v4::<F, true>),
            #[cfg(not(target_arch = "x86_64"))]
            _ => (baseline::<F, false>, baseline::<F, true>),
        };
        Self { level, plain, timed }
    }

    /// Takes a burst from its port to the queues in `egress`; see [`crate::path`].
    #[inline(always)]
    #[allow(unsafe_code)]
    pub fn forward(
        &self,
        burst: &mut Burst,
        umem: &mut Umem,
        tables: &ForwardingState,
        tolls: &mut Tolls,
        egress: &mut Egress,
        state: &mut State,
    ) {
        let forward = if tolls.due(burst.count) { self.timed } else { self.plain };
        // SAFETY: the function only requires the instructions of `level`, which all constructors have
        // checked.
        unsafe { forward(burst, umem, tables, tolls, egress, state) }
    }
}

fn baseline<F: Features, const TIMED: bool>(
    burst: &mut Burst,
    umem: &mut Umem,
    tables: &ForwardingState,
    tolls: &mut Tolls,
    egress: &mut Egress,
    state: &mut State,
) {
    forward::<F, TIMED>(burst, umem, tables, tolls, egress, state);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,fma,lzcnt,movbe,popcnt")]
fn v3<F: Features, const TIMED: bool>(
    burst: &mut Burst,
    umem: &mut Umem,
    tables: &ForwardingState,
    tolls: &mut Tolls,
    egress: &mut Egress,
    state: &mut State,
) {
    forward::<F, TIMED>(burst, umem, tables, tolls, egress, state);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,fma,lzcnt,movbe,popcnt")]
#[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
fn v4<F: Features, const TIMED: bool>(
    burst: &mut Burst,
    umem: &mut Umem,
    tables: &ForwardingState,
    tolls: &mut Tolls,
    egress: &mut Egress,
    state: &mut State,
) {
    forward::<F, TIMED>(burst, umem, tables, tolls, egress, state);
}
