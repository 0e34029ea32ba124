//! The shared kit of tests of rules. Other crates' tests get it by the feature `testkit`.

#[path = "../../../dataplane/src/testkit/dice.rs"]
pub mod dice;
pub mod eval;

use crate::links::Link;

/// A link of the main VRF.
pub fn link(name: &str) -> Link {
    Link {
        name: name.into(),
        vrf: "main".into(),
        on: None,
        vrf_device: None,
        addresses: Vec::new(),
    }
}
