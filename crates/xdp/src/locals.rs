//! The router's own IPv4 addresses as bits, byte for byte as in `bpf/packet.h`.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, Release};

use super::shared::Shared;

/// Words of a bit for each 16-bit hash.
const WORDS: usize = 1024;

/// A bit for each hash of an own address. A packet's source is looked up in the map of all own addresses only if
/// its bit is set: the lookup costs as much as the rest of the path.
pub(super) struct LocalBits(Shared<AtomicU64>);

impl LocalBits {
    /// Maps the memory of the map.
    pub(super) fn map(map: impl AsFd) -> io::Result<Self> {
        Shared::map(map.as_fd(), WORDS).map(Self)
    }

    /// Sets the bits of these addresses. Call it before they enter the map.
    pub(super) fn add(&self, addresses: impl IntoIterator<Item = Ipv4Addr>) {
        for address in addresses {
            let (word, bit) = place(address);
            self.0[word].fetch_or(bit, Relaxed);
        }
    }

    /// Clears the bits that none of these addresses has. Call it when all others have left the map.
    pub(super) fn keep(&self, addresses: impl IntoIterator<Item = Ipv4Addr>) {
        let mut wanted = [0; WORDS];
        for address in addresses {
            let (word, bit) = place(address);
            wanted[word] |= bit;
        }
        for (word, bits) in self.0.iter().zip(wanted) {
            word.store(bits, Release);
        }
    }
}

/// The word and the bit of an address.
fn place(address: Ipv4Addr) -> (usize, u64) {
    // As the program reads it from the packet.
    let hash = u32::from_ne_bytes(address.octets()).wrapping_mul(0x9e37_79b1) >> 16;
    ((hash >> 6) as usize, 1 << (hash & 63))
}
