//! Creates TAP devices.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixDatagram;

use super::netdevice::{self, Call};

/// The TAP driver.
pub const TUN: &str = "/dev/net/tun";

/// Creates a TAP device or attaches to it, sets its MTU and brings it up; the error comes with the
/// failed action.
pub fn attach(device: &str, mtu: u16) -> Result<File, (&'static str, io::Error)> {
    attach_after(device, mtu, || ())
}

/// As [`attach`], for a device on which the kernel sends nothing by itself.
pub fn attach_mute(device: &str, mtu: u16) -> Result<File, (&'static str, io::Error)> {
    attach_after(device, mtu, || {
        // Before the device is up, as it has an address from then on. Without IPv6 there is nothing
        // to disable.
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{device}/disable_ipv6"), "1");
    })
}

fn attach_after(
    device: &str,
    mtu: u16,
    prepare: impl FnOnce(),
) -> Result<File, (&'static str, io::Error)> {
    let what = |what| move |error| (what, error);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(TUN)
        .map_err(what(TUN))?;
    let mut request = super::request(device).map_err(what("name"))?;
    netdevice::set_flags(&mut request, libc::IFF_TAP | libc::IFF_NO_PI);
    netdevice::interface_call(file.as_fd(), Call::MakeTap, &mut request)
        .map_err(what("TUNSETIFF"))?;
    // Any kind of socket accepts interface requests.
    let socket = UnixDatagram::unbound().map_err(what("socket"))?;
    let socket = socket.as_fd();
    set_mtu(socket, device, mtu)?;
    prepare();
    let mut request = super::request(device).map_err(what("name"))?;
    netdevice::interface_call(socket, Call::Flags, &mut request).map_err(what("flags"))?;
    let flags = netdevice::flags(&request);
    if flags & libc::IFF_UP == 0 {
        netdevice::set_flags(&mut request, flags | libc::IFF_UP);
        netdevice::interface_call(socket, Call::SetFlags, &mut request)
            .map_err(what("setting it up"))?;
    }
    Ok(file)
}

/// Sets the MTU of a device.
pub fn set_mtu(
    socket: BorrowedFd<'_>,
    device: &str,
    mtu: u16,
) -> Result<(), (&'static str, io::Error)> {
    let what = |what| move |error| (what, error);
    let mut request = super::request(device).map_err(what("name"))?;
    netdevice::interface_call(socket, Call::Mtu, &mut request).map_err(what("MTU"))?;
    if netdevice::mtu(&request) != i32::from(mtu) {
        netdevice::set_mtu(&mut request, i32::from(mtu));
        netdevice::interface_call(socket, Call::SetMtu, &mut request)
            .map_err(what("setting the MTU"))?;
    }
    Ok(())
}
