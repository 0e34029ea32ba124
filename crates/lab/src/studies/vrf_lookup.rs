//! `vrf-lookup`: the cost of a VRF whose packets pass through its own device.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tollway_dataplane::burst::BURST;
use tollway_dataplane::fib::{Fib, Root};
use tollway_dataplane::frame::{FrameAddr, Umem};
use tollway_dataplane::id::NextHopId;
use tollway_dataplane::prefix::{Prefix, RoutePrefix};
use tollway_dataplane::tables::{Tables, TablesError};
use tollway_dataplane::wire::{checksum, word32};

use super::experiment::{Experiment, Slice};
use super::small_path::{self, Agreement, Digest, ROUTER_MAC, SENDER_MAC};
use super::{ExtraResults, Options, Plan, Size, Spec, Study, alone};
use crate::bench::Bench as PathBench;
use crate::frames::{self, Addresses, FRAME_LEN, Source, Template, Xorshift};
use crate::memory;
use crate::rr;

pub(super) const STUDY: Study = Study {
    name: "vrf-lookup",
    question: "what does it cost a packet that its VRF is a device with a lookup of its own?",
    by_difference: false,
    plan,
    open,
    extra: Some(transactions),
};

const FRAMES: usize = 4096;
const PREFIXES: usize = 10_000;
const PASSES: usize = 16;

/// Passes of the router's own path in a slice; a multiple that sends each frame equally often.
const PATH_PASSES: usize = 32;

/// Pairs of measurements of transactions.
const PAIRS: usize = 9;

/// How a small path forwards, one packet at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    /// One lookup, then output.
    Plain,
    /// Through the VRF's device, which looks up again.
    Device,
    /// Past the VRF's device, after a check for each packet that nothing is attached to the device.
    Checked,
}

const METHODS: [Method; 3] = [Method::Plain, Method::Device, Method::Checked];
const FAMILIES: [&str; 2] = ["ip4", "ip6"];

impl Method {
    const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Device => "device",
            Self::Checked => "checked",
        }
    }

    const fn title(self) -> &'static str {
        match self {
            Self::Plain => "no VRF: one lookup",
            Self::Device => "VRF: a device, and a second lookup in it",
            Self::Checked => "VRF: a device, passed by where nothing is attached",
        }
    }

    const fn published(self) -> Option<&'static str> {
        match self {
            Self::Plain => None,
            Self::Device => Some("-5% to -10%"),
            Self::Checked => Some("0% to -3%"),
        }
    }
}

fn plan(study: &Study, options: &Options) -> Result<Plan, String> {
    let mut specs = Vec::new();
    for family in FAMILIES {
        let group = format!("{family}, a small path, one packet at a time, 10,000 prefixes");
        for method in METHODS {
            let mut spec = Spec::new(&group, format!("{family}-{}", method.name()), method.title());
            if method != Method::Plain {
                spec = spec.against(format!("{family}-plain"), method.published());
            }
            specs.push(spec);
        }
        let group = format!("{family}, the router's whole path, bursts of 64, 10,000 prefixes");
        let name = |vrf: &str| format!("{family}-path-{vrf}");
        specs.push(Spec::new(&group, name("main"), "no VRF"));
        let spec = Spec::new(&group, name("vrf"), "VRF: another root, which the link names");
        specs.push(spec.against(name("main"), None));
    }
    Ok(Plan { specs, notes: Vec::new(), experiments: alone(study, options) })
}

/// Requests and responses through Tollway without and with a VRF, in pairs: transactions per
/// second.
fn transactions(options: &Options) -> Result<ExtraResults, String> {
    const KINDS: [&str; 3] = ["tcp-rr", "tcp-crr", "udp-rr"];
    let only: Vec<String> =
        KINDS.iter().flat_map(|kind| FAMILIES.map(|family| format!("{kind}-{family}"))).collect();
    let each = options.time / 2 / (2 * PAIRS * only.len()) as u32;
    let report = match rr::run(&rr::Options {
        only,
        routers: ["file", "vrf"].map(str::to_owned),
        pairs: PAIRS,
        time: each,
    }) {
        Ok(report) => report,
        // Without root, the rest of the study still counts.
        Err(error) => {
            let notes = vec![format!("no transactions were measured: {error}")];
            return Ok(ExtraResults { notes, ..ExtraResults::default() });
        }
    };
    let mut extra = ExtraResults::default();
    for row in report.rows {
        let name = |what| format!("{}_{what}", row.name.replace('-', "_"));
        let [low, high] = row.interval_percent;
        for (what, value) in [
            ("main_per_second", Some(row.base.rate.median)),
            ("vrf_per_second", Some(row.head.rate.median)),
            ("percent", row.difference_percent),
            ("percent_low", low),
            ("percent_high", high),
        ] {
            // JSON output has null for NaN.
            extra.figures.insert(name(what), value.unwrap_or(f64::NAN));
        }
    }
    Ok(extra)
}

