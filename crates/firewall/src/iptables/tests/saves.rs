//! Output of iptables itself: version 1.8.9, both variants.

use tollway_dataplane::epoch::Epochs;

use super::{read_valid, verdict};
use crate::ir::{Action, Family, Hook, Ruleset, Step};
use crate::program;
use crate::testkit::eval::{RuleVerdict, State};

const V4: [&str; 2] = [include_str!("saves/v4-legacy.save"), include_str!("saves/v4-nft.save")];
const V6: [&str; 2] = [include_str!("saves/v6-legacy.save"), include_str!("saves/v6-nft.save")];
const ROUTER: [&str; 2] =
    [include_str!("saves/router-legacy.save"), include_str!("saves/router-nft.save")];

/// The reasons for unsupported rules, with their lines' text.
fn reasons(rules: &Ruleset) -> Vec<(&str, &str)> {
    let rules = rules.chains.iter().flat_map(|chain| &chain.rules);
    rules
        .flat_map(|rule| rule.steps.iter().map(|step| (rule.text.as_str(), step)))
        .filter_map(|(text, step)| match step {
            Step::Unsupported(why) => Some((text, why.as_str())),
            _ => None,
        })
        .collect()
}

#[test]
fn all_saves_are_read_and_compiled() {
    let links = [super::link("wan0"), super::link("lan0")];
    let of = |saves: [&'static str; 2], family| saves.map(|save| (save, family));
    for (save, family) in [of(V4, Family::Ip), of(V6, Family::Ip6), of(ROUTER, Family::Ip)].concat()
    {
        let rules = read_valid(save, family);
        program::compile(&rules, &links, &Epochs::new()).expect("it compiles");
        // Every line became a rule, with its place and its text.
        for (index, line) in save.lines().enumerate() {
            let Some((_, text)) = line.split_once("] -A ") else { continue };
            let text = format!("-A {text}");
            let mut all = rules.chains.iter().flat_map(|chain| &chain.rules);
            let there = all.any(|rule| {
                rule.text == text
                    && rule.place.line == index + 1
                    && rule.place.file.as_deref() == Some("rules.v4")
            });
            assert!(there, "{line}");
        }
    }
}

#[test]
fn unsupported_parts_are_reported_by_name() {
    let rules = read_valid(V4[0], Family::Ip);
    let reasons = reasons(&rules);
    for (part, why) in [
        ("--tcp-option 8", "\"--tcp-option\" of the match tcp"),
        ("-m statistic --mode nth", "the match statistic"),
        ("-m addrtype", "the match addrtype"),
        ("-m recent", "the match recent"),
        ("-m hashlimit", "the match hashlimit"),
        ("-m u32", "the match u32"),
        ("-m string", "the match string"),
        ("-m physdev", "the match physdev"),
        ("-m policy", "the match policy"),
        ("--chunk-types", "\"--chunk-types\" of the match sctp"),
        ("-j NFQUEUE", "the target NFQUEUE"),
        ("-j TEE", "the target TEE"),
        ("-j TPROXY", "the target TPROXY"),
        ("-j TCPMSS", "the target TCPMSS"),
        ("-j TTL", "the target TTL"),
        ("-j TRACE", "the target TRACE"),
        ("--helper ftp", "\"--helper\" of the target CT"),
        ("--set-tos 0x04/0x04", "TOS 0x04/0x04"),
    ] {
        let there = |(text, reason): &(&str, &str)| text.contains(part) && reason.contains(why);
        assert!(reasons.iter().any(there), "{part}: {why}\n{reasons:#?}");
    }
    // And nothing else, except truncated headers behind those.
    for (text, _) in &reasons {
        let known = [
            "-j SNAT",
            "-j MASQUERADE",
            "-j NETMAP",
            "-m comment",
            "-m iprange",
            "-m ttl",
            "-m length",
            "-m limit",
            "--set-xmark",
        ];
        assert!(known.iter().all(|part| !text.contains(part)), "{text}");
    }
}

#[test]
fn both_kinds_of_iptables_say_the_same_of_sound_packets() {
    let [legacy, nft] = ROUTER.map(|save| read_valid(save, Family::Ip));
    let (mut one, mut other) = (State::new(&legacy), State::new(&nft));
    for port in [22_u16, 25, 53, 80, 443, 1024, 5000] {
        for source in [[10, 0, 0, 1], [192, 168, 7, 25], [198, 51, 100, 66], [203, 0, 113, 5]] {
            let frame = super::verdicts::tcp(source, [192, 168, 8, 80], port);
            let verdicts =
                [verdict(&legacy, &mut one, &frame, 0), verdict(&nft, &mut other, &frame, 0)];
            assert_eq!(verdicts[0], verdicts[1]);
        }
    }
    // The order of their tables differs.
    one.counts.sort_unstable();
    other.counts.sort_unstable();
    assert_eq!(one.counts, other.counts);
}

#[test]
fn the_router_does_what_its_rules_say() {
    let rules = read_valid(ROUTER[0], Family::Ip);
    let mut state = State::new(&rules);
    let mut of = |source, flags: u8| {
        let mut frame = super::verdicts::tcp(source, [192, 168, 1, 1], 80);
        frame[14 + 20 + 13] = flags;
        verdict(&rules, &mut state, &frame, 0)
    };
    assert_eq!(of([203, 0, 113, 5], 0x10).0, RuleVerdict::Accept, "wan-lan takes what is no SYN");
    assert_eq!(of([203, 0, 113, 5], 0x02).0, RuleVerdict::Drop, "the policy");
    assert_eq!(of([10, 0, 0, 5], 0x10).0, RuleVerdict::Drop, "spoofed, by logdrop");
    assert_eq!(of([198, 51, 100, 66], 0x10).0, RuleVerdict::Drop, "raw");
    let counted = |text: &str| {
        let all = rules.chains.iter().flat_map(|chain| &chain.rules);
        let counter =
            all.filter(|rule| rule.text == text).flat_map(|rule| &rule.steps).find_map(|step| {
                match step {
                    Step::Do(Action::Count(counter)) => Some(*counter),
                    _ => None,
                }
            });
        state.counts[counter.expect(text).0].0
    };
    assert_eq!(counted(":FORWARD DROP"), 1);
    assert_eq!(counted("-A logdrop -j DROP"), 1);
    assert_eq!(counted("-A PREROUTING -s 198.51.100.66/32 -j DROP"), 1);
    assert_eq!(counted("-A FORWARD -i wan0 -j spoof"), 3);
}

#[test]
fn connections_of_the_router_itself_need_no_tracking() {
    let rules = read_valid(ROUTER[0], Family::Ip);
    let chains = rules.base_chains(Hook::Prerouting);
    let names: Vec<_> = chains.iter().map(|(id, _)| rules.chains[id.0].name.as_str()).collect();
    assert_eq!(names, ["ip raw PREROUTING", "ip mangle PREROUTING"]);
    assert_eq!(rules.tracking, None);
}
