//! Plain netlink (netlink(7)): socket, messages, attributes.
//!
//! A routing socket may have to read a million messages in a second, so they are read in place.

mod apart;
mod bytes;
mod link;
mod query;
mod socket;

pub use apart::{Apart, SocketHandover};
pub use bytes::{Attribute, Message, address, attributes, find, push, record, request};
pub use link::vlan_tag;
pub use query::QuerySocket;
pub use socket::{Received, Socket};
