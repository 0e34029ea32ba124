//! The start of an IP header, for rules that write into it.

/// Bytes of an IP header that rules may write into.
pub(super) const HEAD: usize = 12;

/// The first bytes of an IP header, up to the checksum of IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) bytes: [u8; HEAD],
    pub(super) version: u8,
}

impl Head {
    /// Writes the DSCP. A correct IPv4 checksum stays correct, and a wrong one stays wrong
    /// (`nft_payload_csum_inet`; RFC 1624, eqn. 3).
    pub(super) fn set_dscp(&mut self, dscp: u8) {
        let bytes = &mut self.bytes;
        if self.version == 6 {
            bytes[0] = bytes[0] & 0xf0 | dscp >> 2;
            bytes[1] = bytes[1] & 0x3f | dscp << 6;
            return;
        }
        let before = u16::from_be_bytes([bytes[0], bytes[1]]);
        bytes[1] = bytes[1] & 3 | dscp << 2;
        let after = u16::from_be_bytes([bytes[0], bytes[1]]);
        let sum = u16::from_be_bytes([bytes[10], bytes[11]]);
        let mut sum = u32::from(!sum) + u32::from(!before) + u32::from(after);
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        bytes[10..].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    }

    /// The IPv4 type of service or IPv6 traffic class.
    pub(super) fn traffic_class(&self) -> u8 {
        match self.version {
            6 => self.bytes[0] << 4 | self.bytes[1] >> 4,
            _ => self.bytes[1],
        }
    }
}
