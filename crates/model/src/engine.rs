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

/// A device's engine, and why it has that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The engine.
    pub engine: Engine,
    /// Why, in words.
    pub because: String,
}

impl Choice {
    /// An engine that somebody has selected.
    #[must_use]
    pub fn selected(engine: Engine) -> Self {
        Self { engine, because: "selected".to_owned() }
    }
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

/// Drivers of cards that a hypervisor emulates: their frames come from kernels, too. The driver turns its card's
/// super-frames off for an XDP program.
const MADE_BY_HYPERVISOR: [&str; 1] = ["virtio_net"];

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

    /// The engine of a device of this kind, as `ip -details link` names it; a network card has no kind, but a driver,
    /// as `ethtool -i` names it.
    #[must_use]
    pub fn of_device(self, kind: Option<&str>, driver: Option<&str>) -> Choice {
        if self != Self::Auto {
            return Choice::selected(self);
        }
        let maker = match kind {
            Some(kind) => Some(kind).filter(|kind| Self::suits_tc(kind)),
            None => driver.filter(|driver| MADE_BY_HYPERVISOR.contains(driver)),
        };
        match maker {
            Some(name) => {
                let because = format!("auto: a kernel makes the frames of {name}");
                Choice { engine: Self::Tc, because }
            }
            None => {
                let because = match kind {
                    Some(kind) => format!("auto: {kind} is no kind of device for tc"),
                    None => "auto: a network card".to_owned(),
                };
                Choice { engine: self, because }
            }
        }
    }

    /// Whether the engine has a program for ports of bridges.
    #[must_use]
    pub const fn has_bridge_ports(self) -> bool {
        matches!(self, Self::Xdp | Self::Tc)
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
    /// The engine of a device of this name, kind and driver ([`Engine::of_device`]).
    #[must_use]
    pub fn of(&self, name: &str, kind: Option<&str>, driver: Option<&str>) -> Choice {
        self.selected(name).of_device(kind, driver)
    }

    /// The engine that is selected for a device of this name.
    #[must_use]
    pub fn selected(&self, name: &str) -> Engine {
        *self.of_devices.get(name).unwrap_or(&self.of_others)
    }
}

impl From<Engine> for Engines {
    fn from(of_others: Engine) -> Self {
        Self { of_others, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_is_tc_where_a_kernel_makes_the_frames() {
        for (kind, driver, engine) in [
            (Some("veth"), Some("veth"), Engine::Tc),
            (Some("tun"), Some("tun"), Engine::Tc),
            (Some("wireguard"), None, Engine::Tc),
            (Some("dummy"), Some("dummy"), Engine::Auto),
            (None, Some("virtio_net"), Engine::Tc),
            (None, Some("igb"), Engine::Auto),
            (None, None, Engine::Auto),
            // A kind says more than a driver.
            (Some("netdevsim"), Some("virtio_net"), Engine::Auto),
        ] {
            let choice = Engine::Auto.of_device(kind, driver);
            assert_eq!(choice.engine, engine, "{kind:?}, {driver:?}");
            assert!(choice.because.starts_with("auto: "), "{choice:?}");
            assert_eq!(Engine::Xdp.of_device(kind, driver), Choice::selected(Engine::Xdp));
        }
        let of_devices = [("eth0".to_owned(), Engine::User)].into();
        let engines = Engines { of_devices, of_others: Engine::Auto };
        assert_eq!(engines.of("eth0", None, Some("virtio_net")).engine, Engine::User);
        let choice = engines.of("eth1", None, Some("virtio_net"));
        assert_eq!(choice.engine, Engine::Tc);
        assert_eq!(choice.because, "auto: a kernel makes the frames of virtio_net");
    }

    #[test]
    fn an_engine_has_the_xdp_path_or_not() {
        let usual = XdpPathMode::Off;
        let of = |engine: Engine| engine.xdp_path(usual);
        assert_eq!(Engine::ALL.map(of), [usual, XdpPathMode::On, XdpPathMode::On, usual]);
    }
}
