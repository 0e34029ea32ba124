//! A text is a ruleset that compiles or does not fit, or it has mistakes that can be reported.

use tollway_dataplane::epoch::Epochs;
use tollway_firewall::links::Link;
use tollway_firewall::mistake::report;
use tollway_firewall::offload::offload;
use tollway_firewall::program::{self, ProgramError};
use tollway_rules::files::{Language, parse};

/// Parses a text, and asserts what must hold for every text.
pub fn run(text: &str, language: Language) {
    match parse(text, "fuzz.rules", language) {
        Ok(rules) => {
            assert_eq!(rules.check(), Ok(()), "it is read and unsound");
            let count: usize = rules.chains.iter().map(|chain| chain.rules.len()).sum();
            assert_eq!(offload(&rules).len(), count, "each rule has its path");
            match program::compile(&rules, &links(), &Epochs::new()) {
                Ok(_) | Err(ProgramError::TooMany(_) | ProgramError::Sets(_)) => {}
                Err(error) => panic!("it passes the check and does not compile: {error}"),
            }
        }
        Err(mistakes) => {
            let lines = text.split('\n').count();
            assert!(!mistakes.is_empty(), "refused for no reason");
            for mistake in &mistakes {
                let is_placed = (1..=lines).contains(&mistake.line) && mistake.column > 0;
                assert!(mistake.file == "fuzz.rules" && is_placed, "{mistake:?}");
                assert!(!mistake.what.is_empty() && !mistake.remedy.is_empty(), "{mistake:?}");
            }
            let text = report(&mistakes);
            assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
        }
    }
}

fn links() -> Vec<Link> {
    let link = |name: &str| Link {
        name: name.into(),
        vrf: "main".into(),
        on: name.split_once('.').map(|(below, _)| below.into()),
        vrf_device: None,
        addresses: Vec::new(),
    };
    ["eth0", "eth1", "wan0", "eth0.7"].map(link).to_vec()
}
