//! Differential test of `tollway run` against the kernel. Random routers, configured with `ip`,
//! `sysctl` and `nft`, get random packets. In one network namespace only the kernel forwards them,
//! in another `tollway run` does. The test compares what comes out of each device.

mod bench;
mod case;
mod config;
mod draw;
mod excluded;
pub mod kernel_router;
mod net;
mod offloads;
mod paths;
mod router_namespace;
mod routes;
mod selectors;
mod shrink;
mod sysctl;
mod traffic;

use std::process::{Command, ExitStatus};
use std::time::Instant;

use bench::{Bench, Second, Start};
use case::{APART, Case, Outcome, RUNNING, Tally};
use config::Config;

use crate::namespaces::{self, Process};
use crate::setting;

/// Number of cases if the environment does not set another.
const CASES: u64 = 120;
/// Number of processes that share the cases and run at the same time.
const SHARES: u64 = 3;
/// A run ends after it has investigated this many differences.
const ENOUGH: usize = 5;
/// How often a case that differs runs again until it differs once more.
const REPEATS: usize = 3;

/// Runs all cases, or those that the environment selects, and fails if Tollway differs from the
/// kernel.
pub fn like_the_kernel() {
    let settings = ["FROM", "CASES", "REPLAY"].map(|word| format!("TOLLWAY_ORACLE_{word}"));
    if settings.iter().all(|name| std::env::var_os(name).is_none_or(|text| text.is_empty())) {
        let failed: Vec<_> = in_shares().into_iter().filter(|status| !status.success()).collect();
        assert!(failed.is_empty(), "Tollway differs from the kernel: {failed:?}");
        return;
    }
    let mut bench = Bench::new(Second::Tollway(None));
    if let Ok(path) = std::env::var("TOLLWAY_ORACLE_REPLAY") {
        replay(&mut bench, &path);
        return;
    }
    let seed = setting("TOLLWAY_ORACLE_SEED").unwrap_or(1);
    let cases = setting("TOLLWAY_ORACLE_CASES").unwrap_or(CASES);
    let failed = run(&mut bench, seed, cases);
    assert!(failed.is_empty(), "Tollway differs from the kernel: {failed:?}");
}

/// Runs all cases in shares that run in parallel: a router mostly waits for silent neighbours.
fn in_shares() -> Vec<ExitStatus> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let most = CASES.div_ceil(SHARES).next_multiple_of(RUNNING);
    let inside = namespaces::inside("-nm", "the_router_forwards_like_the_kernel");
    let share = |share: u64| {
        let from = share * most;
        let mut command = Command::new("taskset");
        command.args(["-c", &(share as usize % cpus).to_string()]);
        command.arg(inside.get_program()).args(inside.get_args());
        command.env("TOLLWAY_ORACLE_FROM", from.to_string());
        command.env("TOLLWAY_ORACLE_CASES", most.min(CASES - from).to_string());
        Process(command.spawn().unwrap())
    };
    let shares: Vec<_> = (0..SHARES).map(share).collect();
    shares.into_iter().map(|mut share| share.0.wait().unwrap()).collect()
}

/// Proves that the oracle detects differences: two kernels agree, and a kernel with an injected
/// fault differs.
pub fn proven() {
    let cases = 24;
    let mut bench = Bench::new(Second::Kernel(String::new()));
    let failed = run(&mut bench, 7, cases);
    assert!(failed.is_empty(), "the kernel differs from itself: {failed:?}");
    for (what, script) in INJECTED {
        bench.second = Second::Kernel((*script).to_owned());
        let differs = |number: u64| {
            let case = Case::draw(7 * APART + number, bench.device_types, 4, Start::Running);
            matches!(case.run(&mut bench), Outcome::Differs(_)).then_some(case)
        };
        // On a busy machine, what the fault changes may come too late to be seen; another case shows it.
        let seen = (0..3 * cases).find_map(differs);
        let case = seen.unwrap_or_else(|| panic!("{what} is not seen"));
        if *what == "a packet is lost" {
            shrinks(case, &mut bench);
        }
    }
}

/// Faults that the test injects into the second kernel. The oracle must detect each of them.
const INJECTED: &[(&str, &str)] = &[
    (
        "a packet is lost",
        "nft 'add table inet x; add chain inet x y { type filter hook prerouting priority -400; }; add rule inet x y ip ttl 64 drop'",
    ),
    (
        "a byte is changed",
        "nft 'add table inet x; add chain inet x y { type filter hook postrouting priority 400; }; add rule inet x y ip6 dscp set 5'",
    ),
    ("an error has another lifetime", "echo 77 > /proc/sys/net/ipv4/ip_default_ttl"),
    (
        "an error is not sent",
        "nft 'add table inet x; add chain inet x y { type filter hook output priority 0; }; add rule inet x y icmp type time-exceeded drop'",
    ),
    (
        "a route leads elsewhere",
        "ip -4 rule add pref 1 to 20.0.0.0/7 lookup 99; ip -4 route add default via 10.1.0.2 dev lan0 table 99 proto 77; true",
    ),
    (
        "a neighbour is another",
        "ip neigh replace 10.3.0.2 lladdr 06:42:00:00:00:01 dev wan0 nud permanent; ip neigh replace 10.2.0.3 lladdr 06:41:00:00:00:01 dev lan1 nud permanent",
    ),
    (
        "no redirect is sent",
        "for i in all lan0 lan1 wan0 dmz0; do echo 0 > /proc/sys/net/ipv4/conf/$i/send_redirects; done",
    ),
];

