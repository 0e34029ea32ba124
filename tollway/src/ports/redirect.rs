//! Which devices take frames that an XDP program on another device redirects to them.
//!
//! Not every device does, and it may change: a veth does while its peer has XDP or GRO. What a device
//! that does not is given is dropped without a word, so the express lane has to know. The kernel tells
//! in generic netlink, family `netdev` (`Documentation/netlink/specs/netdev.yaml`, Linux 6.3).
//!
//! Limits: a kernel before 6.3 does not tell; no device is taken to be able there.

use std::collections::BTreeMap;
use std::io;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::sync::Arc;
use std::thread::JoinHandle;

use netlink_packet_core::{NLA_HEADER_SIZE, NLM_F_REQUEST, NLMSG_ERROR, NlasIterator};
use netlink_sys::protocols::NETLINK_GENERIC;
use netlink_sys::{Socket, SocketAddr};
use tollway_dataplane::id::PortId;

use super::{interface, sys};
use crate::express::Ports;

/// All is asked anew at least so often, in case that a message was lost.
const PERIOD_MS: i32 = 500;

/// `NLMSG_MIN_TYPE`: the family that names the others.
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
/// `NETDEV_XDP_ACT_NDO_XMIT`: takes redirected frames.
const NDO_XMIT: u64 = 1 << 2;
/// Bytes of `nlmsghdr` and `genlmsghdr`.
const HEADERS: usize = 16 + 4;

/// A thread that tells the express lane where it can send.
pub struct Watch {
    /// Closing it ends the thread.
    wake: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Looks at the devices of some ports, once before this returns, and then whenever one changes.
    ///
    /// # Errors
    /// The kernel can not be asked.
    pub fn start(devices: Vec<(PortId, String)>, ports: Arc<Ports>) -> io::Result<Self> {
        let mut netdev = match Netdev::open() {
            Ok(netdev) => netdev,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                tracing::warn!(
                    "no express lane: this kernel does not tell which devices take redirected \
                     frames (Linux 6.3 does)"
                );
                return Ok(Self { wake: None, thread: None });
            }
            Err(error) => return Err(error),
        };
        netdev.look(&devices, &ports);
        let (wake, woken) = UnixStream::pair()?;
        let thread = std::thread::Builder::new().name("redirect".to_owned()).spawn(move || {
            while netdev.wait(&woken) {
                netdev.look(&devices, &ports);
            }
        })?;
        Ok(Self { wake: Some(wake), thread: Some(thread) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.wake = None;
        if let Some(thread) = self.thread.take() {
            // It has nothing to say.
            let _ = thread.join();
        }
    }
}

/// Says if a device takes redirected frames; false where the kernel does not tell.
pub(crate) fn takes_redirected(device: &str) -> bool {
    let Ok(netdev) = Netdev::open() else { return false };
    let facts = interface::ask(netdev.control.as_fd(), device).ok();
    let index = facts.and_then(|facts| NonZeroU32::new(facts.index as u32));
    index.is_some_and(|index| netdev.takes_redirected(index))
}

/// The kernel's family of network devices.
struct Netdev {
    requests: Socket,
    changes: Socket,
    /// For questions about interfaces.
    control: UnixDatagram,
    family: u16,
    told: BTreeMap<PortId, bool>,
}

impl Netdev {
    fn open() -> io::Result<Self> {
        let (requests, changes) = (socket()?, socket()?);
        let mut name = b"netdev".to_vec();
        name.push(0);
        let message = request(GENL_ID_CTRL, CTRL_CMD_GETFAMILY, (CTRL_ATTR_FAMILY_NAME, &name));
        let answer = ask(&requests, &message)?;
        let body = answer.get(HEADERS..).unwrap_or_default();
        let family = find(body, CTRL_ATTR_FAMILY_ID).and_then(number);
        let family = family.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))? as u16;
        let groups = find(body, CTRL_ATTR_MCAST_GROUPS).unwrap_or_default();
        for (_, group) in attributes(groups) {
            let is_mgmt = find(group, CTRL_ATTR_MCAST_GRP_NAME) == Some(b"mgmt\0");
            if let Some(id) =
                find(group, CTRL_ATTR_MCAST_GRP_ID).filter(|_| is_mgmt).and_then(number)
            {
                changes.add_membership(id as u32)?;
            }
        }
        changes.set_non_blocking(true)?;
        let control = UnixDatagram::unbound()?;
        Ok(Self { requests, changes, control, family, told: BTreeMap::new() })
    }

    /// Sleeps until a device has changed or it is time to look again; false where nobody wants to
    /// know any more.
    fn wait(&self, woken: &UnixStream) -> bool {
        let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut fds = [entry(woken.as_raw_fd()), entry(self.changes.as_raw_fd())];
        // Too early is no harm.
        let _ = sys::wait(&mut fds, PERIOD_MS);
        let mut buffer = Vec::with_capacity(8192);
        while self.changes.recv(&mut buffer, 0).is_ok() {
            buffer.clear();
        }
        fds[0].revents == 0
    }

    /// Tells the lane what each port's device can do now.
    fn look(&mut self, devices: &[(PortId, String)], ports: &Ports) {
        for (port, device) in devices {
            let facts = interface::ask(self.control.as_fd(), device).ok();
            let index = facts.and_then(|facts| NonZeroU32::new(facts.index as u32));
            // One that is down drops what it is given; the path counts that.
            let is_down = facts.is_some_and(|facts| !facts.up);
            let exit = index.filter(|index| !is_down && self.takes_redirected(*index));
            ports.set_exit(*port, exit);
            if is_down {
                continue;
            }
            if self.told.insert(*port, exit.is_some()) != Some(exit.is_some()) {
                if exit.is_some() {
                    tracing::debug!("{device} takes frames of the express lane");
                } else {
                    tracing::info!(
                        "{device} takes no redirected frames, so what leaves there keeps out of the \
                         express lane; a veth takes them while its peer has XDP or `gro on`"
                    );
                }
            }
        }
    }

    fn takes_redirected(&self, ifindex: NonZeroU32) -> bool {
        let index = ifindex.get().to_ne_bytes();
        let message = request(self.family, NETDEV_CMD_DEV_GET, (NETDEV_A_DEV_IFINDEX, &index));
        let Ok(answer) = ask(&self.requests, &message) else { return false };
        let body = answer.get(HEADERS..).unwrap_or_default();
        let features = find(body, NETDEV_A_DEV_XDP_FEATURES).and_then(number);
        features.is_some_and(|features| features & NDO_XMIT != 0)
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
    let mut message = vec![0; HEADERS];
    message.extend_from_slice(&(value.len() as u16 + 4).to_ne_bytes());
    message.extend_from_slice(&kind.to_ne_bytes());
    message.extend_from_slice(value);
    message.resize(message.len().next_multiple_of(4), 0);
    let len = message.len() as u32;
    message[..4].copy_from_slice(&len.to_ne_bytes());
    message[4..6].copy_from_slice(&family.to_ne_bytes());
    message[6..8].copy_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    message[HEADERS - 4] = command;
    message[HEADERS - 3] = 1;
    message
}

