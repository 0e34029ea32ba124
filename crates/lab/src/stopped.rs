//! A thread of another process that does not run for a while, as if it hung: ptrace(2) stops it alone.

#![allow(unsafe_code)]

use std::io;
use std::path::Path;
use std::ptr::null_mut;

/// A stopped thread. It goes on when this is dropped, which has to happen on the thread that stopped it.
#[derive(Debug)]
pub struct StoppedThread(libc::pid_t);

impl StoppedThread {
    /// Stops the thread of a process that has this name (as in `/proc/PID/task/TID/comm`).
    ///
    /// # Errors
    /// There is no such thread, or this process may not trace it.
    pub fn named(process: u32, name: &str) -> io::Result<Self> {
        let tasks = Path::new("/proc").join(process.to_string()).join("task");
        for task in std::fs::read_dir(tasks)? {
            let task = task?;
            let comm = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            if comm.trim_end() == name
                && let Some(thread) = task.file_name().to_str().and_then(|id| id.parse().ok())
            {
                return Self::stop(thread);
            }
        }
        Err(io::Error::other(format!("process {process} has no thread {name}")))
    }

    /// Stops the first thread of a process.
    ///
    /// # Errors
    /// There is no such process, or this one may not trace it.
    pub fn main(process: u32) -> io::Result<Self> {
        Self::stop(process.cast_signed())
    }

    fn stop(thread: libc::pid_t) -> io::Result<Self> {
        let none = null_mut::<libc::c_void>();
        // SAFETY: takes numbers; the addresses are not used by this request.
        check(unsafe { libc::ptrace(libc::PTRACE_SEIZE, thread, none, none) })?;
        // From here on, dropping it lets the thread go on.
        let stopped = Self(thread);
        // SAFETY: as above.
        check(unsafe { libc::ptrace(libc::PTRACE_INTERRUPT, thread, none, none) })?;
        // SAFETY: a status is not asked for.
        check(unsafe { libc::waitpid(thread, null_mut(), libc::__WALL) }.into())?;
        Ok(stopped)
    }
}

impl Drop for StoppedThread {
    fn drop(&mut self) {
        let none = null_mut::<libc::c_void>();
        // A thread that has ended need not go on.
        // SAFETY: takes numbers; the addresses are not used by this request.
        let _ = unsafe { libc::ptrace(libc::PTRACE_DETACH, self.0, none, none) };
    }
}

fn check(result: libc::c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// The state of a process in /proc, a letter.
    fn state(process: u32) -> String {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
        stat.rsplit(')').next().unwrap().split_whitespace().next().unwrap().to_owned()
    }

    #[test]
    fn a_thread_is_stopped_until_the_drop() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = child.id();
        while std::fs::read_to_string(format!("/proc/{process}/comm")).unwrap().trim() != "sleep" {}
        assert!(StoppedThread::named(process, "nobody").is_err());
        let stopped = StoppedThread::named(process, "sleep").unwrap();
        assert_eq!(state(process), "t", "stopped by a tracer");
        drop(stopped);
        while state(process) == "t" {}
        drop(StoppedThread::main(process).unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
