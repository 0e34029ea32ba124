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

    /// A counter of the host's kernel: of those in /proc/net/snmp, the one of this group and name.
    pub(super) fn snmp(&self, group: &'static str, name: &str) -> Result<u64, String> {
        let path = "/proc/thread-self/net/snmp";
        let text = self.run(move || std::fs::read_to_string(path))?;
        let text = text.map_err(|error| format!("cannot read {path}: {error}"))?;
        snmp(&text, group, name).ok_or_else(|| format!("{path} has no {name} of {group}"))
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

/// A value of /proc/net/snmp, where each group has a line of names and one of values.
fn snmp(text: &str, group: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(group)?.strip_prefix(": "));
    let (names, values) = (lines.next()?, lines.next()?);
    let mut pairs = names.split(' ').zip(values.split(' '));
    pairs.find(|(other, _)| *other == name)?.1.parse().ok()
}

/// Runs a command in the calling thread's namespaces. Returns its output.
fn sh(line: &str) -> Result<String, String> {
    let mut words = line.split_whitespace();
    let program = words.next().unwrap_or_default();
    let output = Command::new(program).args(words).output().map_err(|error| {
        format!("cannot start {program} ({error}): install iproute2, ethtool and nftables")
    })?;
    if !output.status.success() {
        let messages = String::from_utf8_lossy(&output.stderr);
        return Err(format!("`{line}` failed: {}", messages.trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::snmp;

    #[test]
    fn counters_are_found_by_group_and_name() {
        let text = "Ip: Forwarding ForwDatagrams\nIp: 1 17\nUdp: InDatagrams InErrors\nUdp: 5 6\n\
                    UdpLite: InDatagrams InErrors\nUdpLite: 7 8\n";
        assert_eq!(snmp(text, "Ip", "ForwDatagrams"), Some(17));
        assert_eq!(snmp(text, "Udp", "InErrors"), Some(6));
        assert_eq!(snmp(text, "UdpLite", "InDatagrams"), Some(7));
        assert_eq!(snmp(text, "Ip", "InErrors"), None);
        assert_eq!(snmp(text, "Tcp", "InSegs"), None);
    }
}
