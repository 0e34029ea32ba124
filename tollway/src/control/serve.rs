//! What is answered to each request.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use serde::Serialize;
use tollway_dataplane::clock;
use tollway_dataplane::id::VrfId;
use tollway_dataplane::router::Router;
use tollway_dataplane::tables::LinkRecord;

use super::coverage::{self, Coverage, RoadCounts};
use super::message::{
    All, Ask, Drops, Found, Link, Links, Neighbours, Ports, Punts, RoutesPage, line, refusal,
};
use super::request::{HandedOver, NO_FILE, Reloaded};
use super::routes::Reader;
use super::set::{self, Change};
use super::snapshot::Snapshot;
use super::{Board, Names, filter, neighs, snapshot};
use crate::mirror::coverage::Live;
use crate::mirror::handle::Handle;
use crate::model::{self, LinkKind, Mac, VlanProtocol};
use crate::ports::Devices;
use crate::reload::{Done, Reloader};
use crate::worker::Post;

/// How long the worker may take to answer: it does so between two bursts.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);
/// Routes of a page.
const PAGE: usize = 1000;
/// The clock's rate is measured over at least this long.
const CLOCK_TIME: Duration = Duration::from_millis(50);

/// A change of the kernel's may take so long until it is in force: with a million routes, seconds.
const SYNC_PATIENCE: Duration = Duration::from_secs(60);
/// The answer of a router that follows no kernel.
const NO_MIRROR: &str = "this router is configured by a file, not by the kernel";

/// Where lines of an answer go.
pub(super) type Say<'a> = &'a mut dyn FnMut(&str) -> io::Result<()>;

/// What clients may have done, beside asking.
#[derive(Default)]
pub struct Powers {
    /// Reads the configuration again.
    pub reloader: Option<Reloader>,
    /// Follows the kernel's configuration.
    pub mirror: Option<Handle>,
    /// Knows which traffic takes which road.
    pub coverage: Option<Live>,
    /// Makes the router stop and leave its ports to a successor.
    pub hand_over: Option<Box<dyn Fn() + Send + Sync>>,
}

/// Whoever knows the answers.
pub(super) struct Desk {
    post: Post,
    board: Board,
    powers: Powers,
    start: Instant,
    start_clock: u64,
}

impl Desk {
    pub(super) fn new(post: Post, board: Board, powers: Powers) -> Self {
        Self { post, board, powers, start: Instant::now(), start_clock: clock::now() }
    }

    /// Answers a request, in one line or more.
    pub(super) fn answer(&self, ask: &Ask, say: Say<'_>) -> io::Result<()> {
        let answered = match ask {
            Ask::Routes { vrf, within, all } => {
                return match self.reader(vrf.as_deref()) {
                    Ok((names, reader, vrfs)) => pages(&names, &reader, &vrfs, *within, *all, say),
                    Err(sentence) => say(&refusal(&sentence)),
                };
            }
            Ask::Ports => self.counted(|snapshot| snapshot.ports()),
            Ask::Drops => self.counted(|snapshot| {
                let Ports { totals, .. } = snapshot.ports();
                Drops { totals, drops: snapshot.drops() }
            }),
            Ask::Punts => self.counted(|snapshot| {
                let Ports { totals, .. } = snapshot.ports();
                Punts { totals, punts: snapshot.punts() }
            }),
            Ask::Express => self.counted(|snapshot| snapshot.express()),
            Ask::Tolls => {
                let tsc_mhz = self.tsc_mhz();
                self.counted(|snapshot| snapshot.tolls(tsc_mhz))
            }
            Ask::Mirror => self.mirror(),
            Ask::Coverage => self.coverage(),
            Ask::All => self.all(),
            Ask::Filter => self.filter(),
            Ask::Links => self.links(),
            Ask::Neighbours => self.neighbours(),
            Ask::Route { address, vrf } => {
                let vrf = vrf.as_deref().or(Some("main"));
                self.reader(vrf).map(|(names, reader, vrfs)| {
                    let id = vrfs.first().copied().unwrap_or_default();
                    let route = reader.find(&names, id, *address);
                    line(&Found { vrf: vrf_name(&names, id), address: *address, route })
                })
            }
        };
        say(&answered.unwrap_or_else(|sentence| refusal(&sentence)))
    }

