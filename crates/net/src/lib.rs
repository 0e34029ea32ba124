//! What a port and the links on it have for every module: Ethernet addresses, VLAN protocols, and which of a
//! link's packets take the kernel path.

/// An Ethernet address; all zeros for a device that has none ([`Mac::NONE`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Of a layer-3 device, whose packets have no Ethernet header.
    pub const NONE: Self = Self([0; 6]);

    /// The address of an Ethernet device. A bridge without members has zeros (`br_mac_zero`): it gets another address,
    /// to which nobody sends.
    #[must_use]
    pub const fn of_ethernet(octets: [u8; 6]) -> Self {
        match octets {
            [0, 0, 0, 0, 0, 0] => Self([0, 0, 0, 0, 0, 1]),
            _ => Self(octets),
        }
    }

    /// The address, unless it is that of a layer-3 device.
    #[must_use]
    pub fn if_any(self) -> Option<Self> {
        (self != Self::NONE).then_some(self)
    }

    /// Reads six pairs of hexadecimal digits, between colons or hyphens.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let separator = if text.contains('-') { '-' } else { ':' };
        let mut octets = [0; 6];
        let mut parts = text.split(separator);
        for octet in &mut octets {
            let part = parts.next()?;
            // `from_str_radix` would accept a sign.
            if part.len() != 2 || !part.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return None;
            }
            *octet = u8::from_str_radix(part, 16).ok()?;
        }
        parts.next().is_none().then_some(Self(octets))
    }
}

impl std::fmt::Display for Mac {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [a, b, c, d, e, f] = self.0;
        write!(formatter, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
    }
}

/// The ethertype in front of a VLAN tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum VlanProtocol {
    /// 802.1Q, 0x8100.
    #[default]
    Dot1q,
    /// 802.1ad, 0x88a8.
    Dot1ad,
}

impl VlanProtocol {
    /// The ethertype itself.
    #[must_use]
    pub const fn ethertype(self) -> u16 {
        match self {
            Self::Dot1q => 0x8100,
            Self::Dot1ad => 0x88a8,
        }
    }
}

/// Packets that take the kernel path behind a port, although the router could forward them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct KernelPath {
    /// IPv4.
    pub v4: bool,
    /// IPv6.
    pub v6: bool,
    /// Fragments of IPv4, which the kernel reassembles; the XDP program of an `af_xdp` port passes
    /// them.
    pub fragments4: bool,
    /// Fragments of IPv6 likewise, and all packets with an extension header.
    pub fragments6: bool,
    /// What leaves by a port with a tc program, if it arrives on one with an XDP program.
    pub tc_exits: bool,
    /// IPv4 packets that are not of an established connection, which the kernel tracks.
    pub tracked4: bool,
    /// The same of IPv6.
    pub tracked6: bool,
}
