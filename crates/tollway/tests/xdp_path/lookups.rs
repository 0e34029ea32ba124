//! Compares the programs' lookups with those of user space in the same FIBs.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use tollway_dataplane::id::{LinkId, NextHopId, VrfId};
use tollway_dataplane::memory::Memory;
use tollway_dataplane::prefix::{Prefix, RoutePrefix};
use tollway_dataplane::tables::Tables;
use tollway_lab::fib::{DATA, Internet};
use tollway_xdp::Action;
use tollway_xdp::counts::PassReason;

use crate::compared::Compared;
use crate::testkit::dice::Dice;
use crate::testkit::packet::{Mac, Packet, ip};
use crate::testkit::wires::{LinkVariant, PORTS};

/// The number of addresses that each test looks up in each family.
const ADDRESSES: usize = 100_000;

/// The number of neighbours that routes lead to.
const NEIGHS: u16 = 300;

/// The next hops to neighbours, and the neighbours' Ethernet addresses.
type NextHops = HashMap<NextHopId, Mac>;

/// A family's table.
struct Family {
    is_ipv4: bool,
    compared: Compared,
    next_hops: NextHops,
}

/// Routes to neighbours behind the second of ports with one link each; packets arrive at the first.
fn tables(
    memory: &Memory,
    is_ipv4: bool,
    prefixes: &[Prefix],
    dice: &mut Dice,
) -> (Tables, NextHops) {
    let mut tables = Tables::with_memory(memory);
    let vrf = tables.add_vrf().unwrap();
    for port in 0..PORTS {
        tables.add_port(LinkVariant::Plain.mac(port), vrf, 1500).unwrap();
    }
    let next_hops: Vec<_> = (0..NEIGHS)
        .map(|number| {
            let mac = [6, 0, 0, 0, (number >> 8) as u8, number as u8];
            let gateway: IpAddr = match is_ipv4 {
                true => Ipv4Addr::from_bits(0x0aff_0000 | u32::from(number)).into(),
                false => Ipv6Addr::from_bits(0xfe80 << 112 | u128::from(number)).into(),
            };
            (tables.set_neigh(LinkId(1), gateway, Some(mac)).unwrap(), mac)
        })
        .collect();
    for prefix in prefixes {
        let prefix = if is_ipv4 { RoutePrefix::V4(*prefix) } else { RoutePrefix::V6(*prefix) };
        tables.insert(vrf, prefix, dice.pick(&next_hops).0).unwrap();
    }
    (tables, next_hops.into_iter().collect())
}

impl Family {
    fn new(is_ipv4: bool, doublings: u32, prefixes: &[Prefix], dice: &mut Dice) -> Self {
        let mut next_hops = NextHops::new();
        let compared = Compared::with_room(doublings, |memory| {
            let (tables, all) = tables(memory, is_ipv4, prefixes, dice);
            next_hops = all;
            tables
        });
        Self { is_ipv4, compared, next_hops }
    }

    fn address(&self, bits: u128) -> IpAddr {
        match self.is_ipv4 {
            true => Ipv4Addr::from_bits((bits >> 96) as u32).into(),
            false => Ipv6Addr::from_bits(bits).into(),
        }
    }

    /// Looks up addresses within prefixes, at their edges and beside them, and a few anywhere.
    fn compare(&self, prefixes: &[Prefix], dice: &mut Dice) {
        let mut forwarded = 0;
        let step = if self.is_ipv4 { 1 << 96 } else { 1 };
        for _ in 0..ADDRESSES {
            let prefix = dice.pick(prefixes);
            let host = u128::MAX.checked_shr(prefix.len().into()).unwrap_or(0);
            let bits = match dice.below(8) {
                0 => dice.wide(),
                1 => prefix.bits(),
                2 => prefix.bits().wrapping_sub(step),
                3 => (prefix.bits() | host).wrapping_add(step),
                4 => prefix.bits() | host,
                _ => prefix.bits() | (dice.wide() & host),
            };
            forwarded += usize::from(self.look_up(self.address(bits)));
        }
        println!("{forwarded} of {ADDRESSES} addresses have a route");
        assert!(forwarded > ADDRESSES / 2, "{forwarded}");
    }

    /// Compares one lookup; says whether there is a route.
    fn look_up(&self, dst: IpAddr) -> bool {
        let src = ip(if self.is_ipv4 { "10.7.7.7" } else { "2001:db8:7::7" });
        let next = self.compared.tables.lookup(VrfId(0), dst);
        let expected = self.next_hops.get(&next);
        let frame = Packet::between(src, dst).to(LinkVariant::Plain.mac(0)).build();
        self.compared.programs.state().beat(0);
        let is_fit = |(action, output): (Action, Vec<u8>)| match (action, expected) {
            (Action::Redirect, Some(mac)) => output.starts_with(mac),
            (Action::Pass, None) => output == frame,
            // The kernel gets these, whatever their route.
            (Action::Pass, Some(_)) => match dst {
                IpAddr::V4(v4) => matches!(v4.octets()[0], 0 | 127 | 224..) || v4.is_link_local(),
                IpAddr::V6(v6) => {
                    v6.is_multicast() || v6.is_unicast_link_local() || v6.to_bits() <= 1
                }
            },
            _ => false,
        };
        // A program that ran without a heartbeat runs again. A checksum of 0 may look like an unfinished one.
        let is_found = is_fit(self.compared.loaded[0].probe(&frame).unwrap()) || {
            let run = self.compared.run(0, &frame);
            run.reason == Some(PassReason::Checksum) || is_fit((run.action, run.output))
        };
        assert!(is_found, "{dst}: {next:?}, {expected:02x?}");
        expected.is_some()
    }
}

/// Draws prefixes of all lengths, nested and side by side.
fn drawn(is_ipv4: bool, count: usize, dice: &mut Dice) -> Vec<Prefix> {
    let mut last = 0;
    let drawn = (0..count).map(|at| {
        let most = if is_ipv4 { 32 } else { 128 };
        let len = if at <= most { at as u8 } else { dice.below(most + 1) as u8 };
        let bits =
            if dice.one_in(4) { dice.wide() } else { last ^ (dice.wide() >> dice.below(most)) };
        last = bits;
        if is_ipv4 { Prefix::v4((bits >> 96) as u32, len) } else { Prefix::v6(bits, len) }
    });
    drawn.collect()
}

pub fn small() {
    let mut dice = Dice(7);
    for is_ipv4 in [true, false] {
        for count in [40, 3000] {
            let prefixes = drawn(is_ipv4, count, &mut dice);
            let family = Family::new(is_ipv4, 0, &prefixes, &mut dice);
            family.compare(&prefixes, &mut dice);
        }
    }
}

/// The table of the Internet, or a generated one of that size; and how often the room for it is doubled. The generated
/// one's IPv6 prefixes share fewer nodes.
fn internet() -> (Internet, u32) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let shared = std::env::var_os("TOLLWAY_SHARED_DATA").map(PathBuf::from);
    let path = shared.map(|shared| shared.join(Path::new(DATA).file_name().unwrap()));
    let path = path.unwrap_or_else(|| root.join(DATA));
    if path.exists() { (Internet::load(&path).unwrap(), 0) } else { (Internet::generate(), 1) }
}

pub fn full() {
    let ((internet, doublings), mut dice) = (internet(), Dice(9));
    for (is_ipv4, prefixes) in [(true, &internet.v4), (false, &internet.v6)] {
        let family = Family::new(is_ipv4, doublings, prefixes, &mut dice);
        family.compare(prefixes, &mut dice);
    }
}
