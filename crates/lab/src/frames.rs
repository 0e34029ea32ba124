//! Frames for the benchmarks: 64 bytes of Ethernet, tags, IP and UDP.

use tollway_dataplane::wire::checksum;
use tollway_dataplane::wire::eth::ethertype;
use tollway_dataplane::wire::l4;

/// Bytes of a benchmark frame.
pub const FRAME_LEN: usize = 64;

/// A frame to send repeatedly.
pub type Template = [u8; FRAME_LEN];

/// Frames to send in turn.
#[derive(Clone, Debug)]
pub enum Source {
    /// Complete frames.
    Whole(Vec<Template>),
    /// One frame to many IPv4 destinations in host order. A destination takes 4 bytes, so the
    /// frames leave the caches to the tables under test.
    To4(Template, Vec<u32>),
    /// One frame to many IPv6 destinations.
    To6(Template, Vec<u128>),
    /// One frame between many stations: destination and source, each by its [`station`].
    Stations(Template, Vec<[u32; 2]>),
    /// One frame of many IPv4 flows: the frame, the bytes before its IP header, and the flows.
    Flows4(Template, usize, Vec<Flow4>),
}

/// An IPv4 flow, host order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow4 {
    /// Source address.
    pub src: u32,
    /// Destination address.
    pub dst: u32,
    /// Source and destination port.
    pub ports: (u16, u16),
    /// Transport protocol.
    pub protocol: u8,
}

impl Source {
    /// The number of frames.
    #[must_use]
    pub const fn len(&self) -> usize {
        match self {
            Self::Whole(templates) => templates.len(),
            Self::To4(_, destinations) => destinations.len(),
            Self::To6(_, destinations) => destinations.len(),
            Self::Stations(_, pairs) => pairs.len(),
            Self::Flows4(_, _, flows) => flows.len(),
        }
    }

    /// Says whether there are no frames.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes frame `number`, which is below [`Source::len`].
    #[inline(always)]
    pub fn write(&self, number: usize, frame: &mut Template) {
        match self {
            Self::Whole(templates) => *frame = templates[number],
            Self::To4(template, destinations) => {
                *frame = *template;
                let dst = destinations[number];
                frame[30..34].copy_from_slice(&dst.to_be_bytes());
                // The template's destination is 0.0.0.0, so its checksum lacks only the new
                // destination.
                let field = u32::from(u16::from_be_bytes([frame[24], frame[25]]));
                let sum = (field ^ 0xffff) + (dst >> 16) + (dst & 0xffff);
                let sum = (sum & 0xffff) + (sum >> 16);
                let sum = (sum & 0xffff) + (sum >> 16);
                frame[24..26].copy_from_slice(&(sum as u16 ^ 0xffff).to_be_bytes());
            }
            Self::To6(template, destinations) => {
                *frame = *template;
                frame[38..54].copy_from_slice(&destinations[number].to_be_bytes());
            }
            Self::Stations(template, pairs) => {
                *frame = *template;
                let [dst, src] = pairs[number].map(station);
                frame[..6].copy_from_slice(&dst);
                frame[6..12].copy_from_slice(&src);
            }
            Self::Flows4(template, l3, flows) => {
                *frame = *template;
                let flow = flows[number];
                let Some(packet) = frame[*l3..].first_chunk_mut() else { return };
                flow.write(packet);
            }
        }
    }
}

impl Flow4 {
    /// Writes the flow into a packet without addresses, of protocol 0, whose checksum is correct.
    #[inline(always)]
    fn write(self, packet: &mut [u8; 24]) {
        packet[9] = self.protocol;
        packet[12..16].copy_from_slice(&self.src.to_be_bytes());
        packet[16..20].copy_from_slice(&self.dst.to_be_bytes());
        packet[20..22].copy_from_slice(&self.ports.0.to_be_bytes());
        packet[22..24].copy_from_slice(&self.ports.1.to_be_bytes());
        let field = u32::from(u16::from_be_bytes([packet[10], packet[11]]));
        let words = [self.src >> 16, self.src & 0xffff, self.dst >> 16, self.dst & 0xffff];
        let sum = words.iter().sum::<u32>() + u32::from(self.protocol) + (field ^ 0xffff);
        let sum = (sum & 0xffff) + (sum >> 16);
        let sum = (sum & 0xffff) + (sum >> 16);
        packet[10..12].copy_from_slice(&(sum as u16 ^ 0xffff).to_be_bytes());
    }
}

/// The Ethernet address of a station.
#[inline(always)]
#[must_use]
pub fn station(number: u32) -> [u8; 6] {
    let [a, b, c, d] = number.to_be_bytes();
    [2, 0, a, b, c, d]
}

