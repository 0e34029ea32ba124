//! A router between two memory ports, and its clocks a packet: what examples measure with.

use std::net::Ipv4Addr;

use tollway_dataplane::clock;
use tollway_dataplane::frame::{Descriptor, Umem};
use tollway_dataplane::id::PortId;
use tollway_dataplane::port::MemoryPort;
use tollway_dataplane::prefix::RoutePrefix;
use tollway_dataplane::tables::{Tables, TablesError};
use tollway_dataplane::worker::Worker;

/// Packets that the router forwards at once.
const BURST: usize = 64;
/// Bytes of a frame.
const FRAME: usize = 60;

/// Tables of two ports, and a default route by the second.
pub fn tables() -> Result<Tables, TablesError> {
    let mut tables = Tables::new();
    let vrf = tables.add_vrf()?;
    tables.add_port([2, 0, 0, 0, 0, 1], vrf, 1500)?;
    let (_, link) = tables.add_port([2, 0, 0, 0, 0, 2], vrf, 1500)?;
    let gateway = Ipv4Addr::new(192, 0, 2, 1).into();
    let next = tables.set_neigh(link, gateway, Some([6; 6]))?;
    tables.insert(vrf, RoutePrefix::new(Ipv4Addr::UNSPECIFIED.into(), 0), next)?;
    Ok(tables)
}

/// Memory for the frames of a burst.
pub fn umem() -> Option<Umem> {
    Umem::new(4096, 2048)
}

/// Sends so many packets through the router; returns the clocks a packet of the median turn, so that
/// other work on the machine does not count. `flow` gives the flow's number for each packet.
///
/// # Panics
/// The router does not forward all packets.
pub fn clocks(
    worker: &mut Worker,
    packets: usize,
    flow: impl Fn(usize) -> u32,
    now_ns: &mut u64,
) -> f64 {
    let mut ports = [MemoryPort::new(BURST), MemoryPort::new(BURST)];
    let mut spent = Vec::with_capacity(packets / BURST);
    let mut sent = 0;
    for burst in 0..packets / BURST {
        let frames: Vec<Descriptor> = (0..BURST)
            .filter_map(|lane| {
                let addr = worker.umem.alloc()?;
                write(worker.umem.frame_mut(addr, FRAME), flow(burst * BURST + lane));
                Some(Descriptor { addr, len: FRAME as u32 })
            })
            .collect();
        ports[0].inject_all(&frames);
        *now_ns += 500;
        let start = clock::now();
        worker.turn(PortId(0), &mut ports, *now_ns);
        spent.push(clock::now() - start);
        for frame in ports[1].take_sent() {
            sent += 1;
            worker.umem.free(frame.addr);
        }
    }
    assert_eq!(sent, packets, "packets were forwarded");
    spent.sort_unstable();
    spent[spent.len() / 2] as f64 / BURST as f64
}

/// The median of a figure over all rounds.
pub fn median<Round>(rounds: &[Round], of: impl Fn(&Round) -> f64) -> f64 {
    let mut values: Vec<_> = rounds.iter().map(of).collect();
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Writes a UDP packet to port 53; the flow's number is its source address and port.
fn write(frame: &mut [u8], flow: u32) {
    frame.fill(0);
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14..24].copy_from_slice(&[0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17]);
    frame[26..30].copy_from_slice(&(0x0a00_0000 | flow >> 8).to_be_bytes());
    frame[30..34].copy_from_slice(&[198, 51, 100, 7]);
    frame[34..38].copy_from_slice(&[flow as u8, 9, 0, 53]);
    let words = frame[14..34].chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
    let sum: u32 = words.sum();
    let fold = |sum: u32| (sum & 0xffff) + (sum >> 16);
    // The first time may carry.
    let folded = fold(fold(sum));
    frame[24..26].copy_from_slice(&(!folded as u16).to_be_bytes());
}
