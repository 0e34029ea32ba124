//! Checks of the devices that a router is started with.

use super::kernel::{Ifindex, Kernel, Netdev};
use tollway_model::{Choice, Engine, Engines};

/// `IFF_LOOPBACK`.
const LOOPBACK: u32 = 1 << 3;
/// The prefix of names of devices that Tollway makes for itself, to hand packets to the kernel.
const OWN: &str = "toll";

/// Why a device cannot be one of the router's ports.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// There is no device of that name.
    #[error("there is no network device {name}; there {candidates}")]
    Unknown {
        /// The name.
        name: String,
        /// Devices that the user may have meant, as the end of a sentence.
        candidates: String,
    },
    /// It was named before.
    #[error("{0} is named twice; name each device once")]
    Twice(String),
    /// No packet arrives by it.
    #[error("{0} is the loopback device, by which nothing arrives; name devices that have a cable")]
    Loopback(String),
    /// It is Tollway's own.
    #[error("{0} is one of Tollway's own devices; name those that packets arrive by")]
    Own(String),
    /// Its frames are not Ethernet's.
    #[error(
        "{name} carries no Ethernet{kind}; the kernel forwards what arrives there, so leave it out"
    )]
    NotEthernet {
        /// The name.
        name: String,
        /// What it is, in brackets.
        kind: String,
    },
    /// Its packets have no header of layer 2, and it has not the engine tc.
    #[error(
        "{name} is a layer-3 device, whose packets only the engine tc takes; select that for it \
         (--engine {name}=tc), or leave it out"
    )]
    Layer3 {
        /// The name.
        name: String,
    },
    /// It is a VLAN, which comes with the device below.
    #[error("{name} is a VLAN of {below}; name {below}, and its VLANs come with it")]
    Vlan {
        /// The name.
        name: String,
        /// The device below.
        below: String,
    },
    /// It belongs to a bridge, and its engine has no program for that.
    #[error(
        "{name} belongs to the bridge {bridge}, whose frames only the engines xdp and tc forward; select one of them for it \
         (--engine {name}=xdp), or leave it out"
    )]
    BridgePort {
        /// The name.
        name: String,
        /// The bridge.
        bridge: String,
    },
    /// It belongs to another device, which takes its packets.
    #[error(
        "{name} belongs to the {kind} {master}, whose traffic the kernel forwards; leave it out (to take it \
         from there would cut off whoever reaches this host by {master})"
    )]
    Member {
        /// The name.
        name: String,
        /// What the other device is.
        kind: String,
        /// The other device.
        master: String,
    },
    /// It is a bridge without devices.
    #[error(
        "{0} is a bridge without devices; put some into it first (ip link set DEVICE master {0}), or give it the engine tc, \
         for what is routed there (--engine {0}=tc)"
    )]
    EmptyBridge(String),
    /// It represents other devices, by which the packets arrive.
    #[error("{name} is a {kind}; name the devices that belong to it")]
    Master {
        /// The name.
        name: String,
        /// What it is.
        kind: String,
    },
}

/// Finds the devices that are to be ports, in their order. A bridge stands for its ports, as far as they can be the router's,
/// unless it has an engine of its own.
///
/// # Errors
/// The first device that cannot be a port.
pub fn find(
    kernel: &Kernel,
    names: &[String],
    engines: &Engines,
) -> Result<Vec<(Ifindex, Choice)>, DeviceError> {
    let mut found: Vec<(Ifindex, Choice)> = Vec::new();
    for name in names {
        let Some((index, netdev)) = kernel.named(name) else {
            let (name, candidates) = (name.clone(), candidates(kernel, engines));
            return Err(DeviceError::Unknown { name, candidates });
        };
        if found.iter().any(|(other, _)| *other == index) {
            return Err(DeviceError::Twice(name.clone()));
        }
        if netdev.bridge.is_some() && !engines.of_devices.contains_key(name) {
            let ports = ports_of(kernel, (index, name), engines)?;
            let is_new =
                |(port, _): &(Ifindex, Choice)| found.iter().all(|(other, _)| other != port);
            let new: Vec<_> = ports.into_iter().filter(is_new).collect();
            found.extend(new);
            continue;
        }
        let choice = choice_for(kernel, netdev, engines);
        check(kernel, netdev, choice.engine)?;
        found.push((index, choice));
    }
    Ok(found)
}

/// The ports of a bridge that can be the router's, at least one.
fn ports_of(
    kernel: &Kernel,
    (bridge, name): (Ifindex, &str),
    engines: &Engines,
) -> Result<Vec<(Ifindex, Choice)>, DeviceError> {
    let members = kernel.netdevs.iter().filter(|(_, netdev)| netdev.master == Some(bridge));
    let (mut ports, mut refused) = (Vec::new(), Vec::new());
    for (index, netdev) in members {
        let choice = choice_for(kernel, netdev, engines);
        match check(kernel, netdev, choice.engine) {
            Ok(()) => ports.push((*index, choice)),
            Err(error) => refused.push(error),
        }
    }
    if !ports.is_empty() {
        for error in refused {
            tracing::info!("{name}: one of its devices is no port of Tollway: {error}");
        }
        return Ok(ports);
    }
    Err(refused.into_iter().next().unwrap_or_else(|| DeviceError::EmptyBridge(name.to_owned())))
}

