//! Targets: what a rule does.

use super::Family;
use super::ask::Ask;
use super::fields::dscp_class;
use super::names;
use super::once::{Options, Used};
use super::value::{self, Wrong, wrong};
use super::words::{Cursor, Word};
use crate::filter::ir::{Action, Key, Log, Match, Range, Reject, Selector, Verdict};
use crate::mistake::{Span, quoted};

/// Targets that translate addresses, or else need connections.
const TRACKING: [&str; 11] = [
    "CONNMARK",
    "CONNSECMARK",
    "CT",
    "DNAT",
    "DNPT",
    "MASQUERADE",
    "NETMAP",
    "REDIRECT",
    "SNAT",
    "SYNPROXY",
    "TPROXY",
];

/// What a rule does with packets of which all holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Does {
    /// Counts them.
    Nothing,
    /// Goes on after this.
    Act(Action),
    /// Ends.
    Verdict(Verdict),
    /// Goes through a user chain.
    Chain(String),
    /// Can not be done, and why.
    Unsupported(String),
}

/// A target in the reading.
#[derive(Clone, Debug)]
pub(super) struct Aim {
    pub(super) word: Word,
    pub(super) goto: bool,
    does: Does,
    /// What is to be asked before it can be done.
    ask: Option<Ask>,
    /// Options without which it can not be done are there.
    complete: bool,
    /// Why it can not be done with one of its options.
    unknown: Option<String>,
    used: Used,
    /// An option, where the target may be a chain, which has none.
    stray: Option<Span>,
}

impl Aim {
    /// Begins a target.
    pub(super) fn new(word: &Word, goto: bool, family: Family) -> Self {
        let name = word.text.as_str();
        let does = match name {
            _ if goto => Does::Chain(name.to_owned()),
            "ACCEPT" => Does::Verdict(Verdict::Accept),
            "DROP" => Does::Verdict(Verdict::Drop),
            "RETURN" => Does::Verdict(Verdict::Return),
            "REJECT" if family == Family::Ip6 => Does::Verdict(Verdict::Reject(Reject::Icmp6(4))),
            "REJECT" => Does::Verdict(Verdict::Reject(Reject::Icmp(3))),
            "LOG" => Does::Act(Action::Log(Log::default())),
            "NFLOG" => Does::Act(Action::Log(Log { group: Some(0), ..Log::default() })),
            "NOTRACK" => Does::Act(Action::NoTrack),
            "MARK" | "DSCP" | "TOS" | "CT" => Does::Unsupported(unsupported(name)),
            _ => Does::Chain(name.to_owned()),
        };
        let complete = !matches!(name, "MARK" | "DSCP" | "TOS");
        Self {
            word: word.clone(),
            goto,
            does,
            ask: None,
            complete,
            unknown: None,
            used: Used::default(),
            stray: None,
        }
    }
}

impl Options for Aim {
    fn used(&mut self) -> &mut Used {
        &mut self.used
    }

    fn take(
        &mut self,
        option: &Word,
        negate: bool,
        words: &mut Cursor<'_>,
        family: Family,
    ) -> Result<bool, Wrong> {
        if negate {
            return Ok(false);
        }
        let all = u64::from(u32::MAX);
        let mark = |keep: u64, flip: u64| {
            Does::Act(Action::Mark { keep: !(keep as u32), flip: flip as u32 })
        };
        let does = match (self.word.text.as_str(), option.text.as_str()) {
            ("REJECT", "--reject-with") => reject(words.value(option)?, family)?,
            ("LOG", "--log-prefix") | ("NFLOG", "--nflog-prefix") => {
                let word = words.value(option)?;
                let prefix = word.text.clone();
                if prefix.is_empty() {
                    return wrong(word, "the prefix is empty", "leave it out");
                }
                return Ok(self.log(|log| log.prefix = prefix));
            }
            ("NFLOG", "--nflog-group") => {
                let group = value::number(words.value(option)?, 0xffff)?;
                return Ok(self.log(|log| log.group = Some(group as u16)));
            }
            ("LOG", "--log-level") => {
                let word = words.value(option)?;
                if !names::is_log_level(&word.text) {
                    let what = format!("{} is no level of a log", quoted(&word.text));
                    return wrong(word, what, "write 0 to 7, or a name as warning");
                }
                return Ok(true);
            }
            ("NFLOG", "--nflog-range" | "--nflog-size" | "--nflog-threshold") => {
                let threshold = option.is("--nflog-threshold");
                let most = if threshold { 0xffff } else { u64::from(u32::MAX) };
                value::number(words.value(option)?, most)?;
                return Ok(true);
            }
            (
                "LOG",
                "--log-tcp-sequence" | "--log-tcp-options" | "--log-ip-options" | "--log-uid"
                | "--log-macdecode",
            ) => return Ok(true),
            ("MARK", "--set-xmark") => {
                let (value, mask) = value::masked(words.value(option)?, all, all)?;
                mark(mask, value)
            }
            ("MARK", "--set-mark") => {
                let (value, mask) = value::masked(words.value(option)?, all, all)?;
                mark(value | mask, value)
            }
            ("MARK", "--and-mark") => mark(!value::number(words.value(option)?, all)?, 0),
            ("MARK", "--or-mark") => {
                let bits = value::number(words.value(option)?, all)?;
                mark(bits, bits)
            }
            ("MARK", "--xor-mark") => mark(0, value::number(words.value(option)?, all)?),
            ("DSCP", "--set-dscp") => {
                Does::Act(Action::Dscp(value::number(words.value(option)?, 63)? as u8))
            }
            ("DSCP", "--set-dscp-class") => {
                Does::Act(Action::Dscp(dscp_class(words.value(option)?)?))
            }
            ("TOS", "--set-tos") => {
                let (tos, mask) = value::masked(words.value(option)?, 255, 255)?;
                self.set_tos(tos as u8, mask as u8)
            }
            ("CT", "--notrack") => Does::Act(Action::NoTrack),
            _ => return Ok(false),
        };
        self.does = does;
        self.complete = true;
        Ok(true)
    }
}

