//! Devices in other network namespaces on top of devices of this one. A macvlan or ipvlan that was moved to
//! another namespace, or created there, still takes frames of the lower device.
//!
//! Only namespaces that have a number here (`ip netns list-id`) can be queried (`IFLA_TARGET_NETNSID`), and
//! only with `CAP_NET_ADMIN` in them. The kernel numbers a namespace when a device is moved there from here,
//! or when a device there has its peer or its lower device here.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use crate::kernel::Ifindex;
use crate::netlink::{has_generic_xdp, link_body};
use tollway_linux::netlink::QuerySocket;
use tollway_linux::netlink::{find, push};

const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWNSID: u16 = 88;
const RTM_GETNSID: u16 = 90;
const NETNSA_NSID: u16 = 1;
const NETNSA_FD: u16 = 3;
const IFLA_IFNAME: u16 = 3;
const IFLA_LINK: u16 = 5;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_XDP: u16 = 43;
const IFLA_TARGET_NETNSID: u16 = 46;
/// Bytes of `struct ifinfomsg`, and of `struct rtgenmsg` with its padding.
const IFINFO: usize = 16;
const RTGEN: usize = 4;

/// A device in another namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ForeignUpper {
    /// The device of this namespace below it.
    pub lower: Ifindex,
    /// Its kind.
    pub kind: String,
    /// Its name there.
    pub name: String,
    /// The number of its namespace.
    pub namespace: i32,
    /// It has an XDP program in generic mode.
    pub generic_xdp: bool,
}

/// A device as its namespace reports it.
#[derive(Debug, PartialEq, Eq)]
struct DeviceReport {
    ifindex: Ifindex,
    name: String,
    kind: Option<String>,
    lower: Option<Ifindex>,
    /// The namespace of the device below, if that is another.
    lower_in: Option<i32>,
    generic_xdp: bool,
}

/// The devices on top of devices of this namespace.
///
/// # Errors
/// The kernel refused.
pub(super) fn foreign_uppers(route: &mut QuerySocket) -> io::Result<BTreeSet<ForeignUpper>> {
    let namespaces = route.list(RTM_GETNSID, &[0; RTGEN], |kind, body| {
        (kind == RTM_NEWNSID).then(|| number(body)).flatten()
    })?;
    let mut found = Vec::new();
    for namespace in namespaces {
        match route.list(RTM_GETLINK, &request(namespace), |kind, body| {
            (kind == RTM_NEWLINK).then(|| device_report(body)).flatten()
        }) {
            Ok(devices) => found.extend(uppers(namespace, devices)),
            Err(error) if is_closed(&error) => {}
            Err(error) => return Err(error),
        }
    }
    if found.is_empty() {
        return Ok(BTreeSet::new());
    }
    // This query comes last: the lists above make the kernel number this namespace.
    let own = own_number(route)?;
    let here = |(lower_in, upper): (Option<i32>, ForeignUpper)| {
        (lower_in.is_none_or(|id| Some(id) == own) && Some(upper.namespace) != own).then_some(upper)
    };
    Ok(found.into_iter().filter_map(here).collect())
}

/// Says whether a query about a namespace is forbidden, or the namespace has gone.
fn is_closed(error: &io::Error) -> bool {
    [libc::EACCES, libc::EPERM, libc::EINVAL, libc::ENOENT, libc::EOPNOTSUPP]
        .iter()
        .any(|code| error.raw_os_error() == Some(*code))
}

/// A namespace's number from the body of an `RTM_NEWNSID`.
fn number(body: &[u8]) -> Option<i32> {
    let number = find(body, RTGEN, NETNSA_NSID)?.value;
    Some(i32::from_ne_bytes(*number.first_chunk()?)).filter(|number| *number >= 0)
}

/// This namespace's own number, if it has one.
fn own_number(route: &mut QuerySocket) -> io::Result<Option<i32>> {
    let own = File::open("/proc/thread-self/ns/net")?;
    let mut body = vec![0; RTGEN];
    push(&mut body, NETNSA_FD, &own.as_raw_fd().to_ne_bytes());
    Ok(number(&route.query(RTM_GETNSID, &body)?))
}

/// The query for all devices of a namespace.
fn request(namespace: i32) -> Vec<u8> {
    let mut body = link_body(0);
    push(&mut body, IFLA_TARGET_NETNSID, &namespace.to_ne_bytes());
    body
}

