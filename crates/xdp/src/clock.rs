//! Time namespaces: this process may see another monotonic clock than the host and its BPF
//! programs.

/// How far the monotonic clock of this process is ahead of the host's.
///
/// `timens_offsets` belongs to the namespace of this process's children. That is its own, unless it
/// has called unshare(2) itself, which a router does not.
pub(super) fn ahead_ns() -> i64 {
    // A kernel without time namespaces has no such file.
    let offsets = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    ahead_in(&offsets)
}

fn ahead_in(offsets: &str) -> i64 {
    let ahead = |line: &str| {
        let mut words = line.split_whitespace();
        // By name, or by number on older kernels (5.6).
        let is_monotonic = matches!(words.next()?, "monotonic" | "1");
        let [seconds, ns]: [i64; 2] = [words.next()?.parse().ok()?, words.next()?.parse().ok()?];
        is_monotonic.then(|| seconds.saturating_mul(1_000_000_000).saturating_add(ns))
    };
    offsets.lines().find_map(ahead).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::ahead_in;

    #[test]
    fn offsets_are_read_as_the_kernel_writes_them() {
        let offsets = "monotonic           5         7\nboottime           -3         0\n";
        assert_eq!(ahead_in(offsets), 5_000_000_007);
        assert_eq!(ahead_in("boottime  9 0\nmonotonic  -2 500000000\n"), -1_500_000_000);
        assert_eq!(ahead_in("1  2  0\n7  9  0\n"), 2_000_000_000);
        assert_eq!(ahead_in(""), 0);
    }
}
