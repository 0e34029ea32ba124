//! One case: rules and packets, how both routers handle them, and where they differ.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tollway_firewall::ir::{Family, Hook, Ruleset};
use tollway_firewall::offload::{Offload, offload};
use tollway_firewall::{iptables, nft};
use tollway_rules::Reading;

use crate::dice::Dice;
use crate::engines::{Decision, Engines};
use crate::icmp::checksum;
use crate::kernel::{Kernel, Sent};
use crate::net::DEVICES;
use crate::packets::{self, Input};
use crate::rules::{Language, Rules};
use crate::tollway::{PacketResult, Tollway, tally};

/// What runs cases and lasts longer than one of them.
pub struct Routers {
    pub kernel: Kernel,
    /// The programs of XDP and tc, which only root may load.
    pub engines: Option<Engines>,
}

/// Rules and packets.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Case {
    pub seed: u64,
    pub rules: Rules,
    /// Each packet with the number of the device on which it arrives.
    pub packets: Vec<Input>,
}

/// What a case has covered, as counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub packets: usize,
    pub forwarded: usize,
    /// Packets that took the kernel path because of a rule.
    pub punted: usize,
    /// Messages of the router that were compared.
    pub answers: usize,
    /// Counters that were compared.
    pub counters: usize,
    /// Packets that took the kernel path in a router that reads the rules from the kernel.
    pub kept: usize,
    /// Packets that the programs of XDP and tc have forwarded, and dropped.
    pub by_programs: [usize; 2],
}

/// How a case ended.
pub enum Outcome {
    Same(Tally),
    /// Sentences that describe where the two routers differ.
    Differs(Vec<String>),
    /// The kernel's tool refuses the rules.
    Refused(String),
}

/// Separates two listings.
pub const BETWEEN: char = '\u{1e}';
pub const LISTING: &str = "nft -j list ruleset && printf '\\036' && nft list ruleset";

impl Case {
    /// Runs the case on both routers.
    pub fn run(&self, routers: &mut Routers) -> Outcome {
        let Routers { kernel, engines } = routers;
        let (load, list, clear) = scripts(self.rules.language);
        if let Err(error) = kernel.run(&load, &self.rules.text()) {
            kernel.run(&clear, "").unwrap();
            return Outcome::Refused(error);
        }
        let listing = kernel.run(&list, "").unwrap();
        let reading = self.is_of_nf_tables().then(|| kernel.reading());
        let sent = kernel.send(&self.packets);
        let after = kernel.run(&list, "").unwrap();
        kernel.run(&clear, "").unwrap();
        let rules = match (self.read(&listing), self.read(&after)) {
            (Ok(before), Ok(after)) => (before, after),
            (Err(error), _) | (_, Err(error)) => return Outcome::Differs(vec![error]),
        };
        let compared = match self.rules.is_listed_whole() {
            true => self.compare_listed(&sent, &Arc::new(rules.0), &rules.1, engines.as_mut()),
            false => Ok(Tally::default()),
        };
        let compared = compared.and_then(|mut tally| {
            if let Some(reading) = reading {
                tally.kept = self.compare_reading(&sent, reading)?;
            }
            Ok(tally)
        });
        match compared {
            Ok(tally) => Outcome::Same(tally),
            Err(differences) => Outcome::Differs(differences),
        }
    }

    /// Compares the kernel's results with Tollway's by the listed rules, in user space and in programs.
    fn compare_listed(
        &self,
        sent: &[Sent],
        rules: &Arc<Ruleset>,
        after: &Ruleset,
        engines: Option<&mut Engines>,
    ) -> Result<Tally, Vec<String>> {
        let mut tally = self.compare(sent, rules, after)?;
        // Programs track no connections.
        if let Some(engines) = engines.filter(|_| rules.tracking.is_none()) {
            tally.by_programs = self.compare_engines(sent, rules, engines)?;
        }
        Ok(tally)
    }

    fn is_of_nf_tables(&self) -> bool {
        matches!(self.rules.language, Language::Nft | Language::Iptables { nft: true, .. })
    }

