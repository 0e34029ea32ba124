//! A router of three ports, and the evaluator beside it.

use std::net::IpAddr;
use std::sync::Arc;

use tollway_dataplane::burst::Burst;
use tollway_dataplane::dispatch::Path;
use tollway_dataplane::frame::Umem;
use tollway_dataplane::id::{LinkId, NextHopId, PortId, Vid, VrfId};
use tollway_dataplane::ip::obeys_options;
use tollway_dataplane::prefix::{Prefix, RoutePrefix};
use tollway_dataplane::stages::filter::{PolicyRoute, Reject, State};
use tollway_dataplane::stages::transmit::Egress;
use tollway_dataplane::tables::Tables;
use tollway_dataplane::tolls::Tolls;
use tollway_dataplane::verdict::{DropReason, PuntReason, Verdict};
use tollway_dataplane::wire::checksum;

use super::super::compile;
use crate::ir::{self, Field, Hook, Ruleset};
use crate::links::Link;
use crate::testkit::dice::Dice;
use crate::testkit::eval::{self, Packet, RuleVerdict};
use crate::{hops, log};

pub(super) const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const VIA: [u8; 6] = [2, 0, 0, 0, 0, 9];

/// Names of the links by number, with their VRFs; packets arrive by the first two.
pub(super) const LINKS: [(&str, &str); 4] =
    [("wan0", "main"), ("wan1", "red"), ("lan0", "main"), ("wan0.7", "red")];
const PORTS: usize = 3;

/// VRFs that rules may name; in all but the first, links have changed places.
const VRFS: usize = 4;

/// The VLAN on the first port, which is the last link.
pub(super) const VID: u16 = 7;

pub(super) fn links() -> Vec<Link> {
    let link = |(name, vrf): (&str, &str)| Link {
        name: name.into(),
        vrf: vrf.into(),
        on: name.split_once('.').map(|(below, _)| below.into()),
        vrf_device: None,
        addresses: Vec::new(),
    };
    LINKS.into_iter().map(link).collect()
}

pub(super) struct PathBench {
    rules: Ruleset,
    /// What the rules write to the log, by number.
    logs: Vec<ir::Log>,
    links: Arc<[Link]>,
    /// The devices of the links' VRFs.
    vrfs: Arc<[Option<Link>]>,
    tables: Tables,
    /// The next hops that rules name.
    hops: Vec<(IpAddr, NextHopId)>,
    path: Path,
    umem: Umem,
    burst: Box<Burst>,
    egress: Egress,
    tolls: Tolls,
    state: State,
    expected: eval::State,
    now_ns: u64,
}

impl PathBench {
    pub(super) fn new(rules: &Ruleset) -> Self {
        Self::with(rules, links())
    }

    /// Like [`PathBench::new`], with the identities of links given.
    pub(super) fn with(rules: &Ruleset, links: Vec<Link>) -> Self {
        let mut tables = tables();
        let next = hops::resolve(rules, &mut tables, &links).expect("next hops");
        let filter = compile(rules, &links, &tables.epochs).expect("it compiles");
        let filter = filter.with_hops(next.clone());
        let vias = hops::hops(rules).into_iter().map(|(via, _)| via);
        let hops = vias.zip(next).collect();
        let mut state = State::new();
        state.renew(Some(&filter), 0);
        tables.filter = Some(Arc::new(filter));
        Self {
            rules: rules.clone(),
            logs: log::logs(rules).cloned().collect(),
            vrfs: links.iter().map(vrf).collect(),
            links: links.into(),
            tables,
            hops,
            path: Path::detect(),
            umem: Umem::new(64, 2048).expect("memory"),
            burst: Box::new(Burst::new()),
            egress: Egress::new(PORTS),
            tolls: Tolls::new(),
            state,
            expected: eval::State::new(rules),
            now_ns: 0,
        }
    }

    /// Lets time pass, in steps of a burst's.
    pub(super) fn wait(&mut self, ns: u64) {
        self.now_ns += ns / 50_000 * 50_000;
    }

    /// The number of states.
    pub(super) fn states(&self) -> usize {
        self.expected.states.len()
    }

