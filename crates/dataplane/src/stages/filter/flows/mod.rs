//! Flows that rules remember: what identifies one, and the table for what is known of each.
//!
//! All workers share a table. It lies in parts by a hash of the flow, a lock each: the two directions of a flow may come
//! to different workers. Nobody can choose flows that share a list, since the hash has a random seed.
//!
//! Entries whose time is over are found no more. Their room comes back bit by bit ([`Table::sweep`]), so that no packet
//! waits for a walk through the whole table.

mod id;
mod table;

pub(super) use id::{FlowId, Query, Side, address, mix};
pub(super) use table::{Entry, NONE, Part, Size, Table, lock};
