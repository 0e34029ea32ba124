//! FIBs compared with oracles: whole Internet tables, tables of every shape, tables that run out of
//! memory, and tables that change during lookups.

mod internet;
mod shapes;
mod short;
mod stress;
mod support;