/// Sends a request and returns the answer, headers included.
fn ask(socket: &Socket, message: &[u8]) -> io::Result<Vec<u8>> {
    socket.send(message, 0)?;
    let (answer, _) = socket.recv_from_full()?;
    let kind = answer.get(4..6).map_or(0, |kind| u16::from_ne_bytes([kind[0], kind[1]]));
    if kind == NLMSG_ERROR {
        let code = answer.get(16..20).and_then(|code| code.try_into().ok()).map(i32::from_ne_bytes);
        return Err(io::Error::from_raw_os_error(-code.unwrap_or(-libc::EPROTO)));
    }
    Ok(answer)
}

/// The attributes in a stretch of bytes; what is cut short ends them.
fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let whole = NlasIterator::new(bytes).map_while(Result::ok);
    whole.map(|nla| {
        let (kind, len) = (nla.kind(), usize::from(nla.length()));
        (kind, nla.into_inner().get(NLA_HEADER_SIZE..len).unwrap_or_default())
    })
}

fn find(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(found, _)| *found == kind).map(|(_, value)| value)
}

/// A number of 2, 4 or 8 bytes.
fn number(bytes: &[u8]) -> Option<u64> {
    match *bytes {
        [a, b] => Some(u16::from_ne_bytes([a, b]).into()),
        [a, b, c, d] => Some(u32::from_ne_bytes([a, b, c, d]).into()),
        _ => Some(u64::from_ne_bytes(bytes.try_into().ok()?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_that_are_cut_short_end_the_list() {
        let message = request(7, 1, (3, &[1, 2]));
        assert_eq!(message.len(), 28);
        let body = &message[HEADERS..];
        assert_eq!(attributes(body).collect::<Vec<_>>(), [(3, &[1, 2][..])]);
        let nested = request(7, 1, (3 | 0x8000, &[1, 2]));
        assert_eq!(
            find(&nested[HEADERS..], 3),
            Some(&[1, 2][..]),
            "the upper bits are no part of it"
        );
        assert_eq!(number(&[1, 2]), Some(0x0201));
        assert_eq!(number(&[1]), None);
        for cut in 0..6 {
            assert_eq!(attributes(&body[..cut]).count(), 0, "{cut}");
        }
        assert_eq!(attributes(&[0; 8]).count(), 0, "a length of nothing");
    }
}
