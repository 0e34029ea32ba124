//! Tests of the control socket and its messages, with a worker of their own.

mod connections;
mod handler;
mod set;
mod states;

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::Value;
use tollway_dataplane::id::{NextHopId, VrfId};
use tollway_dataplane::prefix::RoutePrefix;
use tollway_dataplane::worker::Worker;

use super::server::{MOST_CLIENTS, REQUEST_LIMIT};
use super::{
    Backends, Client, ClientError, ConnectionFilter, ConnectionOrder, IpVersion, NextHop, Ports,
    Protocol, Request, RouteLookup, RoutesPage, Server, ShowRequest, Socket, SocketError, Workers,
};
use tollway_model::Model;
use tollway_model::compile::compile;
use tollway_model::config;
use tollway_model::names::{NameTable, Names};
use tollway_worker::ports;
use tollway_worker::ports::dispatcher::Dispatcher;
use tollway_worker::{WorkerMailbox, mailbox};

const CONFIG: &str = "[ports.a]\nkind = \"memory\"\naddresses = [\"10.0.1.1/24\"]\n\
                      [ports.b]\nkind = \"memory\"\naddresses = [\"10.0.2.1/24\"]\n[vrfs.red]\n";

/// A worker that runs only the jobs of its mailbox, and a server in front of it.
struct Testbed {
    dir: tempfile::TempDir,
    mailbox: WorkerMailbox,
    server: Option<Server>,
    hangs: Arc<AtomicBool>,
    ends: Arc<AtomicBool>,
    worker: Option<JoinHandle<()>>,
}

