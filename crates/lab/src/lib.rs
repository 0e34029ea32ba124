//! Benchmarks and studies of Tollway: what each feature of the packet path costs, with sound
//! statistics.

pub mod bench;
mod bpf;
mod callgrind;
mod child;
pub mod compare;
mod error;
pub mod fib;
pub mod filter;
pub mod frames;
pub mod generate;
pub mod live;
pub mod machine;
pub mod memory;
mod plot;
pub mod probe;
pub mod profile;
mod progress;
pub mod report;
pub mod stats;
pub mod stopped;
pub mod studies;
mod svg;
mod sys;
pub mod text;
pub mod tolls;
pub mod verdict;

pub use live::rr;
