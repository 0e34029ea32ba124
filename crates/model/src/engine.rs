//! What decides about the packets that arrive at a port.

use std::collections::BTreeMap;

use super::XdpPathMode;

/// What decides about the packets that arrive at a port on a network device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Engine {
    /// What suits the device.
    #[default]
    Auto,
    /// An XDP program, and the user path.
    Xdp,
    /// A tc program, and the kernel for all that this does not decide.
    Tc,
    /// The user path alone.
    User,
}

/// Kinds of devices whose frames the kernel has made: they may be super-frames, with unfinished checksums. Those of the
/// second half are layer-3 devices.
const MADE_BY_KERNEL: [&str; 15] = [
    "veth",
    "tun",
    "bond",
    "team",
    "bridge",
    "macvlan",
    "vxlan",
    "geneve",
    "wireguard",
    "gre",
    "ip6gre",
    "ipip",
    "ip6tnl",
    "sit",
    "ppp",
];

impl Engine {
    /// All engines.
    pub const ALL: [Self; 4] = [Self::Auto, Self::Xdp, Self::Tc, Self::User];

    /// The engine's name in the configuration and in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Xdp => "xdp",
            Self::Tc => "tc",
            Self::User => "user",
        }
    }

    /// Says whether `auto` selects the tc program for devices of this kind, as `ip -details link` names it.
    #[must_use]
    pub fn suits_tc(kind: &str) -> bool {
        MADE_BY_KERNEL.contains(&kind)
    }

    /// The engine of a device of this kind, as `ip -details link` names it; a network card has no kind.
    #[must_use]
    pub fn of_device(self, kind: Option<&str>) -> Self {
        match (self, kind) {
            (Self::Auto, Some(kind)) if Self::suits_tc(kind) => Self::Tc,
            (chosen, _) => chosen,
        }
    }

    /// Whether a port with this engine has the XDP path, where `usual` says so of the others.
    #[must_use]
    pub const fn xdp_path(self, usual: XdpPathMode) -> XdpPathMode {
        match self {
            Self::Auto => usual,
            Self::Xdp | Self::Tc => XdpPathMode::On,
            Self::User => XdpPathMode::Off,
        }
    }
}

/// The engines that are selected for devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Engines {
    /// By the name of the device.
    pub of_devices: BTreeMap<String, Engine>,
    /// For all other devices.
    pub of_others: Engine,
}

impl Engines {
    /// The engine of a device of this name and kind.
    #[must_use]
    pub fn of(&self, name: &str, kind: Option<&str>) -> Engine {
        self.of_devices.get(name).unwrap_or(&self.of_others).of_device(kind)
    }
}

impl From<Engine> for Engines {
    fn from(of_others: Engine) -> Self {
        Self { of_others, ..Self::default() }
    }
}
