//! Hosts: threads in separate namespaces.
//!
//! A namespace without a name ends with its last process or thread. So nothing of a host outlives
//! this process, however it ends.

use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc::{Sender, channel};

use crate::sys;

type Job = Box<dyn FnOnce() + Send>;

/// A host: a network namespace, and a mount namespace with its own /sys, bpffs and /run.
pub(super) struct Host {
    name: &'static str,
    jobs: Sender<Job>,
    thread: i32,
}

impl Host {
    /// Creates a host.
    pub(super) fn new(name: &'static str) -> Result<Self, String> {
        let (jobs, received_jobs) = channel::<Job>();
        let (ready, entered) = channel();
        let work = move || {
            let _ = ready.send(enter_namespaces().map(|()| sys::thread_id()));
            while let Ok(job) = received_jobs.recv() {
                job();
            }
        };
        let thread = std::thread::Builder::new().name(format!("host {name}")).spawn(work);
        thread.map_err(|error| format!("no thread can be started: {error}"))?;
        let gone = |_| "a host's thread has ended".to_owned();
        let thread = entered.recv().map_err(gone)??;
        let host = Self { name, jobs, thread };
        host.sh("ip link set lo up")?;
        Ok(host)
    }

    /// Runs a closure on the host, and waits for its result.
    pub(super) fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, String> {
        let gone = format!("host {}: its thread has ended", self.name);
        let (done, result) = channel();
        let job = move || {
            let _ = done.send(job());
        };
        self.jobs.send(Box::new(job)).map_err(|_| gone.clone())?;
        result.recv().map_err(|_| gone)
    }

    /// Runs a command on the host. Returns its output.
    pub(super) fn sh(&self, line: &str) -> Result<String, String> {
        let (name, line) = (self.name, line.to_owned());
        self.run(move || sh(&line))?.map_err(|error| format!("host {name}: {error}"))
    }

    /// Sets a value under /proc/sys/net.
    pub(super) fn sysctl(&self, path: &str, value: &str) -> Result<(), String> {
        let path = format!("/proc/sys/net/{path}");
        let (file, value) = (path.clone(), value.to_owned());
        let done = self.run(move || std::fs::write(file, value))?;
        done.map_err(|error| format!("host {}: cannot set {path}: {error}", self.name))
    }

    /// The path of the host's network namespace, for `ip link`.
    pub(super) fn namespace(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/task/{}/ns/net", std::process::id(), self.thread))
    }
}

/// Moves the calling thread into new namespaces.
fn enter_namespaces() -> Result<(), String> {
    sys::leave_namespaces().map_err(|error| {
        format!(
            "this process may not make network and mount namespaces ({error}): run it as root, \
             and in a container with the capability SYS_ADMIN"
        )
    })?;
    let mounts: [(Option<&str>, &str); 4] = [
        (None, "/"),
        (Some("sysfs"), "/sys"),
        (Some("bpf"), "/sys/fs/bpf"),
        (Some("tmpfs"), "/run"),
    ];
    for (kind, at) in mounts {
        let what = kind.unwrap_or("a namespace's root");
        sys::mount(kind, at).map_err(|error| {
            format!("cannot mount {what} on {at} in a private namespace: {error}")
        })?;
    }
    Ok(())
}

/// Runs a command in the calling thread's namespaces. Returns its output.
fn sh(line: &str) -> Result<String, String> {
    let mut words = line.split_whitespace();
    let program = words.next().unwrap_or_default();
    let output = Command::new(program).args(words).output().map_err(|error| {
        format!("cannot start {program} ({error}): install iproute2 and ethtool")
    })?;
    if !output.status.success() {
        let messages = String::from_utf8_lossy(&output.stderr);
        return Err(format!("`{line}` failed: {}", messages.trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
