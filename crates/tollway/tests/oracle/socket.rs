//! Packet sockets: whole frames in and out of a device (packet(7)).

#![allow(unsafe_code)]
// Not every test program uses all of it.
#![allow(dead_code)]

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::namespaces::Host;

/// A device of this namespace as a wire, onto which the test sends frames and from which it takes
/// them.
pub struct Wire {
    socket: File,
    buffer: Vec<u8>,
}

impl Wire {
    /// Opens a wire on the device with this interface index.
    pub fn open(index: i32) -> io::Result<Self> {
        let all = (libc::ETH_P_ALL as u16).to_be();
        Self::with_option(index, all, libc::PACKET_AUXDATA)
    }

    /// Opens a wire that only takes frames, each behind a `struct virtio_net_hdr`: it says what is left to the card.
    pub fn open_offloads(index: i32) -> io::Result<Self> {
        Self::with_option(index, 0, libc::PACKET_VNET_HDR)
    }

    /// Opens a wire that receives frames of an ethertype, in network byte order, with an option of packet sockets.
    fn with_option(index: i32, ethertype_be: u16, name: libc::c_int) -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: the call takes numbers only.
        let number = unsafe { libc::socket(libc::AF_PACKET, kind, i32::from(ethertype_be)) };
        if number < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the socket is new, and nobody else owns it.
        let socket = unsafe { OwnedFd::from_raw_fd(number) };
        // SAFETY: a structure of integers, for which all zeros is a value.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = ethertype_be;
        address.sll_ifindex = index;
        let len = size_of::<libc::sockaddr_ll>() as u32;
        // SAFETY: the address lives as long as the call, and has the given length.
        let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) };
        if bound < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut wire = Self { socket: File::from(socket), buffer: vec![0; 1 << 16] };
        wire.switch_on(name)?;
        Ok(wire)
    }

    /// Leaves out frames that others send onto the wire.
    pub fn without_outgoing(mut self) -> io::Result<Self> {
        /// `PACKET_IGNORE_OUTGOING` (Linux 4.20).
        const IGNORE_OUTGOING: libc::c_int = 23;
        self.switch_on(IGNORE_OUTGOING).map(|()| self)
    }

    fn switch_on(&mut self, option: libc::c_int) -> io::Result<()> {
        let (on, level): (libc::c_int, _) = (1, libc::SOL_PACKET);
        let (number, len) = (self.socket.as_raw_fd(), size_of_val(&on) as u32);
        // SAFETY: the number lives as long as the call, and has the given length.
        let set = unsafe { libc::setsockopt(number, level, option, (&raw const on).cast(), len) };
        if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Opens a wire on a device in a process's network namespace.
    pub fn open_in(process: u32, index: i32) -> io::Result<Self> {
        within(process, move || Self::open(index))
    }

    /// Opens a wire on a host's device.
    pub fn at(host: &Host, device: &str) -> Self {
        Self::open_in(host.0.0.id(), host.ifindex(device).cast_signed()).unwrap()
    }

    /// Sends a frame onto the wire.
    pub fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        self.socket.write_all(frame)
    }

    /// Takes the next frame that has arrived, if there is one. The kernel strips the outermost VLAN
    /// tag from a frame; this function puts it back.
    pub fn receive(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut piece =
            libc::iovec { iov_base: self.buffer.as_mut_ptr().cast(), iov_len: self.buffer.len() };
        let mut beside = [0_u64; 8];
        // SAFETY: a structure of integers and pointers, for which all zeros is a value.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &raw mut piece;
        message.msg_iovlen = 1;
        message.msg_control = beside.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&beside);
        // SAFETY: what the message points to lives as long as the call, and has the given length.
        let len = unsafe { libc::recvmsg(self.socket.as_raw_fd(), &raw mut message, 0) };
        if len < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
        }
        let mut frame = self.buffer[..len as usize].to_vec();
        if let Some(tag) = tag_of(&message)
            && frame.len() >= 12
        {
            frame.splice(12..12, tag);
        }
        Ok(Some(frame))
    }
}

/// Runs a function in a process's network namespace.
pub fn within<T: Send + 'static>(
    process: u32,
    does: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let namespace = File::open(format!("/proc/{process}/ns/net"))?;
    // On a thread of its own, as a thread that enters a namespace stays there.
    let enter = move || {
        // SAFETY: the descriptor lives as long as the call, which takes numbers only.
        let entered = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) };
        if entered < 0 { Err(io::Error::last_os_error()) } else { does() }
    };
    std::thread::spawn(enter).join().unwrap()
}

/// The tag that the kernel has stripped from a frame.
fn tag_of(message: &libc::msghdr) -> Option<[u8; 4]> {
    // SAFETY: the kernel has filled in the message.
    let header = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: the pointer is null, or points to a header within the message's control data.
    let header = unsafe { header.as_ref() }?;
    if (header.cmsg_level, header.cmsg_type) != (libc::SOL_PACKET, libc::PACKET_AUXDATA) {
        return None;
    }
    // SAFETY: the header is one of the kernel's, with its data behind it.
    let data = unsafe { libc::CMSG_DATA(header) }.cast::<libc::tpacket_auxdata>();
    // SAFETY: data of this type is this structure.
    let data = unsafe { data.read_unaligned() };
    let has = |bit: u32| data.tp_status & bit != 0;
    let protocol = if has(libc::TP_STATUS_VLAN_TPID_VALID) { data.tp_vlan_tpid } else { 0x8100 };
    let ([a, b], [c, d]) = (protocol.to_be_bytes(), data.tp_vlan_tci.to_be_bytes());
    has(libc::TP_STATUS_VLAN_VALID).then_some([a, b, c, d])
}
