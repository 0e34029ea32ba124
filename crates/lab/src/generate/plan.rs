//! What to send: flows, sizes, and the frames' heads built ahead.

use std::collections::HashSet;
use std::net::IpAddr;

use tollway_dataplane::wire::checksum;

use super::address::Range;
use super::{Error, mark};
use crate::frames::Xorshift;

/// An Ethernet address.
pub type Mac = [u8; 6];
/// Bytes of the frame check sequence. A frame's size includes it; what a device receives does not.
pub const FCS: usize = 4;
/// Additional bytes of a frame on the wire: preamble, delimiter, gap.
pub const WIRE_GAP: usize = 20;
/// The most flows.
pub const MAX_FLOWS: usize = 1 << 20;
/// The most bytes of a head: headers, tags, magic. The rest of a row is zero.
pub const HEAD: usize = 80;
/// The longest frame without its check sequence; it fits into a page and a chunk.
pub const MAX_LEN: usize = 2044;
/// Sizes and shares of the simple IMIX in the usual ratio 7:4:1.
pub const IMIX: [(usize, usize); 3] = [(64, 7), (594, 4), (1518, 1)];

/// A specification of traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Destination MAC address.
    pub dst_mac: Mac,
    /// Source MAC address.
    pub src_mac: Mac,
    /// VLANs, outermost first; at most two.
    pub vlans: Vec<u16>,
    /// Destination addresses.
    pub dst: Range,
    /// Source addresses, of the same family.
    pub src: Range,
    /// Destination ports, first and last.
    pub dst_ports: (u16, u16),
    /// Source ports, first and last.
    pub src_ports: (u16, u16),
    /// Sizes with check sequence, each with its share of frames in a dozen or so.
    pub sizes: Vec<(usize, usize)>,
    /// Number of flows; `None` for every combination in the ranges, at most 1024.
    pub flows: Option<usize>,
    /// Whether UDP has a checksum; over IPv6 it always has.
    pub udp_checksum: bool,
    /// The seed for drawing flows.
    pub seed: u64,
}

/// A flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// Source and destination.
    pub addresses: (IpAddr, IpAddr),
    /// Source and destination port.
    pub ports: (u16, u16),
}

/// Frames' heads, built ahead.
#[derive(Clone, Debug)]
pub struct Plan {
    /// One head for each size of each flow: `rows[flow * sizes + size]`. If UDP has a checksum, its
    /// field has the sum of the constant part.
    pub rows: Vec<[u8; HEAD]>,
    /// Bytes of a frame of each size, without check sequence.
    pub lens: Vec<usize>,
    /// The repeating sequence in which sizes are sent.
    pub order: Vec<u8>,
    /// Offset of the mark.
    pub mark_at: usize,
    /// Whether the UDP checksum must be completed.
    pub udp_checksum: bool,
}

impl Plan {
    /// Builds the heads.
    ///
    /// # Errors
    /// A size leaves no room, the families differ, there are too many flows, or a VLAN id is
    /// invalid.
    pub fn new(spec: &Spec) -> Result<Self, Error> {
        let v6 = spec.dst.is_v6();
        check(spec)?;
        let (l3, udp_checksum) = (14 + 4 * spec.vlans.len(), spec.udp_checksum || v6);
        let mark_at = l3 + if v6 { 48 } else { 28 };
        let smallest = smallest(v6, spec.vlans.len());
        for (size, _) in &spec.sizes {
            if *size < smallest || *size > MAX_LEN + FCS {
                return Err(Error::usage(
                    format!(
                        "cannot send a frame of {size} bytes: headers, sequence number and time take \
                             {smallest} with the check sequence, and {} is the longest",
                        MAX_LEN + FCS
                    ),
                    format!("Say -s {smallest} or more"),
                ));
            }
        }
        let lens: Vec<_> = spec.sizes.iter().map(|(size, _)| size - FCS).collect();
        let flows = flows(spec);
        let heads = flows
            .iter()
            .flat_map(|flow| lens.iter().map(|len| head(spec, flow, (l3, *len), udp_checksum)));
        let (rows, order) = (heads.collect(), order(&spec.sizes));
        Ok(Self { rows, lens, order, mark_at, udp_checksum })
    }

    /// The number of flows.
    #[must_use]
    pub fn flows(&self) -> usize {
        self.rows.len() / self.lens.len().max(1)
    }

