//! A rule file as a whole: its lines change the list of rules and the tables.

use super::action::{self, LAST};
use super::body;
use super::nat::{self, Nat};
use super::rule::{Action, Rule};
use super::table::{self, Tables};
use super::words::{self, Word, Words, number};
use crate::mistake::{Ledger, SpannedFault, quoted, wrong};

/// The distance between rules without a number (`net.inet.ip.fw.autoinc_step`).
const STEP: u16 = 100;

/// The set that is never flushed or disabled.
const KEPT_SET: u8 = 31;

/// Words of the configuration of a pipe or queue.
const PIPE_WORDS: &[&str] = &[
    "bw",
    "bandwidth",
    "delay",
    "queue",
    "plr",
    "mask",
    "buckets",
    "burst",
    "weight",
    "pipe",
    "sched",
    "noerror",
    "droptail",
    "red",
    "gred",
    "ecn",
    "codel",
    "fq_codel",
    "pie",
    "fq_pie",
    "type",
    "profile",
    "flow_mask",
    "sched_mask",
    "lmax",
    "pri",
    "slots",
    "dst-ip",
    "src-ip",
    "dst-port",
    "src-port",
    "dst-ip6",
    "src-ip6",
    "flow-id",
    "proto",
    "all",
    "limit",
    "quantum",
    "target",
    "interval",
    "flows",
];

/// The content of a file.
#[derive(Debug, Default)]
pub(super) struct List {
    /// Rules in the order in which packets meet them, without the last.
    pub(super) rules: Vec<Rule>,
    pub(super) tables: Tables,
    /// Instances that translate addresses.
    pub(super) nats: Vec<Nat>,
    /// A bit for each set that is disabled.
    pub(super) disabled: u32,
    /// Whether the last rule accepts.
    pub(super) open: bool,
}

/// Flags before the command.
#[derive(Clone, Copy, Default)]
struct Flags {
    quiet: bool,
}

impl List {
    /// Parses a file.
    pub(super) fn read(text: &str, ledger: &mut Ledger<'_>) -> Self {
        let mut list = Self::default();
        for line in words::lines(text) {
            let number = line.first().map_or(0, |word| ledger.line(word.span.start));
            if let Err((span, fault)) = list.line(text, &line, number) {
                ledger.value(span, fault);
            }
        }
        list
    }

    fn line(&mut self, text: &str, line: &[Word], number: usize) -> Result<(), SpannedFault> {
        if let Some(word) = line.iter().find(|word| word.text.contains(['$', '`'])) {
            return wrong(
                &word.span,
                "variables of a shell are not replaced here",
                "write what they stand for, or give what ipfw list prints",
            );
        }
        let mut words = Words::new(line);
        let flags = flags(&mut words)?;
        let Some(word) = words.next() else { return Ok(()) };
        match word.text.as_str() {
            "add" => self.add(text, line, &mut words, number, false),
            first if first.starts_with(|digit: char| digit.is_ascii_digit()) => {
                words.back();
                self.add(text, line, &mut words, number, true)
            }
            "table" => table::command(&mut self.tables, &mut words, flags.quiet),
            "flush" => {
                self.rules.retain(|rule| rule.set == KEPT_SET);
                Ok(())
            }
            "delete" => self.delete(&mut words),
            "set" => self.set(&mut words),
            "pipe" | "queue" | "sched" => pipe(&mut words),
            "nat" => nat::command(&mut self.nats, &mut words, number),
            "zero" | "resetlog" | "list" | "show" | "print" => Ok(()),
            text => wrong(
                &word.span,
                format!("{} is no line of a rule file", quoted(text)),
                "write add, table, set, delete or flush, as ipfw(8) has them",
            ),
        }
    }

