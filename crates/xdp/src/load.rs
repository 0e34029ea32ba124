//! Loads the BPF programs, which all share one set of maps.

use std::cell::OnceCell;
use std::os::fd::{AsFd, OwnedFd};

use aya::programs::SchedClassifier;
use aya::{Ebpf, EbpfLoader, include_bytes_aligned};
use tollway_dataplane::memory::Part;
use tollway_net::Mac;

use super::addresses;
use super::connections::{ConnectionTable, Queries, Sizes};
use super::error::XdpError;
use super::features;
use super::flows::{self, FlowMaps, SEEDS, Seeds};
use super::kfuncs::{self, Functions, Hook};
use super::object::{self, program};
use super::pin::Names;
use super::tables::TableMaps;
use super::tracked;
use super::{Mode, Options, State, XdpPort, refusals, sys};

/// The compiled XDP programs of a port.
static PORT: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/port.o"));
/// The compiled tc program of a port.
static TC: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/tc.o"));

/// The compiled XDP programs of a port, which ask the kernel for no connections.
#[must_use]
pub fn port_program() -> Vec<u8> {
    let mut program = PORT.to_vec();
    kfuncs::give(&mut program, Hook::Xdp, None);
    program
}

/// The maps of bpf/*.h that all ports share.
pub(super) struct Maps {
    pub(super) state: OwnedFd,
    pub(super) counts: OwnedFd,
    pub(super) xsks: OwnedFd,
    pub(super) links: OwnedFd,
    pub(super) inner_links: OwnedFd,
    recent6: OwnedFd,
    connections4: OwnedFd,
    connections6: OwnedFd,
    connection_queries: OwnedFd,
    newcomers: OwnedFd,
    tracking: OwnedFd,
    tcp_tracks: OwnedFd,
    pub(super) locals4: OwnedFd,
    pub(super) locals6: OwnedFd,
    pub(super) flows4: OwnedFd,
    pub(super) flows6: OwnedFd,
    pub(super) egress: OwnedFd,
    pub(super) regions: OwnedFd,
    /// Records the frames that devices refuse, if the kernel permits.
    pub(super) refused: Option<refusals::Program>,
    tallies: OwnedFd,
    pub(super) locals4_bits: OwnedFd,
    refusals: OwnedFd,
    /// Buckets of the flows, IPv4 and IPv6, and the seeds of their hash.
    buckets: [u32; 2],
    connection_sizes: Sizes,
    seeds: Seeds,
    /// The mark of punted frames in generic mode.
    punt_mark: [u64; 2],
}

/// The names of the maps.
const NAMES: [&str; 21] = [
    "state",
    "counts",
    "xsks",
    "links",
    "locals4",
    "locals6",
    "flows4",
    "flows6",
    "egress",
    "regions",
    "tallies",
    "locals4_bits",
    "refusals",
    "inner_links",
    "recent6",
    "connections4",
    "connection_queries",
    "newcomers",
    "tracking",
    "tcp_tracks",
    "connections6",
];

/// A kind of program for a port.
#[derive(Clone, Copy)]
pub(super) struct Variant<'a> {
    pub(super) mode: Mode,
    /// Whether it has the XDP path.
    pub(super) xdp_path: bool,
    /// The tables that it decides by.
    pub(super) tables: Option<&'a TableMaps>,
    /// Whether its device has an XDP program and a tc program beside that.
    pub(super) beside: bool,
}

/// A program for a port.
pub(super) struct PortProgram {
    pub(super) program: OwnedFd,
    /// The map by which it comes to the programs for links whose connections the kernel tracks. The kernel empties it when
    /// no process has it.
    pub(super) tracked: Option<OwnedFd>,
    /// The rest of an XDP program's object, which has the program for its TAP device.
    pub(super) object: Option<Ebpf>,
}

