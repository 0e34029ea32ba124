//! Elements of sets that come and go without other changes.

use std::sync::mpsc::channel;

use super::rules::{Consumer, PATIENCE, SOON, TABLE, nft};
use crate::dice::Dice;

pub fn changes() {
    nft(TABLE);
    let mut consumer = Consumer::new();
    consumer.sync();
    let one = |consumer: &mut Consumer, script: &str, reads: usize| {
        let before = consumer.counts;
        nft(script);
        consumer.sync();
        let counts = consumer.counts;
        assert_eq!(counts.read, before.read + reads, "{script}: {counts:?}");
        assert_eq!(counts.changed, before.changed + reads, "{script}: {counts:?}");
        consumer.check();
    };
    // The first change of a small set turns it into one that may change.
    for (script, reads) in [
        ("add element inet t bad { 192.0.2.1 }", 1),
        ("add element inet t bad { 192.0.2.2, 192.0.2.3 }", 0),
        ("delete element inet t bad { 192.0.2.1 }", 0),
        ("add element inet t nets { 10.0.0.0/24 }", 1),
        ("add element inet t nets { 10.0.2.0/24, 10.0.4.7, 10.9.0.1-10.9.0.77 }", 0),
        ("delete element inet t nets { 10.0.2.0/24 }", 0),
        ("add element inet t nets { 255.255.255.0/24 }", 0),
        ("add element inet t nets { 0.0.0.0/8 }", 0),
        ("delete element inet t nets { 255.255.255.0/24, 0.0.0.0/8 }", 0),
        ("add element inet t nets6 { 2001:db8::/32 }", 1),
        ("add element inet t nets6 { ffff::/16, ::1, fe80::1-fe80::ffff }", 0),
        ("delete element inet t nets6 { ::1, ffff::/16 }", 0),
        ("add element inet t unused { 192.0.2.1 }", 0),
        ("add element inet t unused { 192.0.2.2 }", 0),
        ("flush set inet t bad", 0),
        ("add element inet t bad { 192.0.2.9 comment \"why\" }", 0),
        // Together with other changes, this is no change of elements alone.
        ("add element inet t bad { 192.0.2.8 }; add rule inet t c drop", 1),
        ("add element inet t ports { 22 }", 1),
        ("add element inet t ports { 23 }", 1),
    ] {
        one(&mut consumer, script, reads);
    }
    // Elements that are merged with their neighbours, or not, end as they are in the kernel.
    for script in [
        "add element inet t merged { 10.0.0.0/24, 10.0.2.0/24 }",
        "add element inet t merged { 10.0.4.0/24 }",
        "add element inet t merged { 10.0.1.0/24 }",
        "add element inet t merged { 10.0.0.128-10.0.3.5 }",
        "delete element inet t merged { 10.0.4.0/24 }",
        "flush set inet t merged",
    ] {
        nft(script);
        consumer.check();
    }
}

/// More elements at once than the follower reads within milliseconds: it reports that it is behind,
/// and when it is no longer.
pub fn behind() {
    const ELEMENTS: u32 = 200_000;
    nft(TABLE);
    let mut consumer = Consumer::new();
    consumer.sync();
    nft("add element inet t bad { 192.0.2.1 }");
    consumer.sync();
    assert!(consumer.counts.behind == 0, "{:?}", consumer.counts);
    let elements: Vec<_> = (0..ELEMENTS)
        .map(|number| std::net::Ipv4Addr::from(11 << 24 | number).to_string())
        .collect();
    nft(&format!("add element inet t bad {{ {} }}", elements.join(", ")));
    consumer.sync();
    while consumer.is_behind {
        assert!(consumer.take(PATIENCE), "it stays behind: {:?}", consumer.counts);
    }
    assert!(consumer.counts.behind > 0, "{:?}", consumer.counts);
}

pub fn random() {
    nft(TABLE);
    nft("add element inet t bad { 192.0.2.1 }; add element inet t nets { 192.0.2.0/24 }");
    let mut consumer = Consumer::new();
    consumer.sync();
    nft("add element inet t bad { 192.0.2.2 }; add element inet t nets { 192.0.4.0/24 }");
    consumer.sync();
    let before = consumer.counts;
    let mut dice = Dice(7);
    let mut bad = Vec::new();
    let mut nets = Vec::new();
    for round in 0..300 {
        let mut script = String::new();
        for _ in 0..=dice.below(4) {
            if bad.is_empty() || dice.below(3) > 0 {
                let one = format!("10.1.{}.{}", dice.below(250), dice.below(250));
                if !bad.contains(&one) {
                    script += &format!("add element inet t bad {{ {one} }}\n");
                    bad.push(one);
                }
            } else {
                let one = bad.swap_remove(dice.below(bad.len()));
                // Not in the same transaction that added it.
                if !script.contains(&format!(" {one} ")) {
                    script += &format!("delete element inet t bad {{ {one} }}\n");
                } else {
                    bad.push(one);
                }
            }
            // Adjacent ranges, but never overlapping ones.
            let (first, count) = (dice.below(200) * 16, 1 + dice.below(16));
            let at = |number: usize| format!("10.2.{}.{}", number >> 8, number & 255);
            let net = match count {
                1 => at(first),
                _ => format!("{}-{}", at(first), at(first + count - 1)),
            };
            match nets.iter().position(|(known, _)| *known == first) {
                None => {
                    script += &format!("add element inet t nets {{ {net} }}\n");
                    nets.push((first, net));
                }
                Some(at) if !script.contains(&format!(" {} ", nets[at].1)) => {
                    let (_, net) = nets.swap_remove(at);
                    script += &format!("delete element inet t nets {{ {net} }}\n");
                }
                Some(_) => {}
            }
        }
        nft(&script);
        if round % 50 == 49 {
            consumer.check();
        }
    }
    consumer.check();
    let counts = consumer.counts;
    assert!(counts.elements - before.elements > 200, "{counts:?}");
}

pub fn losses() {
    nft(TABLE);
    nft("add element inet t bad { 192.0.2.1 }");
    let (sender, events) = channel();
    let (go_on, wait) = channel::<()>();
    let mut is_first = true;
    let report = move |event| {
        drop(sender.send(event));
        // The receiver of the reports is busy, once.
        if std::mem::take(&mut is_first) {
            let _ = wait.recv_timeout(PATIENCE);
        }
    };
    let mut consumer = Consumer::with_report(Box::new(report), events);
    assert!(consumer.take(PATIENCE));
    let mut script = String::new();
    for number in 0..200_000_u32 {
        let address = std::net::Ipv4Addr::from(0x0a00_0000 + number);
        script += &format!("add element inet t bad {{ {address} }}\n");
        if number % 50_000 == 49_999 {
            nft(&std::mem::take(&mut script));
        }
    }
    go_on.send(()).unwrap();
    let took = consumer.sync();
    println!("{took:?}, {:?}", consumer.counts);
    assert!(consumer.counts.changed >= 1, "nothing was lost");
    assert!(took < SOON, "{took:?}");
    consumer.check();
    let elements: usize = consumer.filter.live_sets().iter().map(|set| set.elements().len()).sum();
    assert_eq!(elements, 200_001);
}
