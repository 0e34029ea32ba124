//! Netlink as it comes (netlink(7)): a socket, messages, attributes.
//!
//! A routing socket may have to take a million messages in a second, so they are read where they lie.

mod apart;
mod asker;
mod bytes;
mod socket;

pub(crate) use apart::{Apart, Door};
pub(crate) use asker::Asker;
pub(crate) use bytes::{Attribute, Message, address, attributes, find, push, record, request};
pub(crate) use socket::{Received, Socket};
