//! Targets: the actions of rules.

use super::Family;
use super::check::Check;
use super::connections::MarkTarget;
use super::fields::dscp_class;
use super::once::{Options, Used};
use super::value;
use super::words::{Cursor, Word};
use super::{names, nat};
use crate::ir::{Action, Field, Key, Log, Match, NatRange, NatVerdict, Range, Reject, Verdict};
use crate::mistake::{Span, SpannedFault, quoted, wrong};

/// The effect of a rule on packets that pass its checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// Only counts them.
    Nothing,
    /// Does this and continues.
    Act(Action),
    /// Ends with this verdict.
    Verdict(Verdict),
    /// Goes through a user chain.
    Chain(String),
    /// Unsupported, and why.
    Unsupported(String),
}

/// A target being parsed.
#[derive(Clone, Debug)]
pub(super) struct TargetParser {
    pub(super) word: Word,
    pub(super) goto: bool,
    effect: Effect,
    /// What CONNMARK does.
    mark: MarkTarget,
    /// What to check before.
    check: Option<Check>,
    /// Whether all required options are there.
    complete: bool,
    /// Why an option is unsupported.
    unknown: Option<String>,
    used: Used,
    /// An option, in case the target is a chain, which has none.
    stray: Option<Span>,
}

impl TargetParser {
    /// Starts a target.
    pub(super) fn new(word: &Word, goto: bool, family: Family) -> Self {
        let name = word.text.as_str();
        let effect = match name {
            _ if goto => Effect::Chain(name.to_owned()),
            "ACCEPT" => Effect::Verdict(Verdict::Accept),
            "DROP" => Effect::Verdict(Verdict::Drop),
            "RETURN" => Effect::Verdict(Verdict::Return),
            "REJECT" if family == Family::Ip6 => Effect::Verdict(Verdict::Reject(Reject::Icmp6(4))),
            "REJECT" => Effect::Verdict(Verdict::Reject(Reject::Icmp(3))),
            "LOG" => Effect::Act(Action::Log(Log::default())),
            "NFLOG" => Effect::Act(Action::Log(Log { group: Some(0), ..Log::default() })),
            "NOTRACK" => Effect::Act(Action::NoTrack),
            "MARK" | "CONNMARK" | "DSCP" | "TOS" | "CT" => Effect::Unsupported(unsupported(name)),
            _ => match nat::range(name) {
                Some(range) => Effect::Verdict(nat_verdict(range, family)),
                None => Effect::Chain(name.to_owned()),
            },
        };
        let needs_option =
            matches!(name, "MARK" | "CONNMARK" | "DSCP" | "TOS") || nat::needs_option(name);
        let complete = goto || !needs_option;
        Self {
            word: word.clone(),
            goto,
            effect,
            mark: MarkTarget::default(),
            check: None,
            complete,
            unknown: None,
            used: Used::default(),
            stray: None,
        }
    }
}

impl Options for TargetParser {
    fn used(&mut self) -> &mut Used {
        &mut self.used
    }

    fn parse_option(
        &mut self,
        option: &Word,
        negate: bool,
        words: &mut Cursor<'_>,
        family: Family,
    ) -> Result<bool, SpannedFault> {
        if negate {
            return Ok(false);
        }
        if let Effect::Verdict(Verdict::Nat(verdict)) = &mut self.effect {
            let takes = nat::option(&mut verdict.range, &self.word.text, option, words, family)?;
            self.complete |= takes && option.text.starts_with("--to");
            return Ok(takes);
        }
        let all = u64::from(u32::MAX);
        let mark = |keep: u64, flip: u64| {
            Effect::Act(Action::Mark { keep: !(keep as u32), flip: flip as u32 })
        };
        let effect = match (self.word.text.as_str(), option.text.as_str()) {
            ("REJECT", "--reject-with") => reject(words.value(option)?, family)?,
            ("LOG", "--log-prefix") | ("NFLOG", "--nflog-prefix") => {
                let word = words.value(option)?;
                let prefix = word.text.clone();
                if prefix.is_empty() {
                    return wrong(&word.span, "the prefix is empty", "leave it out");
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
                    return wrong(&word.span, what, "write 0 to 7, or a name as warning");
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
                Effect::Act(Action::Dscp(value::number(words.value(option)?, 63)? as u8))
            }
            ("DSCP", "--set-dscp-class") => {
                Effect::Act(Action::Dscp(dscp_class(words.value(option)?)?))
            }
            ("TOS", "--set-tos") => {
                let (tos, mask) = value::masked(words.value(option)?, 255, 255)?;
                self.set_tos(tos as u8, mask as u8)
            }
            ("CONNMARK", _) if !self.mark.option(option, words)? => return Ok(false),
            ("CONNMARK", _) => match self.mark.update() {
                Some(update) => Effect::Act(Action::UpdateMark(update)),
                None => return Ok(true),
            },
            ("CT", "--notrack") => Effect::Act(Action::NoTrack),
            _ => return Ok(false),
        };
        self.effect = effect;
        self.complete = true;
        Ok(true)
    }
}

impl TargetParser {
    fn log(&mut self, change: impl FnOnce(&mut Log)) -> bool {
        if let Effect::Act(Action::Log(log)) = &mut self.effect {
            change(log);
        }
        true
    }

