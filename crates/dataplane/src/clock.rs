//! The time-stamp counter, the only clock that the path reads, and the ticks in which tables note times.

/// Nanoseconds per tick, as a power of two: 67 ms.
pub const TICK_SHIFT: u32 = 26;

/// The tick of a time.
#[inline(always)]
#[must_use]
pub const fn tick_of(now_ns: u64) -> u32 {
    (now_ns >> TICK_SHIFT) as u32
}

/// The time-stamp counter now: TSC clocks on x86-64 (8.5 ns per read on a 2.6 GHz virtual machine), the
/// virtual counter on aarch64.
#[inline(always)]
#[must_use]
#[allow(unsafe_code)]
pub fn now() -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        // SAFETY: rdtsc only reads a counter; every x86-64 has it, and Linux leaves it enabled.
        unsafe { core::arch::x86_64::_rdtsc() }
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    {
        let ticks: u64;
        // SAFETY: cntvct_el0 is readable from user space on Linux and reading has no side effect.
        unsafe {
            core::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack));
        }
        ticks
    }
    // Miri has no such counter.
    #[cfg(miri)]
    {
        0
    }
}