    /// Sends a burst through both implementations. The error is the first packet whose verdict differs, and how.
    pub(super) fn send(&mut self, frames: &[Vec<u8>]) -> Result<(), (usize, String)> {
        self.now_ns += 50_000;
        self.state.now_ns = self.now_ns;
        self.expected.states.sweep(self.now_ns);
        self.burst.reset(PortId((self.now_ns / 50_000 % 2) as u16));
        let addrs: Vec<_> = frames
            .iter()
            .map(|frame| {
                let stored = self.umem.store(frame).expect("memory");
                assert!(self.burst.push(stored.addr, frame.len() as u16));
                stored.addr
            })
            .collect();
        let Self { burst, umem, tables, tolls, egress, state, .. } = self;
        self.path.forward(burst, umem, tables, tolls, egress, state);
        self.egress.drain(|_, _| {});
        let same = self.evaluate_all(frames);
        for addr in addrs {
            self.umem.free(addr);
        }
        same
    }

    /// Evaluates the burst that the path has forwarded. Like the path, it evaluates the whole burst hook by
    /// hook: limits depend on that.
    fn evaluate_all(&mut self, frames: &[Vec<u8>]) -> Result<(), (usize, String)> {
        let (links, vrfs) = (Arc::clone(&self.links), Arc::clone(&self.vrfs));
        let input = usize::from(self.burst.port.0);
        let mut packets: Vec<_> = frames
            .iter()
            .map(|frame| {
                let l3 = if frame[12] == 0x81 { 18 } else { 14 };
                let link = if l3 == 18 { &links[PORTS] } else { &links[input] };
                (Packet::new(frame, l3, link), RuleVerdict::Accept)
            })
            .collect();
        let ours = Vec::from_iter((0..frames.len()).filter(|lane| !self.exited_at_once(*lane)));
        let (host, path_bench): (Vec<_>, _) =
            ours.into_iter().partition(|lane| is_host(&frames[*lane]));
        for lanes in [&path_bench, &host] {
            for version in [4, 6, 0] {
                for lane in lanes {
                    let (packet, verdict) = &mut packets[*lane];
                    if packet.version() == version {
                        *verdict = self.evaluate_ingress(packet, &links[..1]);
                    }
                }
            }
        }
        let mut sound = path_bench;
        sound.retain(|lane| packets[*lane].1 == RuleVerdict::Accept && !self.is_broken(*lane));
        let (detoured, plain): (Vec<_>, _) =
            sound.into_iter().partition(|lane| packets[*lane].0.has_options());
        let mut routed_by = Vec::new();
        for hooks in [&[Hook::Prerouting][..], &[Hook::Forward, Hook::Postrouting, Hook::Egress]] {
            for lanes in [&plain, &detoured] {
                for version in [4, 6] {
                    for lane in lanes {
                        let (packet, verdict) = &mut packets[*lane];
                        if packet.version() == version && comes_to(hooks[0], packet, &frames[*lane])
                        {
                            self.evaluate(packet, verdict, hooks);
                            self.evaluate_vrf(packet, verdict, hooks, &vrfs);
                        }
                    }
                }
            }
            if hooks == [Hook::Prerouting] {
                for (packet, _) in &mut packets {
                    packet.output = Some(&links[self.output(packet)]);
                }
                routed_by = packets.iter().map(|(packet, _)| packet.fib).collect();
            }
        }
        self.same_logs().map_err(|how| (0, how))?;
        for (lane, (packet, verdict)) in packets.iter().enumerate() {
            let done = self.verdict(lane);
            if !alike(&done, verdict, packet.version()) {
                return Err((lane, format!("{done:?}, not {verdict:?}")));
            }
            if *verdict == RuleVerdict::Accept && !self.exited_early(lane) {
                self.same_marks(lane, packet, routed_by[lane]).map_err(|how| (lane, how))?;
            }
        }
        Ok(())
    }

