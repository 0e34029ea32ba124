//! Packet sockets: whole frames in and out of a device (packet(7)).

#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A device of this namespace, as a wire that frames are put on and taken off.
pub struct Wire {
    socket: File,
    buffer: Vec<u8>,
}

impl Wire {
    /// A wire by the device's number.
    pub fn open(index: i32) -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        let all = (libc::ETH_P_ALL as u16).to_be();
        // SAFETY: it takes numbers only.
        let number = unsafe { libc::socket(libc::AF_PACKET, kind, i32::from(all)) };
        if number < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the socket was made just now, and nobody else has it.
        let socket = unsafe { OwnedFd::from_raw_fd(number) };
        // SAFETY: a structure of integers, for which all zeros is a value.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = all;
        address.sll_ifindex = index;
        let len = size_of::<libc::sockaddr_ll>() as u32;
        // SAFETY: the address lives as long as the call, and is as long as said.
        let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) };
        if bound < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { socket: File::from(socket), buffer: vec![0; 1 << 16] })
    }

    /// Puts a frame on the wire.
    pub fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        self.socket.write_all(frame)
    }

    /// Takes the next frame that has come, if there is one.
    pub fn receive(&mut self) -> io::Result<Option<Vec<u8>>> {
        match self.socket.read(&mut self.buffer) {
            Ok(len) => Ok(Some(self.buffer[..len].to_vec())),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}
