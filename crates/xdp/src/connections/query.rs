//! The ring in which the programs ask for entries.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use aya::maps::{Map, MapData, RingBuf};
use tollway_dataplane::id::LinkId;

use crate::flows::Flow4Key;

/// Bytes of `struct connection_query` of bpf/connections.h: the key, and the link.
const BYTES: usize = 24;
/// The link of a query or an entry without one (`NO_LINK` of bpf/connections.h).
pub(super) const NO_LINK: u16 = u16::MAX;

/// What a program asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// The packet's link and tuple, as it arrived.
    pub key: Flow4Key,
    /// The link that it leaves by; none if the program does not know its entry's addresses.
    pub output: Option<LinkId>,
}

/// The queries that nobody has read yet; what does not fit into the ring is asked again.
pub struct Queries(RingBuf<MapData>);

impl Queries {
    /// Maps the ring's memory.
    pub(crate) fn map(ring: OwnedFd) -> io::Result<Self> {
        let map = MapData::from_fd(ring).map_err(io::Error::other)?;
        RingBuf::try_from(Map::RingBuf(map)).map(Self).map_err(io::Error::other)
    }

    /// Takes the oldest query.
    pub fn take(&mut self) -> Option<Query> {
        loop {
            let item = self.0.next()?;
            if let Some(query) = item.first_chunk().and_then(Query::of) {
                return Some(query);
            }
        }
    }
}

/// For poll(2).
impl AsRawFd for Queries {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Query {
    fn of(bytes: &[u8; BYTES]) -> Option<Self> {
        let (words, _) = bytes.as_chunks::<8>();
        let key = Flow4Key::of_bytes(words.first()?, words.get(1)?);
        let [a, b, ..] = *words.get(2)?;
        let output = u16::from_ne_bytes([a, b]);
        Some(Self { key, output: (output != NO_LINK).then_some(LinkId(output)) })
    }
}