    /// Has the configuration read again; what came of it.
    pub(super) fn reload(&self) -> String {
        let Some(reloader) = &self.powers.reloader else {
            return refusal(NO_FILE);
        };
        match reloader.reload() {
            Ok(done) => {
                let pause_ns = match done {
                    Done::Unchanged => None,
                    Done::InForce { pause, .. } => u64::try_from(pause.as_nanos()).ok(),
                };
                let changed = done != Done::Unchanged;
                line(&Reloaded { changed, told: done.to_string(), pause_ns })
            }
            Err(error) => refusal(&error.to_string()),
        }
    }

    /// Waits until the kernel's configuration is in force.
    pub(super) fn sync(&self) -> String {
        let Some(mirror) = &self.powers.mirror else { return refusal(NO_MIRROR) };
        match mirror.sync(SYNC_PATIENCE) {
            Some(synced) => line(&synced),
            None => {
                let patience = SYNC_PATIENCE.as_secs();
                refusal(&format!("what the kernel has told is not in force after {patience} s"))
            }
        }
    }

    fn mirror(&self) -> Result<String, String> {
        let mirror = self.powers.mirror.as_ref().ok_or(NO_MIRROR)?;
        Ok(line(&mirror.status()))
    }

    fn coverage(&self) -> Result<String, String> {
        let live = self.powers.coverage.as_ref().ok_or(NO_MIRROR)?;
        // Where it has much to do, the routes are those of a while ago.
        let _ = self.powers.mirror.as_ref().is_some_and(|mirror| mirror.judge(PATIENCE));
        let snapshot = self.ask(snapshot::take)?;
        let ports = snapshot.port_names();
        let ports = coverage::roads(live.counts(), ports);
        let counts = RoadCounts { ports, punts: snapshot.punts() };
        Ok(line(&Coverage { counts: Some(counts), ..Coverage::from(&*live.get()) }))
    }

    /// Changes a set of the rules that are in force now; the worker is asked for them alone.
    pub(super) fn change_set(&self, name: &str, change: Change, elements: &[String]) -> String {
        let filter = self.ask(|_, router, _| router.tables.filter.clone());
        let done = filter.and_then(|filter| set::change(filter.as_deref(), name, change, elements));
        done.map_or_else(|sentence| refusal(&sentence), |done| line(&done))
    }

    /// Has the router stop and leave its ports to a successor, unless that one has gone meanwhile:
    /// nobody would take them.
    pub(super) fn hand_over(&self, say: Say<'_>) -> io::Result<()> {
        let Some(hand_over) = &self.powers.hand_over else {
            return say(&refusal("this router hands nothing over"));
        };
        say(&line(&HandedOver { pid: std::process::id() }))?;
        hand_over();
        Ok(())
    }

