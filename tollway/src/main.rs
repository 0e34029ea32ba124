//! The program.

#![allow(dead_code)]

mod model;

fn main() {}
