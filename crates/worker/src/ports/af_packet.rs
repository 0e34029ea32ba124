//! A network interface of this machine, through packet sockets (packet(7)).
//!
//! Frames arrive by a ring shared with the kernel (TPACKET_V2), and leave by `sendmmsg` past the
//! queueing discipline. The port restores what a frame lacks: the VLAN tag that the kernel removed,
//! and a checksum that a sender on the same machine left to a network card.
//!
//! Limits:
//!
//! - Frames that the kernel merged (GRO) or did not segment yet (GSO) count as too big: no wire has
//!   room for them.
//! - The kernel refuses a frame that exceeds the device's MTU, and the frames sent together with it
//!   are lost as well. So links get an MTU that leaves room for their tags. The port does not
//!   notice a reduction of the MTU while Tollway runs.
//! - A failed port drops what is sent to it, and is checked every second.

use std::borrow::Cow;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use tollway_dataplane::burst::{BURST, Burst};
use tollway_dataplane::counters::Traffic;
use tollway_dataplane::frame::{Descriptor, Umem};
use tollway_dataplane::port::Port;
use tollway_dataplane::wire::eth::ethertype;

use super::interface::{self, Facts, is_absent};
use super::{Device, PortError, State, checksum};
use tollway_linux::sys;
use tollway_linux::sys::netdevice::{self, Ring};
use tollway_net::Mac;

/// Approximate size of a receive ring in bytes: 8 ms of 10 Gbit/s.
const RING_BYTES: usize = 8 << 20;
/// Bytes that may be in transit through the kernel.
const SEND_BYTES: libc::c_int = 4 << 20;
/// Bytes that the kernel allocates at once for a ring; any frame fits.
const BLOCK_BYTES: usize = 1 << 16;
/// Bytes before a frame in its slot: header, address, alignment, `virtio_net_hdr`.
const SLOT_OVERHEAD: usize = 128;
/// Bytes of a `virtio_net_hdr`, which directly precedes the frame.
const VNET_LEN: usize = 10;
/// The interval between checks of a failed port.
const RETRY_NS: u64 = 1_000_000_000;
/// Bytes of the two Ethernet addresses; a tag follows them.
const ADDRESSES: usize = 12;

/// A port on a network interface.
pub struct AfPacket {
    port: String,
    device: String,
    how: String,
    room: usize,
    state: State,
    open: Option<Open>,
    mac: Mac,
    mtu: u16,
    oversized: Traffic,
    has_warned_merged: bool,
    missed: u64,
    next_look_ns: u64,
    /// The interface's last known ifindex.
    index: i32,
}

/// The sockets of a working interface.
struct Open {
    ring: Ring,
    next: usize,
    rx: OwnedFd,
    tx: OwnedFd,
}

impl AfPacket {
    /// Opens `device` for frames of up to `room` bytes; an interface that is down is used as soon
    /// as it is up.
    ///
    /// # Errors
    /// No such interface, no Ethernet, no privilege.
    pub fn open(port: &str, device: &str, room: usize) -> Result<Self, PortError> {
        let explain = |(action, error)| explain(port, device, action, error);
        let rx = netdevice::packet_socket(0).map_err(|error| explain(("packet socket", error)))?;
        let facts = interface::query(rx.as_fd(), device).map_err(explain)?;
        let mut this = Self {
            port: port.to_owned(),
            device: device.to_owned(),
            how: "packet socket".to_owned(),
            room,
            state: State::Up,
            open: None,
            mac: facts.mac,
            mtu: facts.mtu,
            oversized: Traffic::default(),
            has_warned_merged: false,
            missed: 0,
            next_look_ns: 0,
            index: facts.index,
        };
        if facts.up {
            this.open = Some(Open::new(&facts, room).map_err(explain)?);
        } else {
            this.fail(State::Down("the interface is down".to_owned()));
        }
        Ok(this)
    }

    /// Records why the port is not of the preferred kind.
    #[must_use]
    pub fn instead_of(mut self, causes: &str) -> Self {
        self.how = format!("packet socket ({causes})");
        self
    }

