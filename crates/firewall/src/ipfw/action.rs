//! The head of a rule: its action.

use std::net::IpAddr;

use super::names;
use super::nat;
use super::rule::{Action, RejectKind};
use super::states;
use super::words::{Word, Words, number};
use crate::mistake::{SpannedFault, quoted, wrong};

/// The number of the last rule, which always exists.
pub(super) const LAST: u16 = 65_535;

/// Known but unsupported actions, and what to use instead.
const UNSUPPORTED: &[(&[&str], &str, &str)] = &[
    (
        &["divert", "tee", "netgraph", "ngtee"],
        "passes packets to programs, which Tollway does not support",
        "leave the rule out",
    ),
    (
        &["nptv6", "nat64lsn", "nat64stl", "nat64clat"],
        "translates IPv6, which Tollway does not support",
        "leave the rule out, or translate elsewhere",
    ),
    (
        &["abort", "abort6"],
        "answers SCTP, which Tollway does not support",
        "write deny, or unreach filter-prohib",
    ),
    (&["reass"], "reassembles fragments, which Tollway does not support", "write rules for frag"),
    (
        &["tcp-setmss", "setmark"],
        "changes packets in a way that Tollway does not support",
        "leave the rule out, or clamp the MSS in the kernel",
    ),
];

/// Parses the action and its arguments.
pub(super) fn action(words: &mut Words<'_>) -> Result<(Action, String), SpannedFault> {
    let word = words.need("the action")?;
    let action = match word.text.as_str() {
        "allow" | "accept" | "pass" | "permit" => Action::Allow,
        "deny" | "drop" => Action::Deny,
        "reject" => Action::Reject(RejectKind::Unreach(1)),
        "unreach" => Action::Reject(RejectKind::Unreach(code(words, names::UNREACH)?)),
        "unreach6" => Action::Reject(RejectKind::Unreach6(code(words, names::UNREACH6)?)),
        "reset" => Action::Reject(RejectKind::Reset),
        "reset6" => Action::Reject(RejectKind::Reset6),
        "check-state" => Action::CheckState(states::checked(words)?),
        "count" => Action::Count,
        "skipto" => Action::Skipto(rule_number(words, "skipto")?),
        "call" => Action::Call(rule_number(words, "call")?),
        "return" => Action::Return,
        "fwd" | "forward" => forward(words)?,
        "setfib" => Action::Fib(plain(words, "a table", "setfib", 32_767)?),
        "setdscp" => dscp(words)?,
        "nat" => nat(words)?,
        "pipe" | "queue" => {
            plain(words, "the pipe's number", &word.text, 65_535)?;
            Action::Pipe
        }
        text => {
            let unsupported = UNSUPPORTED.iter().find(|(names, ..)| names.contains(&text));
            let Some((_, what, remedy)) = unsupported else {
                let what = format!("{} is no action", quoted(text));
                return wrong(
                    &word.span,
                    what,
                    "write allow, deny, count, skipto or another of ipfw(8)",
                );
            };
            return wrong(&word.span, format!("\"{text}\" {what}"), *remedy);
        }
    };
    let log_name = log_name(&action);
    Ok((action, log_name))
}

/// The log's name of the action (`sys/netpfil/ipfw/ip_fw_log.c`).
fn log_name(action: &Action) -> String {
    match action {
        Action::Allow => "Accept".to_owned(),
        Action::Deny => "Deny".to_owned(),
        Action::Reject(RejectKind::Reset | RejectKind::Reset6) => "Reset".to_owned(),
        Action::Reject(RejectKind::Unreach(1)) => "Reject".to_owned(),
        Action::Reject(RejectKind::Unreach(code) | RejectKind::Unreach6(code)) => {
            format!("Unreach {code}")
        }
        // It logs nothing.
        Action::CheckState(_) => String::new(),
        Action::Count => "Count".to_owned(),
        Action::Skipto(number) => format!("SkipTo {number}"),
        Action::Call(number) => format!("Call {number}"),
        Action::Return => "Return".to_owned(),
        Action::Forward(via) => format!("Forward to {via}"),
        Action::Fib(fib) => format!("SetFib {fib}"),
        Action::Dscp(dscp) => format!("SetDscp {dscp}"),
        Action::Nat(_) => "Nat".to_owned(),
        Action::Pipe => "Pipe".to_owned(),
    }
}