    /// Compares what was logged, in order; the number of lines is limited.
    fn same_logs(&mut self) -> Result<(), String> {
        let Self { logs, state, expected, .. } = self;
        let logged = std::iter::from_fn(|| state.log.pop());
        let logged: Vec<_> = logged.map(|logged| &logs[logged.log as usize]).collect();
        let expected = std::mem::take(&mut expected.logged);
        let in_group = |log: &&ir::Log| log.group.is_some();
        let (grouped, lines): (Vec<_>, Vec<_>) = logged.into_iter().partition(in_group);
        let (expected_grouped, expected_lines): (Vec<_>, Vec<_>) =
            expected.iter().partition(in_group);
        if grouped != expected_grouped {
            return Err(format!("{grouped:?} are logged, not {expected_grouped:?}"));
        }
        if lines.iter().any(|line| !expected_lines.contains(line))
            || lines.len() > expected_lines.len()
        {
            return Err(format!("{lines:?} are logged, of {expected_lines:?}"));
        }
        assert_eq!(state.log.lost, 0);
        Ok(())
    }

    /// Compares what rules have written on a packet that goes on, and where they have sent it.
    fn same_marks(&self, lane: usize, packet: &Packet<'_>, fib: Option<u32>) -> Result<(), String> {
        if self.state.mark[lane] != packet.mark {
            return Err(format!("the mark is {}, not {}", self.state.mark[lane], packet.mark));
        }
        let policy_route = match (packet.via, fib) {
            (Some(via), _) => PolicyRoute::Next(self.hop(via)),
            (None, Some(fib)) => PolicyRoute::Vrf(VrfId(fib as u16)),
            _ => PolicyRoute::Not,
        };
        if packet.version() != 0 && self.state.policy_route_of(lane) != policy_route {
            return Err(format!(
                "sent by {:?}, not {policy_route:?}",
                self.state.policy_route_of(lane)
            ));
        }
        self.same_header(lane, packet)
    }

    /// Compares DSCP and checksum, of the packet as sent or as another path receives it.
    fn same_header(&self, lane: usize, packet: &Packet<'_>) -> Result<(), String> {
        // The egress links have no tags.
        let is_left = self.burst.exited.has(lane);
        let l3 = if is_left { usize::from(self.burst.l3[lane]) } else { 14 };
        let frame = self.umem.frame(self.burst.addr[lane], usize::from(self.burst.len[lane]));
        let parts = |header: &[u8]| match (packet.version(), header) {
            (4, [first, class, ..]) => {
                let header = header.get(..usize::from(first & 15) * 4)?;
                Some((u16::from(*class), checksum::sum(header) == 0xffff))
            }
            (6, [first, second, ..]) => Some((u16::from_be_bytes([*first, *second]), true)),
            _ => None,
        };
        let (sent, expected) = (parts(frame.get(l3..).unwrap_or_default()), parts(packet.layer3()));
        if sent != expected {
            return Err(format!("class and checksum are {sent:02x?}, not {expected:02x?}"));
        }
        Ok(())
    }

    /// The next hop of this address.
    fn hop(&self, via: IpAddr) -> NextHopId {
        let hop = self.hops.iter().find(|(own, _)| *own == via);
        hop.map_or(NextHopId::NO_ROUTE, |(_, next)| *next)
    }

    /// The number of a packet's egress link.
    fn output(&self, packet: &Packet<'_>) -> usize {
        let bits = |part| packet.number(part, Hook::Prerouting);
        let four = bits(Field::Destination4).map(|it| IpAddr::from((it as u32).to_be_bytes()));
        let six = bits(Field::Destination6).map(|it| IpAddr::from(it.to_be_bytes()));
        let vrf = VrfId(packet.fib.unwrap_or(0) as u16);
        let next = match (packet.via, four.or(six)) {
            (Some(via), _) => self.hop(via),
            (None, Some(destination)) => self.tables.lookup(vrf, destination),
            (None, None) => return 0,
        };
        self.tables.next_hop(next).link.0.into()
    }