    /// Enters an error state and logs it once.
    fn fail(&mut self, state: State) {
        self.open = None;
        if self.state == state {
            return;
        }
        let (port, device) = (&self.port, &self.device);
        match &state {
            State::Up => tracing::info!("port {port}: {device} is back"),
            State::Down(why) | State::Gone(why) | State::Detached(why) => tracing::error!(
                "port {port}: {device} passes no frames: {why}; looking for it every second"
            ),
        }
        self.state = state;
    }

    /// Checks whether the interface still is the one that was opened, and up.
    fn look(&mut self) {
        let known = match &self.open {
            Some(open) => interface::query(open.tx.as_fd(), &self.device),
            None => netdevice::packet_socket(0)
                .map_err(|error| ("packet socket", error))
                .and_then(|socket| interface::query(socket.as_fd(), &self.device)),
        };
        match known {
            Ok(facts) if facts.up => self.reopen(&facts),
            Ok(_) => self.fail(State::Down("the interface is down".to_owned())),
            Err((_, error)) if is_absent(&error) => {
                self.fail(State::Gone("the interface is gone".to_owned()));
            }
            Err((action, error)) => self.fail(State::Down(format!("{action}: {error}"))),
        }
    }

    fn reopen(&mut self, facts: &Facts) {
        let working = self.open.as_ref().is_some_and(|open| open.error().is_none());
        if working && facts.index == self.index {
            return;
        }
        self.open = None;
        match Open::new(facts, self.room) {
            Ok(open) => {
                self.open = Some(open);
                self.index = facts.index;
                if self.state != State::Up {
                    tracing::info!("port {}: {} is back", self.port, self.device);
                    self.state = State::Up;
                }
            }
            Err((action, error)) => self.fail(State::Down(format!("{action}: {error}"))),
        }
    }

    fn note_merged(&mut self) {
        if !self.has_warned_merged {
            self.has_warned_merged = true;
            let device = &self.device;
            tracing::warn!(
                "port {}: {device} hands over merged segments, which are dropped as too big; turn \
                 merging off with `ethtool -K {device} gro off lro off`, and for a veth with `tso \
                 off gso off` at its peer",
                self.port
            );
        }
    }
}

pub(super) fn explain(
    port: &str,
    device: &str,
    action: &'static str,
    error: io::Error,
) -> PortError {
    let (port, device) = (port.to_owned(), device.to_owned());
    match error.kind() {
        io::ErrorKind::PermissionDenied => PortError::NoRaw { port, device },
        io::ErrorKind::Unsupported => PortError::NotEthernet { port, device },
        _ if is_absent(&error) => PortError::NoDevice { port, device },
        _ => PortError::System { port, device, action, error },
    }
}

