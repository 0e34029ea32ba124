//! Work compiled for the same instruction set as the packet path, for a fair comparison.

use tollway_dataplane::cpu::Level;

/// Work whose body is compiled for each instruction set; `run` must be `#[inline(always)]`.
pub(super) trait Job {
    /// Does the work.
    fn run(&mut self);
}

/// Does the work with the widest instructions that this machine has.
#[allow(unsafe_code)]
pub(super) fn run(job: &mut impl Job) {
    match Level::detect() {
        Level::Baseline => job.run(),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `detect` has just found that the machine has these instructions.
        Level::V3 => unsafe { v3(job) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `detect` has just found that the machine has these instructions.
        Level::V4 => unsafe { v4(job) },
        #[cfg(not(target_arch = "x86_64"))]
        _ => job.run(),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,fma,lzcnt,movbe,popcnt")]
fn v3(job: &mut impl Job) {
    job.run();
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,fma,lzcnt,movbe,popcnt")]
#[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
fn v4(job: &mut impl Job) {
    job.run();
}
