//! A device of the namespace as a wire onto which a test sends frames (packet(7)).

use std::os::fd::{AsFd, OwnedFd};

use tollway_linux::sys::netdevice;

use crate::namespaces::ifindex;

pub struct Wire(OwnedFd);

impl Wire {
    pub fn open(device: &str) -> Self {
        let socket = netdevice::packet_socket(0).unwrap();
        netdevice::bind(socket.as_fd(), ifindex(device) as i32, 0).unwrap();
        Self(socket)
    }

    pub fn send(&self, frame: &[u8]) {
        assert_eq!(netdevice::send(self.0.as_fd(), &[frame]).unwrap(), 1);
    }
}
