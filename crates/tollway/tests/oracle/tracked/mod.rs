//! Connection tracking without a kernel behind it, compared with the kernel's: drawn conversations, through drawn rules
//! about connections.
//!
//! The last rules write into each packet what they see of its connection: state, direction and status become its DSCP. So
//! one packet that comes out shows what tracking has made of it, and of all packets before it.

mod build;
mod nat;
mod rules;
mod talk;

use std::collections::BTreeMap;
use std::time::Instant;

use tollway_firewall::{iptables, ir::Family, nft};

use crate::case::{BETWEEN, by_tag, forwarded, hex};
use crate::dice::Dice;
use crate::kernel::{Kernel, Sent};
use crate::packets::{self, Input};
use crate::tollway::Tollway;
use crate::{ENOUGH, setting};

/// Number of cases if the environment does not set another.
const CASES: u64 = 60;
/// Packets in each case.
const PACKETS: usize = 160;

pub fn like_the_kernel() {
    compare(false);
}

/// The same, with rules that translate addresses.
pub fn translated_like_the_kernel() {
    compare(true);
}

fn compare(translates: bool) {
    let mut kernel = Kernel::new();
    let seed = setting("TOLLWAY_ORACLE_SEED").unwrap_or(1);
    let cases = setting("TOLLWAY_ORACLE_CASES").unwrap_or(CASES);
    println!("seed {seed}, {cases} rulesets");
    let start = Instant::now();
    let (mut sent, mut came, mut classes) = (0, 0, BTreeMap::new());
    let mut differences = Vec::new();
    for number in 0..cases {
        let mut dice = Dice(seed.wrapping_mul(1 << 20).wrapping_add(number));
        let case = Case::draw(&mut dice, number, translates);
        let (theirs, found) = case.run(&mut kernel);
        sent += case.packets.len();
        came += theirs.len();
        for (_, frame) in &theirs {
            *classes.entry(rules::class_of(frame)).or_insert(0) += 1;
        }
        if !found.is_empty() {
            let rules = case.rules.to_string();
            let drawn = rules.lines().filter(|rule| !rule.contains("dscp"));
            println!("case {number}:\n{}", drawn.collect::<Vec<_>>().join("\n"));
            found.iter().take(4).for_each(|difference| println!("{difference}"));
            differences.push(number);
        }
        if differences.len() == ENOUGH {
            break;
        }
    }
    println!(
        "{sent} packets, {came} came out; by state, direction and status: {classes:?}; {:.1} s",
        start.elapsed().as_secs_f64()
    );
    assert!(differences.is_empty(), "connections differ from the kernel's in {differences:?}");
    assert!(came * 3 > sent, "too few packets came out for a verdict");
    // Every state and direction, with each status that it can have, and packets that the rules leave as they are.
    assert!(classes.len() >= 15 || cases < CASES, "only {} classes of packets", classes.len());
}

/// Rules, and conversations through them.
struct Case {
    rules: rules::Rules,
    packets: Vec<Input>,
}

impl Case {
    fn draw(dice: &mut Dice, number: u64, translates: bool) -> Self {
        let (packets, nat) = talk::draw(dice, number, PACKETS, translates);
        Self { rules: rules::draw(dice, &nat), packets }
    }

    /// What the kernel sends, and where Tollway differs.
    fn run(&self, kernel: &mut Kernel) -> (Vec<Sent>, Vec<String>) {
        let (load, list, clear) = self.rules.scripts();
        if let Err(error) = kernel.run(&load, &self.rules.to_string()) {
            panic!("the rules are refused: {error}\n{}", self.rules);
        }
        let listing = kernel.run(&list, "").unwrap();
        let sent = kernel.send(&self.packets);
        kernel.run(&clear, "").unwrap();
        let read = match self.rules {
            rules::Rules::Nft(_) => {
                let (json, words) = listing.split_once(BETWEEN).unwrap();
                nft::read(&nft::complete(json, words), "listing")
            }
            rules::Rules::Iptables(_) => iptables::read(&listing, "save", Family::Ip),
        };
        let rules = match read {
            Ok(rules) => rules,
            Err(mistakes) => return (sent, mistakes.iter().map(ToString::to_string).collect()),
        };
        let mut router = match Tollway::new(&rules) {
            Ok(router) => router,
            Err(error) => return (sent, vec![error]),
        };
        let kernels = by_tag(&sent.iter().cloned().map(one_zero).collect::<Vec<_>>());
        let mut found = Vec::new();
        for (number, (device, frame)) in self.packets.iter().enumerate() {
            let mut result = router.one(*device, frame);
            result.sent = result.sent.into_iter().map(one_zero).collect();
            if result.needs_kernel {
                found.push(format!("a packet needs the kernel: {}", result.why));
            } else if let Some(difference) = forwarded(*device, frame, &result, &kernels) {
                found.push(format!("{}\n{difference}", self.history(number, &kernels)));
            }
        }
        (sent, found)
    }

    /// The packets before this one between the same hosts: transport headers, and the class of each that came out.
    fn history(&self, number: usize, kernels: &BTreeMap<u32, Vec<Sent>>) -> String {
        let hosts = |frame: &[u8]| {
            let (range, middle) = if frame[12] == 8 { (26..34, 4) } else { (22..54, 16) };
            let mut hosts: Vec<_> = frame[range].chunks(middle).map(<[u8]>::to_vec).collect();
            hosts.sort();
            hosts
        };
        let (_, last) = &self.packets[number];
        let before = self.packets[..=number].iter();
        let lines =
            before.filter(|(_, frame)| hosts(frame) == hosts(last)).map(|(device, frame)| {
                let tag = packets::tag(frame).unwrap_or_default();
                let classes = kernels.get(&tag).into_iter().flatten();
                let classes: Vec<_> = classes.map(|(_, frame)| rules::class_of(frame)).collect();
                let transport = if frame[12] == 8 { 34 } else { 54 };
                let header = &frame[transport..frame.len().min(transport + 48)];
                let bytes = frame.len() - transport;
                format!("  {tag} by {device}: {bytes} bytes, {} is {classes:?}", hex(header))
            });
        lines.collect::<Vec<_>>().join("\n")
    }
}

/// A sum has two zeros; after a written DSCP, the kernel's header has one, and Tollway's may have the other.
fn one_zero((device, mut frame): Sent) -> Sent {
    if frame.get(12..14) == Some(&[8, 0]) && frame.get(24..26) == Some(&[0xff; 2]) {
        frame[24..26].fill(0);
    }
    (device, frame)
}