    /// Bytes of the longest frame, without check sequence.
    #[must_use]
    pub fn longest(&self) -> usize {
        self.lens.iter().copied().max().unwrap_or(0)
    }

    /// The same plan with complete heads, for frames without number and time.
    #[must_use]
    pub fn without_marks(&self) -> Self {
        let mut plan = self.clone();
        if plan.udp_checksum {
            let field = plan.mark_at - 2;
            for row in &mut plan.rows {
                let sum = u16::from_be_bytes([row[field], row[field + 1]]);
                // Zero means that there is no checksum.
                let checksum = if sum == 0xffff { sum } else { !sum };
                row[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
            }
            plan.udp_checksum = false;
        }
        plan
    }

    /// Average bytes of a frame on the wire, with all overhead.
    #[must_use]
    pub fn wire_bytes(&self) -> f64 {
        let bytes = |size: &u8| self.lens.get(usize::from(*size)).copied().unwrap_or(0);
        let sum: usize = self.order.iter().map(bytes).sum();
        sum as f64 / self.order.len().max(1) as f64 + (FCS + WIRE_GAP) as f64
    }
}

/// The smallest frame that fits everything, with its check sequence.
#[must_use]
pub fn smallest(v6: bool, tags: usize) -> usize {
    14 + 4 * tags + if v6 { 48 } else { 28 } + mark::LEN + FCS
}

fn check(spec: &Spec) -> Result<(), Error> {
    if spec.dst.is_v6() != spec.src.is_v6() {
        let what = "sources and destinations are of different families";
        return Err(Error::usage(what, "Give both of IPv4 or both of IPv6"));
    }
    if let Some(vlan) = spec.vlans.iter().find(|vlan| !(1..=4094).contains(*vlan)) {
        return Err(Error::usage(format!("{vlan} is no VLAN"), "Say one from 1 to 4094"));
    }
    if spec.vlans.len() > 2 {
        return Err(Error::usage("a frame has two VLAN tags at most", "Say --vlan once or twice"));
    }
    if spec.flows.is_some_and(|flows| !(1..=MAX_FLOWS).contains(&flows)) {
        let remedy = format!("Say --flows with a number from 1 to {MAX_FLOWS}");
        return Err(Error::usage("the number of flows is out of range", remedy));
    }
    if spec.dst_ports.0 > spec.dst_ports.1 || spec.src_ports.0 > spec.src_ports.1 {
        let what = "a range of ports ends before it begins";
        return Err(Error::usage(what, "Write the lower port first"));
    }
    if spec.sizes.is_empty() || spec.sizes.iter().any(|(_, share)| !(1..=64).contains(share)) {
        return Err(Error::usage("there is no size to send", "Say -s, or --imix"));
    }
    Ok(())
}

/// The flows. If there are no more than wanted, all in order; else drawn without duplicates.
fn flows(spec: &Spec) -> Vec<Flow> {
    let ranges = Ranges::of(spec);
    let all = ranges.counts.iter().fold(1_u128, |all, count| all.saturating_mul(*count));
    let wanted = spec.flows.unwrap_or(usize::try_from(all.min(1024)).unwrap_or(1));
    let mut rng = Xorshift::seeded(spec.seed);
    if all <= wanted as u128 {
        // If there are fewer than wanted, they repeat.
        return (0..wanted as u128).map(|number| ranges.flow(number)).collect();
    }
    if all <= 4 * wanted as u128 {
        // Drawing until a flow is new would take long towards the end, so shuffle as far as needed.
        let mut numbers: Vec<u128> = (0..all).collect();
        for at in 0..wanted {
            let other = at + (rng.next() % (numbers.len() - at) as u64) as usize;
            numbers.swap(at, other);
        }
        return numbers[..wanted].iter().map(|number| ranges.flow(*number)).collect();
    }
    let (mut seen, mut flows) = (HashSet::with_capacity(wanted), Vec::with_capacity(wanted));
    while flows.len() < wanted {
        let flow = ranges.draw(&mut rng);
        if seen.insert(flow) {
            flows.push(flow);
        }
    }
    flows
}

/// The ranges that flows are drawn from, and their sizes: addresses and ports, sources first.
struct Ranges<'a> {
    spec: &'a Spec,
    counts: [u128; 4],
}

impl<'a> Ranges<'a> {
    fn of(spec: &'a Spec) -> Self {
        let ports = |(first, last): (u16, u16)| u128::from(last - first) + 1;
        let (from, to) = (ports(spec.src_ports), ports(spec.dst_ports));
        Self { spec, counts: [spec.src.count(), spec.dst.count(), from, to] }
    }