    /// The intermediate form has no action for the lower two bits. If they already have the wanted value,
    /// none is needed.
    fn set_tos(&mut self, tos: u8, mask: u8) -> Effect {
        if mask & 0xfc != 0xfc || tos & !mask != 0 {
            return Effect::Unsupported(format!(
                "Tollway cannot write the TOS {tos:#04x}/{mask:#04x}"
            ));
        }
        let ecn = Key::masked(Field::TrafficClass, (mask & 3).into());
        let others = Match::in_ranges(ecn, [Range::one((tos & 3).into())]).negated();
        self.check = (mask & 3 != 0)
            .then(|| Check::KernelIf(others, "Tollway cannot write the ECN bits".to_owned()));
        Effect::Act(Action::Dscp(tos >> 2))
    }

    /// Handles an unknown option.
    pub(super) fn other(&mut self, option: &Word, words: &mut Cursor<'_>) {
        words.skip_values();
        self.complete = true;
        if matches!(self.effect, Effect::Chain(_)) {
            self.stray.get_or_insert(option.span.clone());
        } else {
            let name = &self.word.text;
            let why =
                format!("{} of the target {name} takes the kernel path", quoted(&option.text));
            self.unknown = Some(why);
        }
    }

    /// An option that a chain does not have.
    pub(super) fn stray(&self) -> Option<Span> {
        self.stray.clone()
    }

    /// Its effect, and what to check before.
    pub(super) fn finish(
        self,
        protocol: Option<u8>,
    ) -> Result<(Effect, Option<Check>), SpannedFault> {
        if !self.complete {
            let what = format!("{} does not say what it sets", self.word.text);
            return wrong(&self.word.span, what, "write its option");
        }
        let effect = match self.effect {
            _ if self.unknown.is_some() => Effect::Unsupported(self.unknown.unwrap_or_default()),
            Effect::Verdict(Verdict::Reject(Reject::TcpReset)) if protocol != Some(6) => {
                return wrong(
                    &self.word.span,
                    "a TCP reset is in a rule for other protocols",
                    "write -p tcp before it",
                );
            }
            Effect::Verdict(Verdict::Nat(NatVerdict { range, .. }))
                if range.ports.is_some() && protocol.is_none() =>
            {
                return wrong(
                    &self.word.span,
                    "the target has ports in a rule for protocols without any",
                    "write -p tcp or -p udp before it",
                );
            }
            effect => effect,
        };
        Ok((effect, self.check))
    }
}

fn nat_verdict(range: NatRange, family: Family) -> Verdict {
    let version = Some(if family == Family::Ip6 { 6 } else { 4 });
    Verdict::Nat(NatVerdict { version, range })
}

/// Why a target that is not a chain is unsupported; `None` if the name is not a target's.
pub(super) fn unsupported_target(name: &str) -> Option<String> {
    let plain = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
    let sound = !name.is_empty() && name.len() < 30 && name.bytes().all(plain);
    sound.then(|| unsupported(name))
}

fn unsupported(name: &str) -> String {
    format!("the target {name} of iptables takes the kernel path")
}

fn reject(word: &Word, family: Family) -> Result<Effect, SpannedFault> {
    match names::reject(&word.text, family) {
        Some(reject) => Ok(Effect::Verdict(Verdict::Reject(reject))),
        None => wrong(
            &word.span,
            format!("{} is no type of rejection", quoted(&word.text)),
            "write one that iptables-extensions(8) lists under REJECT",
        ),
    }
}
