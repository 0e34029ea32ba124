//! `metadata`: the cost of a packet's state, by its size and by whether it is zeroed.

mod check;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use tollway_dataplane::burst::BURST;
use tollway_dataplane::frame::{FrameAddr, Umem};
use tollway_dataplane::prefix::{Prefix, RoutePrefix};
use tollway_dataplane::stages::filter::{Filter, Op, Point, Rule as PathRule, Rules};
use tollway_dataplane::tables::{Tables, TablesError};
use tollway_dataplane::wire::be16;

use super::experiment::{Experiment, Slice};
use super::small_path::{self, Agreement, Digest, HEADER, ROUTER_MAC, Routes};
use super::{Options, Plan, Size, Spec, Study, alone};
use crate::bench::Bench as PathBench;
use crate::frames::{FRAME_LEN, Source, Template};
use crate::memory;
use check::{Columns, Flagged, PACKET, Rule};

pub(super) const STUDY: Study = Study {
    name: "metadata",
    question: "what does a packet's state cost under the rule \"allow ip from any to any\"?",
    by_difference: false,
    plan,
    open,
    extra: None,
};

const FRAMES: usize = 1024;
const PASSES: usize = 48;

/// Passes of each sort on the router's own path.
const PATH_PASSES: usize = 32;

/// A path for one packet at a time or for a burst, and how often it calls the firewall.
struct Method {
    name: &'static str,
    title: &'static str,
    base: Option<&'static str>,
    published: Option<&'static str>,
    state: State,
    times: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    None,
    Zeroed,
    Flagged,
    Columns,
}

const METHODS: [Method; 8] = [
    Method { title: "no firewall, one packet at a time", ..method("none", State::None, 0) },
    Method { base: Some("none"), ..method("zeroed-once", State::Zeroed, 1) },
    Method { base: Some("none"), ..method("zeroed-twice", State::Zeroed, 2) },
    Method {
        base: Some("zeroed-once"),
        published: Some("+4.65%, +3.57%, +0.3% pps"),
        ..method("flagged-once", State::Flagged, 1)
    },
    Method {
        base: Some("zeroed-twice"),
        published: Some("about +11% pps"),
        ..method("flagged-twice", State::Flagged, 2)
    },
    Method {
        title: "no firewall, bursts of 64",
        base: Some("none"),
        ..method("columns-none", State::Columns, 0)
    },
    Method { base: Some("columns-none"), ..method("columns-once", State::Columns, 1) },
    Method { base: Some("columns-none"), ..method("columns-twice", State::Columns, 2) },
];

const fn method(name: &'static str, state: State, times: usize) -> Method {
    let title = match state {
        State::None => "no firewall",
        State::Zeroed => "240 bytes, zeroed",
        State::Flagged => "128 bytes, flags",
        State::Columns => "columns of a burst, 32 bytes a packet",
    };
    Method { name, title, base: None, published: None, state, times }
}

/// A row of the router's own path: the hooks with the rule, and whether the rule counts accepted
/// packets.
struct PathMethod {
    name: &'static str,
    title: &'static str,
    points: &'static [Point],
    counted: bool,
}

const ONCE: &[Point] = &[Point::Forward];
const TWICE: &[Point] = &[Point::Prerouting, Point::Forward];

const PATH: [PathMethod; 5] = [
    PathMethod { name: "path-none", title: "no rules", points: &[], counted: false },
    PathMethod { name: "path-once", title: "in hook forward", points: ONCE, counted: false },
    PathMethod {
        name: "path-twice",
        title: "in prerouting and forward",
        points: TWICE,
        counted: false,
    },
    PathMethod {
        name: "path-once-counted",
        title: "in forward, counted",
        points: ONCE,
        counted: true,
    },
    PathMethod {
        name: "path-twice-counted",
        title: "in both, counted",
        points: TWICE,
        counted: true,
    },
];

fn plan(study: &Study, options: &Options) -> Result<Plan, String> {
    let group = "a small path that walks a list of rules";
    let spec = |method: &Method| {
        let mut spec = Spec::new(group, method.name, method.title);
        spec.base = method.base.map(str::to_owned);
        spec.published = method.published.map(str::to_owned);
        spec
    };
    let mut specs: Vec<_> = METHODS.iter().map(spec).collect();
    for PathMethod { name, title, points, .. } in PATH {
        let spec = Spec::new("the router's whole path, bursts of 64", name, title);
        specs.push(if points.is_empty() { spec } else { spec.against("path-none", None) });
    }
    Ok(Plan { specs, notes: Vec::new(), experiments: alone(study, options) })
}

