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
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        let all = (libc::ETH_P_ALL as u16).to_be();
        // SAFETY: the call takes numbers only.
        let number = unsafe { libc::socket(libc::AF_PACKET, kind, i32::from(all)) };
        if number < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the socket is new, and nobody else owns it.
        let socket = unsafe { OwnedFd::from_raw_fd(number) };
        // SAFETY: a structure of integers, for which all zeros is a value.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = all;
        address.sll_ifindex = index;
        let len = size_of::<libc::sockaddr_ll>() as u32;
        // SAFETY: the address lives as long as the call, and has the given length.
        let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) };
        if bound < 0 {
            return Err(io::Error::last_os_error());
        }
        let on: libc::c_int = 1;
        let (level, name, len) = (libc::SOL_PACKET, libc::PACKET_AUXDATA, size_of_val(&on) as u32);
        // SAFETY: the number lives as long as the call, and has the given length.
        let set = unsafe {
            libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const on).cast(), len)
        };
        if set < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { socket: File::from(socket), buffer: vec![0; 1 << 16] })
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
