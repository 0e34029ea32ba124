//! Differential test of ports of bridges against the kernel. Random bridges get random frames, and change meanwhile: hosts
//! move, ports go down or leave, flags, entries and rules come and go. In one network namespace only the kernel forwards, in
//! another Tollway does. What comes out of each port must be the same, so no frame goes back, or comes twice, unless the
//! kernel has it so. The forwarding databases must be the same, too.
//!
//! The comparison leaves out, with reasons:
//!
//! - The order of frames: one of each host takes the kernel path now and then.
//! - Frames that arrive while the bridge changes, or a host moves: programs know of it microseconds after the kernel.
//! - IGMP reports and BPDUs of the bridge itself, which timers send.
//! - The age of entries, and bridges that forget hosts within a case.

mod bench;
mod case;
mod config;
mod frames;
mod net;
mod shrink;

use std::time::Instant;

use bench::{Bench, Second};
use case::{Case, Tally};

use crate::kernel::on_one_processor;
use crate::setting;

/// Number of cases if the environment does not set another.
const CASES: u64 = 10;
/// Distance between the first case numbers of two seeds.
const APART: u64 = 1 << 20;
/// A run ends after it has investigated this many differences.
const ENOUGH: usize = 3;

/// Faults that the test injects into the second kernel. The oracle must detect each of them.
const INJECTED: [(&str, &str); 4] = [
    (
        "a frame is lost",
        "nft 'add table bridge x { chain y { type filter hook forward priority 0; ether saddr 02:00:00:00:01:04 ether daddr 02:00:00:00:01:05 drop; }; }'",
    ),
    (
        "a frame comes twice",
        "nft 'add table netdev x { chain y { type filter hook egress device lan0 priority 0; ether type ip dup to lan0; }; }'",
    ),
    (
        "a frame goes back",
        "bridge link set dev lan0 hairpin on; bridge link set dev lan1 hairpin on",
    ),
    (
        "a host is not learned",
        "bridge link set dev lan0 learning off; bridge link set dev lan1 learning off",
    ),
];

/// Runs all cases, or those that the environment selects, and fails if Tollway differs from the kernel.
pub fn like_the_kernel() {
    begin();
    let mut bench = Bench::new(Second::Tollway);
    if let Ok(path) = std::env::var("TOLLWAY_ORACLE_REPLAY") {
        let outcome = shrink::kept(&path).run(&mut bench);
        println!("{outcome:#?}");
        assert!(outcome.is_ok(), "Tollway differs from the kernel");
        return;
    }
    let seed = setting("TOLLWAY_ORACLE_SEED").unwrap_or(1);
    let cases = setting("TOLLWAY_ORACLE_CASES").unwrap_or(CASES);
    println!("seed {seed}, {cases} bridges");
    let start = Instant::now();
    let (mut all, mut failed) = (Tally::default(), Vec::new());
    for number in 0..cases {
        let case = Case::draw(seed.wrapping_mul(APART).wrapping_add(number));
        match case.run(&mut bench) {
            Ok(tally) => add(&mut all, tally),
            Err(differences) => failed.push(shrink::report(case, differences, &mut bench)),
        }
        if failed.len() == ENOUGH {
            println!("{number} bridges were enough");
            break;
        }
    }
    let Tally { frames, sent, by_xdp, lines, refused, entries } = all;
    println!(
        "{lines} lines, {refused} refused; {frames} frames in, {sent} out, {by_xdp} by Tollway's programs; {entries} \
         entries compared; {:.0} s",
        start.elapsed().as_secs_f64()
    );
    assert!(failed.is_empty(), "Tollway differs from the kernel: {failed:?}");
    let is_enough = by_xdp * 20 > frames as u64 && sent * 4 > frames;
    assert!(cases < 10 || is_enough, "too few frames were forwarded for a verdict");
    assert!(refused * 5 < lines, "the kernel refused too many lines");
}

/// Proves that the oracle detects differences: two kernels agree, and a kernel with an injected fault differs.
pub fn proven() {
    begin();
    let run = |number: u64, fault: &'static str| {
        Case::draw(7 * APART + number).run(&mut Bench::new(Second::Kernel(fault)))
    };
    for number in 0..2 {
        let outcome = run(number, "true");
        assert!(outcome.is_ok(), "the kernel differs from itself: {outcome:?}");
    }
    for (what, fault) in INJECTED {
        assert!((0..4).any(|number| run(number, fault).is_err()), "{what} is not seen");
    }
}

fn begin() {
    on_one_processor();
    std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").unwrap();
}

fn add(all: &mut Tally, one: Tally) {
    all.frames += one.frames;
    all.sent += one.sent;
    all.by_xdp += one.by_xdp;
    all.lines += one.lines;
    all.refused += one.refused;
    all.entries += one.entries;
}