    /// Asks the worker; the names are those of the tables that it has at that moment.
    fn ask<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Arc<Names>, &mut Router, &mut Devices) -> T + Send + 'static,
    ) -> Result<T, String> {
        let board = self.board.clone();
        let asked = Instant::now();
        let answer =
            self.post.ask(PATIENCE, move |router, devices| job(&board.names(), router, devices));
        answer.ok_or_else(|| {
            if asked.elapsed() < PATIENCE {
                "the worker has ended: the router is stopping".to_owned()
            } else {
                let patience = PATIENCE.as_secs();
                format!("the worker has not answered for {patience} s: it hangs, or is kept busy")
            }
        })
    }

    /// An answer out of one snapshot of the counts.
    fn counted<T: Serialize>(&self, view: impl FnOnce(&Snapshot) -> T) -> Result<String, String> {
        self.ask(snapshot::take).map(|snapshot| line(&view(&snapshot)))
    }

    fn all(&self) -> Result<String, String> {
        let tsc_mhz = self.tsc_mhz();
        let uptime_ns = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.counted(|snapshot| All {
            uptime_ns,
            ports: snapshot.ports(),
            drops: snapshot.drops(),
            punts: snapshot.punts(),
            express: snapshot.express(),
            tolls: snapshot.tolls(tsc_mhz),
        })
    }

    /// The clock's rate, the better known the longer the router runs.
    fn tsc_mhz(&self) -> f64 {
        std::thread::sleep(CLOCK_TIME.saturating_sub(self.start.elapsed()));
        let clocks = clock::now().wrapping_sub(self.start_clock);
        clocks as f64 / self.start.elapsed().as_secs_f64() / 1e6
    }

    fn links(&self) -> Result<String, String> {
        let links = self.ask(|names, router, _| {
            let records = router.tables.links.iter().zip(&names.links);
            records.map(|(record, link)| describe(names, record, link)).collect()
        })?;
        Ok(line(&Links { links }))
    }

    fn filter(&self) -> Result<String, String> {
        let (names, in_force, counts) = self.ask(|names, router, _| {
            let in_force = router.tables.filter.as_ref().map(Arc::clone);
            (names.filter.as_ref().map(Arc::clone), in_force, router.rule_counts().to_vec())
        })?;
        Ok(line(&filter::describe(names.as_deref(), in_force.as_deref(), &counts)))
    }

    fn neighbours(&self) -> Result<String, String> {
        let (names, noted) =
            self.ask(|names, router, _| (Arc::clone(names), neighs::note(router)))?;
        Ok(line(&Neighbours { neighbours: noted.list(&names) }))
    }

    /// What routes are read from, and the VRFs that are asked for: all or one.
    fn reader(&self, vrf: Option<&str>) -> Result<(Arc<Names>, Reader, Vec<VrfId>), String> {
        let (names, reader) =
            self.ask(|names, router, _| (Arc::clone(names), Reader::new(router)))?;
        let all = (0..names.vrfs.len()).map(|index| VrfId(index as u16));
        let vrfs: Vec<_> = match vrf {
            None => all.collect(),
            Some(name) => all.filter(|id| vrf_name(&names, *id) == name).collect(),
        };
        if vrfs.is_empty() {
            let known: Vec<_> = names.vrfs.iter().map(|vrf| vrf.name.as_str()).take(20).collect();
            let wanted = vrf.unwrap_or("main");
            return Err(format!("there is no VRF {wanted}; there are {}", known.join(", ")));
        }
        Ok((names, reader, vrfs))
    }
}

/// Sends routes page by page, a VRF and family at a time, and an empty page at the end.
fn pages(
    names: &Names,
    reader: &Reader,
    vrfs: &[VrfId],
    within: Option<IpNet>,
    all: bool,
    say: Say<'_>,
) -> io::Result<()> {
    for id in vrfs {
        let vrf = Some(vrf_name(names, *id));
        for list in reader.lists(*id, within) {
            let mut routes = list.routes(reader, names, all).peekable();
            while routes.peek().is_some() {
                let page: Vec<_> = routes.by_ref().take(PAGE).collect();
                say(&line(&RoutesPage { vrf: vrf.clone(), routes: page, more: true }))?;
            }
        }
    }
    say(&line(&RoutesPage { vrf: None, routes: Vec::new(), more: false }))
}

/// A link by its record and by what the configuration says of it.
fn describe(names: &Names, record: &LinkRecord, link: &model::Link) -> Link {
    let (parent, vid, protocol) = match link.kind {
        LinkKind::Port(_) => (None, None, None),
        LinkKind::Vlan { parent, vid, protocol } => {
            let protocol = match protocol {
                VlanProtocol::Dot1q => "802.1Q",
                VlanProtocol::Dot1ad => "802.1ad",
            };
            let parent = names.links.get(parent.0).map(|parent| parent.name.clone());
            (parent, Some(vid), Some(protocol.to_owned()))
        }
    };
    let port = names.ports.get(usize::from(record.port.0));
    Link {
        name: link.name.clone(),
        port: port.map_or_else(String::new, |port| port.name.clone()),
        parent,
        vid,
        protocol,
        mac: Mac(record.mac_bytes).to_string(),
        mtu: record.mtu,
        vrf: vrf_name(names, record.vrf),
        addresses: link.addresses.clone(),
    }
}

/// What a VRF is called.
fn vrf_name(names: &Names, id: VrfId) -> String {
    let vrf = names.vrfs.get(usize::from(id.0));
    vrf.map_or_else(|| format!("vrf {}", id.0), |vrf| vrf.name.clone())
}
