//! Tests of the handler of requests, without a socket.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::Testbed;
use crate::control::serve::RequestHandler;
use crate::control::{Backends, Offload as Shown, ShowRequest, Workers};
use tollway_controller::offload::{Live, Offload, PerFamily, Reason};
use tollway_model::names::NameTable;
use tollway_worker::mailbox;

/// Returns the answer to a query.
fn answer(handler: &RequestHandler, request: &ShowRequest) -> String {
    let mut answer = String::new();
    let mut send = |line: &str| {
        answer += line;
        Ok(())
    };
    handler.answer(request, &mut send).unwrap();
    answer
}

#[test]
fn nothing_is_handed_over_to_a_client_that_has_gone() {
    let handed = Arc::new(AtomicBool::new(false));
    let hands = Arc::clone(&handed);
    let hand_over = move || hands.store(true, Ordering::Relaxed);
    let backends = Backends { hand_over: Some(Box::new(hand_over)), ..Backends::default() };
    let handler = RequestHandler::new(mailbox().unwrap().0, NameTable::default(), backends);
    let gone = std::io::ErrorKind::BrokenPipe;
    assert_eq!(handler.hand_over(&mut |_| Err(gone.into())).unwrap_err().kind(), gone);
    assert!(!handed.load(Ordering::Relaxed));
    handler.hand_over(&mut |_| Ok(())).unwrap();
    assert!(handed.load(Ordering::Relaxed));
}

#[test]
fn the_last_offload_is_reported_with_counts() {
    let testbed = Testbed::new();
    let live = Live::default();
    let backends = Backends { offload: Some(live.clone()), ..Backends::default() };
    let handler = RequestHandler::new(testbed.mailbox.clone(), NameTable::default(), backends);
    let show = || serde_json::from_str::<Shown>(&answer(&handler, &ShowRequest::Offload)).unwrap();
    assert_eq!(show().routes.ipv4, 0);
    live.set(Offload {
        general: PerFamily { v4: vec![Reason::PathMtu], v6: vec![] },
        routes: PerFamily { v4: 3, v6: 0 },
        ..Offload::default()
    });
    let shown = show();
    assert_eq!((shown.routes.ipv4, shown.general.ipv4[0].reason.as_str()), (3, "path_mtu"));
    let counts = shown.counts.unwrap();
    assert!(counts.ports.is_empty() && counts.punts.is_empty(), "{counts:?}");
}

#[test]
fn a_worker_that_hangs_is_listed_beside_the_others() {
    let testbed = Testbed::new();
    let (silent, _receiver) = mailbox().unwrap();
    let backends = Backends { others: vec![silent], ..Backends::default() };
    let handler = RequestHandler::new(testbed.mailbox.clone(), NameTable::default(), backends);
    let show = |request| answer(&handler, &request);
    let start = Instant::now();
    let Workers { workers, .. } = serde_json::from_str(&show(ShowRequest::Workers)).unwrap();
    assert!(start.elapsed() < Duration::from_secs(3));
    let answers: Vec<_> = workers.iter().map(|one| (one.worker, one.counts.is_some())).collect();
    assert_eq!(answers, [(0, true), (1, false)]);
    for request in [ShowRequest::Ports, ShowRequest::Filter, ShowRequest::All] {
        let refused = show(request);
        assert!(refused.contains("worker 1 did not answer within 1 s"), "{refused}");
    }
}
