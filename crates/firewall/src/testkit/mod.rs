//! The shared kit of tests of rules. Other crates' tests get it by the feature `testkit`.

pub mod eval;