/// Checks that a case that differs becomes small, and that its file reproduces the difference.
fn shrinks(case: Case, bench: &mut Bench) {
    let small = shrink::shrink(case, false, bench);
    assert_eq!(small.packets.len(), 1, "one packet is enough");
    let path = shrink::keep(&small, Vec::new());
    let kept = shrink::kept(path.to_str().unwrap());
    assert_eq!((&kept.config, &kept.packets), (&small.config, &small.packets));
    assert!(matches!(kept.run(bench), Outcome::Differs(_)), "the kept case differs");
    std::fs::remove_file(path).unwrap();
}

/// Runs cases. Returns which of them differ, and where they are kept.
fn run(bench: &mut Bench, seed: u64, cases: u64) -> Vec<String> {
    println!("seed {seed}, {cases} routers; {:?}", bench.device_types);
    let start = Instant::now();
    let (mut all, mut failed) = (Tally::default(), Vec::new());
    let mut before: Option<Config> = None;
    // A run can start in the middle, to reach a given case again.
    let first = setting("TOLLWAY_ORACLE_FROM").unwrap_or(0);
    for number in first..first + cases {
        // The last cases of each run start a Tollway each.
        let how = if number % RUNNING > RUNNING * 3 / 4 { Start::Fresh } else { Start::Running };
        let ports = [4, 4, 3, 4, 2][(number / RUNNING % 5) as usize];
        let case = Case::draw(
            seed.wrapping_mul(APART).wrapping_add(number),
            bench.device_types,
            ports,
            how,
        );
        let config = case.config.clone();
        let (found, strays) = match case.run(bench) {
            Outcome::Same(tally) => {
                add(&mut all, tally);
                (Vec::new(), false)
            }
            Outcome::Differs(found) => (found, false),
            Outcome::Strays(found) => (found, true),
        };
        if !found.is_empty() {
            let before = before.clone().filter(|_| how == Start::Running);
            failed.push(report(Case { before, ..case }, (found, strays), bench));
        }
        before = Some(config);
        if failed.len() == ENOUGH {
            println!("{number} routers were enough");
            break;
        }
    }
    let Tally { lines, refused, packets, sent, received, punted, xdp_path, by_path } = all;
    println!(
        "{lines} lines, {refused} refused; {packets} packets, {sent} frames of the kernel; Tollway had {received} \
         packets, left {punted} of them to the kernel, and the XDP path forwarded {xdp_path}; {:.0} s",
        start.elapsed().as_secs_f64()
    );
    println!(
        "Tollway forwarded {} packets that it had reported on the fast path, and left {} to the kernel that it had \
         reported on the kernel path",
        by_path.fast, by_path.kernel
    );
    let has_tollway = matches!(bench.second, Second::Tollway(_));
    let is_enough = by_path.fast > cases && by_path.kernel > cases / 4;
    assert!(
        !has_tollway || cases < 10 || is_enough,
        "too few packets took the reported paths for a verdict"
    );
    assert!(refused * 5 < lines.max(1), "ip refused too many lines");
    assert!(sent * 4 > packets, "too few packets were forwarded for a verdict");
    failed
}

fn add(all: &mut Tally, one: Tally) {
    all.lines += one.lines;
    all.refused += one.refused;
    all.packets += one.packets;
    all.sent += one.sent;
    all.received += one.received;
    all.punted += one.punted;
    all.xdp_path += one.xdp_path;
    all.by_path.fast += one.by_path.fast;
    all.by_path.kernel += one.by_path.kernel;
}

/// Says whether a case that differed does so again.
fn differs_again(case: &Case, bench: &mut Bench) -> bool {
    (0..REPEATS).any(|_| !matches!(case.run(bench), Outcome::Same(_)))
}

/// Shrinks a case, keeps it in a file, and describes it.
fn report(case: Case, (found, strays): (Vec<String>, bool), bench: &mut Bench) -> String {
    let seed = case.seed;
    println!("router {seed} {}", if strays { "strays" } else { "differs" });
    print(&case, &found);
    let original = case.clone();
    // Keep the original, in case this run is cut short.
    let path = shrink::keep(&original, found.clone());
    if !differs_again(&original, bench) {
        // Nothing that is left out could be seen to matter.
        println!("it differed once, and not in {REPEATS} more runs");
        return format!("router {seed}, kept in {}", path.display());
    }
    let mut small = shrink::shrink(case, strays, bench);
    let mut outcome = small.run(bench);
    if matches!(outcome, Outcome::Same(_)) {
        small = original;
        outcome = small.run(bench);
    }
    let differences = match outcome {
        Outcome::Differs(found) | Outcome::Strays(found) => found,
        Outcome::Same(_) => [vec!["it differed once and no more".to_owned()], found].concat(),
    };
    println!("made small:\n{}", small.config.text().join("\n"));
    print(&small, &differences);
    let path = shrink::keep(&small, differences);
    format!("router {seed}, kept in {}", path.display())
}

fn print(case: &Case, differences: &[String]) {
    let (lines, packets) = (case.config.lines.len(), case.packets.len());
    println!("engine {}, {lines} lines, {packets} packets", case.setup().engine.name());
    if let [packet] = &case.packets[..] {
        println!("by {}: {}", crate::net::DEVICES[packet.device], net::words_of(&packet.frame));
    }
    for difference in differences.iter().take(6) {
        println!("{difference}");
    }
}

fn replay(bench: &mut Bench, path: &str) {
    let case = shrink::kept(path);
    match case.run(bench) {
        Outcome::Same(_) => println!("no difference"),
        Outcome::Differs(differences) | Outcome::Strays(differences) => {
            println!("{}", case.config.text().join("\n"));
            print(&case, &differences);
            if let Second::Tollway(Some(router)) = &mut bench.second {
                println!("{:#}", router.everything().unwrap_or_default());
            }
            panic!("Tollway differs from the kernel");
        }
    }
}
