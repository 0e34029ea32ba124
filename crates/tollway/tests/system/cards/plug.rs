//! The cards of two cables, their near ends at the router and their far ends at two hosts.

use std::fs;
use std::path::{Path, PathBuf};

use crate::namespaces::{Host, sh};
use crate::router::Net;

/// Returns the device with an Ethernet address.
fn device(mac: &str) -> String {
    let devices = fs::read_dir("/sys/class/net").unwrap().map(|device| device.unwrap().path());
    let has = |device: &Path| {
        fs::read_to_string(device.join("address")).is_ok_and(|address| address.trim() == mac)
    };
    let found = devices.into_iter().find(|device| has(device));
    name(&found.unwrap_or_else(|| panic!("no card {mac}")))
}

fn name(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

/// Configures the addresses at an end of a cable.
fn configure(own: impl Fn(String), device: &str, cable: u8, last: u8) {
    own(format!("ip address add 10.0.{cable}.{last}/24 dev {device}"));
    own(format!("ip address add fd00:{cable}::{last}/64 dev {device} nodad"));
    own(format!("ip link set {device} up"));
}

/// Sets up the card at the near end of a cable for the router.
fn near(name: &str, cable: u8) {
    let card = device(&format!("02:00:00:00:00:0{name}"));
    sh(&format!("ip link set {card} name r{name}"));
    configure(|line| drop(sh(&line)), &format!("r{name}"), cable, 1);
}

/// Sets up the cards of both cables. Returns the hosts at their far ends.
pub fn plug() -> Net {
    for family in ["ipv4.ip_forward", "ipv6.conf.all.forwarding"] {
        sh(&format!("sysctl -qw net.{family}=1"));
    }
    let net = Net::of(Host::new(), Host::new());
    for (host, name, cable) in [(&net.a, "a", 1), (&net.b, "b", 2)] {
        let far = device(&format!("02:00:00:00:0{cable}:02"));
        near(name, cable);
        sh(&format!("ip link set {far} name h{name}"));
        sh(&format!("ip link set h{name} netns {}", host.0.0.id()));
        host.sh("ip link set lo up");
        configure(|line| drop(host.sh(&line)), &format!("h{name}"), cable, 2);
        host.sh(&format!("ip route add default via 10.0.{cable}.1"));
        host.sh(&format!("ip route add default via fd00:{cable}::1"));
    }
    net
}

/// Returns the driver of the second cable's near end.
pub fn driver() -> PathBuf {
    fs::canonicalize("/sys/class/net/rb/device/driver").unwrap()
}

/// Unbinds the driver from the second cable's near end and binds it again. The kernel makes a new
/// device.
pub fn rebind() {
    let (device, driver) = (fs::canonicalize("/sys/class/net/rb/device").unwrap(), driver());
    for door in ["unbind", "bind"] {
        fs::write(driver.join(door), name(&device)).unwrap();
    }
    near("b", 2);
}