impl Open {
    fn new(facts: &Facts, room: usize) -> Result<Self, (&'static str, io::Error)> {
        let what = |what| move |error| (what, error);
        // Receive nothing before the socket has its options and its interface.
        let rx = netdevice::packet_socket(0).map_err(what("packet socket"))?;
        let set = |option, value: libc::c_int| {
            sys::set_option(rx.as_fd(), libc::SOL_PACKET, option, &value)
        };
        set(libc::PACKET_VERSION, libc::tpacket_versions::TPACKET_V2 as libc::c_int)
            .map_err(what("PACKET_VERSION"))?;
        set(libc::PACKET_VNET_HDR, 1).map_err(what("PACKET_VNET_HDR"))?;
        set(libc::PACKET_IGNORE_OUTGOING, 1).map_err(what("PACKET_IGNORE_OUTGOING"))?;
        let frame_bytes = (room + SLOT_OVERHEAD).next_power_of_two().clamp(2048, BLOCK_BYTES);
        let frames = RING_BYTES / frame_bytes;
        let sizes = libc::tpacket_req {
            tp_block_size: BLOCK_BYTES as u32,
            tp_block_nr: (RING_BYTES / BLOCK_BYTES) as u32,
            tp_frame_size: frame_bytes as u32,
            tp_frame_nr: frames as u32,
        };
        sys::set_option(rx.as_fd(), libc::SOL_PACKET, libc::PACKET_RX_RING, &sizes)
            .map_err(what("PACKET_RX_RING"))?;
        let ring = Ring::map(rx.as_fd(), frames, frame_bytes).map_err(what("ring"))?;
        let promiscuous = libc::packet_mreq {
            mr_ifindex: facts.index,
            mr_type: libc::PACKET_MR_PROMISC as u16,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        sys::set_option(rx.as_fd(), libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &promiscuous)
            .map_err(what("PACKET_ADD_MEMBERSHIP"))?;
        let tx = netdevice::packet_socket(0).map_err(what("packet socket"))?;
        netdevice::bind(tx.as_fd(), facts.index, 0).map_err(what("bind"))?;
        // Not every device works without its queueing discipline; one that does not is only slower.
        let on: libc::c_int = 1;
        let _ = sys::set_option(tx.as_fd(), libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, &on);
        // Room for bursts that the peer has not processed yet; beyond the system's limit if this
        // user may exceed it.
        let room: libc::c_int = SEND_BYTES;
        let _ = sys::set_option(tx.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &room)
            .or_else(|_| sys::set_option(tx.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, &room));
        netdevice::bind(rx.as_fd(), facts.index, libc::ETH_P_ALL).map_err(what("bind"))?;
        Ok(Self { ring, next: 0, rx, tx })
    }

    /// The pending error of the receiving socket, if any.
    fn error(&self) -> Option<io::Error> {
        match sys::get_option(self.rx.as_fd(), libc::SOL_SOCKET, libc::SO_ERROR, 0) {
            Ok(0) => None,
            Ok(code) => Some(io::Error::from_raw_os_error(code)),
            Err(error) => Some(error),
        }
    }

    /// Takes the frame in the ring's next slot; the caller has checked that there is one.
    fn take(&self, umem: &mut Umem, burst: &mut Burst, status: u32) -> Taken {
        let header = self.ring.header(self.next);
        let (at, len) = (usize::from(header.tp_mac), header.tp_len as usize);
        let vnet = self.ring.bytes(self.next, at.wrapping_sub(VNET_LEN), VNET_LEN);
        let [flags, segmented, _, _, _, _, start0, start1, offset0, offset1] = *vnet else {
            return Taken::Oversized(len);
        };
        let tag = (status & libc::TP_STATUS_VLAN_VALID != 0).then(|| {
            let known = status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
            let protocol = if known { header.tp_vlan_tpid } else { ethertype::DOT1Q };
            [protocol.to_be_bytes(), header.tp_vlan_tci.to_be_bytes()]
        });
        let tag = tag.as_ref().map(|tag| tag.as_flattened()).unwrap_or_default();
        let total = len + tag.len();
        if segmented != 0 {
            return Taken::Merged(total);
        }
        if header.tp_snaplen < header.tp_len || total > umem.limit() || len < ADDRESSES {
            return Taken::Oversized(total);
        }
        let bytes = self.ring.bytes(self.next, at, len);
        let (addresses, rest) = bytes.split_at(ADDRESSES.min(bytes.len()));
        let make = |frame: &mut [u8]| {
            frame[..ADDRESSES].copy_from_slice(addresses);
            frame[ADDRESSES..ADDRESSES + tag.len()].copy_from_slice(tag);
            frame[ADDRESSES + tag.len()..].copy_from_slice(rest);
            if flags & NEEDS_CHECKSUM != 0 {
                let start = usize::from(u16::from_ne_bytes([start0, start1])) + tag.len();
                let offset = usize::from(u16::from_ne_bytes([offset0, offset1]));
                checksum::finish(frame, start, offset);
            }
        };
        let Some(frame) = place(umem, total, make) else { return Taken::NoMemory };
        // The burst has room: `receive` takes no more frames than fit.
        let pushed = burst.push(frame.addr, total as u16);
        debug_assert!(pushed);
        Taken::Whole
    }
}

/// Creates a frame of `len` bytes that `make` fills; `None` if no chunk is free.
fn place(umem: &mut Umem, len: usize, make: impl FnOnce(&mut [u8])) -> Option<Descriptor> {
    if len > umem.room() {
        let mut bytes = vec![0; len];
        make(&mut bytes);
        return umem.store(&bytes);
    }
    let addr = umem.alloc()?;
    make(umem.frame_mut(addr, len));
    Some(Descriptor { addr, len: len as u32 })
}

/// VIRTIO_NET_HDR_F_NEEDS_CSUM.
const NEEDS_CHECKSUM: u8 = 1;

/// What became of a frame in the ring's slot.
enum Taken {
    Whole,
    Oversized(usize),
    Merged(usize),
    /// The frame stays in the ring.
    NoMemory,
}

impl Port for AfPacket {
    fn receive(&mut self, umem: &mut Umem, burst: &mut Burst) {
        let mut merged = false;
        let Some(open) = &mut self.open else { return };
        for _ in burst.count..BURST {
            let status = open.ring.status(open.next);
            if status & libc::TP_STATUS_USER == 0 {
                break;
            }
            match open.take(umem, burst, status) {
                Taken::Whole => {}
                Taken::Oversized(len) => self.oversized.add(1, len as u64),
                Taken::Merged(len) => {
                    self.oversized.add(1, len as u64);
                    merged = true;
                }
                Taken::NoMemory => break,
            }
            open.ring.release(open.next);
            open.next = open.next.wrapping_add(1);
        }
        if merged {
            self.note_merged();
        }
    }

