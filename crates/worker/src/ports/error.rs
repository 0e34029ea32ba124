//! Why a port could not be opened, or has failed.

use tollway_capture::CaptureError;
use tollway_linux::sys::why;

/// Why a port could not be opened, or has failed: what failed, why, and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// A packet socket needs a privilege.
    #[error("port {port}: {device} cannot be opened for raw frames without CAP_NET_RAW")]
    NoRaw {
        /// The port.
        port: String,
        /// The device behind it.
        device: String,
    },
    /// Creating a TAP device needs a privilege.
    #[error("port {port}: the TAP device {device} cannot be created without CAP_NET_ADMIN")]
    NoAdmin {
        /// The port.
        port: String,
        /// The device behind it.
        device: String,
    },
    /// The TAP driver cannot be reached.
    #[error("port {port}: TAP devices cannot be created: /dev/net/tun: {}", why(.error))]
    NoTun {
        /// The port.
        port: String,
        /// The system's error.
        error: std::io::Error,
    },
    /// There is no such interface.
    #[error("port {port}: there is no network interface {device}")]
    NoDevice {
        /// The port.
        port: String,
        /// The missing device.
        device: String,
    },
    /// The interface carries no Ethernet.
    #[error("port {port}: {device} is not an Ethernet interface")]
    NotEthernet {
        /// The port.
        port: String,
        /// The device behind it.
        device: String,
    },
    /// AF_XDP is not available, and with a packet socket the kernel would process every frame too.
    #[error(
        "port {port}: {device} offers no AF_XDP ({causes}), and by a packet socket the kernel, which \
         forwards there, would send every packet a second time"
    )]
    Twice {
        /// The port.
        port: String,
        /// The device behind it.
        device: String,
        /// Why there is no AF_XDP.
        causes: String,
    },
    /// The system refused.
    #[error("port {port}: {device} cannot be opened: {action}: {}", why(.error))]
    System {
        /// The port.
        port: String,
        /// The device behind it.
        device: String,
        /// The attempted action.
        action: &'static str,
        /// The system's error.
        error: std::io::Error,
    },
    /// AF_XDP is required, and is not available or used by another program.
    #[error("port {port}: {device} cannot be opened by AF_XDP: {what}")]
    NoXdp {
        /// The port.
        port: String,
        /// The device behind it.
        device: String,
        /// What was refused, and why.
        what: String,
        /// The remedy for the user.
        remedy: String,
    },
    /// The tc program cannot be attached.
    #[error("port {port}: {device} cannot have a tc program: {what}")]
    NoTc {
        /// The port.
        port: String,
        /// The device behind it.
        device: String,
        /// What was refused, and why.
        what: String,
        /// The remedy for the user.
        remedy: String,
    },
    /// A capture file.
    #[error("port {port}: {error}")]
    Capture {
        /// The port.
        port: String,
        /// The error of the file.
        error: CaptureError,
    },
}

impl PortError {
    /// The remedy for the user.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            Self::NoRaw { .. } => {
                "Run as root, or grant it with `setcap cap_net_raw,cap_net_admin+ep`".to_owned()
            }
            Self::NoAdmin { device, .. } => format!(
                "Run as root, or make the device beforehand with `ip tuntap add {device} mode tap \
                 user $USER`"
            ),
            Self::NoTun { error, .. } if error.kind() == std::io::ErrorKind::NotFound => {
                "Load the driver with `modprobe tun`; a container needs the device passed in"
                    .to_owned()
            }
            Self::NoTun { .. } => "Run as root, or let this user read and write it".to_owned(),
            Self::NoDevice { .. } => {
                "Correct `device` in the configuration; `ip link` lists the interfaces".to_owned()
            }
            Self::Twice { device, .. } => format!(
                "Switch the kernel's forwarding off (`sysctl net.ipv4.conf.{device}.forwarding=0 \
                 net.ipv6.conf.{device}.forwarding=0`), or mend what AF_XDP lacks"
            ),
            Self::NotEthernet { .. } => "Choose an interface of type ether".to_owned(),
            Self::System { error, .. } if error.kind() == std::io::ErrorKind::ResourceBusy => {
                "End the program that holds it".to_owned()
            }
            Self::System { .. } => "Check the device with `ip -details link`".to_owned(),
            Self::NoXdp { remedy, .. } | Self::NoTc { remedy, .. } => remedy.clone(),
            Self::Capture { error, .. } => error.remedy(),
        }
    }
}