/// Routes of both families in one of two VRFs, and addresses within them.
struct Scene {
    tables: Tables,
    destinations: [Vec<u128>; 2],
}

impl Scene {
    fn new(in_vrf: bool) -> Result<Self, String> {
        Self::filled(in_vrf).map_err(|error| format!("tables: {error:?}"))
    }

    fn filled(in_vrf: bool) -> Result<Self, TablesError> {
        let mut tables = Tables::new();
        let [main, red] = [tables.add_vrf()?, tables.add_vrf()?];
        let vrf = if in_vrf { red } else { main };
        tables.add_port(ROUTER_MAC, vrf, 1500)?;
        let (_, out) = tables.add_port([2, 0, 0, 0, 0, 2], vrf, 1500)?;
        let mut rng = Xorshift::new(0x7ab1e);
        let mut destinations = [Vec::new(), Vec::new()];
        for (family, destinations) in destinations.iter_mut().enumerate() {
            let gateway = [
                IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
                IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0xff, 0, 0, 0, 0, 1)),
            ][family];
            let next = tables.set_neigh(out, gateway, Some([2, 0, 0, 0, 0, 0x22]))?;
            for _ in 0..PREFIXES {
                let random = rng.next();
                let (prefix, address) = match family {
                    0 => v4(random),
                    _ => v6(random),
                };
                tables.insert(vrf, prefix, next)?;
                destinations.push(address);
            }
        }
        Ok(Self { tables, destinations })
    }

    fn frames(&self, family: usize) -> Source {
        let udp = |addresses| frames::udp(ROUTER_MAC, SENDER_MAC, &[], addresses, (4000, 53));
        let some = self.destinations[family].iter().take(FRAMES);
        match family {
            0 => {
                let template = udp(Addresses::V4(0xac10_0001, 0));
                Source::To4(template, some.map(|address| (address >> 96) as u32).collect())
            }
            _ => {
                let template = udp(Addresses::V6(0x2001_0db8_u128 << 96 | 7, 0));
                Source::To6(template, some.copied().collect())
            }
        }
    }
}

/// A prefix of 16 to 24 bits in 16.0.0.0/4, and an address in it, left-aligned.
fn v4(random: u64) -> (RoutePrefix, u128) {
    let address = 0x1000_0000 | (random >> 36) as u32;
    let prefix = Prefix::v4(address, 16 + (random % 9) as u8);
    (RoutePrefix::V4(prefix), u128::from(address) << 96)
}

/// A prefix of 32 to 48 bits in 2400::/12, and an address in it.
fn v6(random: u64) -> (RoutePrefix, u128) {
    let address = 0x2400_u128 << 112 | u128::from(random >> 12) << 64 | 1;
    (RoutePrefix::V6(Prefix::v6(address, 32 + (random % 17) as u8)), address)
}

/// What a kernel stores with a found route: where the packet continues.
#[derive(Clone, Copy)]
struct Route {
    output: fn(&mut SmallPath, FrameAddr, Route),
    header: [u8; 12],
    device: u16,
}

/// A device's counters, and what may be attached to it.
#[derive(Clone, Copy, Debug, Default)]
struct Device {
    packets: u64,
    bytes: u64,
    queue: Option<u32>,
    taps: u32,
    hooks: u32,
}

/// The VRF's device is the first.
const VRF: u16 = 0;

/// The small path.
struct SmallPath {
    umem: Umem,
    frames: Vec<FrameAddr>,
    scene: Scene,
    devices: [Device; 4],
    family: usize,
    sent: u64,
}

impl SmallPath {
    fn new() -> Result<Self, String> {
        let mut umem = memory::umem(FRAMES as u32, 4096).ok_or("no memory for the frames")?;
        Ok(Self {
            frames: std::iter::from_fn(|| umem.alloc()).collect(),
            umem,
            scene: Scene::new(true)?,
            devices: [Device::default(); 4],
            family: 0,
            sent: 0,
        })
    }

    fn restore(&mut self, source: &Source) {
        self.sent = 0;
        for (at, addr) in self.frames.iter().enumerate() {
            source.write(at % source.len(), self.umem.bytes_mut(*addr, 0));
        }
    }

    #[inline(never)]
    fn run(&mut self, method: Method) {
        for at in 0..self.frames.len() {
            let addr = self.frames[at];
            let route = self.find(addr);
            let route = match method {
                Method::Plain => route,
                // The route to the device replaces the route that was found.
                Method::Device => Route { output: through_device, device: VRF, ..route },
                Method::Checked => {
                    let device = black_box(&self.devices[usize::from(VRF)]);
                    if device.queue.is_some() || device.taps > 0 || device.hooks > 0 {
                        Route { output: through_device, device: VRF, ..route }
                    } else {
                        route
                    }
                }
            };
            black_box(route.output)(self, addr, route);
        }
    }