fn choice_for(kernel: &Kernel, netdev: &Netdev, engines: &Engines) -> Choice {
    let kind = netdev.kind.as_deref();
    // Other devices are known by their kind.
    let driver = kind.is_none().then(|| tollway_xdp::driver(&netdev.name).ok()).flatten();
    let choice = engines.of(&netdev.name, kind, driver.as_deref());
    // The user path knows no bridges, so zero-copy gains nothing there.
    if choice.engine == Engine::Auto && is_bridge_port(kernel, netdev) {
        return Choice { engine: Engine::Xdp, because: "auto: a port of a bridge".to_owned() };
    }
    choice
}

fn check(kernel: &Kernel, netdev: &Netdev, engine: Engine) -> Result<(), DeviceError> {
    let name = netdev.name.clone();
    let named = |index: Option<Ifindex>| {
        let netdev = index.and_then(|index| kernel.netdevs.get(&index));
        netdev.map_or_else(|| "another namespace's device".to_owned(), |dev| dev.name.clone())
    };
    if netdev.flags & LOOPBACK != 0 {
        return Err(DeviceError::Loopback(name));
    }
    if is_own(netdev) {
        return Err(DeviceError::Own(name));
    }
    let kind = netdev.kind.clone().unwrap_or_default();
    match kind.as_str() {
        "vlan" => return Err(DeviceError::Vlan { name, below: named(netdev.lower) }),
        "vrf" => return Err(DeviceError::Master { name, kind: "VRF".to_owned() }),
        "bridge" if engine != Engine::Tc => return Err(DeviceError::Master { name, kind }),
        _ => {}
    }
    let is_layer3 = netdev.is_layer3 && netdev.kind.as_deref().is_none_or(Engine::suits_tc);
    if is_layer3 && engine != Engine::Tc {
        return Err(DeviceError::Layer3 { name });
    }
    if netdev.mac.is_none() && !is_layer3 {
        let kind = if kind.is_empty() { kind } else { format!(" (it is of the kind {kind})") };
        return Err(DeviceError::NotEthernet { name, kind });
    }
    if is_bridge_port(kernel, netdev) {
        let bridge = named(netdev.master);
        return match engine.has_bridge_ports() {
            true => Ok(()),
            false => Err(DeviceError::BridgePort { name, bridge }),
        };
    }
    let master = netdev.master.and_then(|master| kernel.netdevs.get(&master));
    match master.and_then(|master| master.kind.clone()) {
        Some(kind) if kind != "vrf" => {
            Err(DeviceError::Member { name, kind, master: named(netdev.master) })
        }
        _ => Ok(()),
    }
}

fn is_bridge_port(kernel: &Kernel, netdev: &Netdev) -> bool {
    let master = netdev.master.and_then(|master| kernel.netdevs.get(&master));
    master.is_some_and(|master| master.kind.as_deref() == Some("bridge"))
}

