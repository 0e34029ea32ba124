//! FIBs held against oracles: whole Internet tables, tables of every shape, tables that run full,
//! and tables that change while they are read.

mod internet;
mod shapes;
mod short;
mod stress;
mod support;