    /// Evaluates the chains of the lower device first.
    fn evaluate_ingress<'p>(&mut self, packet: &mut Packet<'p>, below: &'p [Link]) -> RuleVerdict {
        let own = packet.input;
        let below = below.iter().filter(|link| own.on.as_ref() == Some(&link.name));
        for link in below.chain([own]) {
            packet.input = link;
            let verdict =
                eval::run(&self.rules, &mut self.expected, Hook::Ingress, packet, self.now_ns);
            match verdict {
                RuleVerdict::Accept => {}
                // There, it takes the kernel path.
                RuleVerdict::Reject(_) => return RuleVerdict::Unsupported(String::new()),
                verdict => return verdict,
            }
        }
        RuleVerdict::Accept
    }

    /// Evaluates the rules of hook prerouting again, as if the packet had arrived by its VRF's device.
    fn evaluate_vrf<'p>(
        &mut self,
        packet: &mut Packet<'p>,
        verdict: &mut RuleVerdict,
        hooks: &[Hook],
        vrfs: &'p [Option<Link>],
    ) {
        let number = self.links.iter().position(|link| std::ptr::eq(link, packet.input));
        if let Some(vrf) = number.and_then(|number| vrfs[number].as_ref()) {
            packet.input = vrf;
            self.evaluate(packet, verdict, hooks);
        }
    }

    fn evaluate(&mut self, packet: &mut Packet<'_>, verdict: &mut RuleVerdict, hooks: &[Hook]) {
        for hook in hooks {
            if *verdict == RuleVerdict::Accept {
                *verdict = eval::run(&self.rules, &mut self.expected, *hook, packet, self.now_ns);
            }
        }
    }

    /// Whether the packet exited before any rule.
    fn exited_at_once(&self, lane: usize) -> bool {
        self.burst.exited.has(lane)
            && matches!(
                self.burst.verdict[lane],
                Verdict::Drop(
                    DropReason::OtherHost | DropReason::VlanUnknown | DropReason::UnhandledProto
                )
            )
    }

    /// Whether the packet exited because of its header.
    fn is_broken(&self, lane: usize) -> bool {
        let verdict = self.burst.verdict[lane];
        self.burst.exited.has(lane)
            && matches!(verdict, Verdict::Drop(reason) if reason != DropReason::NetfilterDrop)
    }

    /// Whether the packet did not reach the rules of all hooks.
    pub(super) fn exited_early(&self, lane: usize) -> bool {
        self.exited_at_once(lane) || self.is_broken(lane)
    }

    /// Whether a rule dropped the packet.
    pub(super) fn drops(&self, lane: usize) -> bool {
        self.verdict(lane) == Done::Drop
    }

    pub(super) fn verdict(&self, lane: usize) -> Done {
        if !self.burst.exited.has(lane) {
            return Done::GoesOn;
        }
        match self.burst.verdict[lane] {
            Verdict::Drop(DropReason::NetfilterDrop) => Done::Drop,
            Verdict::Punt(PuntReason::Reject) => Done::Reject(self.state.reject[lane]),
            Verdict::Punt(PuntReason::FilterUnsupported) => Done::Unsupported,
            _ => Done::GoesOn,
        }
    }

    /// The rules with the current elements of their sets.
    pub(super) fn rules(&self) -> Ruleset {
        self.rules.clone()
    }

    /// Adds and removes elements of live sets, here and in the evaluator's rules. Returns how many.
    pub(super) fn change_sets(&mut self, dice: &mut Dice) -> usize {
        let Some(filter) = &self.tables.filter else { return 0 };
        let mut changes = 0;
        for live in filter.live_sets() {
            let gone: Vec<_> = live.elements().into_iter().filter(|_| dice.one_in(3)).collect();
            assert_eq!(live.remove(&gone), Ok(gone.len()));
            let low = dice.pick(&super::frames::ADDRESSES);
            let first = match live.version() {
                4 => u128::from(low),
                _ => super::frames::six(low),
            };
            let last = first + dice.pick(&[0, 0, 1, 2, 255]);
            let new = live.add(&[(first, last)]).expect("room");
            assert!(live.covers(first) && live.covers(last));
            changes += gone.len() + new;
        }
        self.rules.take_live_sets(filter);
        changes
    }

    /// Counters that have counted, and all counters.
    pub(super) fn used_counters(&self) -> (usize, usize) {
        let counts = &self.expected.counts;
        (counts.iter().filter(|(packets, _)| *packets > 0).count(), counts.len())
    }

    /// Checks that all counts are the same.
    pub(super) fn same_counts(&self, seed: u64) {
        let counts: Vec<_> =
            self.state.counts.iter().map(|count| (count.packets, count.bytes)).collect();
        assert_eq!(counts, self.expected.counts, "seed {seed:#x}\n{:#?}", self.rules);
    }
}

