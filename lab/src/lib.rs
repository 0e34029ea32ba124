//! The bench beside the road: what each feature of the packet's path costs, with honest statistics.

pub mod fib;
pub mod filter;
pub mod frames;
pub mod live;
pub mod machine;
pub mod memory;
mod plot;
pub mod report;
pub mod stats;
pub mod text;
pub mod tolls;
