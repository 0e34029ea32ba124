//! The program.

#![allow(dead_code)]

mod config;
mod model;

fn main() {}
