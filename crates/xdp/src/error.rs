//! Errors of the XDP program, in words.

use std::error::Error;
use std::io;

use super::port::{MOST_PORTS, MOST_QUEUES, XdpPort, has_room};
use tollway_linux::sys::why;

/// Why the dispatcher cannot serve a port: what failed, why, and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum XdpError {
    /// BPF needs privileges.
    #[error("BPF programs cannot be loaded without CAP_BPF and CAP_NET_ADMIN")]
    NoPrivilege,
    /// There is no BPF file system, so nothing can be pinned to outlive the process.
    #[error("there is no BPF file system at /sys/fs/bpf, and none can be mounted: {}", why(.0))]
    NoBpffs(io::Error),
    /// Others could have put something into the directory for pins.
    #[error("/sys/fs/bpf/tollway cannot be used: {0}")]
    NotOurs(String),
    /// Another program is attached to the device.
    #[error("{device} already carries another XDP program")]
    OtherProgram {
        /// The device.
        device: String,
    },
    /// Another filter has the place of the tc program.
    #[error("another tc filter on {device} has the preference 65535")]
    OtherFilter {
        /// The device.
        device: String,
    },
    /// Another Tollway serves the device.
    #[error("{device} is served by another Tollway, which is alive")]
    Served {
        /// The device.
        device: String,
    },
    /// Another Tollway has the device, and does not respond.
    #[error("{device} is served by another Tollway, which is stopped or hangs")]
    Silent {
        /// The device.
        device: String,
    },
    /// The driver does not accept the program.
    #[error("{device} takes no XDP program in its driver: {}", refusal(.error))]
    NotNative {
        /// The device.
        device: String,
        /// The system's error.
        error: io::Error,
    },
    /// The device does not exist (any more).
    #[error("there is no network interface {device}")]
    NoDevice {
        /// The device.
        device: String,
    },
    /// The kernel's verifier refused the program.
    #[error("the kernel's verifier refused the program for {device}: {verdict}")]
    Verifier {
        /// The device.
        device: String,
        /// The verifier's last words.
        verdict: String,
    },
    /// No port with that number has been set.
    #[error("port {0} is not known to the XDP program")]
    NoPort(u16),
    /// The maps have no room for so many.
    #[error(
        "there is no room for {device}: the XDP program serves at most {} ports with {} queues each",
        MOST_PORTS,
        MOST_QUEUES
    )]
    TooMany {
        /// The device.
        device: String,
    },
    /// The system refused.
    #[error("{device} cannot be set up for BPF programs: {action}: {}", why(.error))]
    System {
        /// The device, or another subject.
        device: String,
        /// The attempted action.
        action: &'static str,
        /// The system's error.
        error: io::Error,
    },
}

/// Explains a driver's error.
fn refusal(error: &io::Error) -> String {
    let means = match error.raw_os_error() {
        Some(libc::EOPNOTSUPP) => "it has no support for it",
        Some(libc::EINVAL | libc::ERANGE) => "its MTU or its offloads do not allow it",
        Some(libc::ENOSPC) => "it has fewer receive queues than its peer has transmit queues",
        Some(libc::ENOMEM) => "it has no memory or no queues left for it",
        _ => return why(error),
    };
    format!("{means} ({})", why(error))
}

impl XdpError {
    /// The remedy for the user.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            Self::NoPrivilege => "Run as root, or grant it with `setcap \
                                  cap_bpf,cap_net_admin,cap_net_raw+ep`"
                .to_owned(),
            Self::NoBpffs(_) => {
                "Mount it with `mount -t bpf -o mode=0700 bpf /sys/fs/bpf`; a container needs it \
                 passed in"
                    .to_owned()
            }
            Self::NotOurs(_) => "Remove it with `rm -r /sys/fs/bpf/tollway`, and keep others out \
                                 with `chmod 700 /sys/fs/bpf`"
                .to_owned(),
            Self::OtherProgram { device } => {
                format!("Detach it with `ip link set dev {device} xdp off`")
            }
            Self::OtherFilter { device } => {
                format!("Give it another one; `tc filter show dev {device} ingress` lists it")
            }
            Self::Served { .. } => {
                "Stop that one, or take its ports over with `tollway run --replace`".to_owned()
            }
            Self::Silent { .. } => {
                "Resume that one with `kill -CONT`, or end it with `kill -KILL`".to_owned()
            }
            Self::NotNative { .. } => "Use generic mode, which is slower".to_owned(),
            Self::NoDevice { .. } => {
                "Correct `device` in the configuration; `ip link` lists the interfaces".to_owned()
            }
            Self::Verifier { .. } => {
                "Use Linux 6.1 or later. If this is one, report this message as \
                                      a defect of Tollway"
                    .to_owned()
            }
            Self::NoPort(_) | Self::TooMany { .. } => "Correct the configuration".to_owned(),
            Self::System { .. } => "Check the device with `ip -details link`".to_owned(),
        }
    }

    /// Refuses a port for which the maps have no room.
    pub(super) fn check_room(port: &XdpPort) -> Result<(), Self> {
        has_room(port).then_some(()).ok_or_else(|| Self::TooMany { device: port.device.clone() })
    }

    pub(super) fn system(
        device: &str,
        action: &'static str,
    ) -> impl FnOnce(io::Error) -> Self + use<> {
        let device = device.to_owned();
        move |error| match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::NoPrivilege,
            Some(libc::ENODEV) => Self::NoDevice { device },
            _ => Self::System { device, action, error },
        }
    }

    /// An error of the loader.
    pub(super) fn load(device: &str, error: &(dyn Error + 'static)) -> Self {
        let mut cause = Some(error);
        while let Some(error) = cause {
            if let Some(aya::programs::ProgramError::LoadError { io_error, verifier_log }) =
                error.downcast_ref()
            {
                return match io_error.raw_os_error() {
                    Some(libc::EPERM) => Self::NoPrivilege,
                    _ => Self::verifier(device, &verifier_log.to_string(), io_error),
                };
            }
            if let Some(error) = error.downcast_ref::<io::Error>() {
                let error = error.raw_os_error().map_or_else(
                    || io::Error::other(error.to_string()),
                    io::Error::from_raw_os_error,
                );
                return Self::system(device, "loading the program")(error);
            }
            cause = error.source();
        }
        let error = io::Error::other(error.to_string());
        Self::System { device: device.to_owned(), action: "loading the program", error }
    }

    fn verifier(device: &str, log: &str, error: &io::Error) -> Self {
        // The last line before the statistics gives the reason.
        let is_reason = |line: &&str| {
            let statistics = ["processed ", "stack depth", "verification time"];
            !line.is_empty() && !statistics.iter().any(|start| line.starts_with(start))
        };
        let mut lines = log.lines().rev().map(str::trim).filter(is_reason);
        let verdict = lines.next().map_or_else(|| why(error), str::to_owned);
        Self::Verifier { device: device.to_owned(), verdict }
    }
}
