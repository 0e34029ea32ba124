//! Pings of all sizes, in fragments, and with small TTLs.

use crate::router::Net;
use crate::variants::{alike, output_of, ports};

pub fn pings() {
    let net = Net::new(1500, 1);
    alike(&net, &ports(1500), |net| {
        let mut all = Vec::new();
        for (target, most) in [("10.0.2.2", 1472), ("fd00:2::2", 1452)] {
            for size in [0, 1, 17, 18, 64, 500, 1279, most - 1, most, most + 1, 4000, 9000] {
                all.push(ping(net, &format!("-c 4 -s {size} {target}")));
                assert!(all.last().unwrap().contains("4 received, 0% packet loss"), "{all:#?}");
            }
            for (ttl, size) in [(1, 56), (2, 56), (1, 1400), (2, 4000)] {
                all.push(ping(net, &format!("-c 1 -t {ttl} -s {size} {target}")));
            }
        }
        for (target, from) in [("10.0.1.2", "10.0.2.2"), ("fd00:1::2", "fd00:2::2")] {
            let output =
                output_of(&net.b, &format!("ping -n -c 4 -l 4 -i 1 -W 2 -I {from} {target}"));
            assert!(output.contains("4 received") && output.contains("ttl=63"), "{output}");
        }
        all
    });
}

/// Returns ping's output without times.
fn ping(net: &Net, arguments: &str) -> String {
    // For the last reply, ping waits no longer than one interval, or twice the longest time so far.
    let output = output_of(&net.a, &format!("ping -n -l 4 -i 1 -W 2 {arguments}"));
    let mut seen = arguments.to_owned();
    for line in output.lines().filter(|line| !line.is_empty() && !line.starts_with("rtt")) {
        let end = line.find(" time").unwrap_or(line.len());
        seen = format!("{seen}\n{}", line[..end].trim_end_matches(','));
    }
    seen
}
