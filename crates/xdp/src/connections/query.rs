//! The ring in which the programs ask for entries.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use aya::maps::{Map, MapData, RingBuf};
use tollway_dataplane::id::LinkId;

use super::key::{ConnectionKey, Family};
use crate::flows::MOST_KEY;

/// The link of a query or an entry without one (`NO_LINK` of bpf/connections.h).
pub(super) const NO_LINK: u16 = u16::MAX;

/// What a program asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// The packet's link and tuple, as it arrived.
    pub key: ConnectionKey,
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
            if let Some(query) = Query::of(&item) {
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
    /// Reads `struct connection4_query` or `struct connection6_query` of bpf/connections.h: the key, and the link. They
    /// differ by their length.
    fn of(bytes: &[u8]) -> Option<Self> {
        let (words, _) = bytes.as_chunks::<8>();
        let is_of = |family: &Family| words.len() == family.key_words() + 1;
        let family = [Family::V4, Family::V6].into_iter().find(is_of)?;
        let ([a, b, ..], key_words) = words.split_last()?;
        let mut key = [0; MOST_KEY];
        key.iter_mut().zip(key_words).for_each(|(word, bytes)| *word = u64::from_ne_bytes(*bytes));
        let output = u16::from_ne_bytes([*a, *b]);
        let output = (output != NO_LINK).then_some(LinkId(output));
        Some(Self { key: family.key(key), output })
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn a_query_is_of_the_family_that_its_length_says() {
        for ip in [IpAddr::from([10, 0, 0, 1]), IpAddr::from([1_u16; 8])] {
            let key = ConnectionKey::new(LinkId(5), 6, (ip, 80), (ip, 1024)).unwrap();
            let words = key.words();
            let own = words.iter().take(key.family().key_words()).copied();
            for (link, output) in [(7, Some(LinkId(7))), (NO_LINK, None)] {
                let [a, b] = link.to_ne_bytes();
                let last = u64::from_ne_bytes([a, b, 0, 0, 0, 0, 0, 0]);
                let bytes: Vec<_> = own.clone().chain([last]).flat_map(u64::to_ne_bytes).collect();
                assert_eq!(Query::of(&bytes), Some(Query { key, output }));
                assert_eq!(Query::of(&bytes[..bytes.len() - 8]), None);
            }
        }
    }
}
