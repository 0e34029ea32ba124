//! The answer to each request.

mod connections;

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use serde::Serialize;
use tollway_dataplane::clock;
use tollway_dataplane::id::VrfId;
use tollway_dataplane::links::LinkRecord;
use tollway_dataplane::worker::Worker;

use super::message::{
    All, Drops, Engines, Link, Links, Neighbours, Ports, Punts, RouteLookup, RoutesPage,
    ShowRequest, line, refusal,
};
use super::offload::{self, Offload, PathCounts};
use super::request::{HandedOver, NO_FILE, Reloaded};
use super::routes::Reader;
use super::set::{self, Change, SetError};
use super::snapshot::{FirstPart, Snapshot, WorkerPart};
use super::workers::{WorkerReport, Workers};
use super::{filter, neighs};
use crate::reload::{Done, Reloader};
use tollway_controller::handle::Handle;
use tollway_controller::offload::Live;
use tollway_model::names::{NameTable, Names};
use tollway_model::{self, LinkKind};
use tollway_net::{Mac, VlanProtocol};
use tollway_worker::connections::LiveConnections;
use tollway_worker::ports::Devices;
use tollway_worker::{Activity, WorkerMailbox};

/// How long a worker may take to answer; it answers between two bursts.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);
/// The most routes of a page.
const PAGE: usize = 1000;
/// The shortest time over which the router measures the clock's rate.
const CLOCK_TIME: Duration = Duration::from_millis(50);

/// How long a change of the kernel's configuration may take until it is active. With a million
/// routes this is seconds.
const SYNC_PATIENCE: Duration = Duration::from_secs(60);
/// The answer of a router that runs from a file, without a controller.
const NO_CONTROLLER: &str = "this router has no controller: a file configures it, not the kernel";

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
enum AnswerError {
    /// The router has no controller.
    #[error("{NO_CONTROLLER}")]
    NoController,
    /// Nobody tracks connections, or the programs cannot ask about them.
    #[error(
        "this router forwards no connections: the kernel tracks none, or its programs cannot ask about them"
    )]
    NoTracking,
    /// The worker has ended.
    #[error("the workers have ended: the router is stopping")]
    Stopping,
    /// The worker of this number lives, but does not answer.
    #[error(
        "worker {_0} did not answer within {} s: it hangs, or it is busy", PATIENCE.as_secs()
    )]
    Silent(usize),
    /// No VRF has the requested name.
    #[error("there is no VRF {name}; there are {}", .known.join(", "))]
    NoVrf {
        /// The requested name.
        name: String,
        /// The names of some VRFs.
        known: Vec<String>,
    },
    /// A set was not changed.
    #[error(transparent)]
    Set(#[from] SetError),
}

/// The routes of one VRF, or of all.
struct VrfRoutes {
    names: Arc<Names>,
    reader: Reader,
    vrfs: Vec<VrfId>,
}

/// What a worker does for an answer, with its devices and its own account of its time.
type WorkerJob<T> = fn(&mut Worker, &Devices, &Activity) -> T;

/// The function that sends a line of an answer.
pub(super) type SendLine<'a> = &'a mut dyn FnMut(&str) -> io::Result<()>;

/// The parts of a router that serve requests besides queries of its tables. The server refuses requests that
/// need an absent part.
#[derive(Default)]
pub struct Backends {
    /// Reloads the configuration file.
    pub reloader: Option<Reloader>,
    /// The controller, which follows the kernel's configuration.
    pub controller: Option<Handle>,
    /// The current offload of traffic.
    pub offload: Option<Live>,
    /// The connections that the programs forward.
    pub connections: Option<LiveConnections>,
    /// The mailboxes of the workers from number 1 on.
    pub others: Vec<WorkerMailbox>,
    /// Stops the router so that a successor can take its ports.
    pub hand_over: Option<Box<dyn Fn() + Send + Sync>>,
}

/// Answers requests.
pub(super) struct RequestHandler {
    mailbox: WorkerMailbox,
    name_table: NameTable,
    backends: Backends,
    start: Instant,
    start_clock: u64,
}

impl RequestHandler {
    pub(super) fn new(mailbox: WorkerMailbox, name_table: NameTable, backends: Backends) -> Self {
        Self { mailbox, name_table, backends, start: Instant::now(), start_clock: clock::now() }
    }

