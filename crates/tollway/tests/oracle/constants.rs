//! The values of which a case's rules and packets are made, so that packets match rules.

use crate::dice::Dice;
use crate::net::{self, DEVICES, PEERS};

/// The constants of a case.
#[derive(Clone, Debug)]
pub struct Constants {
    /// IPv4 addresses by device: those of its neighbours, and those behind it.
    pub four: [Vec<u32>; DEVICES.len()],
    /// IPv6 addresses, likewise.
    pub six: [Vec<u128>; DEVICES.len()],
    /// Ports.
    pub ports: Vec<u16>,
    /// Lengths of packets.
    pub lengths: Vec<u16>,
    /// Whether connection tracking reassembles fragments, so that the test sends none.
    pub tracked: bool,
    /// Whether the test sends fragments other than the first.
    pub later_fragments: bool,
    /// Whether IPv4 packets have options that routers fill in.
    pub filled_options: bool,
}

/// Ports that many rules name.
const PORTS: [u16; 10] = [0, 1, 22, 53, 80, 443, 1024, 8080, 40_000, 65_535];

impl Constants {
    /// Draws the constants of a case.
    pub fn new(dice: &mut Dice) -> Self {
        let four = |dice: &mut Dice, device: usize| {
            let behind = u32::from(net::behind4(device));
            let mut all: Vec<_> = (0..3).map(|_| behind + (dice.roll() as u32 & 0x3ff)).collect();
            all.push(u32::from(net::peer4(device, dice.below(PEERS.into()) as u8)));
            all
        };
        let six = |dice: &mut Dice, device: usize| {
            let behind = u128::from(net::behind6(device));
            let mut all: Vec<_> = (0..3)
                .map(|_| {
                    let subnet = u128::from(dice.roll() & 3) << 64;
                    behind + subnet + u128::from(dice.roll() & 0x3ff)
                })
                .collect();
            all.push(u128::from(net::peer6(device, dice.below(PEERS.into()) as u8)));
            all
        };
        Self {
            four: std::array::from_fn(|device| four(dice, device)),
            six: std::array::from_fn(|device| six(dice, device)),
            ports: (0..4).map(|_| dice.pick(&PORTS).saturating_add(dice.below(3) as u16)).collect(),
            lengths: (0..3).map(|_| 40 + dice.below(100) as u16).collect(),
            tracked: false,
            later_fragments: true,
            filled_options: true,
        }
    }

    /// An IPv4 address of any device.
    pub fn any4(&self, dice: &mut Dice) -> u32 {
        let device = dice.below(DEVICES.len());
        dice.pick(&self.four[device])
    }

    /// An IPv6 address of any device.
    pub fn any6(&self, dice: &mut Dice) -> u128 {
        let device = dice.below(DEVICES.len());
        dice.pick(&self.six[device])
    }

    /// A port, or one next to it.
    pub fn near_port(&self, dice: &mut Dice) -> u16 {
        let port = dice.pick(&self.ports);
        match dice.below(6) {
            0 => port.wrapping_add(1),
            1 => port.wrapping_sub(1),
            _ => port,
        }
    }
}