/// Makes a frame for [`Source::Flows4`]. Returns it and the number of bytes before its IP header.
#[must_use]
pub fn blank4(dst_mac: [u8; 6], src_mac: [u8; 6], tags: &[(u16, u16)]) -> (Template, usize) {
    let l3 = 14 + 4 * tags.len();
    let mut template = udp(dst_mac, src_mac, tags, Addresses::V4(0, 0), (0, 0));
    // The checksum is that of protocol 0.
    template[l3 + 9] = 0;
    template[l3 + 10..l3 + 12].fill(0);
    let sum = !checksum::sum(&template[l3..l3 + 20]);
    template[l3 + 10..l3 + 12].copy_from_slice(&sum.to_be_bytes());
    (template, l3)
}

/// Source and destination addresses of a frame's IP packet.
#[derive(Clone, Copy, Debug)]
pub enum Addresses {
    /// IPv4, host order.
    V4(u32, u32),
    /// IPv6.
    V6(u128, u128),
}

/// Makes a UDP frame from `src_mac` to `dst_mac`. `tags` are (protocol, VLAN id), outermost first.
/// The UDP checksum stays zero. A tagged IPv6 packet ends after its header, for lack of room.
#[must_use]
pub fn udp(
    dst_mac: [u8; 6],
    src_mac: [u8; 6],
    tags: &[(u16, u16)],
    addresses: Addresses,
    ports: (u16, u16),
) -> Template {
    let mut bytes = Vec::with_capacity(FRAME_LEN);
    bytes.extend_from_slice(&dst_mac);
    bytes.extend_from_slice(&src_mac);
    for (protocol, vid) in tags {
        bytes.extend_from_slice(&protocol.to_be_bytes());
        bytes.extend_from_slice(&vid.to_be_bytes());
    }
    let room = FRAME_LEN - bytes.len() - 2;
    match addresses {
        Addresses::V4(src, dst) => {
            bytes.extend_from_slice(&ethertype::IPV4.to_be_bytes());
            bytes.extend_from_slice(&ipv4(src, dst, room as u16));
        }
        Addresses::V6(src, dst) => {
            let payload = room as u16 - 40;
            // A tagged frame has no room for a UDP header.
            let next = if payload < 8 { l4::NO_NEXT_HEADER } else { l4::UDP };
            bytes.extend_from_slice(&ethertype::IPV6.to_be_bytes());
            bytes.extend_from_slice(&ipv6(src, dst, payload, next));
            if payload < 8 {
                bytes.resize(FRAME_LEN, 0);
            }
        }
    }
    if bytes.len() == FRAME_LEN {
        return padded(&bytes);
    }
    let udp_len = (FRAME_LEN - bytes.len()) as u16;
    for field in [ports.0, ports.1, udp_len, 0] {
        bytes.extend_from_slice(&field.to_be_bytes());
    }
    padded(&bytes)
}

fn padded(bytes: &[u8]) -> Template {
    let mut template = [0; FRAME_LEN];
    template[..bytes.len()].copy_from_slice(bytes);
    template
}

fn ipv4(src: u32, dst: u32, total_len: u16) -> [u8; 20] {
    let mut header = [0; 20];
    header[0] = 0x45;
    header[2..4].copy_from_slice(&total_len.to_be_bytes());
    header[8] = 64;
    header[9] = l4::UDP;
    header[12..16].copy_from_slice(&src.to_be_bytes());
    header[16..20].copy_from_slice(&dst.to_be_bytes());
    let sum = !checksum::sum(&header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    header
}

fn ipv6(src: u128, dst: u128, payload_len: u16, next: u8) -> [u8; 40] {
    let mut header = [0; 40];
    header[0] = 0x60;
    header[4..6].copy_from_slice(&payload_len.to_be_bytes());
    header[6] = next;
    header[7] = 64;
    header[8..24].copy_from_slice(&src.to_be_bytes());
    header[24..40].copy_from_slice(&dst.to_be_bytes());
    header
}

/// A small generator of pseudorandom numbers (xorshift64*). Every run gets the same numbers.
#[derive(Clone, Debug)]
pub struct Xorshift(u64);

impl Xorshift {
    /// Starts from any seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// Starts from a seed that a user chose. Neighbouring seeds give unrelated numbers.
    #[must_use]
    pub const fn seeded(seed: u64) -> Self {
        // splitmix64 maps different numbers to different numbers. 0 is the one state that never
        // changes.
        let mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        match mixed ^ mixed >> 31 {
            0 => Self(0x9e37_79b9_7f4a_7c15),
            state => Self(state),
        }
    }

    /// The next number.
    pub const fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_seed_has_numbers_of_its_own() {
        let first = |seed| Xorshift::seeded(seed).next();
        let numbers: std::collections::HashSet<_> = (0..10_000).map(first).collect();
        assert_eq!(numbers.len(), 10_000);
        // The one number that splitmix64 maps to 0.
        assert_ne!(first(0_u64.wrapping_sub(0x9e37_79b9_7f4a_7c15)), 0);
    }
}
