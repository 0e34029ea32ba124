//! TUN devices: what this program writes, the kernel receives.

#![allow(unsafe_code, reason = "a TUN device is opened by a request of its own")]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

/// Opens a new TUN device, with more of its flags (`IFF_*`). Reads do not wait, if `polls`.
pub fn tun(name: &str, flags: i32, polls: bool) -> File {
    let mut options = File::options();
    options.read(true).write(true).custom_flags(if polls { libc::O_NONBLOCK } else { 0 });
    let file = options.open("/dev/net/tun").unwrap();
    // SAFETY: a structure of numbers and bytes, for which all zeros is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI | flags) as libc::c_short;
    // SAFETY: the request lives as long as the call, which reads and writes just that.
    let made = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
    file
}
