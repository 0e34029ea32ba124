//! The processors that a thread may use.

#![allow(unsafe_code)]

use std::io;
use std::mem::size_of_val;

/// The numbers of the processors that the calling thread may use (sched_getaffinity(2)), in ascending order.
///
/// # Errors
/// The system has more processors than `cpu_set_t` has room for.
pub fn allowed_cores() -> io::Result<Vec<usize>> {
    // SAFETY: a set of bits; all zero means no processor.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes at most the size of the set into it.
    let done = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) };
    super::check(done)?;
    let cores = 0..libc::CPU_SETSIZE as usize;
    // SAFETY: reads a bit of the set; the number is less than its size.
    Ok(cores.filter(|core| unsafe { libc::CPU_ISSET(*core, &set) }).collect())
}

/// Has the calling thread, and threads that it starts, run on these processors only (sched_setaffinity(2)).
///
/// # Errors
/// None of the processors exists, or the thread may not use them.
pub fn pin_to(cores: &[usize]) -> io::Result<()> {
    // SAFETY: a set of bits; all zero means no processor.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for core in cores.iter().filter(|core| **core < libc::CPU_SETSIZE as usize) {
        // SAFETY: sets a bit of the set; the number is less than its size.
        unsafe { libc::CPU_SET(*core, &mut set) };
    }
    // SAFETY: the kernel reads the set, which outlives the call.
    super::check(unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_may_use_one_processor() {
        std::thread::spawn(|| {
            let last = *allowed_cores().unwrap().last().unwrap();
            pin_to(&[last]).unwrap();
            assert_eq!(allowed_cores().unwrap(), [last]);
            assert!(pin_to(&[usize::MAX]).is_err());
        })
        .join()
        .unwrap();
    }
}
