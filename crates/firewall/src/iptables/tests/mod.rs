//! Tests the front end by the evaluator.

mod hostile;
mod kernel;
mod nat;
pub(crate) mod random;
mod restore;
mod saves;
mod verdicts;

use super::read;
use crate::ir::{Family, Hook, Ruleset};
use crate::testkit::eval::{self, Packet, RuleVerdict, State};
use crate::testkit::link;

/// Reads valid rules.
fn read_valid(text: &str, family: Family) -> Ruleset {
    let rules = match read(text, "rules.v4", family) {
        Ok(rules) => rules,
        Err(mistakes) => panic!("{}\n{text}", crate::mistake::report(&mistakes)),
    };
    assert_eq!(rules.check(), Ok(()), "{text}");
    rules
}

/// The verdict of a frame from wan0 to lan0 at all hooks.
fn verdict(
    rules: &Ruleset,
    state: &mut State,
    frame: &[u8],
    now_ns: u64,
) -> (RuleVerdict, u32, Vec<u8>) {
    let (input, output) = (link("wan0"), link("lan0"));
    let mut packet = Packet::new(frame, 14, &input);
    let mut verdict = eval::run(rules, state, Hook::Prerouting, &mut packet, now_ns);
    packet.output = Some(&output);
    for hook in [Hook::Forward, Hook::Postrouting] {
        if verdict == RuleVerdict::Accept {
            verdict = eval::run(rules, state, hook, &mut packet, now_ns);
        }
    }
    (verdict, packet.mark, packet.frame().to_vec())
}

/// The table filter with rules in its chain FORWARD, which accepts, and user chains a and b.
fn forward(rules: &[&str]) -> String {
    let mut text = String::from("*filter\n:FORWARD ACCEPT [0:0]\n:a - [0:0]\n:b - [0:0]\n");
    for rule in rules {
        let chain = if rule.starts_with("-A") { "" } else { "-A FORWARD " };
        text += &format!("{chain}{rule}\n");
    }
    text + "COMMIT\n"
}
