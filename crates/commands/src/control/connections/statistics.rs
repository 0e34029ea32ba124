//! What the kernel counts of its connection tracking.

use std::collections::BTreeMap;
use std::fs;

/// The statistics, for the network namespace of this thread: a line for each processor.
const STATISTICS: &str = "/proc/thread-self/net/stat/nf_conntrack";

/// The statistics to report: what fails, and why. Kernels no longer count the others.
const REPORTED: [&str; 6] =
    ["clashres", "invalid", "insert_failed", "drop", "early_drop", "icmp_error"];

/// The number of connections that the kernel tracks; none if it tracks none at all.
pub fn tracked_count() -> Option<u64> {
    sysctl("count")
}

/// How many connections the kernel tracks at most.
pub fn most_tracked() -> Option<u64> {
    sysctl("max")
}

fn sysctl(name: &str) -> Option<u64> {
    let path = format!("/proc/sys/net/netfilter/nf_conntrack_{name}");
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Packets that connection tracking found invalid, could not enter or dropped, by the kernel's names; empty if it does not
/// say so.
pub fn statistics() -> BTreeMap<String, u64> {
    fs::read_to_string(STATISTICS).map(|text| sums(&text)).unwrap_or_default()
}

/// The sums over all processors. The first line has the names, and numbers are hexadecimal.
fn sums(text: &str) -> BTreeMap<String, u64> {
    let mut lines = text.lines();
    let names: Vec<_> = lines.next().unwrap_or_default().split_whitespace().collect();
    let mut sums = BTreeMap::new();
    for line in lines {
        for (name, number) in names.iter().zip(line.split_whitespace()) {
            if let (true, Ok(number)) = (REPORTED.contains(name), u64::from_str_radix(number, 16)) {
                *sums.entry((*name).to_owned()).or_default() += number;
            }
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_summed_by_name() {
        let text = "entries  clashres found invalid insert_failed  drop\n\
                    00000002  00000001 00000007 0000000a 00000000  00000000\n\
                    00000002  00000000 00000007 00000010 00000001  00000000\n";
        let expected = [("clashres", 1), ("invalid", 26), ("insert_failed", 1), ("drop", 0)];
        let expected = expected.map(|(name, count)| (name.to_owned(), count));
        assert_eq!(sums(text), BTreeMap::from(expected));
        assert!(sums("").is_empty());
    }
}