    /// Compares the kernel's results with a router that reads the rules from the kernel. Returns
    /// how many packets that router leaves to the kernel.
    fn compare_reading(
        &self,
        sent: &[Sent],
        reading: Result<Arc<Reading>, String>,
    ) -> Result<usize, Vec<String>> {
        let one =
            |error: String| vec![format!("the rules cannot be read from the kernel: {error}")];
        let reading = reading.map_err(one)?;
        let mut router = Tollway::new(&reading.rules).map_err(one)?;
        let results: Vec<_> =
            self.packets.iter().map(|(device, frame)| router.one(*device, frame)).collect();
        let left = results.iter().filter(|result| result.needs_kernel).count();
        // With connection tracking, all packets take the kernel path.
        let tracks = [true, false].iter().any(|v4| reading.needs.fragments(*v4).is_some());
        if tracks || left > 0 && self.rules.is_scarce() {
            return Ok(left);
        }
        let kernels = by_tag(sent);
        let both = self.packets.iter().zip(&results);
        let differences: Vec<_> = both
            .filter_map(|((device, frame), result)| forwarded(*device, frame, result, &kernels))
            .map(|difference| format!("as read from the kernel, {difference}"))
            .collect();
        if differences.is_empty() { Ok(left) } else { Err(differences) }
    }

    /// Compares what the programs of both engines decide with the kernel's results, and what they count
    /// with Tollway's counts of the same packets. Returns how many packets they forward, and drop.
    fn compare_engines(
        &self,
        sent: &[Sent],
        rules: &Arc<Ruleset>,
        engines: &mut Engines,
    ) -> Result<[usize; 2], Vec<String>> {
        let one = |error: String| vec![format!("the programs do not get the rules: {error}")];
        engines.set_rules(rules).map_err(one)?;
        let mut router = Tollway::new(rules).map_err(one)?;
        let kernels = by_tag(sent);
        let (mut differences, mut tally) = (Vec::new(), [0; 2]);
        for (engine, name) in engines.names().into_iter().enumerate() {
            for (device, frame) in &self.packets {
                let decision = engines.decide(engine, *device, frame);
                let Some(tag) = packets::tag(frame) else { continue };
                let theirs = kernels.get(&tag).map_or(&[][..], Vec::as_slice);
                let is_same = match (&decision, theirs) {
                    (Decision::Leaves, _) => continue,
                    (Decision::Drops, theirs) => theirs.is_empty(),
                    (Decision::Forwards(ours), [(_, theirs)]) => is_padded(ours, theirs),
                    (Decision::Forwards(_), _) => false,
                };
                if !is_same {
                    let (device, theirs) = (DEVICES[*device], listed(theirs));
                    let frame = hex(frame);
                    differences.push(format!(
                        "packet {tag} by {device}: {frame}\n  kernel: {theirs}\n  {name}: {decision:x?}"
                    ));
                }
                tally[usize::from(decision == Decision::Drops)] += 1;
                router.one(*device, frame);
            }
        }
        let (programs, path) = (engines.counts(), router.counts());
        if programs != path {
            differences.push(format!("the programs count {programs:?}, the path {path:?}"));
        }
        if differences.is_empty() { Ok(tally) } else { Err(differences) }
    }

    /// Parses a listing into a ruleset, with the product's front ends.
    fn read(&self, listing: &str) -> Result<Ruleset, String> {
        let read = match self.rules.language {
            Language::Nft => {
                let (json, words) = listing.split_once(BETWEEN).unwrap_or((listing, ""));
                nft::read(&nft::complete(json, words), "listing")
            }
            Language::Iptables { six, .. } => {
                let family = if six { Family::Ip6 } else { Family::Ip };
                iptables::read(listing, "save", family)
            }
        };
        let words = |mistakes: Vec<tollway_firewall::mistake::Mistake>| {
            let mistakes: Vec<_> = mistakes.iter().map(ToString::to_string).collect();
            format!("Tollway does not read the listing: {}", mistakes.join("; "))
        };
        read.map_err(words)
    }