impl Testbed {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut model = config::parse(CONFIG, "t.toml").unwrap().model;
        let (mailbox, mut mailbox_receiver) = mailbox().unwrap();
        let (hangs, ends) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (is_hanging, is_ending) = (Arc::clone(&hangs), Arc::clone(&ends));
        let name_table = NameTable::new(Names::from(&model));
        let worker = std::thread::spawn(move || {
            let mut umem = tollway_lab::memory::umem(64, 4096).unwrap();
            let dispatcher = Dispatcher::load(&model);
            let mut programs = |_: &Model, port| dispatcher.program(port);
            let opening = ports::Opening { programs: &mut programs, idle: &[], others: &[] };
            let (mut devices, _) = ports::open(&mut model, &mut umem, opening).unwrap();
            let compiled = compile(&model).unwrap();
            let mut worker = Worker::alone(compiled.tables, umem, compiled.host);
            while !is_ending.load(Ordering::Relaxed) {
                if !is_hanging.load(Ordering::Relaxed) {
                    mailbox_receiver.work(&mut worker, &mut devices);
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let socket = Socket::open(&dir.path().join("s"), false).unwrap();
        let server =
            Some(Server::start(socket, mailbox.clone(), name_table, Backends::default()).unwrap());
        Self { dir, mailbox, server, hangs, ends, worker: Some(worker) }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    fn client(&self) -> Client {
        Client::connect(Some(&self.path())).unwrap()
    }

    fn raw(&self) -> UnixStream {
        let stream = UnixStream::connect(self.path()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        self.server = None;
        self.ends.store(true, Ordering::Relaxed);
        if let Some(worker) = self.worker.take() {
            worker.join().unwrap();
        }
    }
}

/// Sends bytes and receives one line.
fn exchange(stream: &UnixStream, bytes: &[u8]) -> Value {
    let mut writer = stream;
    writer.write_all(bytes).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    let answer: Value =
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
    assert_eq!(answer["v"], 2);
    answer
}

#[test]
fn unknown_requests_are_answered_with_a_sentence() {
    let testbed = Testbed::new();
    let stream = testbed.raw();
    for (request, words) in [
        ("", "no JSON object"),
        ("hello", "no JSON object"),
        ("{\"v\":2,", "no JSON object"),
        ("[]", "names no version"),
        ("7", "names no version"),
        ("{\"show\":\"ports\"}", "names no version; add \"v\":2"),
        ("{\"v\":1,\"show\":\"ports\"}", "of version 1, and this is version 2"),
        ("{\"v\":\"1\",\"show\":\"ports\"}", "of version \"1\""),
        ("{\"v\":2}", "missing field `show`"),
        ("{\"v\":2,\"show\":\"prots\"}", "unknown variant `prots`"),
        ("{\"v\":2,\"show\":\"routes\",\"vfr\":\"red\"}", "vfr"),
        ("{\"v\":2,\"show\":\"routes\",\"vrf\":\"blue\"}", "no VRF blue; there are main, red"),
        ("{\"v\":2,\"show\":\"routes\",\"within\":\"10.0.0.0/99\"}", "not understood"),
        ("{\"v\":2,\"show\":\"connections\",\"protocol\":\"tpc\"}", "is no protocol"),
        ("{\"v\":2,\"show\":\"connections\",\"dport\":1}", "dport"),
        ("{\"v\":2,\"show\":\"route\"}", "address"),
        ("{\"v\":2,\"show\":\"route\",\"address\":\"10.0.0\"}", "not understood"),
    ] {
        let answer = exchange(&stream, format!("{request}\n").as_bytes());
        let error = answer["error"].as_str().unwrap_or_else(|| panic!("{request}: {answer}"));
        assert!(error.contains(words), "{request}: {error}");
    }
    let answer = exchange(&stream, b"\xff\xfe\n");
    assert!(answer["error"].as_str().unwrap().contains("not UTF-8"));
    let answer = exchange(&stream, b"{\"v\":2,\"show\":\"ports\"}\n");
    assert_eq!(answer["ports"][1]["name"], "b", "the connection is still usable");
}

#[test]
fn an_endless_request_ends_the_connection() {
    let testbed = Testbed::new();
    let stream = testbed.raw();
    let answer = exchange(&stream, &vec![b'x'; REQUEST_LIMIT as usize]);
    assert!(answer["error"].as_str().unwrap().contains("longer than 65536 bytes"));
    assert_eq!((&stream).read(&mut [0; 1]).unwrap(), 0);
    assert!(testbed.client().show::<Value>(&ShowRequest::Ports).is_ok(), "others are answered");
}

#[test]
fn every_request_is_answered() {
    let testbed = Testbed::new();
    let mut client = testbed.client();
    for (show, key) in [
        (ShowRequest::Ports, "ports"),
        (ShowRequest::Engines, "engines"),
        (ShowRequest::Workers, "workers"),
        (ShowRequest::Links, "links"),
        (ShowRequest::Routes { vrf: None, within: None, all: false }, "routes"),
        (ShowRequest::Neighbours, "neighbours"),
        (ShowRequest::Drops, "drops"),
        (ShowRequest::Punts, "punts"),
        (ShowRequest::Xdp, "why"),
        (ShowRequest::Tolls, "tolls"),
        (ShowRequest::All, "uptime_ns"),
    ] {
        let answer: Value = client.show(&show).unwrap();
        assert!(answer.get(key).is_some(), "{answer}");
        while answer["more"] == true && client.answer::<Value>().unwrap()["more"] == true {}
    }
    let Ports { totals, ports } = client.show(&ShowRequest::Ports).unwrap();
    assert_eq!((totals.received, totals.defect), (0, None));
    assert_eq!(ports[0].kind, "memory");
    assert_eq!(ports[0].how, "plain memory");
}

#[test]
fn routes_come_in_pages_in_order() {
    let testbed = Testbed::new();
    let filled = testbed.mailbox.call(Duration::from_secs(10), |worker, _| {
        let link = worker.state().ports[0].link;
        let next = worker.lock().tables.find_neigh(link, IpAddr::from([10, 0, 1, 9]));
        assert_eq!(next, None);
        let next = worker.lock().tables.neigh(link, IpAddr::from([10, 0, 1, 9])).unwrap();
        for index in 0..2500_u32 {
            let [_, _, high, low] = index.to_be_bytes();
            let prefix = RoutePrefix::new(IpAddr::from([20, high, low, 0]), 24);
            worker.lock().tables.insert(VrfId(1), prefix, next).unwrap();
        }
    });
    assert_eq!(filled, Some(()));
    let mut client = testbed.client();
    let mut pages = |within: Option<&str>| {
        let within = within.map(|net| net.parse().unwrap());
        client
            .send_show(&ShowRequest::Routes { vrf: Some("red".to_owned()), within, all: false })
            .unwrap();
        let mut pages = Vec::new();
        loop {
            let page: RoutesPage = client.answer().unwrap();
            if !page.more {
                assert!(page.routes.is_empty());
                return pages;
            }
            assert_eq!(page.vrf.as_deref(), Some("red"));
            pages.push(page.routes);
        }
    };
    let all = pages(None);
    assert_eq!(all.iter().map(Vec::len).collect::<Vec<_>>(), [1000, 1000, 500]);
    let all: Vec<_> = all.concat();
    assert!(all.is_sorted_by_key(|route| route.prefix));
    let via = NextHop { via: "10.0.1.9".parse().ok(), dev: "a".to_owned(), mac: None, share: None };
    assert_eq!(all[7].nexthops, [via]);
    assert_eq!(all[7].prefix.to_string(), "20.0.7.0/24");
    let some = pages(Some("20.1.0.0/16")).concat();
    assert_eq!(some, all[256..512]);
    assert!(pages(Some("fd00::/8")).is_empty());

    let vrf = Some("red".to_owned());
    let find = |client: &mut Client, address: &str| {
        let show = ShowRequest::Route { address: address.parse().unwrap(), vrf: vrf.clone() };
        client.show::<RouteLookup>(&show).unwrap().route
    };
    let mut client = testbed.client();
    assert_eq!(find(&mut client, "20.0.7.200").as_ref(), Some(&all[7]));
    assert_eq!(find(&mut client, "21.0.0.1"), None);
    assert_eq!(find(&mut client, "127.0.0.1").unwrap().kind, "ip_invalid_dest");

    // Like packets, the lookup continues in the VRF to which this VRF falls back.
    assert_eq!(find(&mut client, "10.0.2.9"), None);
    let fall_back = |worker: &mut Worker, _: &mut _| {
        worker.lock().tables.set_fallback(VrfId(1), Some(VrfId(0))).unwrap();
        let thrown = RoutePrefix::new(IpAddr::from([10, 0, 2, 0]), 25);
        worker.lock().tables.insert(VrfId(1), thrown, NextHopId::NO_ROUTE).unwrap();
    };
    assert_eq!(testbed.mailbox.call(Duration::from_secs(10), fall_back), Some(()));
    assert_eq!(find(&mut client, "10.0.2.9").unwrap().prefix.to_string(), "10.0.2.0/24");
}

#[test]
fn a_worker_that_hangs_or_has_ended_is_reported_as_such() {
    let mut testbed = Testbed::new();
    let mut client = testbed.client();
    testbed.hangs.store(true, Ordering::Relaxed);
    let start = Instant::now();
    let error = client.show::<Value>(&ShowRequest::Ports).unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(3));
    let hangs = "worker 0 did not answer within 1 s: it hangs, or it is busy";
    assert!(error.to_string().starts_with(hangs), "{error}");
    let Workers { workers, queues } = client.show(&ShowRequest::Workers).unwrap();
    assert_eq!((workers.len(), queues.len()), (1, 0));
    assert_eq!(workers[0].counts, None, "it is shown as not answering");
    testbed.hangs.store(false, Ordering::Relaxed);
    let Workers { workers, .. } = client.show(&ShowRequest::Workers).unwrap();
    assert!(workers[0].counts.is_some(), "it answers again");
    assert!(client.show::<Value>(&ShowRequest::Ports).is_ok(), "it has caught up");
    testbed.ends.store(true, Ordering::Relaxed);
    testbed.worker.take().unwrap().join().unwrap();
    for show in [ShowRequest::Drops, ShowRequest::Workers] {
        let error = client.show::<Value>(&show).unwrap_err();
        assert!(error.to_string().contains("the workers have ended"), "{error}");
    }
    let error = client.show::<Value>(&ShowRequest::Drops).unwrap_err();
    assert!(!error.remedy().is_empty());
}

#[test]
fn the_number_of_clients_is_limited() {
    let testbed = Testbed::new();
    let mut clients: Vec<_> = (0..MOST_CLIENTS).map(|_| testbed.client()).collect();
    for client in &mut clients {
        client.show::<Value>(&ShowRequest::Drops).unwrap();
    }
    let error = testbed.client().show::<Value>(&ShowRequest::Drops).unwrap_err();
    assert!(error.to_string().contains("16 clients are being served"), "{error}");
    clients.pop();
    // The thread of the closed client needs a moment to notice.
    let start = Instant::now();
    while testbed.client().show::<Value>(&ShowRequest::Drops).is_err() {
        assert!(start.elapsed() < Duration::from_secs(10));
    }
}

#[test]
fn a_server_that_ends_removes_its_socket() {
    let mut testbed = Testbed::new();
    let path = testbed.path();
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(std::fs::read_dir(testbed.dir.path()).unwrap().count(), 1, "nothing else is left");
    testbed.server = None;
    assert!(!path.exists());
    let error = Client::connect(Some(&path)).err().unwrap();
    assert!(error.to_string().starts_with("no tollway runs at"), "{error}");
    assert!(error.remedy().contains("--socket"));
}

#[test]
fn only_abandoned_sockets_are_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let first = Socket::open(&path, false).unwrap();
    assert!(matches!(Socket::open(&path, false), Err(SocketError::Live(_))));
    // A successor takes over; the old router does not remove the successor's file.
    let second = Socket::open(&path, true).unwrap();
    drop(first);
    assert!(path.exists());
    drop(second);
    assert!(!path.exists());
    // A killed process leaves a socket file that nobody listens on.
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    drop(Socket::open(&path, false).unwrap());
    std::fs::write(&path, "a file").unwrap();
    assert!(matches!(Socket::open(&path, true), Err(SocketError::NoSocket(_))));
    assert_eq!(std::fs::read(&path).unwrap(), b"a file");
    let long = dir.path().join("x".repeat(100));
    assert!(matches!(Socket::open(&long, false), Err(SocketError::TooLong(_))));
    let nowhere = dir.path().join("no/s");
    let error = Socket::open(&nowhere, false).unwrap_err();
    assert!(matches!(error, SocketError::System { .. }), "{error}");
    assert!(error.to_string().contains("no such file or directory"), "{error}");
    assert!(Socket::open(Path::new("/"), false).is_err());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left");
}

/// A user who can read the directory can lock it. In a directory that is open to all, a user can
/// also create files.
#[test]
fn other_users_cannot_block_the_socket() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let locked = File::open(dir.path()).unwrap();
    locked.lock().unwrap();
    let precious = other.path().join("s");
    std::fs::write(&precious, "").unwrap();
    let private_dir = dir.path().join(format!(".toll{}", std::process::id()));
    std::os::unix::fs::symlink(other.path(), private_dir).unwrap();
    let path = dir.path().join("s");
    let socket = Socket::open(&path, false).unwrap();
    assert!(UnixStream::connect(&path).is_ok() && precious.exists());
    drop(socket);
    let lock = dir.path().join(".s.lock");
    std::os::unix::fs::symlink(&precious, &lock).unwrap();
    let error = Socket::open(&path, false).unwrap_err();
    assert!(matches!(error, SocketError::System { .. }), "{error}");
}

#[test]
fn one_of_several_simultaneous_routers_gets_the_socket() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    drop(UnixListener::bind(&path).unwrap());
    let open = || {
        let path = path.clone();
        std::thread::spawn(move || Socket::open(&path, false).ok())
    };
    let threads: Vec<_> = (0..8).map(|_| open()).collect();
    let sockets: Vec<_> = threads.into_iter().filter_map(|t| t.join().unwrap()).collect();
    assert_eq!(sockets.len(), 1);
    assert!(UnixStream::connect(&path).is_ok());
}

fn show_requests() -> impl Strategy<Value = ShowRequest> {
    let vrf = || proptest::option::of("[a-z]{1,15}");
    let address = any::<IpAddr>();
    let net = (any::<IpAddr>(), 0..=32_u8);
    let net = net.prop_map(|(address, len)| ipnet::IpNet::new(address, len).unwrap());
    let net = || proptest::option::of(net.clone());
    let numbers = any::<(Option<u16>, Option<u8>, Option<u32>)>();
    let order = (any::<Option<bool>>(), any::<Option<bool>>(), any::<Option<(usize, u64)>>());
    let filter = (net(), net(), net(), numbers, (vrf(), vrf()), order).prop_map(|parts| {
        let (within, source, destination, (port, protocol, mark), (state, device), order) = parts;
        let protocol = protocol.map(Protocol);
        let (is_rate, is_ipv4, limits) = order;
        let sort = is_rate.map(|is_rate| match is_rate {
            true => ConnectionOrder::Rate,
            false => ConnectionOrder::Bytes,
        });
        let version =
            is_ipv4.map(|is_ipv4| if is_ipv4 { IpVersion::Ipv4 } else { IpVersion::Ipv6 });
        ConnectionFilter {
            within,
            source,
            destination,
            port,
            protocol,
            state,
            mark,
            version,
            path: device.clone(),
            reason: device.clone(),
            device,
            sort,
            limit: limits.map(|(limit, _)| limit),
            interval_ms: limits.map(|(_, interval_ms)| interval_ms),
        }
    });
    prop_oneof![
        Just(ShowRequest::Ports),
        Just(ShowRequest::Neighbours),
        Just(ShowRequest::All),
        (address, vrf()).prop_map(|(address, vrf)| ShowRequest::Route { address, vrf }),
        filter.prop_map(ShowRequest::Connections),
        (vrf(), net(), any::<bool>()).prop_map(|(vrf, within, all)| ShowRequest::Routes {
            vrf,
            within,
            all
        }),
    ]
}

proptest! {
    /// Any text is parsed without a panic, and a request is read as it was written.
    #[test]
    fn requests_are_read(show in show_requests(), text: String, cut: prop::sample::Index) {
        let _ = Request::read(&text);
        let request = Request::from(&show);
        let line = request.line();
        prop_assert_eq!(Request::read(&line), Ok(request));
        let cut = cut.index(line.len());
        prop_assert!(Request::read(&line[..cut]).is_err());
    }
}

#[test]
fn a_router_from_a_file_refuses_requests_about_the_kernel() {
    use super::Command;
    use tollway_controller::handle::{Status, Synced};
    let testbed = Testbed::new();
    let mut client = testbed.client();
    let synced = client.request::<Synced>(&Request::Do(Command::Sync));
    let status = client.show::<Status>(&ShowRequest::Controller);
    let offload = client.show::<super::Offload>(&ShowRequest::Offload);
    let connections = ShowRequest::Connections(ConnectionFilter::default());
    let connections = client.show::<super::ConnectionsPage>(&connections);
    for refused in [synced.err(), status.err(), offload.err(), connections.err()] {
        let Some(ClientError::Refused(sentence)) = refused else { panic!("{refused:?}") };
        assert!(sentence.contains("a file configures it"), "{sentence}");
    }
}