fn device_report(body: &[u8]) -> Option<DeviceReport> {
    let ifindex = u32::from_ne_bytes(*body.get(4..)?.first_chunk()?);
    // The message is truncated otherwise.
    body.get(..IFINFO)?;
    let info = find(body, IFINFO, IFLA_LINKINFO).map(|info| info.value).unwrap_or_default();
    let lower = find(body, IFINFO, IFLA_LINK).and_then(|link| link.u32());
    let lower_in = find(body, IFINFO, IFLA_LINK_NETNSID);
    let lower_in = lower_in.and_then(|id| id.value.first_chunk().copied());
    Some(DeviceReport {
        ifindex,
        name: find(body, IFINFO, IFLA_IFNAME)?.text(),
        kind: find(info, 0, IFLA_INFO_KIND).map(|kind| kind.text()),
        lower: lower.filter(|index| *index != 0),
        lower_in: lower_in.map(i32::from_ne_bytes),
        generic_xdp: find(body, IFINFO, IFLA_XDP).is_some_and(has_generic_xdp),
    })
}

/// Devices of a namespace on top of those of others, with the namespace of the lower device. `None` if the
/// kernel does not report it, as for an ipvtap. The caller then assumes this namespace, unless the device's
/// own namespace has a device of that number.
fn uppers(namespace: i32, devices: Vec<DeviceReport>) -> Vec<(Option<i32>, ForeignUpper)> {
    let own: BTreeSet<Ifindex> = devices.iter().map(|device| device.ifindex).collect();
    let upper = |device: DeviceReport| {
        let lower = device.lower?;
        let is_upper = device.lower_in.is_some() || !own.contains(&lower);
        let kind = device.kind.unwrap_or_else(|| "device".to_owned());
        let DeviceReport { name, generic_xdp, .. } = device;
        let upper = ForeignUpper { lower, kind, name, namespace, generic_xdp };
        is_upper.then_some((device.lower_in, upper))
    };
    devices.into_iter().filter_map(upper).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message about a device of a kind, on one of another namespace or of its own.
    fn message(ifindex: u32, kind: &str, lower: u32, lower_in: Option<i32>) -> Vec<u8> {
        let mut body = vec![0; IFINFO];
        body[4..8].copy_from_slice(&ifindex.to_ne_bytes());
        push(&mut body, IFLA_IFNAME, format!("c{ifindex}\0").as_bytes());
        push(&mut body, IFLA_LINK, &lower.to_ne_bytes());
        let mut info = Vec::new();
        push(&mut info, IFLA_INFO_KIND, format!("{kind}\0").as_bytes());
        push(&mut body, IFLA_LINKINFO, &info);
        if let Some(id) = lower_in {
            push(&mut body, IFLA_LINK_NETNSID, &id.to_ne_bytes());
        }
        body
    }

    #[test]
    fn devices_on_those_of_other_namespaces() {
        let all = [
            message(1, "macvlan", 2, Some(7)),
            message(3, "macvlan", 1, None),
            message(4, "ipvtap", 9, None),
            message(5, "dummy", 0, None),
        ];
        let all = uppers(8, all.iter().filter_map(|body| device_report(body)).collect());
        let upper = |kind: &str, name: &str, lower| ForeignUpper {
            lower,
            kind: kind.to_owned(),
            name: name.to_owned(),
            namespace: 8,
            generic_xdp: false,
        };
        assert_eq!(all, [(Some(7), upper("macvlan", "c1", 2)), (None, upper("ipvtap", "c4", 9))]);
        let whole = message(1, "macvlan", 2, Some(7));
        (0..IFINFO).for_each(|end| assert_eq!(device_report(&whole[..end]), None, "{end}"));
    }

    #[test]
    fn numbers_of_namespaces() {
        let of = |id: i32| {
            let mut body = vec![0; RTGEN];
            push(&mut body, NETNSA_NSID, &id.to_ne_bytes());
            body
        };
        assert_eq!(number(&of(3)), Some(3));
        assert_eq!(number(&of(-1)), None, "it has none (NETNSA_NSID_NOT_ASSIGNED)");
        assert_eq!(number(&of(3)[..8]), None);
    }
}