    /// Adds a rule; `listed` says whether it is in the format of `ipfw list` or `ipfw show`.
    fn add(
        &mut self,
        text: &str,
        line: &[Word],
        words: &mut Words<'_>,
        line_number: usize,
        listed: bool,
    ) -> Result<(), SpannedFault> {
        let given = self.number(words, listed)?;
        let mut counts = (0, 0);
        if listed && words.peek().is_some_and(|text| text.parse::<u64>().is_ok()) {
            counts = (count(words)?, count(words)?);
        }
        let set = match words.take("set") {
            true => words.number("set", KEPT_SET.into())? as u8,
            false => 0,
        };
        if let Some(word) = words.peek().filter(|word| *word == "prob") {
            let what = format!("\"{word}\" matches at random, which Tollway does not support");
            return wrong(&words.place(), what, "leave the rule out");
        }
        let (action, log_name) = action::action(words)?;
        let log = action::parameters(words)?;
        if let Action::CheckState(_) = action {
            reject_body(words, log)?;
        } else if words.peek().is_none() {
            reject_missing_body(text, words)?;
        }
        let (blocks, keep) = body::body(words)?;
        if given == LAST {
            self.open = action == Action::Allow;
            return Ok(());
        }
        let span = line.first().map_or(0, |word| word.span.start)..words.taken().end;
        let body = text.get(span.clone()).unwrap_or_default();
        let behind = text.get(span.end..).and_then(|rest| rest.lines().next()).unwrap_or_default();
        let rule = Rule {
            number: given,
            set,
            line: line_number,
            text: one_line(given, body, behind),
            span,
            log,
            action,
            log_name,
            blocks,
            keep,
            counts,
        };
        let at = self.rules.partition_point(|other| other.number <= given);
        self.rules.insert(at, rule);
        Ok(())
    }

    /// The rule's number; if it is missing, the last rule's number plus a step.
    fn number(&self, words: &mut Words<'_>, listed: bool) -> Result<u16, SpannedFault> {
        let last = self.rules.last().map_or(0, |rule| rule.number);
        let next = if last < LAST - STEP { last + STEP } else { last };
        let digits = |text: &str| text.starts_with(|digit: char| digit.is_ascii_digit());
        if !words.peek().is_some_and(digits) {
            return Ok(next);
        }
        let word = words.need("the rule's number")?;
        match number(&word.text, LAST.into()) {
            Some(0) => Ok(next),
            Some(number) if listed || number < LAST.into() => Ok(number as u16),
            _ => wrong(
                &word.span,
                format!("{} is no number of a rule", quoted(&word.text)),
                "write a number from 1 to 65534",
            ),
        }
    }

    /// `delete [set] number...`, also with ranges.
    fn delete(&mut self, words: &mut Words<'_>) -> Result<(), SpannedFault> {
        let by_set = words.take("set");
        loop {
            let word = words.need("a rule's number")?;
            let (first, last) = word.text.split_once('-').unwrap_or((&word.text, &word.text));
            let (Some(first), Some(last)) = (number(first, 65_534), number(last, 65_534)) else {
                let what = format!("{} is no number of a rule", quoted(&word.text));
                return wrong(&word.span, what, "write numbers, or ranges a-b");
            };
            let range = first..=last;
            self.rules.retain(|rule| {
                let is = if by_set { rule.set.into() } else { u32::from(rule.number) };
                !range.contains(&is)
            });
            if words.peek().is_none() {
                return Ok(());
            }
        }
    }

    /// `set disable N... enable N...`.
    fn set(&mut self, words: &mut Words<'_>) -> Result<(), SpannedFault> {
        let mut disable = None;
        loop {
            let word = words.need("a set")?;
            match (word.text.as_str(), disable) {
                ("disable", _) => disable = Some(true),
                ("enable", _) => disable = Some(false),
                ("show", None) => return Ok(()),
                (text, Some(disable)) => match number(text, u32::from(KEPT_SET) - 1) {
                    Some(set) if disable => self.disabled |= 1 << set,
                    Some(set) => self.disabled &= !(1 << set),
                    None => {
                        return wrong(
                            &word.span,
                            format!("{} is no set that can be disabled", quoted(text)),
                            "write a number from 0 to 30",
                        );
                    }
                },
                (text, None) => {
                    return wrong(
                        &word.span,
                        format!("{} is no command for sets here", quoted(text)),
                        "write set enable or set disable, and the set in each rule",
                    );
                }
            }
            if words.peek().is_none() {
                return Ok(());
            }
        }
    }
}

