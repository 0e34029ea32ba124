//! The processor time that the whole machine takes, by `/proc/stat` (proc_stat(5)).

use std::fs;

/// Nanoseconds of the unit of `/proc/stat`, `USER_HZ` (100 a second wherever Linux runs).
const TICK_NS: u64 = 10_000_000;
/// The columns of a processor's line without its name: user, nice, system, idle, iowait, irq, softirq. Those behind are
/// time that another machine took, and parts of the first two.
const BUSY: [usize; 5] = [0, 1, 2, 5, 6];

/// The time for which processors were not idle since the machine started, ns, of all processors together.
pub(super) fn busy_ns() -> Result<u64, String> {
    let text = fs::read_to_string("/proc/stat")
        .map_err(|error| format!("cannot read /proc/stat: {error}"))?;
    parse(&text).ok_or_else(|| "/proc/stat has no line of all processors".to_owned())
}

fn parse(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let columns: Option<Vec<u64>> = line.split_whitespace().map(|word| word.parse().ok()).collect();
    let columns = columns?;
    let busy: Option<u64> = BUSY.iter().map(|at| columns.get(*at)).sum();
    Some(busy? * TICK_NS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_stolen_time_does_not_count() {
        let text = "cpu  1 20 300 9999 9999 4000 50000 9999 0 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        assert_eq!(parse(text), Some(54321 * TICK_NS));
        assert_eq!(parse("cpu0 1 2 3 4 5 6 7\n"), None);
        assert_eq!(parse("cpu  1 2 3\n"), None);
        assert!(busy_ns().unwrap() > 0);
    }
}
