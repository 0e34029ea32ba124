//! Writes the capture that `make demo` replays if there is no other one. In it, a client talks to a
//! server on the Internet through an office router. It also has an IPv6 host in a VRF, and some odd
//! packets.
//!
//! usage: cargo run --example office_capture FILE

use std::fs::File;
use std::time::Duration;

use pcap_file::pcap::{PcapPacket, PcapWriter};
use tollway_lab::frames::{self, Addresses, Template};

const CLIENT: [u8; 6] = [0xf8, 0x1e, 0xdf, 0xe5, 0x84, 0x3a];
const ROUTER: [u8; 6] = [0x00, 0x1f, 0xf3, 0x3c, 0xe1, 0x13];
const SERVER_SIDE: [u8; 6] = [0x02, 0, 0x5e, 0, 0x53, 1];
const LAB_ROUTER: [u8; 6] = [0x94, 0x3f, 0xc2, 0xd3, 0x52, 0xbd];
const LAB_HOST: [u8; 6] = [0x02, 0, 0, 0, 0, 0x77];
const STRANGER: [u8; 6] = [0x02, 0, 0, 0, 0, 0x99];

const CLIENT4: u32 = 0xac10_0b0c; // 172.16.11.12
const ROUTER4: u32 = 0xac10_0b01; // 172.16.11.1
const SERVER4: u32 = 0xc633_6450; // 198.51.100.80
const LAB6: u128 = 0x2001_4958_15a0_0024_0000_0000_0000_0010;
const SERVER6: u128 = 0x2001_0db8_0050_0000_0000_0000_0000_0080;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: office_capture FILE")?;
    let mut writer = PcapWriter::new(File::create(path)?)?;
    for (number, frame) in frames().iter().enumerate() {
        let time = Duration::from_millis(1_700_000_000_000 + 10 * number as u64);
        writer.write_packet(&PcapPacket::new(time, frame.len() as u32, frame))?;
    }
    Ok(())
}

fn frames() -> Vec<Template> {
    let out = Addresses::V4(CLIENT4, SERVER4);
    let back = Addresses::V4(SERVER4, CLIENT4);
    let lab = Addresses::V6(LAB6, SERVER6);
    let mut frames = Vec::new();
    for flow in 0..10 {
        let port = 40_000 + flow;
        frames.push(frames::udp(ROUTER, CLIENT, &[], out, (port, 443)));
        frames.push(frames::udp(CLIENT, SERVER_SIDE, &[], back, (443, port)));
        frames.push(frames::udp(LAB_ROUTER, LAB_HOST, &[], lab, (port, 443)));
    }
    // To the router itself, to another station, and with a header that was damaged on the way.
    frames.push(frames::udp(ROUTER, CLIENT, &[], Addresses::V4(CLIENT4, ROUTER4), (5353, 53)));
    frames.push(frames::udp(STRANGER, CLIENT, &[], out, (1, 2)));
    let mut damaged = frames::udp(ROUTER, CLIENT, &[], out, (3, 4));
    damaged[30] ^= 0x40;
    frames.push(damaged);
    frames
}
