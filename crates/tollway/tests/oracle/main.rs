//! Differential test of the filter against the kernel. It loads random rules into a router of the
//! kernel's and sends random packets through it. It compares what comes out of each device with
//! what Tollway makes of the same packets and rules, byte for byte. It also compares the counts of
//! rules and the router's own messages.
//!
//! The programs of XDP and tc run on the same packets with the same rules: what they forward or drop must be what
//! the kernel has forwarded or dropped, and what they count must be what the user path counts for these packets.
//!
//! Tollway reads the rules in two ways: from nft's listing, as from a JSON file, and from the
//! kernel, as a router without a file does. Only the second way sees all of the rules that nft does
//! not list completely (`ip6 nexthdr tcp tcp dport 80`).
//!
//! `TOLLWAY_ORACLE_SEED` and `TOLLWAY_ORACLE_CASES` select the cases; the test prints the seed. It
//! shrinks a case that differs and keeps it below `target/oracle`. `TOLLWAY_ORACLE_REPLAY` runs
//! that file again.
//!
//! The comparison leaves out, with reasons:
//!
//! - VRFs and VLAN links, which the kernels that run this test do not have.
//! - Packets that reach a rule which only a kernel can evaluate; there must be few of them.
//! - Messages of the router and counts, if there are such packets: the kernel evaluates them further.
//! - Messages of the router, and counts if there are any, if rules are at hooks postrouting and
//!   egress. The kernel's messages traverse these hooks, Tollway's do not.
//! - Fragments, if connections are tracked: the kernel reassembles them before any rule.
//! - Fragments other than the first, if nft rules look at transport headers. Kernels (6.18 is one)
//!   take the payload of such a fragment for a header where they read one, two or four bytes
//!   (`nft_payload_fast_eval` in `net/netfilter/nf_tables_core.c` does not check `fragoff`).
//!   Tollway does what was meant.
//! - `meta l4proto` of ICMP or ICMPv6 beside `meta nfproto`: nft 1.0.6 leaves the latter out of its
//!   listing, so no reader can know of it.
//! - TCP resets for packets with IPv4 options that a router fills in. At hook forward the kernel
//!   has filled in the options, but not yet updated the header's checksum. It finds that checksum
//!   wrong (`nf_ip_checksum`) and sends no reset. Tollway sends one.
//! - The router's messages about packets with IPv4 options: Tollway does not echo the options.
//! - Limits that depend on time: no two runs have the same speed. Packets use up limits of a few
//!   packets or bytes a day, and these stay used up. The test leaves such a case out if packets
//!   reach a rule that only a kernel can evaluate.
//! - IPv6 redirects and ND, which the kernel itself sends. Packets leave by another device than the
//!   one on which they arrive.

#![allow(clippy::unwrap_used)]

mod bridge;
mod cables;
mod case;
mod constants;
#[path = "../../../dataplane/src/testkit/dice.rs"]
mod dice;
mod engines;
mod icmp;
mod iptables;
mod kernel;
mod machine;
mod matches;
#[path = "../namespaces/mod.rs"]
mod namespaces;
mod net;
mod packets;
mod router;
mod rules;
mod shrink;
mod socket;
mod tollway;
mod tracked;

use std::process::ExitCode;
use std::time::Instant;

use case::{Case, Outcome, Routers, Tally};
use constants::Constants;
use dice::Dice;
use engines::Engines;
use kernel::Kernel;
use rules::{Language, Rules};

const TESTS: [namespaces::Test; 8] = [
    ("vlans_and_vrfs_are_compared_in_a_virtual_machine", machine::like_the_kernel),
    ("the_filter_decides_like_the_kernel", like_the_kernel),
    ("connections_are_tracked_like_the_kernel_does", tracked::like_the_kernel),
    ("connections_are_translated_like_the_kernel_does", tracked::translated_like_the_kernel),
    ("two_bridges_that_differ_are_told_apart", bridge::proven),
    ("the_bridge_forwards_like_the_kernel", bridge::like_the_kernel),
    ("the_oracle_finds_where_two_kernels_differ", router::proven),
    ("the_router_forwards_like_the_kernel", router::like_the_kernel),
];

/// Number of cases if the environment does not set another.
const CASES: u64 = 120;
/// Packets in each case.
const PACKETS: usize = 256;
/// A run ends after it has investigated this many differences.
const ENOUGH: usize = 5;

fn main() -> ExitCode {
    let tests = namespaces::Tests { beside: &TESTS, alone: &[] };
    namespaces::main(&tests, "-nm", missing, |_| ExitCode::FAILURE)
}

fn missing(name: &str) -> Option<&'static str> {
    if name.ends_with("virtual_machine") {
        return machine::missing();
    }
    if namespaces::is_root() {
        return None;
    }
    if name.ends_with("_forwards_like_the_kernel") {
        return Some("only root may load XDP programs");
    }
    namespaces::lacks_namespaces()
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().filter(|text| !text.is_empty()).map(|text| text.parse().unwrap())
}

