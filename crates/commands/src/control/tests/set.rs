//! Changing the firewall's sets over the socket.

use std::sync::Arc;

use serde_json::json;
use tollway_dataplane::stages::filter::Filter;

use super::*;
use crate::control::{Change, Command, SetChanged};

fn request(name: &str, change: Change, elements: &[&str]) -> Request {
    let elements = elements.iter().map(|element| (*element).to_owned()).collect();
    Request::Do(Command::Set { name: name.to_owned(), change, elements })
}

/// A router with two live sets.
fn testbed() -> (Testbed, Arc<Filter>) {
    let testbed = Testbed::new();
    let put = |worker: &mut Worker, _: &mut _| {
        let mut filter = Filter::new(0, Vec::new());
        let epochs = &worker.state().epochs;
        filter.add_live_set("inet fw bad", 4, &[(1, 1)], epochs).unwrap();
        filter.add_live_set("inet fw bad6", 6, &[], epochs).unwrap();
        let filter = Arc::new(filter);
        worker.set_filter(Some(Arc::clone(&filter)), &[]);
        filter
    };
    let filter = testbed.mailbox.call(Duration::from_secs(10), put).unwrap();
    (testbed, filter)
}

#[test]
fn elements_come_and_go() {
    let (testbed, filter) = testbed();
    let mut client = testbed.client();
    let mut change = |name: &str, change, elements: &[&str]| {
        client.request::<SetChanged>(&request(name, change, elements))
    };
    let done = change("inet fw bad", Change::Add, &["192.0.2.0/24", "0.0.0.1"]).unwrap();
    assert_eq!(done, SetChanged { set: "inet fw bad".into(), changed: 1, count: 2 });
    let done = change("bad6", Change::Add, &["2001:db8::1-2001:db8::9"]).unwrap();
    assert_eq!((done.set.as_str(), done.count), ("inet fw bad6", 1));
    let set = filter.live_set("bad").unwrap();
    assert!(set.covers(0xc000_0207) && set.is_changed());
    let done = change("bad", Change::Delete, &["0.0.0.1", "192.0.2.0/24"]).unwrap();
    assert_eq!((done.changed, set.elements()), (2, Vec::new()));
}

#[test]
fn impossible_changes_are_refused_with_a_sentence() {
    let plain = Testbed::new();
    let refused = |testbed: &Testbed, request: &Request| match testbed
        .client()
        .request::<SetChanged>(request)
    {
        Err(ClientError::Refused(sentence)) => sentence,
        other => panic!("{other:?}"),
    };
    let add = |name: &str, elements: &[&str]| request(name, Change::Add, elements);
    assert!(refused(&plain, &add("bad", &["::1"])).contains("has no firewall"));
    let (testbed, filter) = testbed();
    for (request, part) in [
        (add("worse", &["::1"]), "there are inet fw bad, inet fw bad6"),
        (add("bad", &["::1"]), "has IPv4 addresses, not ::1"),
        (add("bad", &["0.0.0.5", "hello"]), "\"hello\" is no address"),
        (request("bad", Change::Delete, &["0.0.0.5"]), "0.0.0.5 is not in set inet fw bad"),
        (request("bad", Change::Delete, &["0.0.0.1", "0.0.0.9"]), "the 1 before it are done"),
    ] {
        let sentence = refused(&testbed, &request);
        assert!(sentence.contains(part), "{sentence}");
    }
    assert_eq!(filter.live_set("bad").unwrap().count(), 0);
    let stream = testbed.raw();
    let strange = json!({"v": 2, "do": "set", "name": "bad", "change": "flush", "elements": []});
    let answer = exchange(&stream, format!("{strange}\n").as_bytes());
    assert!(answer["error"].as_str().unwrap().contains("not understood"), "{answer}");
}