    /// Answers a query in one or more lines.
    pub(super) fn answer(&self, show: &ShowRequest, send: SendLine<'_>) -> io::Result<()> {
        let answered = match show {
            ShowRequest::Routes { vrf, within, all } => {
                return match self.reader(vrf.as_deref()) {
                    Ok(routes) => routes.pages(*within, *all, send),
                    Err(error) => send(&refusal(&error.to_string())),
                };
            }
            ShowRequest::Connections(filter) => return self.connections(filter, send),
            ShowRequest::ConnectionTotals => self.totals(),
            ShowRequest::Workers => self.workers(),
            ShowRequest::Engines => self.counted(|snapshot| Engines::from(snapshot.ports())),
            ShowRequest::Ports => self.counted(|snapshot| snapshot.ports()),
            ShowRequest::Drops => self.counted(|snapshot| {
                let Ports { totals, .. } = snapshot.ports();
                Drops { totals, drops: snapshot.drops() }
            }),
            ShowRequest::Punts => self.counted(|snapshot| {
                let Ports { totals, .. } = snapshot.ports();
                Punts { totals, punts: snapshot.punts() }
            }),
            ShowRequest::Xdp => self.counted(|snapshot| snapshot.xdp()),
            ShowRequest::Tolls => {
                let tsc_mhz = self.tsc_mhz();
                self.counted(|snapshot| snapshot.tolls(tsc_mhz))
            }
            ShowRequest::Controller => self.controller(),
            ShowRequest::Offload => self.offload(),
            ShowRequest::All => self.all(),
            ShowRequest::Filter => self.filter(),
            ShowRequest::Links => self.links(),
            ShowRequest::Neighbours => self.neighbours(),
            ShowRequest::Route { address, vrf } => {
                let vrf = vrf.as_deref().or(Some("main"));
                self.reader(vrf).map(|VrfRoutes { names, reader, vrfs }| {
                    let id = vrfs.first().copied().unwrap_or_default();
                    let route = reader.find(&names, id, *address);
                    line(&RouteLookup { vrf: vrf_name(&names, id), address: *address, route })
                })
            }
        };
        send(&answered.unwrap_or_else(|error| refusal(&error.to_string())))
    }

    /// Reloads the configuration and answers with the result.
    pub(super) fn reload(&self) -> String {
        let Some(reloader) = &self.backends.reloader else {
            return refusal(NO_FILE);
        };
        match reloader.reload() {
            Ok(done) => {
                let pause_ns = match done {
                    Done::Unchanged => None,
                    Done::Installed { pause, .. } => u64::try_from(pause.as_nanos()).ok(),
                };
                let changed = done != Done::Unchanged;
                line(&Reloaded { changed, report: done.to_string(), pause_ns })
            }
            Err(error) => refusal(&error.to_string()),
        }
    }

    /// Waits until the kernel's configuration is active.
    pub(super) fn sync(&self) -> String {
        let Some(controller) = &self.backends.controller else { return refusal(NO_CONTROLLER) };
        match controller.sync(SYNC_PATIENCE) {
            Some(synced) => line(&synced),
            None => {
                let patience = SYNC_PATIENCE.as_secs();
                refusal(&format!("the kernel's changes are not installed after {patience} s"))
            }
        }
    }

    fn controller(&self) -> Result<String, AnswerError> {
        let controller = self.backends.controller.as_ref().ok_or(AnswerError::NoController)?;
        Ok(line(&controller.status()))
    }

    fn offload(&self) -> Result<String, AnswerError> {
        // If the controller is busy for longer, the report shows an earlier state of the routes.
        let controller = self.backends.controller.as_ref();
        let _ = controller.is_some_and(|controller| controller.evaluate(PATIENCE));
        let offload = self.current_offload().ok_or(AnswerError::NoController)?;
        let snapshot = self.snapshot()?;
        Ok(line(&Offload { counts: Some(self.paths(&snapshot)), ..offload }))
    }

    /// The offload of traffic without counts; none without a controller.
    fn current_offload(&self) -> Option<Offload> {
        let mut offload = Offload::from(&*self.backends.offload.as_ref()?.get());
        if self.backends.connections.as_ref().is_some_and(LiveConnections::are_kernels) {
            offload.leave_connections();
        }
        Some(offload)
    }

    /// Packets that arrived, by path; none without a controller.
    fn paths(&self, snapshot: &Snapshot) -> PathCounts {
        let Some(live) = &self.backends.offload else { return PathCounts::default() };
        let ports = offload::paths(live.counts(), snapshot.port_names());
        PathCounts { ports, punts: snapshot.punts() }
    }

    /// Changes a set of the active rules. The worker only hands the rules over; this thread changes
    /// the set, and voids what was decided by the old one before it answers.
    pub(super) fn change_set(&self, name: &str, change: Change, elements: &[String]) -> String {
        let active = self
            .on_worker(|_, worker, _| (worker.state().filter.clone(), Arc::clone(worker.router())));
        let done = active.and_then(|(filter, router)| {
            let done = set::change(filter.as_deref(), name, change, elements);
            self.mailbox.void_flows();
            router.place_waiting_rules();
            Ok(done?)
        });
        done.map_or_else(|error| refusal(&error.to_string()), |done| line(&done))
    }