fn like_the_kernel() {
    let kernel = Kernel::new();
    let engines = namespaces::is_root().then(|| Engines::new(tollway::model()));
    let mut routers = Routers { kernel, engines };
    if routers.engines.is_none() {
        println!("the programs of XDP and tc ... left out: only root may load them");
    }
    if let Ok(path) = std::env::var("TOLLWAY_ORACLE_REPLAY") {
        replay(&mut routers, &path);
        return;
    }
    let seed = setting("TOLLWAY_ORACLE_SEED").unwrap_or(1);
    let cases = setting("TOLLWAY_ORACLE_CASES").unwrap_or(CASES);
    println!("seed {seed}, {cases} rulesets");
    let start = Instant::now();
    let (mut all, mut refused, mut failed) = (Tally::default(), 0, Vec::new());
    let mut rules = 0;
    for number in 0..cases {
        let case = draw(seed.wrapping_mul(1 << 20).wrapping_add(number));
        rules += case.rules.count();
        match case.run(&mut routers) {
            Outcome::Same(tally) => add(&mut all, tally),
            Outcome::Refused(why) => {
                println!("ruleset {} is refused: {why}\n{}", case.seed, case.rules.text());
                refused += 1;
            }
            Outcome::Differs(_) => failed.push(report(case, &mut routers)),
        }
        if failed.len() == ENOUGH {
            println!("{number} rulesets were enough");
            break;
        }
    }
    let Tally { packets, forwarded, punted, answers, counters, kept, by_programs } = all;
    println!(
        "{rules} rules; {packets} packets, {forwarded} frames forwarded, {punted} packets left to the \
         kernel, {kept} with rules read from the kernel, {answers} answers and {counters} counters compared; \
         {} and {} frames forwarded and dropped by programs; {refused} rulesets refused; {:.0} s",
        by_programs[0],
        by_programs[1],
        start.elapsed().as_secs_f64()
    );
    assert!(failed.is_empty(), "Tollway differs from the kernel: {failed:?}");
    assert!(punted * 5 < packets * 2, "{punted} of {packets} packets took the kernel path");
    assert!(forwarded * 10 > packets, "too few packets were forwarded for a verdict");
    assert!(refused * 20 < cases, "too many rulesets were refused");
    let decided: usize = by_programs.iter().sum();
    assert!(routers.engines.is_none() || decided * 4 > packets, "programs decided on {decided}");
}

fn draw(seed: u64) -> Case {
    let mut dice = Dice(seed);
    let mut constants = Constants::new(&mut dice);
    let rules = match dice.below(5) {
        0 => iptables::draw(&mut constants, &mut dice),
        _ => rules::draw(&mut constants, &mut dice),
    };
    constants.later_fragments = !reads_headers(&rules);
    let resets = ["tcp reset", "tcp-reset"];
    constants.filled_options = !resets.iter().any(|reset| rules.text().contains(reset));
    let packets = packets::draw(&constants, PACKETS, &mut dice);
    Case { seed, rules, packets }
}

/// Whether these rules have nf_tables look at transport headers.
fn reads_headers(rules: &Rules) -> bool {
    const HEADERS: [&str; 9] =
        ["port", "tcp ", "udp ", "sctp ", "icmp ", "icmpv6 ", "icmp6", "@th", "--icmp"];
    let by_nft = rules.language == Language::Nft
        || matches!(rules.language, Language::Iptables { nft: true, .. });
    let text = rules.text();
    by_nft && HEADERS.iter().any(|header| text.contains(header))
}

fn add(all: &mut Tally, one: Tally) {
    all.packets += one.packets;
    all.forwarded += one.forwarded;
    all.punted += one.punted;
    all.answers += one.answers;
    all.counters += one.counters;
    all.kept += one.kept;
    for (all, one) in all.by_programs.iter_mut().zip(one.by_programs) {
        *all += one;
    }
}

/// Shrinks a case, keeps it in a file, and describes it.
fn report(case: Case, routers: &mut Routers) -> String {
    let seed = case.seed;
    let original = case.clone();
    let mut small = shrink::shrink(case, routers);
    let mut outcome = small.run(routers);
    if !matches!(outcome, Outcome::Differs(_)) {
        small = original;
        outcome = small.run(routers);
    }
    let differences = match outcome {
        Outcome::Differs(differences) => differences,
        _ => vec!["it differed once and no more".to_owned()],
    };
    print(&small, &differences);
    let path = shrink::keep(&small, differences);
    format!("ruleset {seed}, kept in {}", path.display())
}

fn print(case: &Case, differences: &[String]) {
    println!("ruleset {}, {} packets:\n{}", case.seed, case.packets.len(), case.rules.text());
    for difference in differences.iter().take(6) {
        println!("{difference}");
    }
}

fn replay(routers: &mut Routers, path: &str) {
    let case = shrink::kept(path);
    match case.run(routers) {
        Outcome::Same(_) => println!("no difference"),
        Outcome::Refused(why) => panic!("the rules are refused: {why}"),
        Outcome::Differs(differences) => {
            print(&case, &differences);
            panic!("Tollway differs from the kernel");
        }
    }
}
