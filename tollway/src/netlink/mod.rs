//! Plain netlink (netlink(7)): socket, messages, attributes.
//!
//! A routing socket may have to read a million messages in a second, so they are read in place.

mod apart;
mod bytes;
mod query;
mod socket;

pub(crate) use apart::{Apart, SocketHandover};
pub(crate) use bytes::{Attribute, Message, address, attributes, find, push, record, request};
pub(crate) use query::QuerySocket;
pub(crate) use socket::{Received, Socket};