fn code(words: &mut Words<'_>, names: &[(&str, u8)]) -> Result<u8, SpannedFault> {
    let word = words.need("the code")?;
    let code = number(&word.text, 255).map(|number| number as u8);
    match code.or_else(|| names::named(names, &word.text)) {
        Some(code) => Ok(code),
        None => wrong(
            &word.span,
            format!("{} is no code", quoted(&word.text)),
            format!("write a number, or one of {}", names::list(names)),
        ),
    }
}

/// A number; ipfw could also take it from a table (`tablearg`), which is not supported.
fn plain(words: &mut Words<'_>, what: &str, action: &str, most: u32) -> Result<u32, SpannedFault> {
    if words.peek() == Some("tablearg") {
        let word = words.need(what)?;
        return tablearg(word, action);
    }
    words.number(what, most)
}

fn tablearg<T>(word: &Word, action: &str) -> Result<T, SpannedFault> {
    wrong(
        &word.span,
        format!("{action} cannot take its argument out of a table"),
        format!("write a rule for each value: {action} NUMBER ... table(name,value)"),
    )
}

fn rule_number(words: &mut Words<'_>, action: &str) -> Result<u16, SpannedFault> {
    Ok(plain(words, "rule's number", action, LAST.into())? as u16)
}

fn forward(words: &mut Words<'_>) -> Result<Action, SpannedFault> {
    let word = words.need("the neighbour's address")?;
    let text = word.text.as_str();
    if text == "tablearg" {
        return tablearg(word, "fwd");
    }
    match text.parse::<IpAddr>() {
        Ok(via) if via.is_loopback() => wrong(
            &word.span,
            "fwd to the router itself is a proxy, which Tollway does not support",
            "write the address of a neighbour",
        ),
        Ok(via) if via.is_unspecified() || via.is_multicast() => {
            wrong(&word.span, format!("{via} is no neighbour"), "write the address of a neighbour")
        }
        Ok(via) => Ok(Action::Forward(via)),
        Err(_) if text.contains([',', ':']) => wrong(
            &word.span,
            format!("{} has a port, which forwarding does not change", quoted(text)),
            "write the address alone",
        ),
        Err(_) => wrong(
            &word.span,
            format!("{} is no address", quoted(text)),
            "write the address of a neighbour",
        ),
    }
}

fn nat(words: &mut Words<'_>) -> Result<Action, SpannedFault> {
    match words.peek() {
        Some("global") => {
            words.next();
            Ok(Action::Nat(None))
        }
        Some("tablearg") => tablearg(words.need("the instance")?, "nat"),
        _ => Ok(Action::Nat(Some(nat::instance(words)?))),
    }
}

fn dscp(words: &mut Words<'_>) -> Result<Action, SpannedFault> {
    let word = words.need("the DSCP")?;
    match names::dscp(&word.text) {
        Some(dscp) => Ok(Action::Dscp(dscp)),
        None if word.text == "tablearg" => tablearg(word, "setdscp"),
        None => wrong(
            &word.span,
            format!("{} is no DSCP", quoted(&word.text)),
            "write a number up to 63, or a name as af11, cs1, ef",
        ),
    }
}

/// Parses the words between the action and the body. Returns whether the rule logs.
pub(super) fn parameters(words: &mut Words<'_>) -> Result<bool, SpannedFault> {
    let mut log = false;
    while let Some(word) = words.next() {
        match word.text.as_str() {
            "log" => {
                log = true;
                if words.take("logamount") {
                    words.number("amount", u32::MAX)?;
                }
            }
            "altq" => {
                return wrong(
                    &word.span,
                    "altq queues packets, which Tollway does not support",
                    "leave it out",
                );
            }
            "tag" | "untag" => {
                return wrong(
                    &word.span,
                    format!(
                        "\"{}\" marks packets for other rules, which Tollway does not support",
                        word.text
                    ),
                    "use skipto to bring such packets to the rules that are for them",
                );
            }
            _ => {
                words.back();
                break;
            }
        }
    }
    Ok(log)
}
