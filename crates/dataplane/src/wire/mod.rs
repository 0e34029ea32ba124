//! Header views of the hot path: fixed windows of bytes, so that no length can be wrong and nothing
//! panics.
//!
//! Each view reads a `[u8; N]` at constant offsets, so that the compiler drops every bounds check. The
//! stages decide whether the bytes belong to the packet (`validate`).

pub mod checksum;
pub mod eth;
pub mod ipv4;
pub mod ipv6;
pub mod l4;
pub mod tcp_flags;
pub mod translate;
pub mod vlan;

/// Two bytes in network order.
#[inline(always)]
#[must_use]
pub const fn be16<const N: usize>(bytes: &[u8; N], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Four bytes in network order.
#[inline(always)]
#[must_use]
pub const fn be32<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Eight bytes as one little-endian number, for sums and comparisons that do not depend on byte order.
#[inline(always)]
#[must_use]
pub fn word64<const N: usize>(bytes: &[u8; N], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word))
}

/// Four bytes as one little-endian number.
#[inline(always)]
#[must_use]
pub fn word32<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |word| u32::from_le_bytes(*word))
}