    /// The flow with that number.
    fn flow(&self, mut number: u128) -> Flow {
        self.made(self.counts.map(|count| {
            let own = number % count;
            number /= count;
            own
        }))
    }

    /// A random flow.
    fn draw(&self, rng: &mut Xorshift) -> Flow {
        let mut wide = || u128::from(rng.next()) << 64 | u128::from(rng.next());
        self.made(self.counts.map(|count| wide() % count))
    }

    fn made(&self, numbers: [u128; 4]) -> Flow {
        let port = |first: u16, number: u128| first.wrapping_add(number as u16);
        let [src, dst, from, to] = numbers;
        Flow {
            addresses: (self.spec.src.at(src), self.spec.dst.at(dst)),
            ports: (port(self.spec.src_ports.0, from), port(self.spec.dst_ports.0, to)),
        }
    }
}

/// A frame's head, up to its mark's magic.
fn head(spec: &Spec, flow: &Flow, (l3, len): (usize, usize), udp_checksum: bool) -> [u8; HEAD] {
    let mut bytes = Vec::with_capacity(HEAD);
    bytes.extend_from_slice(&spec.dst_mac);
    bytes.extend_from_slice(&spec.src_mac);
    for (index, vlan) in spec.vlans.iter().enumerate() {
        let outer = spec.vlans.len() == 2 && index == 0;
        bytes.extend_from_slice(&(if outer { 0x88a8_u16 } else { 0x8100 }).to_be_bytes());
        bytes.extend_from_slice(&vlan.to_be_bytes());
    }
    let udp_len = match flow.addresses {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let mut header = [0; 20];
            header[0] = 0x45;
            header[2..4].copy_from_slice(&((len - l3) as u16).to_be_bytes());
            header[6] = 0x40;
            (header[8], header[9]) = (64, 17);
            header[12..16].copy_from_slice(&src.octets());
            header[16..].copy_from_slice(&dst.octets());
            let sum = !checksum::sum(&header);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            bytes.extend_from_slice(&[8, 0]);
            bytes.extend_from_slice(&header);
            len - l3 - 20
        }
        (src, dst) => {
            bytes.extend_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0]);
            bytes.extend_from_slice(&((len - l3 - 40) as u16).to_be_bytes());
            bytes.extend_from_slice(&[17, 64]);
            for address in [src, dst] {
                let IpAddr::V6(address) = address else { continue };
                bytes.extend_from_slice(&address.octets());
            }
            len - l3 - 40
        }
    } as u16;
    let udp = bytes.len();
    for field in [flow.ports.0, flow.ports.1, udp_len, 0, mark::MAGIC] {
        bytes.extend_from_slice(&field.to_be_bytes());
    }
    if udp_checksum {
        let sum = constant_sum(&bytes, (l3, udp), udp_len);
        bytes[udp + 6..udp + 8].copy_from_slice(&sum.to_be_bytes());
    }
    let mut row = [0; HEAD];
    row[..bytes.len()].copy_from_slice(&bytes);
    row
}

/// The sum over UDP's pseudo-header, header and magic, to which a frame's time and number are
/// added.
fn constant_sum(bytes: &[u8], (l3, udp): (usize, usize), udp_len: u16) -> u16 {
    let addresses = if udp - l3 == 40 { l3 + 8 } else { l3 + 12 };
    let mut summed = bytes[addresses..udp].to_vec();
    summed.extend_from_slice(&[0, 17]);
    summed.extend_from_slice(&udp_len.to_be_bytes());
    summed.extend_from_slice(&bytes[udp..]);
    checksum::sum(&summed)
}

/// The sequence of sizes, spread evenly: next is always the size furthest behind its share.
fn order(sizes: &[(usize, usize)]) -> Vec<u8> {
    let all: usize = sizes.iter().map(|(_, share)| share).sum();
    let mut sent = vec![0_usize; sizes.len()];
    let next = |position: usize| {
        let behind =
            |index: usize| (sizes[index].1 * (position + 1)) as i64 - (sent[index] * all) as i64;
        let index = (0..sizes.len()).rev().max_by_key(|index| behind(*index)).unwrap_or(0);
        sent[index] += 1;
        index as u8
    };
    (0..all).map(next).collect()
}

#[cfg(test)]
#[path = "plan_tests.rs"]
pub(crate) mod tests;
