//! A text is a configuration, which then compiles, or has mistakes, which then can be told.

use tollway::compile::compile;
use tollway::config::{parse, report};

/// Each VRF costs half a megabyte; more of them find nothing that fewer do not.
const VRFS: usize = 8;

/// Reads a text, and asserts what must hold of anything.
pub fn run(text: &str) {
    match parse(text, "fuzz.toml") {
        Ok(loaded) if loaded.model.vrfs.len() > VRFS => {}
        Ok(loaded) => {
            let error = compile(&loaded.model).err();
            assert!(error.is_none(), "it passes the check and does not compile: {error:?}");
        }
        Err(mistakes) => {
            let lines = text.split('\n').count();
            assert!(!mistakes.is_empty(), "refused for no reason");
            for mistake in &mistakes {
                // Rules are in a file of their own.
                if mistake.file == "fuzz.toml" {
                    let is_placed = (1..=lines).contains(&mistake.line) && mistake.column > 0;
                    assert!(is_placed, "{mistake:?}");
                }
                assert!(!mistake.what.is_empty() && !mistake.remedy.is_empty(), "{mistake:?}");
            }
            let told = report(&mistakes);
            assert!(told.chars().all(|c| c == '\n' || !c.is_control()), "{told:?}");
        }
    }
}