    /// Stops the router so that a successor can take its ports. If the successor has gone before the
    /// answer, the router keeps running, because no other process would take the ports.
    pub(super) fn hand_over(&self, send: SendLine<'_>) -> io::Result<()> {
        let Some(hand_over) = &self.backends.hand_over else {
            return send(&refusal("this router cannot hand its ports over to another process"));
        };
        send(&line(&HandedOver { pid: std::process::id() }))?;
        hand_over();
        Ok(())
    }

    /// Runs a job on the worker, with the names that belong to its tables at that moment.
    fn on_worker<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Arc<Names>, &mut Worker, &mut Devices) -> T + Send + 'static,
    ) -> Result<T, AnswerError> {
        let name_table = self.name_table.clone();
        let start = Instant::now();
        let answer = self
            .mailbox
            .call(PATIENCE, move |worker, devices| job(&name_table.names(), worker, devices));
        answer.ok_or_else(|| match start.elapsed() < PATIENCE {
            true => AnswerError::Stopping,
            false => AnswerError::Silent(0),
        })
    }

    /// Takes a snapshot of the counters.
    fn snapshot(&self) -> Result<Snapshot, AnswerError> {
        let others = self.on_others(WorkerPart::take);
        let activity = Arc::clone(self.mailbox.activity());
        let (first, part) = self.on_worker(move |names, worker, devices| {
            let part = WorkerPart::take(worker, devices, &activity);
            (FirstPart::take(names, worker, devices), part)
        })?;
        let mut parts = vec![part];
        for other in await_all(others, 1) {
            parts.push(other?);
        }
        Ok(Snapshot::new(first, parts))
    }

    /// What each worker reports about itself; one that does not answer leaves only its own report out.
    fn workers(&self) -> Result<String, AnswerError> {
        let mailboxes = || std::iter::once(&self.mailbox).chain(&self.backends.others);
        let take = |worker: &mut Worker, devices: &Devices, activity: &Activity| {
            WorkerReport::take(worker, devices, activity)
        };
        let replies = mailboxes().map(|mailbox| send(mailbox, take)).collect();
        let mut parts = Vec::new();
        for (mailbox, reply) in mailboxes().zip(await_all(replies, 0)) {
            parts.push(match reply {
                Ok(report) => Ok(report),
                Err(AnswerError::Silent(_)) => Err(mailbox.activity().processor()),
                Err(error) => return Err(error),
            });
        }
        let ports: Vec<_> = self.name_table.names().ports.iter().map(|p| p.name.clone()).collect();
        Ok(line(&Workers::of(&parts, &ports)))
    }

    /// Posts a job to each worker from number 1 on.
    fn on_others<T: Send + 'static>(&self, job: WorkerJob<T>) -> Vec<Receiver<T>> {
        self.backends.others.iter().map(|mailbox| send(mailbox, job)).collect()
    }

    /// Answers from one snapshot of the counters.
    fn counted<T: Serialize>(
        &self,
        view: impl FnOnce(&Snapshot) -> T,
    ) -> Result<String, AnswerError> {
        self.snapshot().map(|snapshot| line(&view(&snapshot)))
    }

    fn all(&self) -> Result<String, AnswerError> {
        let tsc_mhz = self.tsc_mhz();
        let uptime_ns = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.counted(|snapshot| All {
            uptime_ns,
            ports: snapshot.ports(),
            drops: snapshot.drops(),
            punts: snapshot.punts(),
            xdp: snapshot.xdp(),
            paths: self.paths(snapshot),
            connections: self.connection_totals(),
            workers: snapshot.workers(),
            tolls: snapshot.tolls(tsc_mhz),
        })
    }

    /// The rate of the TSC, MHz. It becomes more exact the longer the router runs.
    fn tsc_mhz(&self) -> f64 {
        std::thread::sleep(CLOCK_TIME.saturating_sub(self.start.elapsed()));
        let clocks = clock::now().wrapping_sub(self.start_clock);
        clocks as f64 / self.start.elapsed().as_secs_f64() / 1e6
    }

    fn links(&self) -> Result<String, AnswerError> {
        let links = self.on_worker(|names, worker, _| {
            let records = worker.state().routes.links.iter().zip(&names.links);
            records.map(|(record, link)| describe(names, record, link)).collect()
        })?;
        Ok(line(&Links { links }))
    }

    fn filter(&self) -> Result<String, AnswerError> {
        let done = self.on_others(|worker, _, _| worker.add_rule_counts());
        await_all(done, 1).collect::<Result<(), _>>()?;
        let (names, installed, counts) = self.on_worker(|names, worker, _| {
            let installed = worker.state().filter.clone();
            (names.filter.as_ref().map(Arc::clone), installed, worker.rule_counts())
        })?;
        Ok(line(&filter::describe(names.as_deref(), installed.as_deref(), &counts)))
    }

    fn neighbours(&self) -> Result<String, AnswerError> {
        let (names, noted) =
            self.on_worker(|names, worker, _| (Arc::clone(names), neighs::copy(worker)))?;
        Ok(line(&Neighbours { neighbours: noted.list(&names) }))
    }

    /// The routes to read: those of one VRF, or all.
    fn reader(&self, vrf: Option<&str>) -> Result<VrfRoutes, AnswerError> {
        let (names, reader) =
            self.on_worker(|names, worker, _| (Arc::clone(names), Reader::new(worker)))?;
        let all = (0..names.vrfs.len()).map(|index| VrfId(index as u16));
        let vrfs: Vec<_> = match vrf {
            None => all.collect(),
            Some(name) => all.filter(|id| vrf_name(&names, *id) == name).collect(),
        };
        if vrfs.is_empty() {
            let known = names.vrfs.iter().map(|vrf| vrf.name.clone()).take(20).collect();
            return Err(AnswerError::NoVrf { name: vrf.unwrap_or("main").to_owned(), known });
        }
        Ok(VrfRoutes { names, reader, vrfs })
    }
}

