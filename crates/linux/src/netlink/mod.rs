//! Plain netlink (netlink(7)): socket, messages, attributes.
//!
//! A routing socket may have to read a million messages in a second, so they are read in place.

mod bytes;
mod filter;
mod link;
mod query;
mod socket;
mod unshare;

pub use bytes::{Attribute, Message, address, attributes, find, push, record, request};
pub use filter::NeighFamily;
pub use link::vlan_tag;
pub use query::QuerySocket;
pub use socket::{Received, Socket};
pub use unshare::{SocketHandover, Unshare};
