//! Takes connections of TCP over from the kernel.
//!
//! ```text
//! 1. The kernel's entry becomes liberal: it takes whatever comes back to it. And the kernel forgets what each side has
//!    acknowledged, or it would judge an RST by that, and that a side waits for an acknowledgment, or it would give the
//!    connection less time.
//! 2. A track begins, and the entries of both directions refer to it.
//! 3. The next packet makes its program read the kernel's windows. From then on it follows them, and the kernel does not.
//! ```
//!
//! A packet that was in the kernel meanwhile changes its numbers, and it knows acknowledgments again. The program merges
//! the numbers for a quarter of a second, and asks until the kernel has forgotten.

use std::io;

use tollway_conntrack::{Change, Connection, Conntrack, TcpFlags, TcpInfo, Tuple};
use tollway_dataplane::id::LinkId;
use tollway_dataplane::stages::filter::{Direction, Filter};
use tollway_xdp::connections::{self, ConnectionKey, ConnectionTable, Track, Treatment};

use super::answer::{LATER, direction, key_of, other_side, treatment_of_other, tuple_of};
use super::reason::KernelReason;

/// The link of a key that stands for a whole connection.
const ANY: LinkId = LinkId(0);

/// What a connection's entries need before packets of TCP are forwarded by them.
pub(super) struct HandOver<'a> {
    pub(super) table: &'a mut ConnectionTable,
    pub(super) conntrack: &'a mut Conntrack,
    /// The rules that the entries are made by.
    pub(super) filter: Option<&'a Filter>,
}

impl HandOver<'_> {
    /// Enters a direction of a connection, of which packets have this key, and the other one with it; or gives it up, if the
    /// kernel has to forward either. Returns whether the programs forward its packets by now, and whether they have come to
    /// forward those of the other one.
    pub(super) fn enter(
        &mut self,
        key: &ConnectionKey,
        connection: &Connection,
        mut entry: connections::Connection,
    ) -> io::Result<(bool, bool)> {
        if !matches!(entry.treatment, Treatment::Kernel { .. }) {
            entry.track = self.track(key, connection)?;
            if entry.track.is_none() {
                let why = KernelReason::NoTrack.number();
                entry.treatment = Treatment::Kernel { retry: LATER, why };
            }
        }
        let is_entered = self.table.insert(key, &entry, entry.generation);
        let mut is_other_entered = false;
        if entry.track.is_none() {
            self.give_up(connection);
        } else {
            is_other_entered = self.enter_other(key, connection, &entry);
            self.forget(key, connection)?;
        }
        Ok((is_entered && entry.treatment.forwards(), is_other_entered))
    }

    /// The track of a connection that the kernel has, of which packets have this key, and whether these are replies; none
    /// if the connection stays with the kernel.
    fn track(
        &mut self,
        key: &ConnectionKey,
        connection: &Connection,
    ) -> io::Result<Option<(Track, bool)>> {
        let own = tuple_of(key);
        let Some((direction, _)) = direction(connection, &own) else { return Ok(None) };
        let Some(original) = key_of(&connection.original, ANY) else { return Ok(None) };
        let Some(tcp) = connection.tcp else { return Ok(None) };
        let is_liberal = tcp.both_have(TcpFlags::LIBERAL);
        let track = match self.table.track(&original).filter(|_| is_liberal) {
            // The kernel has seen its end, or a beginning.
            Some(known) if self.table.track_state(known).is_closed => None,
            Some(known) => Some(known),
            None if is_liberal => self.table.begin_track(&original, true),
            None => {
                let both = TcpFlags(TcpFlags::LIBERAL.0 | TcpFlags::OF_PACKETS.0);
                match self.set(&own, connection.zone, both, TcpFlags::LIBERAL)? {
                    true => self.table.begin_track(&original, false),
                    false => None,
                }
            }
        };
        Ok(track.map(|track| (track, direction == Direction::Reply)))
    }

    /// Gives up following a connection, of which the kernel has to forward a direction.
    fn give_up(&mut self, connection: &Connection) {
        if let Some(original) = key_of(&connection.original, ANY) {
            self.table.end_track(&original);
        }
    }

    /// Makes the kernel forget the acknowledgments of a connection that was liberal before, and those that it waits for, if
    /// it knows any.
    fn forget(&mut self, key: &ConnectionKey, connection: &Connection) -> io::Result<()> {
        let knows =
            |tcp: TcpInfo| tcp.both_have(TcpFlags::LIBERAL) && tcp.any_has(TcpFlags::OF_PACKETS);
        if !connection.tcp.is_some_and(knows) {
            return Ok(());
        }
        self.set(&tuple_of(key), connection.zone, TcpFlags::OF_PACKETS, TcpFlags(0)).map(drop)
    }

    /// Enters the other direction of a connection, so that the programs follow its packets, too. They come in where those
    /// of this direction leave, or nothing comes of it. Returns whether the programs have come to forward them.
    fn enter_other(
        &mut self,
        key: &ConnectionKey,
        connection: &Connection,
        entry: &connections::Connection,
    ) -> bool {
        let Some(link) = entry.treatment.output() else { return false };
        let Some((track, is_reply)) = entry.track else { return false };
        let Some((tuple, translation)) = other_side(connection, key) else { return false };
        let Some(other) = key_of(&tuple, link) else { return false };
        let track = Some((track, !is_reply));
        let known = self.table.connections().get(&other);
        let is_same = |known: connections::Connection| {
            known.generation == entry.generation && known.track == track
        };
        if known.is_some_and(|(known, _)| is_same(known)) {
            return false;
        }
        // Their program asks if they leave by another link than that by which these come in.
        let treatment = treatment_of_other(self.filter, key, connection, link)
            .unwrap_or(Treatment::Unruled { retry: 0 });
        let entry = connections::Connection { treatment, translation, track, ..*entry };
        self.table.insert(&other, &entry, entry.generation) && treatment.forwards()
    }

    /// Changes flags of both sides in the kernel's entry; returns false if there is none.
    fn set(
        &mut self,
        tuple: &Tuple,
        zone: u16,
        mask: TcpFlags,
        flags: TcpFlags,
    ) -> io::Result<bool> {
        self.conntrack.change(tuple, zone, Change::TcpFlags { mask, flags })
    }
}
