//! Tests that Tollway compiles exactly the rules that iptables accepts.

use std::fmt::Write as _;
use std::process::Command;

use super::read;
use crate::ir::Family;
use crate::offload::{Offload, offload};

/// The test tries one in this many pairs of options, because all pairs take a minute.
const ONE_IN: usize = 23;

/// Options for each family, table and beginning of a rule.
const OPTIONS: &str = include_str!("options.txt");

/// A rule of a table, and its family.
struct Case {
    family: Family,
    table: &'static str,
    rule: String,
}

impl Case {
    fn text(&self) -> String {
        let (table, rule) = (self.table, &self.rule);
        let chain = if table == "raw" { "PREROUTING" } else { "FORWARD" };
        format!("*{table}\n:{chain} ACCEPT [0:0]\n:a - [0:0]\n-A {chain} {rule}\nCOMMIT\n")
    }

    /// Whether Tollway accepts the rule and supports each part of it.
    fn is_compiled(&self) -> bool {
        let is_kernels = |offload: &Offload| matches!(offload, Offload::Kernel(_));
        read(&self.text(), "rules", self.family)
            .is_ok_and(|rules| !offload(&rules).iter().any(|one| is_kernels(&one.offload)))
    }
}

/// Every option alone and negated, and pairs of them.
fn cases(one_in: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    for line in OPTIONS.lines().filter(|line| !line.starts_with('#')) {
        let mut parts = line.split('|').map(str::trim);
        let [families, table, before] = [(); 3].map(|()| parts.next().unwrap());
        let options: Vec<_> = parts.collect();
        let alone = options.iter().flat_map(|one| [(*one).to_owned(), format!("! {one}")]);
        let pairs =
            options.iter().flat_map(|one| options.iter().map(move |two| format!("{one} {two}")));
        let pairs = pairs.enumerate().filter(|(number, _)| number % one_in == 0);
        let rules = std::iter::once(String::new()).chain(alone).chain(pairs.map(|(_, pair)| pair));
        for rule in rules {
            let mut rule = format!("{before} {rule}").trim().to_owned();
            for length in [29, 30, 63, 64, 255, 256] {
                rule = rule.replace(&format!("LONG{length}"), &"x".repeat(length));
            }
            for (number, family) in [('4', Family::Ip), ('6', Family::Ip6)] {
                if families.contains(number) {
                    cases.push(Case { family, table, rule: rule.clone() });
                }
            }
        }
    }
    cases
}

/// The cases that iptables rejects, and why.
fn refused(cases: &[&Case]) -> Vec<(usize, String)> {
    let folder = tempfile::tempdir().unwrap();
    let mut script = String::new();
    for (number, case) in cases.iter().enumerate() {
        let program = if case.family == Family::Ip6 { "ip6tables" } else { "iptables" };
        std::fs::write(folder.path().join(number.to_string()), case.text()).unwrap();
        writeln!(
            script,
            "output=$({program}-legacy-restore --test {number} 2>&1) || echo {number} $output"
        )
        .unwrap();
    }
    let output = Command::new("unshare")
        .args(["-rn", "sh", "-c", &script])
        .current_dir(folder.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    lines.map(|(number, why)| (number.parse().unwrap(), why.to_owned())).collect()
}

#[test]
fn rules_that_iptables_refuses_are_not_compiled() {
    let one_in = std::env::var("TOLLWAY_PAIRS").map_or(ONE_IN, |text| text.parse().unwrap());
    let cases = cases(one_in);
    let compiled: Vec<_> = cases.iter().filter(|case| case.is_compiled()).collect();
    assert!(compiled.len() > 300, "{}", compiled.len());
    let wrong: Vec<_> = refused(&compiled)
        .into_iter()
        .map(|(number, why)| format!("{}{why}\n", compiled[number].text()))
        .collect();
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), compiled.len(), wrong.join("\n"));
    // The check itself works: iptables rejects an unknown option.
    let none = Case { family: Family::Ip, table: "filter", rule: "--nonsense".to_owned() };
    assert_eq!(refused(&[&none]).len(), 1);
}
