//! Flags of TCP (RFC 9293, section 3.1), in the byte of the header that has them.

/// The sender has no more data.
pub const FIN: u8 = 0x01;
/// Synchronises sequence numbers.
pub const SYN: u8 = 0x02;
/// Resets the connection.
pub const RST: u8 = 0x04;
/// The acknowledgement number counts.
pub const ACK: u8 = 0x10;
