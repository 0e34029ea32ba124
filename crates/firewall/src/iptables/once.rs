//! Options that a rule may have only once, options that exclude each other, and options that it
//! needs.
//!
//! libxtables declares this for each option (`XTOPT_MULTI`, `excl`, `XTOPT_MAND`), and rejects a rule that
//! violates it.

use super::Family;
use super::words::{Cursor, Word};
use crate::mistake::{SpannedFault, wrong};

/// The options of a match or a target so far. Options that exclude each other share a name.
#[derive(Clone, Debug, Default)]
pub(super) struct Used(Vec<String>);

impl Used {
    /// Records an option; rejects a second one.
    pub(super) fn note(&mut self, option: &Word) -> Result<(), SpannedFault> {
        let kind = kind(&option.text);
        if self.0.iter().any(|used| used == kind) {
            let what = format!("{} is there twice, or with one that excludes it", option.text);
            return wrong(&option.span, what, "leave one of them");
        }
        self.0.push(kind.to_owned());
        Ok(())
    }

    /// Says whether there are any.
    pub(super) fn is_any(&self) -> bool {
        !self.0.is_empty()
    }
}

/// A part of a rule with options, each of which occurs once.
pub(super) trait Options {
    /// Its options so far.
    fn used(&mut self) -> &mut Used;

    /// Parses an option, which may be a repeated one. Returns whether it belongs to this part.
    fn parse_option(
        &mut self,
        option: &Word,
        negate: bool,
        words: &mut Cursor<'_>,
        family: Family,
    ) -> Result<bool, SpannedFault>;

    /// Parses an option once. Returns whether it belongs to this part.
    fn option(
        &mut self,
        option: &Word,
        negate: bool,
        words: &mut Cursor<'_>,
        family: Family,
    ) -> Result<bool, SpannedFault> {
        let takes = self.parse_option(option, negate, words, family)?;
        if takes {
            self.used().note(option)?;
        }
        Ok(takes)
    }
}

/// A common name for options of which a rule may have only one.
fn kind(option: &str) -> &str {
    match option {
        "--source" | "--src" => "-s",
        "--destination" | "--dst" => "-d",
        "--in-interface" => "-i",
        "--out-interface" => "-o",
        "--fragment" | "--fragments" => "-f",
        "--protocol" | "--proto" => "-p",
        "--source-port" => "--sport",
        "--destination-port" => "--dport",
        "--syn" => "--tcp-flags",
        "--source-ports" | "--dports" | "--destination-ports" | "--ports" => "--sports",
        "--dscp-class" => "--dscp",
        "--set-dscp-class" => "--set-dscp",
        "--ttl-eq" | "--ttl-lt" | "--ttl-gt" => "--ttl",
        "--hl-eq" | "--hl-lt" | "--hl-gt" => "--hl",
        "--set-xmark" | "--and-mark" | "--or-mark" | "--xor-mark" => "--set-mark",
        "--save-mark" | "--restore-mark" => "--set-mark",
        "--and-tos" | "--or-tos" | "--xor-tos" => "--set-tos",
        "--nflog-size" => "--nflog-range",
        other => other,
    }
}

/// Says whether a match needs at least one of its options.
pub(super) fn needs_option(name: &str) -> bool {
    let needing = [
        "comment",
        "connmark",
        "conntrack",
        "dscp",
        "hl",
        "icmp",
        "icmp6",
        "icmpv6",
        "iprange",
        "length",
        "mac",
        "mark",
        "multiport",
        "pkttype",
        "state",
        "tos",
        "ttl",
    ];
    needing.contains(&name)
}
