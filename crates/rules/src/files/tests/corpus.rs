//! Realistic rulesets, loaded by the real nft, and the verdicts of packets.
//!
//! A line `#: PACKET => VERDICT` of a file states the verdict of a packet; the packets of one file come one after
//! the other. `#= NAME PACKETS BYTES` states the final value of a counter.

use std::path::PathBuf;

use super::super::script::load;
use super::frames::{self, Given};
use tollway_firewall::ir::{Hook, Reject, Ruleset};
use tollway_firewall::testkit::eval::{self, Packet, RuleVerdict, State};

/// Every file of the corpus.
pub(super) fn files() -> Vec<PathBuf> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/files/corpus");
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let mut files: Vec<_> = files.filter(|file| file.extension().is_some()).collect();
    files.sort();
    assert!(files.len() >= 30);
    files
}

#[test]
fn packets_get_the_verdict_that_is_written() {
    let mut wrong = Vec::new();
    for file in files() {
        let text = std::fs::read_to_string(&file).unwrap();
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let rules = load(&file).unwrap_or_else(|mistakes| {
            panic!("{name}: {}", tollway_firewall::mistake::report(&mistakes));
        });
        let mut state = State::new(&rules);
        for (number, line) in text.lines().enumerate() {
            if let Some(line) = line.strip_prefix("#: ") {
                let (packet, wanted) = line.split_once(" => ").unwrap();
                let found = verdict(&rules, &mut state, &frames::given(packet));
                if !agrees(wanted, &found) {
                    wrong.push(format!("{name}:{}: {line}, but {found}", number + 1));
                }
            } else if let Some(line) = line.strip_prefix("#= ") {
                let found = count(&rules, &state, line);
                if !line.ends_with(&found) {
                    wrong.push(format!("{name}:{}: {line}, but {found}", number + 1));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn agrees(wanted: &str, found: &str) -> bool {
    if let Some(why) = wanted.strip_prefix("kernel: ") {
        return found.starts_with("kernel: ") && found.contains(why);
    }
    let found: Vec<_> = found.split_whitespace().collect();
    wanted.split_whitespace().all(|word| match word.split_once("=0x") {
        Some((name, digits)) => {
            let number = u64::from_str_radix(digits, 16).unwrap();
            found.contains(&format!("{name}={number}").as_str())
        }
        None => found.contains(&word),
    })
}

fn verdict(rules: &Ruleset, state: &mut State, given: &Given) -> String {
    let mut packet = Packet::new(&given.frame, given.l3, &given.input);
    if matches!(given.hook, Hook::Forward | Hook::Postrouting | Hook::Egress) {
        packet.output = Some(&given.output);
    }
    packet.mark = given.mark;
    let verdict = eval::run(rules, state, given.hook, &mut packet, given.at_ms * 1_000_000);
    let verdict = match verdict {
        RuleVerdict::Accept => "accept".to_owned(),
        RuleVerdict::Drop => "drop".to_owned(),
        RuleVerdict::Reject(Reject::TcpReset) => "reject tcp-reset".to_owned(),
        RuleVerdict::Reject(Reject::Icmp(code)) => format!("reject icmp/{code}"),
        RuleVerdict::Reject(Reject::Icmp6(code)) => format!("reject icmp6/{code}"),
        RuleVerdict::Reject(Reject::Icmpx(code)) => format!("reject icmpx/{code}"),
        RuleVerdict::Unsupported(why) => return format!("kernel: {why}"),
    };
    let header = &packet.frame()[given.l3..];
    let dscp = match header[0] >> 4 {
        4 => header[1] >> 2,
        _ => (header[0] << 4 | header[1] >> 4) >> 2,
    };
    format!("{verdict} mark={} dscp={dscp}", packet.mark)
}

fn count(rules: &Ruleset, state: &State, line: &str) -> String {
    let of = |counter: &tollway_firewall::ir::Counter| {
        counter.name.as_ref().is_some_and(|name| line.starts_with(name.as_str()))
    };
    let counter = rules.counters.iter().position(of);
    let (packets, bytes) = state.counts[counter.unwrap()];
    format!(" {packets} {bytes}")
}