/// The effect of rules on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Done {
    GoesOn,
    Drop,
    Reject(Reject),
    Unsupported,
}

fn alike(done: &Done, verdict: &RuleVerdict, version: u8) -> bool {
    let sent = |reject: &ir::Reject| match (reject, version) {
        (ir::Reject::TcpReset, _) => Reject::TcpReset,
        (ir::Reject::Icmp(code) | ir::Reject::Icmp6(code), _) => Reject::Unreachable(*code),
        (ir::Reject::Icmpx(code), 4) => Reject::Unreachable([0, 3, 1, 13][usize::from(*code)]),
        (ir::Reject::Icmpx(code), _) => Reject::Unreachable([0, 4, 3, 1][usize::from(*code)]),
    };
    *done
        == match verdict {
            RuleVerdict::Accept => Done::GoesOn,
            RuleVerdict::Drop => Done::Drop,
            RuleVerdict::Reject(reject) => Done::Reject(sent(reject)),
            RuleVerdict::Unsupported(_) => Done::Unsupported,
        }
}

/// The device of a link's VRF.
fn vrf(link: &Link) -> Option<Link> {
    let name = link.vrf_device.clone()?;
    Some(Link { name, vrf: link.vrf.clone(), ..Link::default() })
}

/// Whether the frame is for the host: ARP, and frames to groups.
fn is_host(frame: &[u8]) -> bool {
    let at = if frame[12] == 0x81 { 16 } else { 12 };
    frame[0] & 1 == 1 || frame[at..at + 2] == [8, 6]
}

/// Tables with routes for any destination. The last bit of the most used destinations selects their link.
fn tables() -> Tables {
    let mut tables = Tables::new();
    let vrfs = [(); VRFS].map(|()| tables.add_vrf().expect("a VRF"));
    let links = [0; PORTS].map(|_| tables.add_port(MAC, vrfs[0], 9000).expect("a port").1);
    let vid = Vid::new(VID).expect("a VLAN");
    tables.add_vlan(links[0], 0x8100, vid, MAC, vrfs[0], 9000).expect("a link");
    for vrf in vrfs {
        let [_, even, odd] = links;
        let [even, odd] = if vrf == vrfs[0] { [even, odd] } else { [odd, even] };
        fill(&mut tables, vrf, [even, odd]);
    }
    tables
}

fn fill(tables: &mut Tables, vrf: VrfId, links: [LinkId; 2]) {
    for (number, link) in links.into_iter().enumerate() {
        for (via, any) in [("192.0.2.1", "0.0.0.0"), ("2001:db8::1", "::")] {
            let next = tables.set_neigh(link, via.parse().expect("one"), Some(VIA)).expect("room");
            for dst in super::frames::ADDRESSES {
                let four = Prefix::v4(dst & !1 | number as u32, 32);
                let six = Prefix::v6(super::frames::six(dst & !1 | number as u32), 128);
                let prefix =
                    if via.contains(':') { RoutePrefix::V6(six) } else { RoutePrefix::V4(four) };
                tables.insert(vrf, prefix, next).expect("room");
            }
            let any = RoutePrefix::new(any.parse().expect("one"), 0);
            tables.insert(vrf, any, next).expect("room");
        }
    }
}

/// Whether the options of a packet that arrived as `frame` let it reach a hook. The stages check IPv6 options
/// before hook prerouting and IPv4 options behind it.
fn comes_to(hook: Hook, packet: &Packet<'_>, frame: &[u8]) -> bool {
    let looked_at = packet.version() == 6 || hook != Hook::Prerouting;
    let layer3 = &frame[if frame[12] == 0x81 { 18 } else { 14 }..];
    !packet.has_options() || !looked_at || obeys_options(layer3)
}
