//! Generic netlink's family for network devices, `netdev` (`Documentation/netlink/specs/netdev.yaml`, Linux 6.3).

use std::io;
use std::num::NonZeroU32;
use std::os::fd::{AsRawFd, RawFd};

use netlink_packet_core::NLMSG_ERROR;
use netlink_sys::protocols::NETLINK_GENERIC;
use netlink_sys::{Socket, SocketAddr};
use tollway_linux::netlink::{self, Attribute, Message, find, push};

/// `NLMSG_MIN_TYPE`: the family that lists the others.
const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const CTRL_ATTR_MCAST_GROUPS: u16 = 7;
const CTRL_ATTR_MCAST_GRP_NAME: u16 = 1;
const CTRL_ATTR_MCAST_GRP_ID: u16 = 2;
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
/// Bytes of `genlmsghdr`.
const GENERAL: usize = 4;

/// Generic netlink's family for network devices.
pub(super) struct Netdev {
    requests: Socket,
    changes: Socket,
    family: u16,
}

impl Netdev {
    /// Opens the family.
    ///
    /// # Errors
    /// `NotFound`: the kernel is older than 6.3.
    pub(super) fn open() -> io::Result<Self> {
        let (requests, changes) = (socket()?, socket()?);
        let mut name = b"netdev".to_vec();
        name.push(0);
        let message = request(GENL_ID_CTRL, CTRL_CMD_GETFAMILY, (CTRL_ATTR_FAMILY_NAME, &name));
        let answer = query(&requests, &message)?;
        let family = find(&answer, GENERAL, CTRL_ATTR_FAMILY_ID).and_then(number);
        let family = family.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))? as u16;
        let groups = find(&answer, GENERAL, CTRL_ATTR_MCAST_GROUPS);
        for group in groups.iter().flat_map(Attribute::nested) {
            let part = |kind| find(group.value, 0, kind);
            let is_mgmt =
                part(CTRL_ATTR_MCAST_GRP_NAME).is_some_and(|name| name.value == b"mgmt\0");
            let id = part(CTRL_ATTR_MCAST_GRP_ID).filter(|_| is_mgmt);
            if let Some(id) = id.and_then(|id| id.u32()) {
                changes.add_membership(id)?;
            }
        }
        changes.set_non_blocking(true)?;
        Ok(Self { requests, changes, family })
    }

    /// The socket that is readable when a device has changed.
    pub(super) fn changes(&self) -> RawFd {
        self.changes.as_raw_fd()
    }

    /// Reads all messages about changed devices.
    pub(super) fn skip_changes(&self) {
        let mut buffer = Vec::with_capacity(8192);
        while self.changes.recv(&mut buffer, 0).is_ok() {
            buffer.clear();
        }
    }

    /// The XDP features that a device reports; none if the kernel does not report them.
    pub(super) fn features(&self, ifindex: NonZeroU32) -> u64 {
        let index = ifindex.get().to_ne_bytes();
        let message = request(self.family, NETDEV_CMD_DEV_GET, (NETDEV_A_DEV_IFINDEX, &index));
        let Ok(answer) = query(&self.requests, &message) else { return 0 };
        find(&answer, GENERAL, NETDEV_A_DEV_XDP_FEATURES).and_then(number).unwrap_or(0)
    }
}

fn socket() -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_GENERIC)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    Ok(socket)
}

/// A request with one attribute.
fn request(family: u16, command: u8, (kind, value): (u16, &[u8])) -> Vec<u8> {
    const VERSION: u8 = 1;
    let mut body = vec![command, VERSION, 0, 0];
    push(&mut body, kind, value);
    netlink::request(family, 0, 0, &body)
}

/// Sends a request and returns the body of the answer.
fn query(socket: &Socket, message: &[u8]) -> io::Result<Vec<u8>> {
    socket.send(message, 0)?;
    let (answer, _) = socket.recv_from_full()?;
    let (message, _) = Message::cut(&answer).ok_or(io::ErrorKind::InvalidData)?;
    if message.kind == NLMSG_ERROR {
        let error = message.error();
        return Err(error.unwrap_or_else(|| io::Error::from_raw_os_error(libc::EPROTO)));
    }
    Ok(message.body.to_vec())
}

/// A number of 2, 4 or 8 bytes.
fn number(attribute: Attribute<'_>) -> Option<u64> {
    match *attribute.value {
        [a, b] => Some(u16::from_ne_bytes([a, b]).into()),
        [a, b, c, d] => Some(u32::from_ne_bytes([a, b, c, d]).into()),
        _ => Some(u64::from_ne_bytes(attribute.value.try_into().ok()?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_its_command_and_its_attribute() {
        let message = request(7, 1, (3, &[1, 2]));
        assert_eq!(message.len(), 28);
        let (message, _) = Message::cut(&message).unwrap();
        assert_eq!((message.kind, &message.body[..GENERAL]), (7, &[1, 1, 0, 0][..]));
        assert_eq!(find(message.body, GENERAL, 3).and_then(number), Some(0x0201));
        assert_eq!(number(Attribute { kind: 3, value: &[1] }), None);
    }
}
