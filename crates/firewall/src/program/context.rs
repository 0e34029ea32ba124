//! What the rules of a program mean where they are: the links that they see, and where jumps and verdicts
//! lead.

use std::net::IpAddr;

use tollway_dataplane::stages::filter::{Op, Reject};

use super::conditions::Resolver;
use super::levels::Level;
use super::live::Live;
use crate::hops::Hop;
use crate::ir::{self, CheckState, NatVerdict, Ruleset, Verdict};
use crate::undone::At;

/// There is no room for more rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooMany;

/// A label: a position in the program that rules can refer to before it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Label(pub(super) u32);

/// The chain that contains a rule.
#[derive(Clone, Copy)]
pub(super) struct EnclosingChain {
    /// The number of the level.
    pub(super) level: usize,
    /// The number of the base chain; `None` for a chain that is jumped to.
    pub(super) base: Option<usize>,
}

/// All that is known of a program before its rules are compiled.
pub(super) struct ProgramContext<'a> {
    pub(super) ruleset: &'a Ruleset,
    /// The live sets.
    pub(super) live: &'a Live,
    /// The links that rules see, level by level; one level except at hooks ingress and prerouting.
    pub(super) levels: &'a [Level],
    pub(super) version: u8,
    /// Whether anybody tracks the connections of the packets.
    pub(super) tracks: bool,
    /// Whether it is the program of hook prerouting.
    pub(super) is_prerouting: bool,
    /// The point at which the program is evaluated.
    pub(super) at: At,
    /// The start of each chain that is jumped to, by level.
    pub(super) starts: Vec<Vec<Label>>,
    /// Next hops that rules name.
    pub(super) hops: Vec<Hop<'a>>,
    /// The start of each base chain of these hooks, and the position of its policy.
    pub(super) bases: Vec<(Label, Label)>,
}

impl<'a> ProgramContext<'a> {
    /// The context for resolving matches in a chain.
    pub(super) fn resolver(&self, within: EnclosingChain) -> Resolver<'a> {
        let level = self.levels.get(within.level);
        Resolver {
            rules: self.ruleset,
            live: self.live,
            inputs: level.map_or(&[][..], |level| &level.inputs),
            outputs: level.map_or(&[][..], |level| &level.outputs),
            version: self.version,
        }
    }

    /// The number of a next hop; `None` if it is of the other version of IP.
    pub(super) fn hop(&self, via: IpAddr, link: Option<&str>) -> Option<u32> {
        let number = self.hops.iter().position(|hop| *hop == (via, link))?;
        (via.is_ipv4() == (self.version == 4)).then_some(number as u32)
    }

    /// The number of the limit of a log.
    pub(super) fn limit_of_log(&self, log: u32) -> u32 {
        self.ruleset.limits.len() as u32 + log
    }

    /// The op for a verdict; `None` to go on with the next rule.
    pub(super) fn verdict(&self, verdict: &Verdict, within: EnclosingChain) -> Option<Op> {
        if self.at.verdict(verdict).is_some() {
            return Some(Op::Unsupported);
        }
        Some(match verdict {
            Verdict::Accept => self.accept(within),
            Verdict::Drop => Op::Drop,
            Verdict::Reject(reject) => Op::Reject(self.reject(*reject)),
            Verdict::Unsupported(_) => Op::Unsupported,
            Verdict::Continue => return None,
            Verdict::Nat(NatVerdict { version, range }) => {
                if version.is_some_and(|version| version != self.version) {
                    return None;
                }
                Op::Nat(*range)
            }
            Verdict::Return => Op::Return,
            Verdict::Jump(chain) => Op::Call(self.starts[within.level][chain.0].0),
            Verdict::Goto(chain) => Op::Skip(self.starts[within.level][chain.0].0),
        })
    }

    /// The op that looks for a packet's state.
    pub(super) fn check_state(&self, check: &CheckState, within: EnclosingChain) -> Op {
        let starts = &self.starts[within.level];
        Op::CheckState {
            name: check.name,
            at: check.chains.iter().map(|chain| Some(starts[chain.as_ref()?.0].0)).collect(),
        }
    }

    /// The error for the sender (`nft_reject_icmp_code`, `nft_reject_icmpv6_code`).
    fn reject(&self, reject: ir::Reject) -> Reject {
        let code = match reject {
            ir::Reject::TcpReset => return Reject::TcpReset,
            ir::Reject::Icmp(code) | ir::Reject::Icmp6(code) => code,
            ir::Reject::Icmpx(code) => {
                let codes = if self.version == 6 { [0, 4, 3, 1] } else { [0, 3, 1, 13] };
                codes.get(usize::from(code)).copied().unwrap_or(codes[1])
            }
        };
        Reject::Unreachable(code)
    }

    /// Whether the packets have passed hook prerouting, and so connection tracking, on a level before.
    pub(super) const fn is_behind_tracking(&self, within: EnclosingChain) -> bool {
        self.is_prerouting && within.level > 0
    }

    /// Where accepted packets go on.
    pub(super) fn accept(&self, within: EnclosingChain) -> Op {
        match within.base {
            _ if self.bases.len() == 1 => Op::Accept,
            None => Op::Leave,
            Some(base) => match self.bases.get(base + 1) {
                Some((start, end)) => Op::Chain { at: start.0, end: end.0 },
                None => Op::Accept,
            },
        }
    }
}
