//! Rules of nftables that both routers' kernels have, and that Tollway reads.

use std::fmt::Write as _;

use super::host::Host;

/// The file with the rules; the host has its own /run.
const FILE: &str = "/run/lab.nft";

/// A rule before all others that drops everything and counts it.
pub(super) const DROP_ALL: &str = "table ip lab {
    chain early {
        type filter hook prerouting priority -300; policy accept;
        ip protocol udp counter drop
    }
}
";

/// A rule that only the kernel evaluates: the elements of its set time out.
pub(super) const KERNEL_ONLY: &str = "table ip lab {
    set banned {
        type ipv4_addr
        timeout 1h
        elements = { 192.0.2.1, 192.0.2.2 }
    }
    chain forward {
        type filter hook forward priority 0; policy accept;
        ip saddr @banned drop
    }
}
";

/// A firewall that accepts packets of established connections alone.
pub(super) const ESTABLISHED: &str = "table ip stateful {
    chain forward {
        type filter hook forward priority 0; policy drop;
        ct state established,related accept
    }
}
";

/// The same firewall, with a flowtable for what it accepts.
pub(super) const FLOWTABLE: &str = "table ip stateful {
    flowtable fast {
        hook ingress priority 0;
        devices = { r0, r1 };
    }
    chain forward {
        type filter hook forward priority 0; policy drop;
        ip protocol { tcp, udp } ct state established flow add @fast
        ct state established,related accept
    }
}
";

/// The same firewall, which also lets connections begin that come by r0.
pub(super) const OUTBOUND: &str = "table ip stateful {
    chain forward {
        type filter hook forward priority 0; policy drop;
        ct state established,related accept
        iifname \"r0\" ct state new accept
    }
}
";

/// Translation of the source address of everything that leaves by r1.
pub(super) const MASQUERADE: &str = "table ip lab {
    chain out {
        type nat hook postrouting priority 100; policy accept;
        oifname \"r1\" masquerade
    }
}
";

/// `count` rules of several shapes at hook forward, none of which matches traffic of the lab.
pub(super) fn drops(count: usize) -> String {
    let mut text = "table inet lab {\n    chain forward {\n        \
                    type filter hook forward priority 0; policy accept;\n"
        .to_owned();
    for number in 0..count {
        // No host of the lab is in 172.16.0.0/12.
        let (high, low) = (16 + number / 256 % 16, number % 256);
        let more = match number % 4 {
            0 => String::new(),
            1 => format!(" ip daddr 198.19.{low}.0/24"),
            2 => format!(" tcp dport {}", 1 + number),
            _ => format!(" udp sport 1024-65535 udp dport {}", 1 + number),
        };
        let _ = writeln!(text, "        ip saddr 172.{high}.{low}.0/24{more} drop");
    }
    text + "    }\n}\n"
}

/// Loads rules into a host's kernel.
pub(super) fn load(host: &Host, text: &str) -> Result<(), String> {
    let text = text.to_owned();
    host.run(move || std::fs::write(FILE, text))?
        .map_err(|error| format!("cannot write {FILE}: {error}"))?;
    host.sh(&format!("nft -f {FILE}")).map(|_| ())
}

/// Removes all rules of a host's kernel.
pub(super) fn clear(host: &Host) -> Result<(), String> {
    host.sh("nft flush ruleset").map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::drops;

    #[test]
    fn there_are_as_many_rules_as_asked_for_and_all_differ() {
        for count in [0, 1, 100, 1000] {
            let text = drops(count);
            let mut rules: Vec<_> = text.lines().filter(|line| line.ends_with(" drop")).collect();
            assert_eq!(rules.len(), count);
            rules.sort_unstable();
            rules.dedup();
            assert_eq!(rules.len(), count);
        }
    }

    #[test]
    fn rules_have_all_shapes_and_a_source_that_no_host_has() {
        let text = drops(1000);
        let rules: Vec<_> = text.lines().filter(|line| line.ends_with(" drop")).collect();
        assert!(rules.iter().all(|rule| rule.contains("ip saddr 172.1")), "{text}");
        for shape in ["ip daddr", "tcp dport", "udp sport"] {
            assert_eq!(rules.iter().filter(|rule| rule.contains(shape)).count(), 250, "{shape}");
        }
    }
}