    fn compare(
        &self,
        sent: &[Sent],
        rules: &Arc<Ruleset>,
        after: &Ruleset,
    ) -> Result<Tally, Vec<String>> {
        let one = |error: String| vec![format!("Tollway does not compile the rules: {error}")];
        let mut router = Tollway::new(rules).map_err(one)?;
        let results: Vec<_> =
            self.packets.iter().map(|(device, frame)| router.one(*device, frame)).collect();
        let mut tally = Tally { packets: results.len(), ..Tally::default() };
        tally.punted = results.iter().filter(|result| result.needs_kernel).count();
        tally.forwarded = sent.iter().filter(|(_, frame)| packets::tag(frame).is_some()).count();
        if tally.punted > 0 && self.rules.is_scarce() {
            // The test does not know what these packets use up behind the rule that only the kernel
            // evaluates.
            return Ok(tally);
        }
        let mut differences = Vec::new();
        let kernels = by_tag(sent);
        for ((device, frame), result) in self.packets.iter().zip(&results) {
            differences.extend(forwarded(*device, frame, result, &kernels));
        }
        if tally.punted > 0 {
            let is_kernels = |covered: &Offload| matches!(covered, Offload::Kernel(_));
            if !offload(rules).iter().any(|rule| is_kernels(&rule.offload)) {
                differences
                    .push("packets take the kernel path, and no rule requires it".to_owned());
            }
        }
        if rules.tracking.is_some() {
            // What comes apart here comes at once to the kernel, and the ruleset counts what no rule of the kernel's does.
            return if differences.is_empty() { Ok(tally) } else { Err(differences) };
        }
        let answers = (answers_of(sent), answers_of_all(&results));
        // In the kernel the router's own messages traverse these hooks. In Tollway they meet no
        // rule.
        let is_late = |hook| matches!(hook, Hook::Postrouting | Hook::Egress);
        let hooks = rules.chains.iter().filter_map(|chain| chain.base.as_ref());
        let late = hooks.into_iter().any(|base| is_late(base.hook));
        if tally.punted == 0 && !late {
            tally.answers = answers.0.len();
            differences.extend(not_alike("an answer", &answers.0, &answers.1));
        }
        if tally.punted == 0 && !(late && answers.0.len() + answers.1.len() > 0) {
            let counts = router.counts();
            tally.counters = counts.len();
            differences.extend(miscounts(rules, after, &counts));
        }
        // In a burst, packets of one IP version come before those of the other.
        if !self.rules.is_scarce() {
            differences.extend(self.bursts(rules, &results));
        }
        if differences.is_empty() { Ok(tally) } else { Err(differences) }
    }

    /// Compares the results of bursts with those of single packets.
    fn bursts(&self, rules: &Arc<Ruleset>, results: &[PacketResult]) -> Vec<String> {
        let Ok(mut router) = Tollway::new(rules) else { return Vec::new() };
        let sent = router.bursts(&self.packets, &mut Dice(self.seed));
        let singly: Vec<_> = results.iter().flat_map(|result| result.sent.clone()).collect();
        let forwarded = |sent: &[Sent]| {
            let of_packets = sent.iter().filter(|(_, frame)| packets::tag(frame).is_some());
            of_packets.cloned().collect::<Vec<_>>()
        };
        not_alike("Tollway in bursts", &forwarded(&singly), &forwarded(&sent))
    }
}

/// The scripts that load, list and remove rules of a language.
fn scripts(language: Language) -> (String, String, String) {
    let Language::Iptables { six, nft } = language else {
        return ("nft -f -".into(), LISTING.into(), "nft flush ruleset".into());
    };
    let name =
        format!("ip{}tables-{}", if six { "6" } else { "" }, if nft { "nft" } else { "legacy" });
    let clear = if nft {
        "nft flush ruleset".to_owned()
    } else {
        let mut lines = String::new();
        for (table, chains) in crate::iptables::TABLES {
            lines += &format!("*{table}\\n");
            for chain in chains {
                lines += &format!(":{chain} ACCEPT [0:0]\\n");
            }
            lines += "COMMIT\\n";
        }
        format!("printf '{lines}' | {name}-restore")
    };
    (format!("{name}-restore"), format!("{name}-save -c"), clear)
}

/// Groups the kernel's frames by their packet's number.
pub fn by_tag(sent: &[Sent]) -> BTreeMap<u32, Vec<Sent>> {
    let mut tags: BTreeMap<u32, Vec<Sent>> = BTreeMap::new();
    for one in sent {
        if let Some(tag) = packets::tag(&one.1) {
            tags.entry(tag).or_default().push(one.clone());
        }
    }
    tags
}

/// Describes how the two routers differ over one packet, if they do.
pub fn forwarded(
    device: usize,
    frame: &[u8],
    result: &PacketResult,
    kernels: &BTreeMap<u32, Vec<Sent>>,
) -> Option<String> {
    if result.needs_kernel {
        return None;
    }
    let tag = packets::tag(frame)?;
    let none = Vec::new();
    let theirs = kernels.get(&tag).unwrap_or(&none);
    let ours: Vec<_> =
        result.sent.iter().filter(|(_, frame)| packets::tag(frame).is_some()).cloned().collect();
    (tally(theirs) != tally(&ours)).then(|| {
        format!(
            "packet {tag} by {}: {}\n  kernel: {}\n  Tollway ({}): {}",
            DEVICES[device],
            hex(frame),
            listed(theirs),
            result.why,
            listed(&ours)
        )
    })
}