impl Aim {
    fn log(&mut self, change: impl FnOnce(&mut Log)) -> bool {
        if let Does::Act(Action::Log(log)) = &mut self.does {
            change(log);
        }
        true
    }

    /// The form has no action for the lower two bits: where they are what they are to be, none is needed.
    fn set_tos(&mut self, tos: u8, mask: u8) -> Does {
        if mask & 0xfc != 0xfc || tos & !mask != 0 {
            return Does::Unsupported(format!(
                "the form has nothing for a TOS {tos:#04x}/{mask:#04x}"
            ));
        }
        let ecn = Key::masked(Selector::TrafficClass, (mask & 3).into());
        let others = Match::in_ranges(ecn, [Range::one((tos & 3).into())]).negated();
        self.ask = (mask & 3 != 0)
            .then(|| Ask::Unless(others, "the form has nothing to write ECN with".to_owned()));
        Does::Act(Action::Dscp(tos >> 2))
    }

    /// Takes an option that is not known.
    pub(super) fn other(&mut self, option: &Word, words: &mut Cursor<'_>) {
        words.skip_values();
        self.complete = true;
        if matches!(self.does, Does::Chain(_)) {
            self.stray.get_or_insert(option.span.clone());
        } else {
            let name = &self.word.text;
            let why = format!("{} of the target {name} is the kernel's", quoted(&option.text));
            self.unknown = Some(why);
        }
    }

    /// Says if connection tracking is needed.
    pub(super) fn tracks(&self) -> bool {
        TRACKING.contains(&self.word.text.as_str()) && self.does != Does::Act(Action::NoTrack)
    }

    /// An option that a chain has not.
    pub(super) fn stray(&self) -> Option<Span> {
        self.stray.clone()
    }

    /// What it does, and what is to be asked before.
    pub(super) fn finish(self, protocol: Option<u8>) -> Result<(Does, Option<Ask>), Wrong> {
        if !self.complete {
            let what = format!("{} does not say what it sets", self.word.text);
            return wrong(&self.word, what, "write its option");
        }
        let does = match self.does {
            _ if self.unknown.is_some() => Does::Unsupported(self.unknown.unwrap_or_default()),
            Does::Verdict(Verdict::Reject(Reject::TcpReset)) if protocol != Some(6) => {
                return wrong(
                    &self.word,
                    "a TCP reset is in a rule for other protocols",
                    "write -p tcp before it",
                );
            }
            does => does,
        };
        Ok((does, self.ask))
    }
}

/// Why a target that is no chain is not done; none if it has no target's name.
pub(super) fn stranger(name: &str) -> Option<String> {
    let plain = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
    let sound = !name.is_empty() && name.len() < 30 && name.bytes().all(plain);
    sound.then(|| unsupported(name))
}

fn unsupported(name: &str) -> String {
    format!("the target {name} of iptables is the kernel's")
}

fn reject(word: &Word, family: Family) -> Result<Does, Wrong> {
    match names::reject(&word.text, family) {
        Some(reject) => Ok(Does::Verdict(Verdict::Reject(reject))),
        None => wrong(
            word,
            format!("{} is nothing to reject with", quoted(&word.text)),
            "write one that iptables-extensions(8) lists under REJECT",
        ),
    }
}
