//! Requests to a device's driver (`SIOCETHTOOL`, include/uapi/linux/ethtool.h).

#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;

/// Commands: `ETHTOOL_GDRVINFO`, `ETHTOOL_GSTRINGS`,
/// `ETHTOOL_GSSET_INFO`, `ETHTOOL_GFEATURES`.
const GET_DRIVER: u32 = 0x3;
const GET_STRINGS: u32 = 0x1b;
const GET_SIZES: u32 = 0x37;
const GET_FEATURES: u32 = 0x3a;
/// `ETH_SS_FEATURES`: the features' names.
const FEATURE_NAMES: u32 = 4;
/// Words of a name (`ETH_GSTRING_LEN`), and more features than there are.
const NAME_WORDS: usize = 8;
const MOST_FEATURES: usize = 4096;

/// The features that are on at a device, by name (`ethtool -k`).
pub(super) fn features(device: &str) -> io::Result<Vec<String>> {
    // `struct ethtool_sset_info`: the requested sets as a mask of 64 bits, then the size of each.
    let [low, high] = split(1 << FEATURE_NAMES);
    let mut sizes = [GET_SIZES, 0, low, high, 0];
    ethtool(device, &mut sizes)?;
    let count = sizes[4] as usize;
    if count == 0 || count > MOST_FEATURES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut names = vec![0; 3 + count * NAME_WORDS];
    names[..2].copy_from_slice(&[GET_STRINGS, FEATURE_NAMES]);
    ethtool(device, &mut names)?;
    // `struct ethtool_get_features_block`: available, requested, active, never changed.
    let blocks = count.div_ceil(32);
    let mut on = vec![0; 2 + blocks * 4];
    on[..2].copy_from_slice(&[GET_FEATURES, blocks as u32]);
    ethtool(device, &mut on)?;
    let is_on = |at: usize| on[2 + at / 32 * 4 + 2] >> (at % 32) & 1 != 0;
    let name = |at: usize| text(&names[3 + at * NAME_WORDS..][..NAME_WORDS]);
    Ok((0..count).filter(|at| is_on(*at)).map(name).collect())
}

/// The name of a device's driver (`ethtool -i`).
pub(super) fn driver(device: &str) -> io::Result<String> {
    // `struct ethtool_drvinfo`: the command, then the name with its terminating zero.
    let mut answer = [0; 49];
    answer[0] = GET_DRIVER;
    ethtool(device, &mut answer)?;
    Ok(text(&answer[1..=NAME_WORDS]))
}

/// The text in words of memory, up to its terminating zero.
fn text(words: &[u32]) -> String {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// A 64-bit number as words in memory.
const fn split(number: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = number.to_ne_bytes();
    [u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h])]
}

/// Sends a request to a device; the answer overwrites `value`, which has room for it.
fn ethtool(device: &str, value: &mut [u32]) -> io::Result<()> {
    // Any kind of socket accepts interface requests.
    let socket = std::os::unix::net::UnixDatagram::unbound()?;
    let mut request = tollway_linux::sys::request(device)?;
    request.ifr_ifru.ifru_data = value.as_mut_ptr().cast();
    let pointer: *mut libc::ifreq = &raw mut request;
    // SAFETY: `value` is as long as its command requires, or as the kernel announced its answer to
    // be; it outlives the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, pointer) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