/// Whether a program's frame is the kernel's. Programs leave the bytes after a short packet.
fn is_padded(ours: &[u8], theirs: &[u8]) -> bool {
    /// Layer 3 of the shortest frame of Ethernet.
    const SHORT: usize = 14 + 46;
    ours == theirs || ours.starts_with(theirs) && theirs.len() < SHORT
}

fn not_alike(what: &str, theirs: &[Sent], ours: &[Sent]) -> Vec<String> {
    let (theirs, ours) = (tally(theirs), tally(ours));
    let mut differences = Vec::new();
    for (sent, count) in &theirs {
        let other = ours.get(sent).copied().unwrap_or(0);
        if other != *count {
            differences.push(format!("{what}, {count} times and {other}: {}", one(sent)));
        }
    }
    let only_ours = ours.iter().filter(|(sent, _)| !theirs.contains_key(*sent));
    differences.extend(
        only_ours.map(|(sent, count)| format!("{what}, 0 times and {count}: {}", one(sent))),
    );
    differences
}

fn answers_of_all(results: &[PacketResult]) -> Vec<Sent> {
    let sent: Vec<_> = results.iter().flat_map(|result| result.sent.clone()).collect();
    answers_of(&sent)
}

/// The router's own messages without the fields that each router chooses: the IPv4 identification
/// and the checksum.
fn answers_of(sent: &[Sent]) -> Vec<Sent> {
    let is_answer = |frame: &[u8]| {
        let is_ip = matches!(frame.get(12..14), Some([8, 0] | [0x86, 0xdd]));
        // In an IPv4 error the original packet follows the error's own IP header and its ICMP
        // header.
        let is_error = frame.get(12) == Some(&8) && frame.get(23) == Some(&1);
        let first = 14 + frame.get(14).map_or(0, |first| usize::from(first & 15) * 4) + 8;
        let had_options = is_error && frame.get(first).is_some_and(|first| *first != 0x45);
        is_ip && !had_options && !frame.starts_with(&[0x33, 0x33]) && packets::tag(frame).is_none()
    };
    let answers = sent.iter().filter(|(_, frame)| is_answer(frame));
    let plain = answers.cloned().map(|(device, mut frame)| {
        if frame[12] == 8 {
            let header = 14 + usize::from(frame[14] & 15) * 4;
            frame[18..20].fill(0);
            frame[24..26].fill(0);
            let sum = checksum(&frame[14..header.min(frame.len())]);
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        (device, frame)
    });
    plain.collect()
}

/// Counters whose values differ.
fn miscounts(before: &Ruleset, after: &Ruleset, counts: &[(u64, u64)]) -> Vec<String> {
    if before.counters.len() != after.counters.len() || counts.len() != after.counters.len() {
        return vec!["the rulesets before and after have not as many counters".to_owned()];
    }
    let pairs = after.counters.iter().zip(counts).enumerate();
    let wrong = pairs.filter(|(_, (theirs, ours))| (theirs.packets, theirs.bytes) != **ours);
    wrong
        .map(|(number, (theirs, ours))| {
            let rule = rule_of(after, number).unwrap_or_else(|| format!("counter {number}"));
            let (packets, bytes) = (theirs.packets, theirs.bytes);
            format!("{rule}: the kernel counts {packets} packets, {bytes} bytes, Tollway {ours:?}")
        })
        .collect()
}

/// The rule that counts into a counter.
fn rule_of(rules: &Ruleset, number: usize) -> Option<String> {
    use tollway_firewall::ir::{Action, CounterId, Step};
    let counts = Step::Do(Action::Count(CounterId(number)));
    rules.chains.iter().find_map(|chain| {
        let rule = chain.rules.iter().find(|rule| rule.steps.contains(&counts))?;
        Some(format!("{}: {}", chain.name, rule.text))
    })
}

fn listed(sent: &[Sent]) -> String {
    if sent.is_empty() {
        return "nothing".to_owned();
    }
    sent.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn one((device, frame): &Sent) -> String {
    format!("{} {}", DEVICES[*device], hex(frame))
}

/// Bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
