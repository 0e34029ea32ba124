//! Properties of a network interface.

use std::io;
use std::os::fd::BorrowedFd;

use tollway_linux::sys;
use tollway_linux::sys::netdevice::{self, Call};
use tollway_net::Mac;

/// The properties of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) index: i32,
    /// None of a layer-3 device.
    pub(super) mac: Mac,
    pub(super) mtu: u16,
    pub(super) up: bool,
}

/// Queries the properties of an Ethernet interface by name; the error comes with the failed request. Any
/// socket will do.
pub(super) fn query(
    socket: BorrowedFd<'_>,
    device: &str,
) -> Result<Facts, (&'static str, io::Error)> {
    let facts = query_any(socket, device)?;
    facts.mac.if_any().map(|_| facts).ok_or_else(|| ("kind", io::ErrorKind::Unsupported.into()))
}

/// As [`query`], of an Ethernet interface or a layer-3 device.
pub(super) fn query_any(
    socket: BorrowedFd<'_>,
    device: &str,
) -> Result<Facts, (&'static str, io::Error)> {
    let mut request = sys::request(device).map_err(|error| ("name", error))?;
    let mut call = |call, what| {
        let done = netdevice::interface_call(socket, call, &mut request);
        done.map(|()| request).map_err(|error| (what, error))
    };
    let index = netdevice::index(&call(Call::Index, "index")?);
    let (kind, mac) = netdevice::address(&call(Call::Address, "address")?);
    let mtu = netdevice::mtu(&call(Call::Mtu, "MTU")?);
    let flags = netdevice::flags(&call(Call::Flags, "flags")?);
    let mac = match kind {
        libc::ARPHRD_ETHER => Mac::of_ethernet(mac),
        kind if netdevice::is_layer3(kind) => Mac::NONE,
        _ => return Err(("kind", io::ErrorKind::Unsupported.into())),
    };
    let mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
    Ok(Facts { index, mac, mtu, up: flags & libc::IFF_UP != 0 })
}

/// The current name of an interface, by ifindex.
pub(super) fn name(socket: BorrowedFd<'_>, index: i32) -> io::Result<String> {
    let mut request = netdevice::numbered(index);
    netdevice::interface_call(socket, Call::Name, &mut request)?;
    Ok(netdevice::name(&request))
}

/// The number of its receive queues, as in `ethtool --show-channels`; 1 if unknown.
pub(super) fn queues(socket: BorrowedFd<'_>, device: &str) -> u32 {
    netdevice::receive_queues(socket, device).unwrap_or(1).max(1)
}

/// Whether the kernel forwards what arrives there, IPv4 or IPv6 (`forwarding` in ip-sysctl).
pub(super) fn kernel_forwards(device: &str) -> bool {
    ["ipv4", "ipv6"].into_iter().any(|family| {
        let file = format!("/proc/sys/net/{family}/conf/{device}/forwarding");
        std::fs::read_to_string(file).is_ok_and(|text| text.trim() != "0")
    })
}

/// Whether this error means that the interface does not exist.
pub(super) fn is_absent(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENXIO))
}
