//! The XDP programs, which decide by tables alone, beside the user path over the same tables. No flow ever enters.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use tollway_dataplane::dispatch::Path;
use tollway_dataplane::id::{LinkId, NextHopId, PortId};
use tollway_dataplane::memory::Memory;
use tollway_dataplane::prefix::RoutePrefix;
use tollway_dataplane::stages::ecmp::Hash;
use tollway_dataplane::stages::filter::{Count, Filter};
use tollway_dataplane::stages::rule::{PolicyAction, PolicyRule};
use tollway_dataplane::stages::source_check::{Rpf, SourceCheck, SourceLookup};
use tollway_dataplane::tables::Tables;
use tollway_dataplane::verdict::{DropReason, PuntReason};
use tollway_xdp::counts::PassReason;
use tollway_xdp::xdp_path::Ports;
use tollway_xdp::{Action, Mode, Options, Program, TableMaps, XdpPort, XdpPrograms};

use crate::bench::{exit, run_with_heartbeat, xdp_port};
use crate::namespaces::{sh, until};
use crate::seen::Seen;
use crate::testkit::path_bench::{Outcome, PathBench};
use crate::testkit::wires::{LinkVariant, PORTS, tables_in};

/// Chunks of the user path, in bytes: the longest frame of the tests fits.
const CHUNK: u32 = 16_384;

/// The longest frame, in bytes, that the kernel takes for a test run and the user path's chunks.
const LONGEST: usize = 12_000;

/// Bytes of a frame that the kernel takes for a test run of a tc program: a whole IPv6 header, and less than a page.
const TAKEN_BY_TC: std::ops::RangeInclusive<usize> = 54..=3000;

/// Tables in maps, and the programs that decide by them.
pub struct Compared {
    pub tables: Tables,
    pub programs: XdpPrograms,
    pub loaded: Vec<Program>,
    /// The same as tc programs.
    tc: Vec<Program>,
    pub ports: Vec<XdpPort>,
    /// Says which devices take which frames.
    pub exits: Arc<Ports>,
    /// The check of each link's sources, by number.
    pub checks: BTreeMap<u16, SourceCheck>,
    /// The policy of each link that has one, by number.
    policies: BTreeMap<u16, Vec<PolicyRule>>,
    /// The links that belong to VRF devices.
    pub vrf_links: BTreeSet<u16>,
    /// The router's own addresses, and those that the programs take for own.
    pub locals: Vec<IpAddr>,
    pub tally: Tally,
}

/// What became of the frames.
#[derive(Debug, Default)]
pub struct Tally {
    /// Frames that the user path forwards, and that the programs can decide about.
    pub forwarded: u64,
    /// Frames that the programs forwarded.
    pub redirected: u64,
    /// Frames that the programs dropped.
    pub dropped: u64,
    /// Frames that the tc programs forwarded or dropped.
    pub by_tc: u64,
    /// Frames that the XDP programs gave to the kernel, by reason.
    pub passed: BTreeMap<&'static str, u64>,
    /// What the user path has counted for the frames that the programs forwarded or dropped, by counter of the rules.
    pub counts: Vec<Count>,
    /// The packets in these counts, for all rules so far.
    pub counted: u64,
}

impl Tally {
    /// Adds what the user path has counted.
    fn count(&mut self, before: &[Count], after: &[Count]) {
        for (sum, (before, after)) in self.counts.iter_mut().zip(before.iter().zip(after)) {
            sum.packets += after.packets - before.packets;
            self.counted += after.packets - before.packets;
            sum.bytes += after.bytes - before.bytes;
        }
    }
}

/// What a program did with a frame.
pub struct Run {
    pub action: Action,
    /// Why the kernel gets the frame.
    pub reason: Option<PassReason>,
    /// Why it is dropped.
    pub dropped: Option<DropReason>,
    /// The port that it leaves by.
    pub egress: Option<u16>,
    pub output: Vec<u8>,
}

impl Compared {
    /// The test network.
    pub fn new() -> Self {
        Self::over(tables_in)
    }

    /// Tables of the test network's ports and links, made with the memory of maps.
    pub fn over(make: impl FnOnce(&Memory) -> Tables) -> Self {
        Self::with_room(0, make)
    }