    fn transmit(&mut self, umem: &mut Umem, frames: &[Descriptor]) -> usize {
        let Some(open) = &self.open else { return 0 };
        let mut taken = 0;
        for batch in frames.chunks(netdevice::BATCH) {
            let whole: [Cow<'_, [u8]>; netdevice::BATCH] =
                std::array::from_fn(|i| batch.get(i).map(|f| umem.whole(*f)).unwrap_or_default());
            let mut bytes: [&[u8]; netdevice::BATCH] = [&[]; netdevice::BATCH];
            for (slot, frame) in bytes.iter_mut().zip(&whole) {
                *slot = frame;
            }
            // An error means that the first frame was refused; `maintain` notices a dead device.
            let sent = netdevice::send(open.tx.as_fd(), &bytes[..batch.len()]).unwrap_or(0);
            for frame in &batch[..sent] {
                umem.free(frame.addr);
            }
            taken += sent;
            if sent < batch.len() {
                break;
            }
        }
        taken
    }

    fn oversized(&mut self) -> Traffic {
        std::mem::take(&mut self.oversized)
    }
}

impl Device for AfPacket {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.open.as_ref().map(|open| open.rx.as_fd())
    }

    fn state(&self) -> State {
        self.state.clone()
    }

    fn how(&self) -> String {
        self.how.clone()
    }

    fn maintain(&mut self, now_ns: u64) {
        let error = self.open.as_ref().and_then(Open::error);
        if let Some(error) = error {
            // The interface may just be down; `look` finds out.
            tracing::debug!("port {}: {}: {error}", self.port, self.device);
            self.open = None;
        } else if now_ns < self.next_look_ns {
            return;
        }
        self.look();
        self.next_look_ns = now_ns + RETRY_NS;
    }

    fn mac(&self) -> Option<Mac> {
        Some(self.mac)
    }

    fn mtu(&self) -> Option<u16> {
        Some(self.mtu)
    }

    fn missed(&mut self) -> u64 {
        if let Some(open) = &self.open {
            let none = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
            // Reading the statistics resets them.
            let read =
                sys::get_option(open.rx.as_fd(), libc::SOL_PACKET, libc::PACKET_STATISTICS, none);
            self.missed += read.map_or(0, |stats| u64::from(stats.tp_drops));
        }
        self.missed
    }
}