/// The small path.
struct SmallPath {
    umem: Umem,
    frames: Vec<FrameAddr>,
    templates: Vec<Template>,
    routes: Routes,
    rules: Vec<Rule>,
    sent: Vec<u16>,
}

impl SmallPath {
    fn new() -> Result<Self, String> {
        let mut umem = memory::umem(FRAMES as u32, 4096).ok_or("no memory for the frames")?;
        let frames = std::iter::from_fn(|| umem.alloc()).collect();
        Ok(Self {
            umem,
            frames,
            templates: small_path::templates(FRAMES, &[], 53),
            routes: Routes::new(),
            rules: check::rules(),
            sent: Vec::with_capacity(FRAMES),
        })
    }

    fn restore(&mut self) {
        self.sent.clear();
        for (addr, template) in self.frames.iter().zip(&self.templates) {
            *self.umem.bytes_mut(*addr, 0) = *template;
        }
    }

    fn run(&mut self, method: &Method) {
        match (method.state, method.times) {
            (State::None, _) => self.singly(|_, _, _| true, |_, _, _| true),
            (State::Zeroed, 1) => self.singly(zeroed(1), |_, _, _| true),
            (State::Zeroed, _) => self.singly(zeroed(1), zeroed(2)),
            (State::Flagged, 1) => self.singly(flagged(1), |_, _, _| true),
            (State::Flagged, _) => self.singly(flagged(1), flagged(2)),
            (State::Columns, times) => self.in_bursts(times),
        }
    }

    /// One packet after the other, with the firewall called on input and on output.
    #[inline(always)]
    fn singly(
        &mut self,
        mut come: impl FnMut(&mut [Rule], &[u8; PACKET], u16) -> bool,
        mut go: impl FnMut(&mut [Rule], &[u8; PACKET], u16) -> bool,
    ) {
        for addr in &self.frames {
            let packet: &mut [u8; PACKET] = self.umem.bytes_mut(*addr, 0);
            let Some(header) = packet.first_chunk::<HEADER>() else { continue };
            let Some(dst) = small_path::destination(header) else { continue };
            if !come(&mut self.rules, packet, FRAME_LEN as u16) {
                continue;
            }
            let next = self.routes.find(dst);
            if !go(&mut self.rules, packet, FRAME_LEN as u16) {
                continue;
            }
            if let Some(header) = packet.first_chunk_mut::<HEADER>() {
                small_path::rewrite(header, next);
            }
            self.sent.push(next.port);
        }
    }

    /// Burst by burst, stage by stage.
    #[inline(always)]
    fn in_bursts(&mut self, times: usize) {
        let mut columns = Columns::new();
        for frames in self.frames.chunks(BURST) {
            burst(&mut self.umem, frames, &mut columns, &self.routes, &mut self.rules, times);
            self.sent.extend(columns.link[..frames.len()].iter().copied().filter(|port| *port > 0));
        }
    }

    fn digest(&self) -> u64 {
        let mut digest = Digest::new();
        for addr in &self.frames {
            digest.add_frame(self.umem.bytes(*addr, 0));
        }
        self.sent.iter().for_each(|port| digest.add(u64::from(*port)));
        digest.0
    }
}

fn burst(
    umem: &mut Umem,
    frames: &[FrameAddr],
    columns: &mut Columns,
    routes: &Routes,
    rules: &mut [Rule],
    times: usize,
) {
    let mut going = 0_u64;
    for (lane, addr) in frames.iter().enumerate() {
        columns.addr[lane] = addr.0;
        columns.len[lane] = FRAME_LEN as u16;
        let dst = small_path::destination(umem.bytes(*addr, 0));
        columns.key[lane] = u64::from(dst.unwrap_or(0));
        going |= u64::from(dst.is_some()) << lane;
    }
    let port = |lane: usize| be16(umem.bytes::<PACKET>(frames[lane], 0), 36);
    for _ in 0..times {
        going &= check::columns(rules, columns, frames.len(), port);
    }
    for (lane, addr) in frames.iter().enumerate() {
        let next = routes.find(columns.key[lane] as u32);
        columns.link[lane] = 0;
        if going >> lane & 1 != 0 {
            small_path::rewrite(umem.bytes_mut(*addr, 0), next);
            columns.link[lane] = next.port;
        }
    }
}