/// Says whether Tollway has made a device for itself; no route uses such a device.
#[must_use]
pub fn is_own(netdev: &Netdev) -> bool {
    let number = netdev.name.strip_prefix(OWN).map(|rest| rest.trim_end_matches(['b', 'c']));
    netdev.kind.as_deref() == Some("tun")
        && number
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The devices that can be ports, as the end of a sentence.
fn candidates(kernel: &Kernel, engines: &Engines) -> String {
    let can_be = kernel
        .netdevs
        .values()
        .filter(|netdev| check(kernel, netdev, choice_for(kernel, netdev, engines).engine).is_ok());
    let names: Vec<&str> = can_be.map(|netdev| netdev.name.as_str()).collect();
    match names[..] {
        [] => "is none that could be meant".to_owned(),
        [one] => format!("is {one}"),
        [ref rest @ .., last] => format!("are {} and {last}", rest.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::BridgeSettings;

    fn netdev(name: &str, kind: &str) -> Netdev {
        let kind = (!kind.is_empty()).then(|| kind.to_owned());
        Netdev { name: name.to_owned(), kind, mac: Some([2; 6]), ..Netdev::default() }
    }

    fn kernel() -> Kernel {
        let mut kernel = Kernel::default();
        let devices = [
            Netdev { flags: LOOPBACK, ..netdev("lo", "") },
            netdev("eth0", ""),
            netdev("eth1", "veth"),
            Netdev { lower: Some(2), vlan: Some((5, 0x8100)), ..netdev("eth0.5", "vlan") },
            Netdev { bridge: Some(BridgeSettings::default()), ..netdev("br0", "bridge") },
            Netdev { master: Some(5), ..netdev("eth2", "") },
            netdev("red", "vrf"),
            Netdev { master: Some(7), ..netdev("eth3", "") },
            Netdev { mac: None, is_layer3: true, ..netdev("wg0", "wireguard") },
            netdev("toll2", "tun"),
            netdev("toll2b", "tun"),
            netdev("tollgate", "tun"),
            Netdev { mac: None, ..netdev("ib0", "ipoib") },
            Netdev { mac: None, is_layer3: true, ..netdev("vti0", "vti") },
            Netdev { master: Some(5), ..netdev("tap0", "tun") },
            Netdev { master: Some(5), ..netdev("dummy0", "dummy") },
            Netdev { bridge: Some(BridgeSettings::default()), ..netdev("br1", "bridge") },
        ];
        kernel
            .netdevs
            .extend(devices.into_iter().enumerate().map(|(at, dev)| (at as u32 + 1, dev)));
        kernel
    }

    fn result(names: &[&str]) -> String {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let engines = Engines { of_others: Engine::Xdp, ..Engines::default() };
        match find(&kernel(), &names, &engines) {
            Ok(found) => format!("{:?}", found.iter().map(|(index, _)| index).collect::<Vec<_>>()),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn each_mistake_is_one_sentence() {
        assert_eq!(result(&["eth0", "eth1", "eth3"]), "[2, 3, 8]");
        assert_eq!(
            result(&["eth0", "eth9"]),
            "there is no network device eth9; there are eth0, eth1, eth2, eth3, tollgate, tap0 \
             and dummy0"
        );
        assert_eq!(result(&["eth0", "eth0"]), "eth0 is named twice; name each device once");
        assert!(result(&["lo"]).starts_with("lo is the loopback device"));
        assert_eq!(
            result(&["eth0.5"]),
            "eth0.5 is a VLAN of eth0; name eth0, and its VLANs come with it"
        );
        assert_eq!(result(&["br0"]), "[6, 15, 16]", "its ports");
        assert_eq!(result(&["tap0", "br0"]), "[15, 6, 16]", "each once");
        assert!(result(&["br0", "tap0"]).starts_with("tap0 is named twice"));
        assert!(result(&["br1"]).starts_with("br1 is a bridge without devices"));
        let user = Engines::from(Engine::User);
        let refused = find(&kernel(), &["br0".to_owned()], &user).unwrap_err().to_string();
        assert!(refused.contains("(--engine eth2=xdp)"), "{refused}");
        let of_devices = [("br0".to_owned(), Engine::Xdp)].into();
        let engines = Engines { of_devices, ..Engines::default() };
        let refused = find(&kernel(), &["br0".to_owned()], &engines).unwrap_err().to_string();
        assert_eq!(refused, "br0 is a bridge; name the devices that belong to it");
        assert!(result(&["red"]).starts_with("red is a VRF; name the devices"));
        assert_eq!(result(&["eth2"]), "[6]", "a port of a bridge");
        let engines = Engines::from(Engine::User);
        let refused = find(&kernel(), &["eth2".to_owned()], &engines).unwrap_err().to_string();
        assert!(refused.contains("belongs to the bridge br0"), "{refused}");
        assert!(refused.contains("(--engine eth2=xdp)"), "{refused}");
        assert!(result(&["ib0"]).starts_with("ib0 carries no Ethernet (it is of the kind ipoib)"));
        assert!(result(&["vti0"]).starts_with("vti0 carries no Ethernet"));
        assert!(result(&["wg0"]).contains("select that for it (--engine wg0=tc)"));
        for own in ["toll2", "toll2b"] {
            assert!(result(&[own]).contains("Tollway's own"), "{own}");
        }
        assert_eq!(result(&["tollgate"]), "[12]");
    }

    #[test]
    fn each_device_has_an_engine() {
        let of_devices = ["br0", "wg0"].map(|name| (name.to_owned(), Engine::Tc)).into();
        let engines = Engines { of_devices, of_others: Engine::User };
        let names = ["br0", "wg0", "tollgate"].map(str::to_owned);
        let found = [(5, Engine::Tc), (9, Engine::Tc), (12, Engine::User)];
        let found = found.map(|(index, engine)| (index, Choice::selected(engine)));
        assert_eq!(find(&kernel(), &names, &engines), Ok(found.to_vec()));
        let of_bridge = ["dummy0", "tap0"].map(str::to_owned);
        let by_default = find(&kernel(), &of_bridge, &Engines::default()).unwrap();
        assert_eq!(by_default[0].1.engine, Engine::Xdp, "a port of a bridge");
        assert_eq!(by_default[1].1.engine, Engine::Tc, "one whose frames a kernel makes");
    }
}