/// Skips the program's name and parses its flags.
fn flags(words: &mut Words<'_>) -> Result<Flags, SpannedFault> {
    let mut flags = Flags::default();
    if words.peek().is_some_and(|text| text == "ipfw" || text.ends_with("/ipfw")) {
        words.next();
    }
    while let Some(given) = words.peek().and_then(|text| text.strip_prefix('-')) {
        let word = words.need("a flag")?;
        if given.is_empty() || !given.chars().all(|flag| "qfaSNtTdDeci".contains(flag)) {
            let what = format!("{} is no flag for a rule file", quoted(&word.text));
            return wrong(&word.span, what, "leave it out; -q and -f are accepted");
        }
        flags.quiet |= given.contains('q');
    }
    Ok(flags)
}

/// The configuration of a pipe, which no rule can send packets through yet.
fn pipe(words: &mut Words<'_>) -> Result<(), SpannedFault> {
    if matches!(words.peek(), Some("flush" | "list" | "show" | "delete")) {
        return Ok(());
    }
    words.number("number of a pipe", 65_535)?;
    let word = words.need("config")?;
    if word.text != "config" {
        let what = format!("{} is no command for pipes here", quoted(&word.text));
        return wrong(&word.span, what, "write config and the pipe's options");
    }
    while let Some(word) = words.next() {
        let begins = |text: &str| text.starts_with(|digit: char| digit.is_ascii_digit());
        let text = word.text.as_str();
        if !begins(text) && !PIPE_WORDS.contains(&text) && !text.contains('/') {
            let what = format!("{} is no option of a pipe", quoted(text));
            return wrong(
                &word.span,
                what,
                "write bw, delay, queue, plr, mask or another of ipfw(8)",
            );
        }
    }
    Ok(())
}

fn count(words: &mut Words<'_>) -> Result<u64, SpannedFault> {
    let word = words.need("a count")?;
    word.text.parse().or_else(|_| {
        wrong(
            &word.span,
            format!("{} is no count", quoted(&word.text)),
            "give what ipfw show prints",
        )
    })
}

/// Rejects a rule that ends after its action, as ipfw does, except before a comment (`compile_rule` in
/// ipfw's `ipfw2.c`).
fn reject_missing_body(text: &str, words: &Words<'_>) -> Result<(), SpannedFault> {
    let behind = text.get(words.taken().end..).unwrap_or_default();
    if behind.trim_start_matches([' ', '\t']).starts_with("//") {
        return Ok(());
    }
    wrong(
        &words.taken(),
        "the rule does not say which packets it is for",
        "write ip from any to any behind the action if it is for all",
    )
}

/// Rejects what stands behind `check-state`, which is for all packets.
fn reject_body(words: &Words<'_>, log: bool) -> Result<(), SpannedFault> {
    if log {
        let what = "check-state logs nothing";
        return wrong(&words.taken(), what, "write log in the rules that keep states");
    }
    match words.peek() {
        None => Ok(()),
        Some(text) => wrong(
            &words.place(),
            format!("check-state is for all packets, so {} cannot follow", quoted(text)),
            "leave it out, or write skipto in a rule before",
        ),
    }
}

/// A rule on one line, as `ipfw list` would begin it, followed by the comment.
fn one_line(number: u16, rule: &str, behind: &str) -> String {
    let words = rule.split_whitespace().filter(|word| *word != "\\");
    let body = words.skip_while(|word| {
        *word == "add"
            || word.starts_with('-')
            || *word == "ipfw"
            || word.ends_with("/ipfw")
            || word.chars().all(|digit| digit.is_ascii_digit())
    });
    let body: Vec<_> = body.collect();
    let comment = behind.trim();
    let comment = if comment.starts_with("//") { format!(" {comment}") } else { String::new() };
    format!("{number} {}{comment}", body.join(" "))
}