fn zeroed(out: u64) -> impl FnMut(&mut [Rule], &[u8; PACKET], u16) -> bool {
    move |rules, packet, len| check::zeroed(rules, packet, len, out)
}

fn flagged(out: u64) -> impl FnMut(&mut [Rule], &[u8; PACKET], u16) -> bool {
    let mut state = Flagged::default();
    move |rules, packet, len| check::flagged(rules, packet, len, out, &mut state)
}

struct Bench {
    small_path: SmallPath,
    paths: Vec<PathBench>,
    passes: [usize; 2],
    ns_per_clock: f64,
    agreement: Agreement,
}

fn open(size: Size) -> Result<Box<dyn Experiment>, String> {
    let full = size == Size::Full;
    Ok(Box::new(Bench {
        small_path: SmallPath::new()?,
        paths: PATH.iter().map(path).collect::<Result<_, _>>()?,
        passes: if full { [PASSES, PATH_PASSES] } else { [2, 2] },
        ns_per_clock: small_path::ns_per_clock(),
        agreement: Agreement::default(),
    }))
}

/// The router's path with the rule.
fn path(of: &PathMethod) -> Result<PathBench, String> {
    let points = of.points;
    let tables = tables().map_err(|error| format!("tables: {error:?}"))?;
    let frames = Source::Whole(small_path::templates(FRAMES, &[], 53));
    let mut bench = PathBench::over(tables, frames, BURST)?;
    if points.is_empty() {
        return Ok(bench);
    }
    let mut filter = Filter::new(points.len(), Vec::new());
    for (at, point) in points.iter().enumerate() {
        let mut ops = vec![Op::Accept];
        if of.counted {
            ops.insert(0, Op::Count(at as u32));
        }
        let rule = PathRule { conditions: Vec::new(), ops, next: 1 };
        let end = PathRule { conditions: Vec::new(), ops: vec![Op::Drop], next: 2 };
        let rules = Rules { rules: vec![rule, end], end: 1 };
        filter
            .set(*point, 4, &rules)
            .map_err(|error| format!("cannot compile the rule: {error:?}"))?;
    }
    bench.filter(Arc::new(filter), false);
    Ok(bench)
}

/// Two ports, and a route from the first through the second.
fn tables() -> Result<Tables, TablesError> {
    let mut tables = Tables::new();
    let vrf = tables.add_vrf()?;
    tables.add_port(ROUTER_MAC, vrf, 1500)?;
    let (_, out) = tables.add_port([2, 0, 0, 0, 0, 2], vrf, 1500)?;
    let gateway = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    let next = tables.set_neigh(out, gateway, Some([2, 0, 0, 0, 0, 0x22]))?;
    tables.insert(vrf, RoutePrefix::V4(Prefix::v4(0x0a00_0000, 8)), next)?;
    Ok(tables)
}

impl Experiment for Bench {
    fn slice(&mut self) -> Result<Slice, String> {
        let mut agreed = Ok(());
        let small_path = &mut self.small_path;
        let taken = small_path::in_turn(METHODS.len(), self.passes[0], |at| {
            small_path.restore();
            let clocks = small_path::clocks(|| small_path.run(&METHODS[at]));
            if agreed.is_ok() {
                agreed = self.agreement.take("packets", METHODS[at].name, small_path.digest());
            }
            clocks / FRAMES as f64
        });
        agreed?;
        let mut rows = BTreeMap::new();
        for (method, clocks) in METHODS.iter().zip(taken) {
            rows.insert(method.name.to_owned(), clocks * self.ns_per_clock);
        }
        for (method, bench) in PATH.iter().zip(&mut self.paths) {
            let clocks = bench.clocks_per_packet(self.passes[1]);
            rows.insert(method.name.to_owned(), clocks * self.ns_per_clock);
        }
        Ok(Slice { rows, digests: self.agreement.clone(), ..Slice::default() })
    }
}