/// Posts a job to a worker.
fn send<T: Send + 'static>(mailbox: &WorkerMailbox, job: WorkerJob<T>) -> Receiver<T> {
    let activity = Arc::clone(mailbox.activity());
    mailbox.send(move |worker, devices| job(worker, devices, &activity))
}

/// Waits for the results of jobs that workers, from a number on, do at the same time; all of them within
/// [`PATIENCE`].
fn await_all<T>(
    replies: Vec<Receiver<T>>,
    first: usize,
) -> impl Iterator<Item = Result<T, AnswerError>> {
    let deadline = Instant::now() + PATIENCE;
    replies.into_iter().enumerate().map(move |(index, reply)| {
        let left = deadline.saturating_duration_since(Instant::now());
        reply.recv_timeout(left).map_err(|error| match error {
            RecvTimeoutError::Timeout => AnswerError::Silent(first + index),
            RecvTimeoutError::Disconnected => AnswerError::Stopping,
        })
    })
}

impl VrfRoutes {
    /// Sends the routes page by page, one VRF and family at a time, and an empty page at the end.
    fn pages(&self, within: Option<IpNet>, all: bool, send: SendLine<'_>) -> io::Result<()> {
        let Self { names, reader, vrfs } = self;
        for id in vrfs {
            let vrf = Some(vrf_name(names, *id));
            for list in reader.lists(*id, within) {
                let mut routes = list.routes(reader, names, all).peekable();
                while routes.peek().is_some() {
                    let page: Vec<_> = routes.by_ref().take(PAGE).collect();
                    send(&line(&RoutesPage { vrf: vrf.clone(), routes: page, more: true }))?;
                }
            }
        }
        send(&line(&RoutesPage { vrf: None, routes: Vec::new(), more: false }))
    }
}

/// The port that a link is on, or the bridge.
fn below(names: &Names, record: &LinkRecord, link: &tollway_model::Link) -> String {
    if record.port.bridge().is_none() {
        let port = names.ports.get(usize::from(record.port.0));
        return port.map_or_else(String::new, |port| port.name.clone());
    }
    let mut bottom = link;
    while let LinkKind::Vlan { parent, .. } = bottom.kind
        && let Some(parent) = names.links.get(parent.0)
    {
        bottom = parent;
    }
    bottom.name.clone()
}

/// Describes a link from its record in the tables and from the configuration.
fn describe(names: &Names, record: &LinkRecord, link: &tollway_model::Link) -> Link {
    let (parent, vid, protocol) = match link.kind {
        LinkKind::Port(_) | LinkKind::Bridge { .. } => (None, None, None),
        LinkKind::Vlan { parent, vid, protocol } => {
            let protocol = match protocol {
                VlanProtocol::Dot1q => "802.1Q",
                VlanProtocol::Dot1ad => "802.1ad",
            };
            let parent = names.links.get(parent.0).map(|parent| parent.name.clone());
            (parent, Some(vid), Some(protocol.to_owned()))
        }
    };
    Link {
        name: link.name.clone(),
        port: below(names, record, link),
        parent,
        vid,
        protocol,
        mac: neighs::mac_text(Mac(record.mac_bytes)),
        mtu: record.mtu,
        vrf: vrf_name(names, record.vrf),
        addresses: link.addresses.clone(),
    }
}

/// The name of a VRF.
fn vrf_name(names: &Names, id: VrfId) -> String {
    let vrf = names.vrfs.get(usize::from(id.0));
    vrf.map_or_else(|| format!("vrf {}", id.0), |vrf| vrf.name.clone())
}
