//! A rules file: reports where each rule is evaluated.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Value, json};
use tollway_dataplane::epoch::Epochs;

use super::super::text::{cut, one_line, plural, thousands, width};
use super::super::{CliError, print, refuse};
use tollway_firewall::ir::{Place, Ruleset};
use tollway_firewall::listing::listed;
use tollway_firewall::offload::{Offload, RuleOffload};
use tollway_firewall::program;
use tollway_rules::files::{self, Language};

/// The most columns for a place, so that room remains for the rule.
const MOST_PLACE: usize = 28;

/// Reads the rules, and reports where each is evaluated.
pub(super) fn check(
    path: &Path,
    text: &str,
    language: Language,
    json: bool,
) -> Result<(), CliError> {
    let file = path.display().to_string();
    let rules = files::parse(text, &file, language).map_err(|mistakes| refuse(path, &mistakes))?;
    program::compile(&rules, &[], &Epochs::new()).map_err(|error| {
        CliError::failed(format!("{file} does not fit: {error}"), "Write fewer rules")
    })?;
    let offloads = listed(&rules);
    if json {
        return print(format_args!("{:#}\n", as_json(&file, language, &rules, &offloads)));
    }
    print(as_text(&file, language, &rules, &offloads, width()))
}

/// The numbers of rules, by where they are evaluated.
#[derive(Default)]
struct Counts {
    compiled: usize,
    kernel: usize,
    elsewhere: usize,
}

