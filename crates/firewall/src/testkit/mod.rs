//! The shared kit of tests of rules. Other crates' tests get it by the feature `testkit`.

#[path = "../../../../dataplane/src/testkit/dice.rs"]
pub mod dice;
pub mod eval;