/// The constants that the programs get when they are loaded (bpf/maps.h).
#[derive(Clone, Copy)]
struct Constants {
    port: u32,
    ifindex: u32,
    mac_first: u32,
    mac_last: u32,
    layer3: u32,
    queues: u32,
    xdp_path: u32,
    tables: u32,
    generic: u32,
    beside: u32,
    unfinished: u32,
    weakly_ordered: u32,
    flow_masks: [u32; 2],
    newcomers_mask: u32,
    flow_seeds: [u64; SEEDS],
    punt_mark: [u64; 2],
    /// By part of the tables (bpf/fib.h).
    elements: [u32; Part::ALL.len()],
}

impl Constants {
    fn new(port: &XdpPort, variant: Variant<'_>, maps: &Maps) -> Self {
        let Variant { mode, xdp_path, tables, beside } = variant;
        let [a, b, c, d, e, f] = port.mac.0;
        Self {
            port: u32::from(port.port.0),
            ifindex: port.ifindex,
            mac_first: u32::from_ne_bytes([a, b, c, d]),
            mac_last: u32::from(u16::from_ne_bytes([e, f])),
            layer3: u32::from(port.mac == Mac::NONE),
            queues: port.queues,
            xdp_path: u32::from(xdp_path),
            tables: u32::from(tables.is_some()),
            generic: u32::from(mode == Mode::Generic),
            beside: u32::from(beside),
            // Generic XDP sees packets of any sender.
            unfinished: u32::from(
                mode == Mode::Generic || features::passes_unfinished(&port.device),
            ),
            weakly_ordered: u32::from(!cfg!(any(target_arch = "x86_64", target_arch = "s390x"))),
            flow_masks: maps.buckets.map(|buckets| buckets - 1),
            newcomers_mask: maps.connection_sizes.newcomers() - 1,
            flow_seeds: maps.seeds.0,
            punt_mark: maps.punt_mark,
            elements: tables.map_or([0; Part::ALL.len()], TableMaps::elements),
        }
    }

    fn give<'a>(&'a self, loader: &mut EbpfLoader<'a>) {
        for (name, value) in [
            ("PORT", &self.port),
            ("IFINDEX", &self.ifindex),
            ("MAC_FIRST", &self.mac_first),
            ("MAC_LAST", &self.mac_last),
            ("LAYER3", &self.layer3),
            ("QUEUES", &self.queues),
            ("XDP_PATH", &self.xdp_path),
            ("TABLES", &self.tables),
            ("GENERIC", &self.generic),
            ("BESIDE", &self.beside),
            ("UNFINISHED", &self.unfinished),
            ("WEAKLY_ORDERED", &self.weakly_ordered),
            ("FLOWS4_MASK", &self.flow_masks[0]),
            ("FLOWS6_MASK", &self.flow_masks[1]),
            ("NEWCOMERS_MASK", &self.newcomers_mask),
        ] {
            loader.override_global(name, value, true);
        }
        loader.override_global("FLOW_SEEDS", &self.flow_seeds, true);
        loader.override_global("PUNT_MARK", &self.punt_mark, true);
        loader.override_global("ELEMENTS", &self.elements, true);
    }
}

/// A random mark of 112 bits. It reads as the Ethernet header of a protocol that is never punted,
/// to a station that is no port. So the kernel parses the header again after the mark is removed.
fn punt_mark(random: Seeds) -> [u64; 2] {
    let [first, second, ..] = random.0;
    let mut bytes = [first.to_ne_bytes(), second.to_ne_bytes()];
    // A unicast, locally administered address.
    bytes[0][0] = bytes[0][0] & 0xfc | 2;
    bytes[1][4..6].copy_from_slice(&LOCAL_EXPERIMENT.to_be_bytes());
    bytes.map(u64::from_ne_bytes)
}

/// The EtherType for experiments; such frames never leave the machine (IEEE 802, 9.2.4).
const LOCAL_EXPERIMENT: u16 = 0x88b5;

