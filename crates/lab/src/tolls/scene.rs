//! Tables and frames of the rows.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use tollway_dataplane::id::{LinkId, NextHopId, Vid, VrfId};
use tollway_dataplane::prefix::{Prefix, RoutePrefix};
use tollway_dataplane::stages::ecmp::Member;
use tollway_dataplane::stages::filter::Filter;
use tollway_dataplane::stages::rule::{PolicyAction, PolicyRule};
use tollway_dataplane::stages::source_check::{Rpf, SourceCheck};
use tollway_dataplane::tables::{Tables, TablesError};
use tollway_dataplane::wire::eth::ethertype;

use crate::frames::{self, Addresses, Source, Template, Xorshift};
use crate::{fib, filter};

/// Flows of the rows with many flows.
const MANY_FLOWS: usize = 65_536;

/// Members of a next-hop group.
const MEMBERS: u8 = 8;

pub(super) const ROUTER_MAC: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
pub(super) const SENDER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x11];
const MTU: u16 = 1500;

/// Tags of either side, outermost first. QinQ uses both, a VLAN only the second.
const TAGS: [[(u16, u16); 2]; 2] = [
    [(ethertype::DOT1AD, 10), (ethertype::DOT1Q, 100)],
    [(ethertype::DOT1AD, 20), (ethertype::DOT1Q, 200)],
];

/// The configuration besides one route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scene {
    pub(super) ipv6: bool,
    pub(super) many_flows: bool,
    /// Number of tags, both in and out: at most 2.
    pub(super) tags: usize,
    /// Whether the links are in a separate VRF.
    pub(super) vrf: bool,
    /// Whether the links are in a separate VRF that has no route but falls back to the first.
    pub(super) fallback: bool,
    /// Whether the route leads to a next-hop group.
    pub(super) ecmp: bool,
    /// Whether there is a policy of two rules, of which the second matches.
    pub(super) policy: bool,
    /// Whether the route to a packet's source must lead to the ingress link.
    pub(super) rpf: bool,
    /// Whether packets that would go back through their ingress link take the kernel path.
    pub(super) redirects: bool,
}

impl Scene {
    pub(super) const PLAIN: Self = Self {
        ipv6: false,
        many_flows: false,
        tags: 0,
        vrf: false,
        fallback: false,
        ecmp: false,
        policy: false,
        rpf: false,
        redirects: false,
    };
}

/// What a row needs: tables, frames, and rules.
pub(crate) struct Stage {
    pub(crate) tables: Tables,
    pub(crate) source: Source,
    pub(crate) filter: Option<Arc<Filter>>,
}

/// Tables under construction: ingress and egress, and the VRF whose routes packets take.
pub(super) struct Router {
    pub(super) tables: Tables,
    main: VrfId,
    vrf: VrfId,
    links: [LinkId; 2],
}

impl Router {
    /// Two ports, with `tags` tags on both sides.
    pub(super) fn new(own_vrf: bool, tags: usize) -> Result<Self, TablesError> {
        let mut tables = Tables::new();
        let main = tables.add_vrf()?;
        let vrf = if own_vrf { tables.add_vrf()? } else { main };
        let mut links = [LinkId(0); 2];
        for (side, link) in links.iter_mut().enumerate() {
            let mac = ROUTER_MAC[side];
            *link = tables.add_port(mac, vrf, MTU)?.1;
            for (protocol, vid) in &TAGS[side][2 - tags..] {
                let vid = Vid::new(*vid).ok_or(TablesError::Unknown)?;
                *link = tables.add_vlan(*link, *protocol, vid, mac, vrf, MTU)?;
            }
        }
        Ok(Self { tables, main, vrf, links })
    }

    /// A neighbour behind the second port, and the next hop to it.
    fn neigh(&mut self, number: u8, ipv6: bool) -> Result<NextHopId, TablesError> {
        let address: IpAddr = match ipv6 {
            false => Ipv4Addr::new(192, 0, 2, number).into(),
            true => Ipv6Addr::new(0x2001, 0xdb8, 0xff, 0, 0, 0, 0, number.into()).into(),
        };
        self.tables.set_neigh(self.links[1], address, Some([2, 0, 0, 0, 1, number]))
    }

    /// A neighbour, or a group of them.
    fn next(&mut self, group: bool, ipv6: bool) -> Result<NextHopId, TablesError> {
        let numbers = 1..=if group { MEMBERS } else { 1 };
        let neighs = numbers.map(|number| self.neigh(number, ipv6));
        let neighs = neighs.collect::<Result<Vec<_>, _>>()?;
        if !group {
            return Ok(neighs[0]);
        }
        let member = |next: &NextHopId| Member { next: *next, weight: 1 };
        self.tables.add_group(&neighs.iter().map(member).collect::<Vec<_>>())
    }

