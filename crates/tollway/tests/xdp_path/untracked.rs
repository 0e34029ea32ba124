//! Packets that rules keep out of connection tracking: the programs forward them by entries for which the kernel has no
//! connection.

use tollway_dataplane::id::LinkId;
use tollway_xdp::Action;
use tollway_xdp::connections::{Connection, ConnectionKey, Query, Translation, Treatment};
use tollway_xdp::counts::PassReason;

use crate::tcp_segments::{ACK, FIN, RST, SYN, Segment};
use crate::tcp_windows::SETTINGS;
use crate::testkit::wires::LinkVariant;
use crate::tracked::{OUT, Tracked, Version};

const UDP: u8 = 17;
const TCP: u8 = 6;

fn key(version: Version, protocol: u8) -> ConnectionKey {
    let link = LinkVariant::Plain.link(0);
    ConnectionKey::new(link, protocol, version.source(), version.destination()).unwrap()
}

fn insert(tracked: &mut Tracked, version: Version, protocol: u8, output: LinkId) {
    let generation = tracked.compared.programs.state().connections_generation();
    let key = key(version, protocol);
    let translation = Translation::none(&key);
    let treatment = Treatment::Untracked(output);
    let connection = Connection { generation, treatment, translation, mark: 0, track: None };
    assert!(tracked.table.insert(&key, &connection, generation));
    assert_eq!(tracked.table.connections().get(&key).unwrap().0, connection);
}

/// A frame of TCP with these flags, of no connection.
fn segment(version: Version, flags: u8) -> Vec<u8> {
    let segment = Segment {
        way: 0,
        seq: 7,
        ack: 9,
        flags,
        win: 100,
        options: Vec::new(),
        bytes: 30,
        is_damaged: false,
    };
    let (from, to) = (version.source(), version.destination());
    let packet = segment.packet([from.0, to.0], [from.1, to.1]);
    [&version.packet().build()[..14], &packet].concat()
}

/// All packets go on, whatever they are, by both engines, and the kernel is not asked.
pub fn forwarded() {
    let mut tracked = Tracked::new();
    tracked.compared.programs.state().set_verifies_sums(true);
    tracked.compared.programs.state().set_tcp(Some(SETTINGS));
    for version in Version::ALL {
        let output = OUT.link(1);
        let mut wrong = version.frame(&version.packet());
        *wrong.last_mut().unwrap() ^= 1;
        let mut without = version.frame(&version.packet());
        without[14 + version.header_len() + 6..][..2].fill(0);
        let udp = [version.frame(&version.packet()), wrong, without];
        // The kernel has a connection with these addresses from before, which has its own source.
        version.make(version.outside(), "SEEN_REPLY,ASSURED");
        let tcp = [SYN, SYN | ACK, ACK, ACK | FIN, RST, FIN, 0].map(|bits| segment(version, bits));
        for (protocol, frames) in [(UDP, &udp[..]), (TCP, &tcp[..])] {
            insert(&mut tracked, version, protocol, output);
            for frame in frames {
                let run = tracked.compared.run(0, frame);
                assert_eq!(run.action, Action::Redirect, "{version:?}: {:?}", run.reason);
                assert_eq!(run.output, OUT.forwarded(1, frame));
                let run = tracked.compared.run_by_tc(0, frame);
                assert_eq!(run.action, Action::Redirect, "{version:?}: {:?}", run.reason);
            }
            let (_, [packets, _]) =
                tracked.table.connections().get(&key(version, protocol)).unwrap();
            assert_eq!(packets, 2 * frames.len() as u64);
        }
        let long = version.frame(&version.packet().size(9100));
        assert_eq!(tracked.compared.run(0, &long).reason, Some(PassReason::MtuExceeded));
        let late = version.frame(&version.packet().ttl(1));
        assert_eq!(tracked.compared.run(0, &late).reason, Some(PassReason::Ttl));
        // The rules have been evaluated for another link than packets leave by.
        while tracked.queries.take().is_some() {}
        insert(&mut tracked, version, UDP, LinkId(output.0 + 1));
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert_eq!(tracked.compared.run(0, &udp[0]).reason, Some(PassReason::Connection));
        let query = Query { key: key(version, UDP), output: Some(output) };
        assert_eq!(tracked.queries.take(), Some(query));
    }
    let tally = tracked
        .table
        .connections()
        .tally(tracked.compared.programs.state().connections_generation());
    assert_eq!((tally.untracked, tally.forwarded), (4, 0));
    for version in Version::ALL {
        assert!(version.timeout().is_some_and(|timeout| timeout <= 30), "nobody has prolonged it");
    }
}
