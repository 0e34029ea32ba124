//! A rule: the options after `-A`.

use super::check::Check;
use super::header::Header;
use super::matches::ParsedMatch;
use super::once::Options;
use super::target::{Effect, TargetParser};
use super::words::{Cursor, Word};
use super::{Family, names};
use crate::mistake::{Span, SpannedFault, quoted, wrong};

/// A parsed rule.
#[derive(Clone, Debug)]
pub(super) struct Parsed {
    /// Its checks, in the kernel's order.
    pub(super) checks: Vec<Check>,
    pub(super) effect: Effect,
    /// Whether the chain that it jumps to returns to where the last jump was.
    pub(super) goto: bool,
    /// The position of its target, or of the whole rule.
    pub(super) target: Span,
    /// An option of the target that would be wrong if the target is a chain.
    pub(super) stray: Option<Span>,
}

/// The state of parsing.
struct Reading {
    header: Header,
    matches: Vec<ParsedMatch>,
    target_parser: Option<TargetParser>,
    family: Family,
}

/// Parses the options of a rule that begins with `first`.
pub(super) fn parse(first: &Word, words: &[Word], family: Family) -> Result<Parsed, SpannedFault> {
    let mut reading =
        Reading { header: Header::default(), matches: Vec::new(), target_parser: None, family };
    let mut words = Cursor::new(words);
    while let Some(word) = words.next() {
        let negate = word.is("!");
        let option = match negate {
            false => word,
            true => words.next().map_or_else(
                || wrong(&word.span, "nothing is behind this !", "write what it negates"),
                Ok,
            )?,
        };
        reading.option(option, negate, &mut words)?;
    }
    reading.finish(first)
}

impl Reading {
    fn option(
        &mut self,
        option: &Word,
        negate: bool,
        words: &mut Cursor<'_>,
    ) -> Result<(), SpannedFault> {
        if !option.is_option() || option.is("!") {
            return wrong(
                &option.span,
                format!("{} is where an option should be", quoted(&option.text)),
                "write the rule as iptables-save does",
            );
        }
        match option.text.as_str() {
            "-m" | "--match" if !negate => {
                let name = words.value(option)?;
                self.load(name, &name.text.clone())
            }
            "-j" | "--jump" | "-g" | "--goto" if !negate => {
                let goto = option.text.contains('g');
                let target = words.value(option)?;
                if self.target_parser.is_some() {
                    return wrong(&option.span, "the rule has two targets", "make two rules of it");
                }
                self.target_parser = Some(TargetParser::new(target, goto, self.family));
                Ok(())
            }
            _ => self.inner(option, negate, words),
        }
    }

    fn load(&mut self, word: &Word, name: &str) -> Result<(), SpannedFault> {
        let loaded = ParsedMatch::new(word, name, &self.header, self.family)?;
        self.matches.push(loaded);
        Ok(())
    }

    /// Parses an option of the header, of the target, of a match, or of the protocol's implicit match.
    fn inner(
        &mut self,
        option: &Word,
        negate: bool,
        words: &mut Cursor<'_>,
    ) -> Result<(), SpannedFault> {
        let family = self.family;
        if self.header.option(option, negate, words, family)? {
            return Ok(());
        }
        if let Some(target_parser) = &mut self.target_parser
            && target_parser.option(option, negate, words, family)?
        {
            return Ok(());
        }
        for loaded in self.matches.iter_mut().rev() {
            if loaded.option(option, negate, words, family)? {
                return Ok(());
            }
        }
        let mut implied = self.implied(option)?;
        if let Some(loaded) = &mut implied
            && loaded.option(option, negate, words, family)?
        {
            self.matches.extend(implied);
            return Ok(());
        }
        match (&mut self.target_parser, self.matches.last_mut(), implied) {
            (Some(target_parser), ..) => target_parser.other(option, words),
            (None, Some(loaded), _) => loaded.other(option, words),
            (None, None, Some(mut loaded)) => {
                loaded.other(option, words);
                self.matches.push(loaded);
            }
            (None, None, None) => {
                return wrong(
                    &option.span,
                    format!("{} is an option of no match", quoted(&option.text)),
                    "write -m and the match before it",
                );
            }
        }
        Ok(())
    }

    /// The implicit match of the protocol, unless the rule already has it.
    fn implied(&self, option: &Word) -> Result<Option<ParsedMatch>, SpannedFault> {
        let name = self
            .header
            .only_protocol()
            .and_then(|protocol| names::match_of(protocol, self.family))
            .filter(|name| self.matches.iter().all(|loaded| loaded.name != *name));
        name.map(|name| ParsedMatch::new(option, name, &self.header, self.family)).transpose()
    }

    fn finish(self, first: &Word) -> Result<Parsed, SpannedFault> {
        let mut checks = self.header.checks(self.family);
        self.matches.iter().try_for_each(ParsedMatch::check_whole)?;
        checks.extend(self.matches.into_iter().flat_map(ParsedMatch::checks));
        let mut parsed = Parsed {
            checks,
            effect: Effect::Nothing,
            goto: false,
            target: first.span.clone(),
            stray: None,
        };
        if let Some(target_parser) = self.target_parser {
            parsed.target = target_parser.word.span.clone();
            parsed.goto = target_parser.goto;
            parsed.stray = target_parser.stray();
            let (effect, check) = target_parser.finish(self.header.only_protocol())?;
            parsed.effect = effect;
            parsed.checks.extend(check);
        }
        Ok(parsed)
    }
}