    /// Enables the source check on ingress.
    fn sources(&mut self, rpf: Rpf) -> Result<(), TablesError> {
        let check = SourceCheck { own: true, rpf, martians_to_kernel: false };
        self.tables.set_source(self.links[0], check)?;
        self.tables.set_own_addresses(&[Ipv4Addr::new(172, 16, 0, 1)]);
        Ok(())
    }

    /// A rule that matches no packet of the bench, and one that matches all and queries the
    /// packets' VRF.
    fn policy(&mut self) -> Result<(), TablesError> {
        let documentation = RoutePrefix::new(Ipv4Addr::new(198, 51, 100, 0).into(), 24);
        let other = PolicyRule {
            src: Some(documentation),
            dst: None,
            mark: None,
            action: PolicyAction::Blackhole,
        };
        let all = PolicyRule { src: None, action: PolicyAction::View(self.vrf), ..other };
        self.tables.set_policy(self.links[0], vec![other, all])
    }
}

/// One route, and the scene's features.
pub(super) fn plain(scene: &Scene) -> Result<Stage, String> {
    let tables = tables(scene).map_err(failed)?;
    Ok(Stage { tables, source: Source::Whole(templates(scene)), filter: None })
}

pub(super) fn failed(error: TablesError) -> String {
    format!("cannot build the tables: {error:?}")
}

fn tables(scene: &Scene) -> Result<Tables, TablesError> {
    let mut router = Router::new(scene.vrf || scene.fallback, scene.tags)?;
    let next = router.next(scene.ecmp, scene.ipv6)?;
    let home = if scene.fallback { router.main } else { router.vrf };
    router.tables.insert(home, destinations(scene.ipv6), next)?;
    if scene.fallback {
        router.tables.set_fallback(router.vrf, Some(router.main))?;
    }
    if scene.policy {
        router.policy()?;
    }
    if scene.rpf {
        let back = router.tables.glean(router.links[0])?;
        let sources = RoutePrefix::new(Ipv4Addr::new(172, 16, 0, 0).into(), 12);
        router.tables.insert(router.vrf, sources, back)?;
        router.sources(Rpf::Strict)?;
    }
    if scene.redirects {
        router.tables.set_redirects(router.links[0], true, true)?;
    }
    Ok(router.tables)
}

fn destinations(ipv6: bool) -> RoutePrefix {
    match ipv6 {
        false => RoutePrefix::new(Ipv4Addr::new(10, 0, 0, 0).into(), 8),
        true => RoutePrefix::new(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0).into(), 32),
    }
}

/// The frames that arrive, one for each flow.
fn templates(scene: &Scene) -> Vec<Template> {
    let tags = &TAGS[0][2 - scene.tags..];
    let flows = if scene.many_flows { MANY_FLOWS } else { 1 };
    let mut rng = Xorshift::new(0x7011_0a11);
    let flow = |_| {
        let random = rng.next();
        let addresses = if scene.ipv6 {
            let net = 0x2001_0db8_u128 << 96;
            let many = if scene.many_flows { u128::from(random) } else { 0 };
            Addresses::V6(net | 0x1_0000, net | 1 << 80 | many)
        } else {
            let src = 0xac10_0000 | (random >> 40) as u32 & 0x000f_ffff;
            Addresses::V4(src, 0x0a00_0000 | random as u32 >> 8)
        };
        let ports = ((random >> 16) as u16, 53);
        frames::udp(ROUTER_MAC[0], SENDER_MAC, tags, addresses, ports)
    };
    (0..flows).map(flow).collect()
}

/// Routes and rules of the row with everything.
const ALL_ROUTES: usize = 1_000_000;
const ALL_RULES: usize = 1000;

/// Everything at once, IPv4.
pub(super) fn all() -> Result<Stage, String> {
    let tables = all_tables().map_err(failed)?;
    let (flows, rules) = filter::drawn(ALL_RULES, MANY_FLOWS)?;
    let (template, l3) = frames::blank4(ROUTER_MAC[0], SENDER_MAC, &TAGS[0]);
    Ok(Stage { tables, source: Source::Flows4(template, l3, flows), filter: Some(rules) })
}

fn all_tables() -> Result<Tables, TablesError> {
    let mut router = Router::new(true, 2)?;
    let group = router.next(true, false)?;
    router.tables.insert(router.vrf, RoutePrefix::V4(Prefix::v4(0, 0)), group)?;
    for prefix in fib::synthetic(fib::Family::V4, ALL_ROUTES) {
        router.tables.insert(router.vrf, RoutePrefix::V4(prefix), group)?;
    }
    router.tables.set_fallback(router.vrf, Some(router.main))?;
    router.policy()?;
    router.tables.set_redirects(router.links[0], true, true)?;
    router.sources(Rpf::Loose)?;
    Ok(router.tables)
}
