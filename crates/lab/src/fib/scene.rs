//! Tables to measure with, and frames that match them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tollway_dataplane::id::{NextHopId, VrfId};
use tollway_dataplane::prefix::{Prefix, RoutePrefix};
use tollway_dataplane::tables::{Tables, TablesError};

use super::Internet;
use crate::frames::{self, Addresses, Source, Xorshift};

/// Next hops that share the routes of a table, as at an exchange with some peers.
const NEXT_HOPS: u64 = 64;

/// Number of frames, each with its own destination drawn from the table.
const FRAMES: usize = 1 << 18;

const ROUTER_MAC: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
const SENDER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x11];
const MTU: u16 = 1500;

/// IPv4 or IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub(super) fn of(self, table: &Internet) -> &[Prefix] {
        match self {
            Self::V4 => &table.v4,
            Self::V6 => &table.v6,
        }
    }

    /// Its name in the names of figures.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::V4 => "ip4",
            Self::V6 => "ip6",
        }
    }

    fn route(self, prefix: Prefix) -> RoutePrefix {
        match self {
            Self::V4 => RoutePrefix::V4(prefix),
            Self::V6 => RoutePrefix::V6(prefix),
        }
    }

    fn gateway(self, number: u64) -> IpAddr {
        match self {
            Self::V4 => Ipv4Addr::from_bits(0xc633_6400 | number as u32).into(),
            Self::V6 => Ipv6Addr::from_bits(0x2001_0db8_u128 << 96 | u128::from(number)).into(),
        }
    }
}

/// The bits that a prefix leaves open.
pub(crate) fn below(prefix: Prefix) -> u128 {
    u128::MAX.checked_shr(u32::from(prefix.len())).unwrap_or(0)
}

/// `count` prefixes, drawn at random.
pub(super) fn sample(prefixes: &[Prefix], count: usize) -> Vec<Prefix> {
    let mut drawn = prefixes.to_vec();
    shuffle(&mut drawn);
    drawn.truncate(count);
    drawn
}

pub(super) fn shuffle<T>(items: &mut [T]) {
    let mut rng = Xorshift::new(0x5eed);
    for last in (1..items.len()).rev() {
        items.swap(last, (rng.next() % (last as u64 + 1)) as usize);
    }
}

fn failed(error: TablesError) -> String {
    format!("the routes do not fit the tables: {error:?}")
}

/// Two ports, and next hops of a family through the second.
fn ports(tables: &mut Tables, family: Family) -> Result<(VrfId, Vec<NextHopId>), TablesError> {
    let vrf = if tables.routes.vrfs.is_empty() { tables.add_vrf()? } else { VrfId(0) };
    if tables.ports.is_empty() {
        for mac in ROUTER_MAC {
            tables.add_port(mac, vrf, MTU)?;
        }
    }
    let link = tables.ports[1].link;
    let next = |number| {
        let mac = [2, 1, 0, 0, 0, number as u8];
        tables.set_neigh(link, family.gateway(number), Some(mac))
    };
    Ok((vrf, (0..NEXT_HOPS).map(next).collect::<Result<_, _>>()?))
}

/// Tables with these routes.
pub(crate) fn tables(family: Family, prefixes: &[Prefix]) -> Result<Tables, String> {
    let mut tables = Tables::new();
    fill(&mut tables, family, prefixes).map_err(failed)?;
    Ok(tables)
}

/// Tables with every route of both families.
pub(super) fn both(table: &Internet) -> Result<Tables, String> {
    let mut tables = Tables::new();
    fill(&mut tables, Family::V4, &table.v4).map_err(failed)?;
    fill(&mut tables, Family::V6, &table.v6).map_err(failed)?;
    Ok(tables)
}

/// Adds a VRF with these routes to tables that already have one.
pub(super) fn add_vrf(tables: &mut Tables, v4: &[Prefix], v6: &[Prefix]) -> Result<(), String> {
    let mut add = || {
        let vrf = tables.add_vrf()?;
        // Any next hop will do: its number costs nothing here.
        for prefix in v4 {
            tables.insert(vrf, RoutePrefix::V4(*prefix), NextHopId(1))?;
        }
        for prefix in v6 {
            tables.insert(vrf, RoutePrefix::V6(*prefix), NextHopId(1))?;
        }
        Ok(())
    };
    add().map_err(failed)
}

/// An IPv4 default route to a next hop of its family.
pub(super) fn add_default(tables: &mut Tables) -> Result<(), String> {
    let mut add = || {
        let (vrf, next_hops) = ports(tables, Family::V4)?;
        tables.insert(vrf, RoutePrefix::V4(Prefix::v4(0, 0)), next_hops[0])
    };
    add().map_err(failed)
}

fn fill(tables: &mut Tables, family: Family, prefixes: &[Prefix]) -> Result<(), TablesError> {
    let (vrf, next_hops) = ports(tables, family)?;
    let mut rng = Xorshift::new(0xbeef);
    for prefix in prefixes {
        let next = next_hops[(rng.next() % NEXT_HOPS) as usize];
        tables.insert(vrf, family.route(*prefix), next)?;
    }
    Ok(())
}

/// Frames whose destinations are drawn from the prefixes.
pub(crate) fn frames(family: Family, prefixes: &[Prefix]) -> Source {
    let mut rng = Xorshift::new(0xf00d);
    let mut draw = || {
        let prefix = prefixes[(rng.next() % prefixes.len() as u64) as usize];
        let random = u128::from(rng.next()) << 64 | u128::from(rng.next());
        prefix.bits() | random & below(prefix)
    };
    let udp = |addresses| frames::udp(ROUTER_MAC[0], SENDER_MAC, &[], addresses, (4000, 53));
    match family {
        Family::V4 => {
            let template = udp(Addresses::V4(0xac10_0001, 0));
            Source::To4(template, (0..FRAMES).map(|_| (draw() >> 96) as u32).collect())
        }
        Family::V6 => {
            let template = udp(Addresses::V6(0x2001_0db8_u128 << 96 | 7, 0));
            Source::To6(template, (0..FRAMES).map(|_| draw()).collect())
        }
    }
}
