//! FIBs compared with oracles: whole Internet tables, tables of all kinds, tables that run out of
//! memory, and tables that change during lookups.

#[path = "../../src/testkit/dice.rs"]
mod dice;
mod internet;
mod short;
mod stress;
mod support;
mod tables;