impl Counts {
    fn of(offloads: &[RuleOffload<'_>]) -> Self {
        let mut counts = Self::default();
        for one in offloads {
            match one.offload {
                Offload::Compiled => counts.compiled += 1,
                Offload::Kernel(_) => counts.kernel += 1,
                Offload::Elsewhere(_) => counts.elsewhere += 1,
            }
        }
        counts
    }
}

/// Formats one line for each rule, and a summary.
fn as_text(
    file: &str,
    language: Language,
    rules: &Ruleset,
    offloads: &[RuleOffload<'_>],
    width: Option<usize>,
) -> String {
    let places: Vec<_> = offloads.iter().map(|one| place(file, &one.rule.place)).collect();
    let widest = places.iter().map(|place| place.chars().count()).max().unwrap_or(0);
    let mut out = String::new();
    for (one, place) in offloads.iter().zip(places) {
        let verdict = match &one.offload {
            Offload::Compiled => "compiled".to_owned(),
            Offload::Kernel(why) => format!("kernel path: {why}"),
            Offload::Elsewhere(why) => format!("elsewhere: {why}"),
        };
        let line = format!("{place:<0$}  {verdict}  {1}", widest, one_line(&one.rule.text));
        // Writing to a `String` cannot fail.
        let _ = writeln!(out, "{}", cut(&line, width));
    }
    if !offloads.is_empty() {
        out.push('\n');
    }
    out + &summary(file, language, rules, &Counts::of(offloads))
}

fn summary(file: &str, language: Language, rules: &Ruleset, counts: &Counts) -> String {
    let count =
        |n: usize, what: &str| format!("{} {}", thousands(n as u64), plural(n as u64, what));
    let all = counts.compiled + counts.kernel + counts.elsewhere;
    let kinds = [
        (counts.compiled, "compiled"),
        (counts.kernel, "on the kernel path"),
        (counts.elsewhere, "elsewhere"),
    ];
    let kinds: Vec<_> = kinds
        .iter()
        .filter(|(n, _)| *n > 0)
        .map(|(n, what)| format!("{} {what}", thousands(*n as u64)))
        .collect();
    let colon = if kinds.is_empty() { "" } else { ": " };
    let sets = rules.sets.iter().filter(|set| !set.name.is_empty()).count();
    let mut out = format!(
        "{file} is in order, {}: {} in {}{colon}{}\n",
        language.name(),
        count(all, "rule"),
        count(rules.chains.len(), "chain"),
        kinds.join(", "),
    );
    if sets > 0 {
        let _ = writeln!(out, "{} with a name", count(sets, "set"));
    }
    if counts.kernel > 0 {
        out += "a configuration that names this file is refused: the kernel does not have these rules\n";
    }
    out
}

/// The place of a rule in few columns: the file name without directories, and the line or handle.
fn place(file: &str, place: &Place) -> String {
    let file = place.file.as_deref().unwrap_or(file);
    let name = Path::new(file).file_name().map_or(file.into(), |name| name.to_string_lossy());
    let text = match (place.line, place.handle) {
        (0, Some(handle)) => format!("handle {handle}"),
        (0, None) => name.into_owned(),
        (line, _) => format!("{name}:{line}"),
    };
    match text.chars().count().checked_sub(MOST_PLACE) {
        // The end has the line number, so cut the beginning.
        Some(over @ 1..) => text.chars().skip(over).collect(),
        _ => text,
    }
}

fn as_json(file: &str, language: Language, rules: &Ruleset, offloads: &[RuleOffload<'_>]) -> Value {
    let counts = Counts::of(offloads);
    let list: Vec<_> = offloads
        .iter()
        .map(|one| {
            let Place { file: own, line, handle } = &one.rule.place;
            let (verdict, why) = match &one.offload {
                Offload::Compiled => ("compiled", None),
                Offload::Kernel(why) => ("kernel", Some(why.as_str())),
                Offload::Elsewhere(why) => ("elsewhere", Some(*why)),
            };
            json!({
                "chain": one.chain.name,
                "file": own.as_deref().unwrap_or(file),
                "line": (*line > 0).then_some(line),
                "handle": handle,
                "verdict": verdict,
                "why": why,
                "text": one.rule.text,
            })
        })
        .collect();
    json!({
        "file": file,
        "language": language.name(),
        "chains": rules.chains.len(),
        "compiled": counts.compiled,
        "kernel": counts.kernel,
        "elsewhere": counts.elsewhere,
        "rules": list,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollway_firewall::ir::{Base, Chain, Family, Hook, Policy, Rule, Step, Verdict};

    fn ruleset() -> Ruleset {
        let mut rules = Ruleset::default();
        let rule = |line, text: &str, steps| Rule {
            place: Place::line("/etc/tollway/rules.nft", line),
            text: text.to_owned(),
            steps,
        };
        let drop = || vec![Step::Verdict(Verdict::Drop)];
        let why = "connection tracking takes the kernel path".to_owned();
        let mut forward = Chain::new("inet filter forward", Family::Inet);
        forward.base = Some(Base::new(Hook::Forward, 0, Policy::Accept));
        let long = format!("ip saddr {{ {} }} drop", "192.0.2.1, ".repeat(20));
        forward.rules = vec![
            rule(9, "ip saddr 192.0.2.0/24 drop", drop()),
            rule(10, "ct state established accept", vec![Step::Unsupported(why)]),
            rule(11, &long, drop()),
        ];
        rules.add_chain(forward);
        let mut input = Chain::new("inet filter input", Family::Inet);
        input.base = Some(Base::new(Hook::Input, 0, Policy::Accept));
        input.rules = vec![rule(20, "tcp dport 22\taccept", drop())];
        rules.add_chain(input);
        rules
    }

    fn report(width: Option<usize>) -> String {
        let rules = ruleset();
        as_text("/etc/tollway/rules.nft", Language::Nft, &rules, &listed(&rules), width)
    }

    #[test]
    fn each_rule_has_a_line_that_fits() {
        assert_eq!(
            report(Some(80)),
            "\
rules.nft:9   compiled  ip saddr 192.0.2.0/24 drop
rules.nft:10  kernel path: connection tracking takes the kernel path  ct state\u{2026}
rules.nft:11  compiled  ip saddr { 192.0.2.1, 192.0.2.1, 192.0.2.1, 192.0.2.1,\u{2026}
rules.nft:20  elsewhere: hook input: packets for this host go to its kernel  tc\u{2026}

/etc/tollway/rules.nft is in order, nftables: 4 rules in 2 chains: 2 compiled, 1 on the kernel path, 1 elsewhere
a configuration that names this file is refused: the kernel does not have these rules
"
        );
        let wide = report(Some(200));
        assert!(wide.contains("kernel path  ct state established accept\n"), "{wide}");
        assert!(wide.lines().take(4).all(|line| line.chars().count() <= 200), "{wide}");
        assert_eq!(report(None).matches("192.0.2.1,").count(), 20, "nothing is cut for a pipe");
    }

    #[test]
    fn json_has_all_of_it() {
        let rules = ruleset();
        let json = as_json("r", Language::Nft, &rules, &listed(&rules));
        assert_eq!((&json["compiled"], &json["kernel"]), (&json!(2), &json!(1)));
        assert_eq!(
            json["rules"][1],
            json!({
                "chain": "inet filter forward",
                "file": "/etc/tollway/rules.nft",
                "line": 10,
                "handle": null,
                "verdict": "kernel",
                "why": "connection tracking takes the kernel path",
                "text": "ct state established accept",
            })
        );
    }
}