    /// As [`Compared::over`], with the room of the maps doubled so often.
    pub fn with_room(doublings: u32, make: impl FnOnce(&Memory) -> Tables) -> Self {
        let maps = TableMaps::new(doublings).unwrap();
        let tables = make(&Memory::lent(Arc::new(maps)));
        let ports: Vec<_> = (0..PORTS).map(xdp_port).collect();
        let mut programs = XdpPrograms::load(&ports, &Options::default()).unwrap();
        programs.state().set_bypass(false);
        programs.use_tables(&tables).unwrap();
        assert!(programs.has_tables());
        let exits = Ports::with_programs(ports.len(), Some(programs.state()));
        for port in &ports {
            exits.set_exit(port.port, exit(port, u16::MAX));
        }
        let load = |mode| {
            let program = |port: &XdpPort| programs.program(port.port, mode, true).unwrap();
            ports.iter().map(program).collect()
        };
        let (loaded, tc) = (load(Mode::Native), load(Mode::Tcx));
        // The kernel asks a device which frames are for it.
        for (number, port) in (0..).zip(&ports) {
            let mac = LinkVariant::Plain.mac(number).map(|byte| format!("{byte:02x}")).join(":");
            sh(&format!("ip link set {} address {mac}", port.device));
        }
        let (checks, policies, vrf_links, locals, tally) = <_>::default();
        let made = Self {
            tables,
            programs,
            loaded,
            tc,
            ports,
            exits,
            checks,
            policies,
            vrf_links,
            locals,
            tally,
        };
        made.tables.write_engines();
        made
    }

    /// Gives the programs up.
    pub fn unload(&mut self) {
        self.loaded.clear();
        self.tc.clear();
    }

    /// Loads a port's programs again, after a change of the port.
    pub fn reload(&mut self, port: u8) {
        let at = usize::from(port);
        for (programs, mode) in [(&mut self.loaded, Mode::Native), (&mut self.tc, Mode::Tcx)] {
            programs[at] = self.programs.program(PortId(port.into()), mode, true).unwrap();
        }
    }

    /// Leaves to the kernel what would leave by a port in XDP, or no longer.
    pub fn leave_to_kernel(&self, port: u8, leaves: bool) {
        let port = &self.ports[usize::from(port)];
        self.exits.set_exit(port.port, exit(port, u16::MAX));
        if leaves {
            self.programs.state().set_exit_limit(port.port, u32::MAX);
        }
    }

    /// Sets the check of a link's sources for both paths.
    pub fn set_source(&mut self, link: u16, check: SourceCheck) {
        self.tables.set_source(LinkId(link), check).unwrap();
        self.checks.insert(link, check);
    }

    /// Sets the policy of a link for both paths.
    pub fn set_policy(&mut self, link: u16, rules: Vec<PolicyRule>) {
        self.tables.set_policy(LinkId(link), rules.clone()).unwrap();
        match rules.is_empty() {
            true => self.policies.remove(&link),
            false => self.policies.insert(link, rules),
        };
    }

    /// Makes a link one of a VRF device, or not.
    pub fn set_vrf_device(&mut self, link: u16, vrf_device: Option<u32>) {
        let lookup = SourceLookup { vrf_device, ..SourceLookup::default() };
        self.tables.set_source_lookup(LinkId(link), lookup).unwrap();
        match vrf_device {
            Some(_) => self.vrf_links.insert(link),
            None => self.vrf_links.remove(&link),
        };
    }

    /// Sets how both paths select the members of next-hop groups.
    pub fn set_multipath(&mut self, hash: Hash, seed: u32) {
        self.tables.set_multipath(hash, hash);
        self.tables.set_multipath_seed(seed);
        self.tables.write_engines();
    }

    /// Sets the router's own addresses for both paths.
    pub fn set_locals(&mut self, own: &[IpAddr]) {
        let only_v4 = |address: &IpAddr| match address {
            IpAddr::V4(v4) => Some(*v4),
            IpAddr::V6(_) => None,
        };
        self.tables.set_own_addresses(&own.iter().filter_map(only_v4).collect::<Vec<_>>());
        self.programs.set_locals(own).unwrap();
        self.locals = own.to_vec();
    }

    /// Runs a port's XDP program on a frame.
    pub fn run(&self, port: u8, frame: &[u8]) -> Run {
        let program = &self.loaded[usize::from(port)];
        self.run_with(port, || program.probe(frame).unwrap())
    }