impl Maps {
    /// Creates the maps.
    pub(super) fn make(options: &Options) -> Result<Self, XdpError> {
        let names = Names::new()?;
        // The loader borrows this number, so the number outlives it.
        let namespace = OnceCell::new();
        // One for all objects: each loader parses the types of the whole kernel.
        let mut loader = EbpfLoader::new();
        let buckets = [options.flows4, options.flows6].map(flows::buckets);
        loader.map_max_entries("flows4", buckets[0]);
        loader.map_max_entries("flows6", buckets[1]);
        let connections = [options.connections4, options.connections6];
        let sizes = Sizes { buckets: connections.map(flows::buckets) };
        let [connections4, connections6] = sizes.buckets_of_maps();
        loader.map_max_entries("connections4", connections4);
        loader.map_max_entries("connections6", connections6);
        loader.map_max_entries("newcomers", sizes.newcomers());
        loader.map_max_entries("tcp_tracks", sizes.tracks());
        NAMES.iter().for_each(|name| _ = loader.map_pin_path(name, names.path(name)));
        let _made =
            loader.load(&port_program()).map_err(|error| XdpError::load("a map", &error))?;
        let map = |name: &'static str| {
            sys::pinned(&names.path(name)).map_err(XdpError::system(name, "opening the map"))
        };
        let [state, counts, xsks, links, locals4] = [0, 1, 2, 3, 4].map(|index| map(NAMES[index]));
        let [
            locals6,
            flows4,
            flows6,
            egress,
            regions,
            tallies,
            locals4_bits,
            refusals,
            inner_links,
            recent6,
            connections4,
            connection_queries,
            newcomers,
            tracking,
            tcp_tracks,
            connections6,
        ] = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20]
            .map(|index| map(NAMES[index]));
        let refused = refusals::Program::load(&mut loader, &namespace, &names).inspect_err(|error| {
            tracing::warn!(
                "cannot watch which frames of the XDP path devices refuse, so packets that leave by devices \
                 with zero-copy take the user path: {error}"
            );
        });
        Ok(Self {
            refused: refused.ok(),
            state: state?,
            counts: counts?,
            xsks: xsks?,
            links: links?,
            inner_links: inner_links?,
            recent6: recent6?,
            connections4: connections4?,
            connections6: connections6?,
            connection_queries: connection_queries?,
            newcomers: newcomers?,
            tracking: tracking?,
            tcp_tracks: tcp_tracks?,
            locals4: locals4?,
            locals6: locals6?,
            flows4: flows4?,
            flows6: flows6?,
            egress: egress?,
            regions: regions?,
            tallies: tallies?,
            locals4_bits: locals4_bits?,
            refusals: refusals?,
            buckets,
            connection_sizes: sizes,
            seeds: Seeds::random(),
            punt_mark: punt_mark(Seeds::random()),
        })
    }

    /// The memory of the flows; `state` decides which are active.
    pub(super) fn flows(&self, state: State) -> Result<FlowMaps, XdpError> {
        let [buckets4, buckets6] = self.buckets;
        let failed = || XdpError::system("flows", "mapping");
        let tallies = self.tallies.try_clone().map_err(failed())?;
        let maps = [(&self.flows4, buckets4), (&self.flows6, buckets6)];
        FlowMaps::map(maps, self.seeds, tallies, state).map_err(failed())
    }

    /// The table of connections, for the one thread that writes it, and what the programs ask.
    pub(super) fn connections(&self, state: State) -> Result<(ConnectionTable, Queries), XdpError> {
        let failed = || XdpError::system("connections", "mapping");
        let ring = self.connection_queries.try_clone().map_err(failed())?;
        let queries = Queries::map(ring).map_err(failed())?;
        let maps = ([&self.connections4, &self.connections6], &self.tcp_tracks);
        let table = ConnectionTable::map(maps, self.connection_sizes, self.seeds, state);
        Ok((table.map_err(failed())?, queries))
    }

    /// In the order of [`NAMES`].
    fn all(&self) -> [&OwnedFd; NAMES.len()] {
        [
            &self.state,
            &self.counts,
            &self.xsks,
            &self.links,
            &self.locals4,
            &self.locals6,
            &self.flows4,
            &self.flows6,
            &self.egress,
            &self.regions,
            &self.tallies,
            &self.locals4_bits,
            &self.refusals,
            &self.inner_links,
            &self.recent6,
            &self.connections4,
            &self.connection_queries,
            &self.newcomers,
            &self.tracking,
            &self.tcp_tracks,
            &self.connections6,
        ]
    }

    /// Loads the program for a port. If it decides by tables, this also loads those for links whose connections the
    /// kernel tracks.
    pub(super) fn program(
        &self,
        port: &XdpPort,
        variant: Variant<'_>,
    ) -> Result<PortProgram, XdpError> {
        let (hook, of_routing) = match variant.mode.is_tc() {
            true => (Hook::Tc, "forward"),
            false => (Hook::Xdp, "dispatch"),
        };
        let name = if port.is_bridge_port { "member" } else { of_routing };
        let xdp_path = variant.xdp_path || hook == Hook::Tc;
        let asks = xdp_path && variant.tables.is_some();
        let functions = kfuncs::functions().filter(|_| asks);
        let (mut object, compiled) =
            self.object(hook, port, Variant { xdp_path, ..variant }, functions.as_ref())?;
        let program = object::load(&mut object, hook, name);
        let program = program.map_err(|error| XdpError::load(&port.device, &*error))?;
        let tracked = functions.and_then(|functions| {
            let loaded = tracked::load((&compiled, hook), &mut object, &functions);
            loaded
                .inspect_err(|error| kfuncs::renounce(&XdpError::load(&port.device, &**error)))
                .ok()
        });
        // A kept object needs no descriptors but those of its constants, for `punt`.
        NAMES.into_iter().for_each(|name| drop(object.take_map(name)));
        Ok(PortProgram { program, tracked, object: Some(object).filter(|_| hook == Hook::Xdp) })
    }

    /// Loads the program of a port's object that hands frames back to the kernel, and attaches it
    /// to the output of a TAP device. It stays attached as long as the object lives.
    pub(super) fn punt(port: &XdpPort, object: &mut Ebpf, tap: &str) -> Result<(), XdpError> {
        use aya::programs::tc::{TcAttachType, qdisc_add_clsact};
        let failed =
            |error: &(dyn std::error::Error + 'static)| XdpError::load(&port.device, error);
        let program: &mut SchedClassifier =
            program(object, "punt").map_err(|error| failed(&error))?;
        program.load().map_err(|error| failed(&error))?;
        if program.attach(tap, TcAttachType::Ingress).is_err() {
            // Before Linux 6.6, attaching needs a queueing discipline.
            let _ = qdisc_add_clsact(tap);
            program.attach(tap, TcAttachType::Ingress).map_err(|error| failed(&error))?;
        }
        Ok(())
    }

    /// The XDP programs of a port, not yet loaded into the kernel.
    pub(super) fn port_object(&self, port: &XdpPort, mode: Mode) -> Result<Ebpf, XdpError> {
        let variant = Variant { mode, xdp_path: false, tables: None, beside: false };
        self.object(Hook::Xdp, port, variant, None).map(|(object, _)| object)
    }

    /// The programs of a port, not yet loaded into the kernel, and the compiled object that they come from.
    fn object(
        &self,
        hook: Hook,
        port: &XdpPort,
        variant: Variant<'_>,
        functions: Option<&Functions>,
    ) -> Result<(Ebpf, Vec<u8>), XdpError> {
        let names = Names::new()?;
        let constants = Constants::new(port, variant, self);
        let mut loader = EbpfLoader::new();
        let maps = NAMES.into_iter().zip(self.all().map(AsFd::as_fd));
        for (name, map) in maps {
            let path = names.path(name);
            let named = sys::pin(map, &path);
            named.map_err(XdpError::system(&port.device, "naming a map"))?;
            loader.map_pin_path(name, path);
        }
        constants.give(&mut loader);
        let mut compiled = match hook {
            Hook::Xdp => PORT.to_vec(),
            Hook::Tc => TC.to_vec(),
        };
        kfuncs::give(&mut compiled, hook, functions);
        if let Some(tables) = variant.tables {
            addresses::give(&mut compiled, &tables.maps());
        }
        let object = loader.load(&compiled);
        let object = object.map_err(|error| XdpError::load(&port.device, &error))?;
        Ok((object, compiled))
    }
}
