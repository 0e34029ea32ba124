//! Options that a rule may have once, that exclude each other, or that it needs.
//!
//! libxtables knows this of each option (`XTOPT_MULTI`, `excl`, `XTOPT_MAND`): a rule that breaks it is no rule.

use super::Family;
use super::value::{Wrong, wrong};
use super::words::{Cursor, Word};

/// Options of a match or a target that a rule has so far, by what stands for all that exclude each other.
#[derive(Clone, Debug, Default)]
pub(super) struct Used(Vec<String>);

impl Used {
    /// Notes an option.
    pub(super) fn note(&mut self, option: &Word) -> Result<(), Wrong> {
        let kind = kind(&option.text);
        if self.0.iter().any(|used| used == kind) {
            let what = format!("{} is there twice, or with one that excludes it", option.text);
            return wrong(option, what, "leave one of them");
        }
        self.0.push(kind.to_owned());
        Ok(())
    }

    /// Says if there is any.
    pub(super) fn is_any(&self) -> bool {
        !self.0.is_empty()
    }
}

/// A part of a rule that has options, each of them once.
pub(super) trait Options {
    /// Those that it has so far.
    fn used(&mut self) -> &mut Used;

    /// Takes an option, however often; says if it is one of this part.
    fn take(
        &mut self,
        option: &Word,
        negate: bool,
        words: &mut Cursor<'_>,
        family: Family,
    ) -> Result<bool, Wrong>;

    /// Takes an option; says if it is one of this part.
    fn option(
        &mut self,
        option: &Word,
        negate: bool,
        words: &mut Cursor<'_>,
        family: Family,
    ) -> Result<bool, Wrong> {
        let takes = self.take(option, negate, words, family)?;
        if takes {
            self.used().note(option)?;
        }
        Ok(takes)
    }
}

/// One name for all options of which a rule has one.
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
        "--and-tos" | "--or-tos" | "--xor-tos" => "--set-tos",
        "--nflog-size" => "--nflog-range",
        other => other,
    }
}

/// Says if a match is none without one of its options.
pub(super) fn needs_option(name: &str) -> bool {
    let needing = [
        "comment",
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
        "tos",
        "ttl",
    ];
    needing.contains(&name)
}