    /// The route of a packet's destination.
    #[inline(always)]
    fn find(&self, addr: FrameAddr) -> Route {
        let bytes: &Template = self.umem.bytes(addr, 0);
        let vrf = self.scene.tables.routes.vrfs[1];
        let next = match self.family {
            0 => {
                let dst = u32::from_be_bytes([bytes[30], bytes[31], bytes[32], bytes[33]]);
                look_up(&self.scene.tables.routes.fib4, vrf.root4, u128::from(dst) << 96)
            }
            _ => {
                let dst = bytes[38..54].try_into().unwrap_or([0; 16]);
                look_up(&self.scene.tables.routes.fib6, vrf.root6, u128::from_be_bytes(dst))
            }
        };
        let header = [2, 1, 0, 0, 0, next.0 as u8, 2, 0, 0, 0, 0, 2];
        Route { output: send, header, device: 1 + (next.0 & 1) as u16 }
    }

    fn digest(&self) -> u64 {
        let mut digest = Digest::new();
        for addr in &self.frames {
            digest.add_frame(self.umem.bytes(*addr, 0));
        }
        digest.add(self.sent);
        digest.0
    }
}

#[inline(never)]
fn look_up(fib: &Fib, root: Root, bits: u128) -> NextHopId {
    fib.lookup(root, bits)
}

/// The work of a VRF's device on a packet sent to it: counts the packet, and looks up its route
/// again.
#[inline(never)]
fn through_device(small_path: &mut SmallPath, addr: FrameAddr, route: Route) {
    let device = &mut small_path.devices[usize::from(route.device) & 3];
    device.packets += 1;
    device.bytes += FRAME_LEN as u64;
    let route = small_path.find(addr);
    black_box(route.output)(small_path, addr, route);
}

#[inline(never)]
fn send(small_path: &mut SmallPath, addr: FrameAddr, route: Route) {
    let bytes: &mut Template = small_path.umem.bytes_mut(addr, 0);
    if small_path.family == 0 {
        let word = checksum::after_ttl_decrement(word32(bytes, 22));
        bytes[22..26].copy_from_slice(&word.to_le_bytes());
    } else {
        bytes[21] = bytes[21].wrapping_sub(1);
    }
    bytes[..12].copy_from_slice(&route.header);
    let device = &mut small_path.devices[usize::from(route.device) & 3];
    device.packets += 1;
    device.bytes += FRAME_LEN as u64;
    small_path.sent += 1;
}

struct Bench {
    small_path: SmallPath,
    sources: [Source; 2],
    /// By family, without and with a VRF.
    paths: Vec<PathBench>,
    passes: [usize; 2],
    ns_per_clock: f64,
    agreement: Agreement,
    slices: usize,
}

fn open(size: Size) -> Result<Box<dyn Experiment>, String> {
    let small_path = SmallPath::new()?;
    let mut paths = Vec::new();
    for family in 0..FAMILIES.len() {
        for in_vrf in [false, true] {
            let scene = Scene::new(in_vrf)?;
            let frames = scene.frames(family);
            paths.push(PathBench::over(scene.tables, frames, BURST)?);
        }
    }
    Ok(Box::new(Bench {
        sources: [0, 1].map(|family| small_path.scene.frames(family)),
        small_path,
        paths,
        passes: if size == Size::Full { [PASSES, PATH_PASSES] } else { [2, 4] },
        ns_per_clock: small_path::ns_per_clock(),
        agreement: Agreement::default(),
        slices: 0,
    }))
}

impl Experiment for Bench {
    fn slice(&mut self) -> Result<Slice, String> {
        let mut rows = BTreeMap::new();
        for (family, name) in FAMILIES.iter().enumerate() {
            let mut agreed = Ok(());
            self.small_path.family = family;
            let taken = small_path::in_turn(METHODS.len(), self.passes[0], |at| {
                self.small_path.restore(&self.sources[family]);
                let clocks = small_path::clocks(|| self.small_path.run(METHODS[at]));
                if self.slices == 0 && agreed.is_ok() {
                    agreed =
                        self.agreement.take(name, METHODS[at].name(), self.small_path.digest());
                }
                clocks
            });
            agreed?;
            for (method, clocks) in METHODS.iter().zip(taken) {
                let ns = clocks * self.ns_per_clock / FRAMES as f64;
                rows.insert(format!("{name}-{}", method.name()), ns);
            }
            for (at, vrf) in ["main", "vrf"].iter().enumerate() {
                let clocks = self.paths[2 * family + at].clocks_per_packet(self.passes[1]);
                rows.insert(format!("{name}-path-{vrf}"), clocks * self.ns_per_clock);
            }
        }
        self.slices += 1;
        Ok(Slice { rows, digests: self.agreement.clone(), ..Slice::default() })
    }
}
