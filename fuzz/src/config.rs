//! A text is a configuration that compiles, or it has mistakes that can be reported.

use tollway_model::compile::compile;
use tollway_model::config::{parse, report};

/// Each VRF costs half a megabyte; more VRFs find no more defects.
const VRFS: usize = 8;

/// Parses a text, and asserts what must hold for every text.
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
                // Mistakes in rules are in another file.
                if mistake.file == "fuzz.toml" {
                    let is_placed = (1..=lines).contains(&mistake.line) && mistake.column > 0;
                    assert!(is_placed, "{mistake:?}");
                }
                assert!(!mistake.what.is_empty() && !mistake.remedy.is_empty(), "{mistake:?}");
            }
            let text = report(&mistakes);
            assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
        }
    }
}
