//! The socket at which the kernel answers about connections.

use std::io;
use std::net::IpAddr;
use std::ops::ControlFlow;

use tollway_linux::netlink::QuerySocket;

use crate::connection::Connection;
use crate::message::{self, Change, Malformed};
use crate::tuple::Tuple;

/// `IPCTNL_MSG_CT_GET` and `IPCTNL_MSG_CT_NEW` of `NFNL_SUBSYS_CTNETLINK`.
const GET: u16 = 1 << 8 | 1;
const NEW: u16 = 1 << 8;
/// `IPCTNL_MSG_CT_GET_STATS`.
const GET_STATS: u16 = 1 << 8 | 5;

/// The address family of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// IPv4.
    Ip,
    /// IPv6.
    Ip6,
}

/// A socket for queries about the connections of one network namespace.
pub struct Conntrack(QuerySocket);

impl Conntrack {
    /// Opens a socket of the thread's network namespace. Queries need `CAP_NET_ADMIN` there.
    ///
    /// # Errors
    /// The kernel has no netfilter, or no descriptor is left.
    pub fn open() -> io::Result<Self> {
        QuerySocket::open(libc::NETLINK_NETFILTER as isize).map(Self)
    }

    /// Asks for the number of connections, so that the kernel loads its module of connections if it has not.
    ///
    /// # Errors
    /// The kernel refused, or has no such module.
    pub fn load(&mut self) -> io::Result<()> {
        self.0.answer(GET_STATS, &message::header(None))?.map(drop)
    }

    /// The connection that has a tuple in either direction, or none. `zone` is the zone of that direction.
    ///
    /// # Errors
    /// The kernel refused, or the tuple is of no family.
    pub fn get(&mut self, tuple: &Tuple, zone: u16) -> io::Result<Option<Connection>> {
        let request = message::get(tuple, zone).ok_or(io::ErrorKind::InvalidInput)?;
        match self.0.answer(GET, &request)? {
            Ok(answer) => Ok(Some(message::read(&answer)?)),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Changes the connection that has a tuple in either direction; returns false if there is none. `zone` is the zone
    /// of that direction.
    ///
    /// # Errors
    /// The kernel refused, or the tuple is of no family.
    pub fn change(&mut self, tuple: &Tuple, zone: u16, change: Change) -> io::Result<bool> {
        let request = message::change(tuple, zone, change).ok_or(io::ErrorKind::InvalidInput)?;
        match self.0.change(NEW, 0, &request) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Reads the connections one by one, of one family or all, until `take` breaks. Memory does not grow with their
    /// number: the kernel produces them as they are read. Connections that come and go meanwhile may be missing.
    ///
    /// # Errors
    /// The kernel refused, or it sent a connection that cannot be read.
    pub fn each(
        &mut self,
        family: Option<Family>,
        mut take: impl FnMut(Connection) -> ControlFlow<()>,
    ) -> io::Result<()> {
        let mut malformed = None;
        self.0.each(GET, &message::header(family.map(Family::number)), |_, body| {
            match message::read(body) {
                Ok(connection) => take(connection),
                Err(error) => {
                    malformed = Some(error);
                    ControlFlow::Break(())
                }
            }
        })?;
        malformed.map_or(Ok(()), |error| Err(error.into()))
    }
}

impl Family {
    /// The family of an address.
    #[must_use]
    pub const fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::Ip,
            IpAddr::V6(_) => Self::Ip6,
        }
    }

    /// `AF_INET`, `AF_INET6`.
    const fn number(self) -> u8 {
        match self {
            Self::Ip => libc::AF_INET as u8,
            Self::Ip6 => libc::AF_INET6 as u8,
        }
    }
}

impl From<Malformed> for io::Error {
    fn from(malformed: Malformed) -> Self {
        Self::new(io::ErrorKind::InvalidData, malformed)
    }
}