    /// Runs a port's tc program on a frame; none if the kernel does not take it for a test run, or if it is tagged:
    /// only a device takes tags out of frames.
    fn run_tc(&self, port: u8, frame: &[u8], seen: &Seen) -> Option<Run> {
        let takes = TAKEN_BY_TC.contains(&frame.len()) && seen.l3 == 14;
        takes.then(|| self.run_by_tc(port, frame))
    }

    /// Runs a port's tc program on a frame without tags, which the kernel takes for a test run.
    pub fn run_by_tc(&self, port: u8, frame: &[u8]) -> Run {
        let (program, device) = (&self.tc[usize::from(port)], &self.ports[usize::from(port)]);
        self.run_with(port, || program.probe_on((device.ifindex, 0), frame).unwrap())
    }

    fn run_with(&self, port: u8, probe: impl Fn() -> (Action, Vec<u8>)) -> Run {
        let counts = || {
            let counts = self.programs.counts();
            self.ports.iter().map(|port| counts.port(port.port).unwrap()).collect::<Vec<_>>()
        };
        let (mut before, mut after) = (Vec::new(), Vec::new());
        let (action, output) = run_with_heartbeat(&self.programs, port, || {
            before = counts();
            let done = probe();
            after = counts();
            done
        });
        let (old, new) = (&before[usize::from(port)], &after[usize::from(port)]);
        let is_counted = |reason: &PassReason| new.passed(*reason) != old.passed(*reason);
        let is_dropped =
            |reason: &DropReason| new.drops[*reason as usize][0] != old.drops[*reason as usize][0];
        let mut ports = before.iter().zip(&after);
        let egress = ports.position(|(old, new)| old.xdp_tx_packets != new.xdp_tx_packets);
        Run {
            action,
            reason: PassReason::ALL.into_iter().find(is_counted),
            dropped: DropReason::ALL.iter().copied().find(is_dropped),
            egress: egress.map(|port| port as u16),
            output,
        }
    }

