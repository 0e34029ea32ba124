//! FIBs compared with oracles: whole Internet tables, tables of every shape, tables that run out of
//! memory, and tables that change during lookups.

#[path = "../../src/testkit/dice.rs"]
mod dice;
mod internet;
mod shapes;
mod short;
mod stress;
mod support;