    /// Sends frames on both paths, and asserts that the programs never decide what the user path does not.
    pub fn both<'a>(&mut self, frames: impl IntoIterator<Item = (u8, &'a [u8])>) {
        self.tables.write_engines();
        let mut tally = std::mem::take(&mut self.tally);
        let mut user_path = PathBench::over(&self.tables, Path::detect(), CHUNK);
        user_path.filter.renew(self.tables.filter.as_deref(), 0);
        for (port, frame) in frames {
            // The kernel runs no program on less than an Ethernet header.
            if !(14..=LONGEST).contains(&frame.len()) {
                continue;
            }
            let counts = user_path.filter.counts.clone();
            let outcome = user_path.send(port, frame);
            let seen = Seen::of(port, frame);
            let runs = [Some(self.run(port, frame)), self.run_tc(port, frame, &seen)];
            if let [Some(xdp), Some(tc)] = &runs {
                let is_same = tc.action == xdp.action || xdp.action == Action::Pass;
                let (action, reason) = (tc.action, tc.reason);
                assert!(is_same, "{:?}, but tc: {action:?}, {reason:?}: {frame:02x?}", xdp.action);
            }
            for (run, is_tc) in runs.into_iter().zip([false, true]) {
                let Some(mut run) = run else { continue };
                let words = || {
                    let engine = if is_tc { "tc" } else { "XDP" };
                    let (action, reason) = (run.action, run.reason);
                    format!(
                        "{engine}, port {port}: {action:?}, {reason:?}, user path: {outcome:?}, {seen:?}, {frame:02x?}"
                    )
                };
                let wanted = if is_tc { beside(&outcome) } else { outcome.clone() };
                assert!(self.agree(&run, &wanted, &seen, frame), "the paths differ: {}", words());
                let is_unfinished = run.reason == Some(PassReason::Checksum);
                let must = self.must_decide(&outcome, &seen) && self.tables.filter.is_none();
                if must && !is_unfinished {
                    assert_eq!(run.action, Action::Redirect, "not decided: {}", words());
                    tally.forwarded += u64::from(!is_tc);
                }
                if matches!(run.action, Action::Redirect | Action::Drop) {
                    tally.count(&counts, &user_path.filter.counts);
                }
                if is_tc {
                    tally.by_tc += u64::from(run.action != Action::Pass);
                    continue;
                }
                tally.redirected += u64::from(run.action == Action::Redirect);
                tally.dropped += u64::from(run.action == Action::Drop);
                if let Some(reason) = run.reason.take() {
                    *tally.passed.entry(reason.name()).or_default() += 1;
                }
            }
        }
        drop(user_path);
        self.tally = tally;
        assert_eq!(self.tables.engine_counts(), self.tally.counts, "the rules' counters");
    }

    /// Sets the rules of both paths, without counts.
    pub fn set_filter(&mut self, filter: Filter) {
        self.tally.counts = vec![Count::default(); filter.counters()];
        self.tables.filter = Some(Arc::new(filter));
        // Earlier rules may be in the way until no program reads them any more.
        until("room for the rules", || {
            self.tables.write_engines();
            !self.tables.engine_counts().is_empty()
        });
    }

    /// Says whether a program's result follows from that of the user path.
    fn agree(&self, run: &Run, outcome: &Outcome, seen: &Seen, frame: &[u8]) -> bool {
        match (run.action, outcome) {
            (Action::Redirect, Outcome::Sent(port, bytes)) => {
                let is_padded = run.output.len() == bytes.len() || frame.len() <= seen.l3 + 46;
                run.egress == Some(*port) && run.output.starts_with(bytes) && is_padded
            }
            (Action::Drop, Outcome::Drop(reason)) => {
                run.dropped == Some(*reason) && run.egress.is_none()
            }
            (Action::Pass, outcome) => {
                let fits = |reason| self.fits(reason, outcome, seen);
                run.output == frame && run.egress.is_none() && run.reason.is_some_and(fits)
            }
            _ => false,
        }
    }

    /// Says whether the user path, too, gives a frame to the kernel that a program passes for this reason, or drops
    /// it as invalid.
    fn fits(&self, reason: PassReason, outcome: &Outcome, seen: &Seen) -> bool {
        let is_sent = matches!(outcome, Outcome::Sent(..));
        // The kernel has the rules, too.
        let is_of_rules = matches!(
            outcome,
            Outcome::Drop(DropReason::NetfilterDrop)
                | Outcome::Punt(PuntReason::Reject | PuntReason::FilterUnsupported, ..)
        );
        let is_invalid = match outcome {
            Outcome::Drop(reason) => *reason != DropReason::Blackhole,
            _ => false,
        };
        if is_of_rules {
            return true;
        }
        let is_punted =
            |reasons: &[PuntReason]| outcome.punted().is_some_and(|punt| reasons.contains(&punt));
        match reason {
            // The program asks the user path, which is not there in this test, or behind no tc program; or the kernel
            // finishes the checksum.
            PassReason::NoSocket | PassReason::Undecided | PassReason::Checksum => true,
            // The user path looks deeper into tags.
            PassReason::Ethertype => !is_sent || seen.is_twice_tagged,
            // The program knows all addresses of the router, whatever the VRF.
            PassReason::Local => {
                let is_own = seen.dst().is_some_and(|dst| self.locals.contains(&dst));
                is_own || is_invalid || matches!(outcome, Outcome::Local(..))
            }
            PassReason::KernelRoute => is_punted(&[
                PuntReason::NoRoute,
                PuntReason::Unreachable,
                PuntReason::Prohibit,
                PuntReason::KernelRoute,
                PuntReason::KernelRule,
                PuntReason::KernelLink,
            ]),
            PassReason::KernelExit => is_punted(&[PuntReason::KernelExit]),
            PassReason::NeighUnresolved => {
                is_punted(&[PuntReason::NeighUnresolved, PuntReason::Redirect])
            }
            PassReason::MtuExceeded => is_punted(&[PuntReason::MtuExceeded, PuntReason::Redirect]),
            // The kernel drops what has a blackhole route, whatever its TTL.
            PassReason::Ttl => seen.ttl <= 1 && !is_sent,
            PassReason::Malformed => matches!(outcome, Outcome::Drop(_)),
            PassReason::Options => seen.has_options && !is_sent && is_blackholed(outcome).is_none(),
            PassReason::Special => self.is_special(seen, is_sent),
            PassReason::LinkLocal => seen.is_link_local() && (seen.is_ipv4() || !is_sent),
            PassReason::NotOursMac => !seen.is_ours,
            PassReason::GroupMac | PassReason::VlanUnknown => !is_sent,
            PassReason::Offload => seen.is_fragment && self.gives_up_fragments(seen),
            _ => false,
        }
    }

    /// Says whether a packet has an address that only the kernel handles, and is not forwarded unless such packets
    /// are rare.
    fn is_special(&self, seen: &Seen, is_sent: bool) -> bool {
        let is_own = seen.src().is_some_and(|src| src.is_ipv4() && self.locals.contains(&src));
        is_own || seen.is_rare() || (seen.is_special() && !is_sent)
    }

    fn gives_up_fragments(&self, seen: &Seen) -> bool {
        let Some(variant) = seen.variant else { return false };
        let port = &self.ports[usize::from(seen.port)];
        let link = port.links.iter().find(|link| link.link == variant.link(seen.port));
        link.is_some_and(|link| link.kernel_path.fragments4 || link.kernel_path.fragments6)
    }

    /// Says whether a program must forward a packet that the user path forwards.
    fn must_decide(&self, outcome: &Outcome, seen: &Seen) -> bool {
        let (Outcome::Sent(..), Some(variant), Some((src, dst))) =
            (outcome, seen.variant, seen.ends)
        else {
            return false;
        };
        // The programs know only the port's Ethernet address.
        let is_ours = seen.is_ours && variant.mac(seen.port) == LinkVariant::Plain.mac(seen.port);
        if !is_ours || seen.has_long_tail || seen.has_options || seen.is_link_local() {
            return false;
        }
        let is_suspect = seen.is_rare() || (src.is_ipv4() && self.locals.contains(&src));
        if is_suspect || (seen.is_fragment && self.gives_up_fragments(seen)) {
            return false;
        }
        let link = variant.link(seen.port);
        let next = self.route(link, src, dst);
        if next.is_group() || self.tables.next_hop(next).link == link {
            return false;
        }
        match self.checks.get(&link.0).map_or(Rpf::Off, |check| check.rpf) {
            _ if dst.is_ipv6() => true,
            Rpf::Off => true,
            Rpf::Kind | Rpf::Loose | Rpf::Strict => {
                let leaves_vrf = self.vrf_links.contains(&self.tables.next_hop(next).link.0)
                    && !self.vrf_links.contains(&link.0);
                !leaves_vrf && !self.route(link, dst, src).is_group()
            }
            Rpf::Unnumbered => false,
        }
    }

    /// The route of a packet that arrives on a link, by its policy, one rule after the other.
    fn route(&self, link: LinkId, src: IpAddr, dst: IpAddr) -> NextHopId {
        let Some(rules) = self.policies.get(&link.0) else {
            return self.tables.resolve(self.tables.link(link).vrf, dst);
        };
        let is_in = |prefix: Option<RoutePrefix>, address: IpAddr| match (prefix, address) {
            (None, _) => true,
            (Some(RoutePrefix::V4(prefix)), IpAddr::V4(v4)) => {
                prefix.contains(u128::from(v4.to_bits()) << 96)
            }
            (Some(RoutePrefix::V6(prefix)), IpAddr::V6(v6)) => prefix.contains(v6.to_bits()),
            _ => false,
        };
        for rule in rules {
            let has_mark = rule.mark.is_none_or(|(mark, mask)| mark & mask == 0);
            if !is_in(rule.src, src) || !is_in(rule.dst, dst) || !has_mark {
                continue;
            }
            let PolicyAction::View(vrf) = rule.action else { return NextHopId::NO_ROUTE };
            let next = self.tables.resolve(vrf, dst);
            if next != NextHopId::NO_ROUTE {
                return next;
            }
        }
        NextHopId::NO_ROUTE
    }

    /// The counts of a port's program.
    pub fn passed(&self, port: u8, reason: PassReason) -> u64 {
        self.programs.counts().port(PortId(port.into())).unwrap().passed(reason)
    }
}

/// The outcome with the outer tag beside the frame, where tc programs put it.
fn beside(outcome: &Outcome) -> Outcome {
    match outcome {
        Outcome::Sent(port, bytes) if matches!(bytes[12..14], [0x81, 0x00] | [0x88, 0xa8]) => {
            Outcome::Sent(*port, [&bytes[..12], &bytes[16..]].concat())
        }
        other => other.clone(),
    }
}

const fn is_blackholed(outcome: &Outcome) -> Option<()> {
    match outcome {
        Outcome::Drop(DropReason::Blackhole) => Some(()),
        _ => None,
    }
}

/// A frame that arrives on a link of a port.
pub fn arriving(variant: LinkVariant, port: u8, dst: IpAddr) -> Vec<u8> {
    variant.packet(port, dst).size(200).build()
}
