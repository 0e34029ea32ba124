//! The state that a packet carries from hook to hook, and the fields that each hook sees.

use tollway_dataplane::epoch::Epochs;

use super::frames::Frames;
use super::path_bench::{Done, PathBench};
use crate::ir::*;
use crate::links::Link;
use crate::program::levels::Level;
use crate::testkit::dice::Dice;

/// A chain at a hook with one rule for each list of steps.
fn chain(hook: Hook, device: Option<&str>, rules: Vec<Vec<Step>>) -> Chain {
    let family = if hook == Hook::Ingress { Family::Netdev } else { Family::Inet };
    let mut chain = Chain::new(format!("{hook:?}"), family);
    let mut base = Base::new(hook, 0, Policy::Accept);
    base.devices = device.map(|name| LinkPattern::Name(name.into())).into_iter().collect();
    chain.base = Some(base);
    let rule = |steps| Rule { place: Place::default(), text: String::new(), steps };
    chain.rules = rules.into_iter().map(rule).collect();
    chain
}

fn ruleset(chains: Vec<Chain>) -> Ruleset {
    Ruleset { chains, ..Ruleset::default() }
}

fn is(field: Field, number: u128) -> Step {
    Step::Match(Match::is(field, number))
}

const DROP: Step = Step::Verdict(Verdict::Drop);

/// The verdicts of frames of one kind; fails if they differ from the evaluation.
fn sent(rules: &Ruleset, kind: impl Fn(&[u8]) -> bool) -> Vec<Done> {
    let mut dice = Dice(11);
    let frames = Frames::new(rules, &mut dice);
    let mut path_bench = PathBench::new(rules);
    let mut done = Vec::new();
    while done.len() < 40 {
        let frame = frames.draw(&mut dice);
        if kind(&frame) {
            assert_eq!(path_bench.send(std::slice::from_ref(&frame)), Ok(()), "{frame:02x?}");
            if !path_bench.exited_early(0) {
                done.push(path_bench.verdict(0));
            }
        }
    }
    done
}

fn is_plain(frame: &[u8]) -> bool {
    frame[0] & 1 == 0 && matches!(frame[12..14], [8, 0] | [0x86, 0xdd])
}

fn is_tagged(frame: &[u8]) -> bool {
    frame[0] & 1 == 0 && frame[12] == 0x81 && matches!(frame[16..18], [8, 0] | [0x86, 0xdd])
}

fn is_arp(frame: &[u8]) -> bool {
    frame[12..14] == [8, 6]
}

fn all(done: &[Done], one: Done) -> bool {
    done.iter().all(|done| *done == one)
}

#[test]
fn a_dscp_is_seen_by_rules_behind() {
    let set = || vec![Step::Do(Action::Dscp(46))];
    let dscp = Key::masked(Field::TrafficClass, 0xfc);
    let matched = || vec![Step::Match(Match::is(dscp, 46 << 2)), DROP];
    // The same as bytes of the header, in either version.
    let bytes = Field::Payload { base: PayloadBase::Network, offset: 0, bytes: 2 };
    let raw = |mask, number| vec![Step::Match(Match::is(Key::masked(bytes, mask), number)), DROP];
    let raws = vec![raw(0xf0fc, 0x4000 | 46 << 2), raw(0xffc0, 0x6000 | 46 << 6)];
    for rules in [
        ruleset(vec![chain(Hook::Prerouting, None, vec![set(), matched()])]),
        ruleset(vec![
            chain(Hook::Prerouting, None, vec![set()]),
            chain(Hook::Forward, None, vec![matched()]),
        ]),
        ruleset(vec![
            chain(Hook::Forward, None, vec![set()]),
            chain(Hook::Postrouting, None, vec![matched()]),
        ]),
        ruleset(vec![chain(Hook::Prerouting, None, [vec![set()], raws.clone()].concat())]),
        ruleset(vec![chain(Hook::Prerouting, None, vec![set()]), chain(Hook::Forward, None, raws)]),
    ] {
        assert!(all(&sent(&rules, is_plain), Done::Drop), "{rules:#?}");
    }
    let one = ruleset(vec![chain(Hook::Forward, None, vec![matched()])]);
    assert!(all(&sent(&one, is_plain), Done::GoesOn), "none has it of its own");
}

#[test]
fn a_mark_goes_along_from_hook_to_hook() {
    let set = |mark| vec![Step::Do(Action::mark(mark))];
    let add = |mark: u32| vec![Step::Do(Action::Mark { keep: !mark, flip: mark })];
    let rules = ruleset(vec![
        chain(Hook::Ingress, Some("wan0"), vec![set(1)]),
        chain(Hook::Ingress, Some("wan1"), vec![set(1)]),
        chain(Hook::Prerouting, None, vec![vec![is(Field::Mark, 0), DROP], add(2)]),
        chain(Hook::Forward, None, vec![vec![is(Field::Mark, 3), DROP]]),
    ]);
    assert!(all(&sent(&rules, is_plain), Done::Drop));
    let fresh = ruleset(vec![
        chain(Hook::Forward, None, vec![vec![is(Field::Mark, 0)], set(9)]),
        chain(Hook::Prerouting, None, vec![vec![is(Field::Mark, 9), DROP]]),
    ]);
    assert!(all(&sent(&fresh, is_plain), Done::GoesOn), "of a packet before");
}

#[test]
fn ingress_sees_arp_and_nothing_of_ip_in_it() {
    let arp = ruleset(vec![chain(
        Hook::Ingress,
        Some("wan0"),
        vec![vec![is(Field::EtherType, 0x0806), DROP]],
    )]);
    let done = sent(&arp, is_arp);
    assert!(done.contains(&Done::Drop) && done.contains(&Done::GoesOn), "of one device only");
    assert!(all(&sent(&arp, is_plain), Done::GoesOn));
    let lacking = [
        Field::Protocol,
        Field::Length,
        Field::Source4,
        Field::TrafficClass,
        Field::DestinationPort,
    ];
    let any = |field: Field| {
        let one = Match::in_ranges(field, [Range::new(0, field.max())]);
        vec![Step::Match(one), DROP]
    };
    let rules = lacking.into_iter().map(any).collect();
    assert!(all(&sent(&ruleset(vec![chain(Hook::Ingress, None, rules)]), is_arp), Done::GoesOn));
    let bytes = Field::Payload { base: PayloadBase::Network, offset: 6, bytes: 2 };
    let rules = ruleset(vec![chain(Hook::Ingress, None, vec![any(bytes)])]);
    assert!(all(&sent(&rules, is_arp), Done::Drop));
}

#[test]
fn a_tagged_frame_meets_the_device_below_first() {
    let named = |name: &str| {
        vec![
            Step::Match(Match::link(Field::Input, LinkPattern::Name(name.into()))),
            Step::Do(Action::Mark { keep: !0, flip: 1 }),
        ]
    };
    let rules = ruleset(vec![
        // The packet meets this chain second, though it is listed first.
        chain(
            Hook::Ingress,
            Some("wan0.7"),
            vec![vec![is(Field::Mark, 1), Step::Do(Action::mark(8))], named("wan0")],
        ),
        chain(Hook::Ingress, Some("wan0"), vec![named("wan0"), named("wan0.7")]),
        chain(Hook::Prerouting, None, vec![vec![is(Field::Mark, 8), DROP]]),
    ]);
    assert!(all(&sent(&rules, is_tagged), Done::Drop));
    let done = sent(&rules, is_plain);
    assert!(all(&done, Done::GoesOn));
}

#[test]
fn a_reject_is_not_for_hook_ingress() {
    let reject = Step::Verdict(Verdict::Reject(Reject::TcpReset));
    let rules = ruleset(vec![chain(Hook::Ingress, None, vec![vec![reject]])]);
    assert!(all(&sent(&rules, is_plain), Done::Unsupported));
}

#[test]
fn a_vrf_is_what_packets_of_its_links_come_from() {
    let from = |name: &str| Step::Match(Match::link(Field::Input, LinkPattern::Name(name.into())));
    let add = || Step::Do(Action::Mark { keep: !1, flip: 1 });
    let mut links = super::path_bench::links();
    links[1].vrf_device = Some("red".to_owned());
    let sent = |rules: &Ruleset| {
        let mut dice = Dice(12);
        let frames = Frames::new(rules, &mut dice);
        let mut path_bench = PathBench::with(rules, links.clone());
        let mut drops = [0, 0];
        for number in 0..200 {
            let frame = frames.draw(&mut dice);
            let is_one = is_plain(&frame);
            assert_eq!(path_bench.send(&[frame]), Ok(()));
            // The two ports alternate.
            drops[(number + 1) % 2] += usize::from(is_one && path_bench.drops(0));
        }
        drops
    };
    for (hook, name, of) in [
        (Hook::Prerouting, "wan1", [false, true]),
        (Hook::Prerouting, "red", [false, true]),
        (Hook::Forward, "wan1", [false, false]),
        (Hook::Forward, "red", [false, true]),
        (Hook::Postrouting, "red", [false, true]),
        (Hook::Forward, "wan0", [true, false]),
    ] {
        let drops = sent(&ruleset(vec![chain(hook, None, vec![vec![from(name), DROP]])]));
        assert_eq!(drops.map(|drops| drops > 0), of, "{hook:?} {name}");
    }
    // A packet that was marked in the first round.
    let marked = vec![from("red"), is(Field::Mark, 1), DROP];
    let drops = sent(&ruleset(vec![chain(Hook::Prerouting, None, vec![marked, vec![add()]])]));
    assert_eq!(drops.map(|drops| drops > 0), [false, true]);
}

#[test]
fn the_device_below_at_hook_egress_is_the_kernels() {
    let mut links = super::path_bench::links();
    links[1].on = Some("lan0".to_owned());
    let rules = ruleset(vec![chain(Hook::Egress, Some("lan0"), vec![vec![DROP]])]);
    let filter = crate::program::compile(&rules, &links, &Epochs::new()).unwrap();
    assert!(filter.leaves_to_kernel());
    links[1].on = None;
    let filter = crate::program::compile(&rules, &links, &Epochs::new()).unwrap();
    assert!(!filter.leaves_to_kernel());
}

#[test]
fn behind_two_tags_the_device_below_sees_one() {
    let link = |name: &str, on: Option<&str>| Link {
        name: name.into(),
        vrf: String::new(),
        on: on.map(str::to_owned),
        vrf_device: None,
        addresses: Vec::new(),
    };
    let links = [link("a.1.2", Some("a.1")), link("a", None), link("a.1", Some("a"))];
    let levels = Level::ingress(&links);
    let names =
        |level: &Level| level.inputs.iter().map(|link| link.name.clone()).collect::<Vec<_>>();
    assert_eq!(
        levels.iter().map(names).collect::<Vec<_>>(),
        [["a", "a", "a"], ["a.1", "", "a.1"], ["a.1.2", "", ""]]
    );
    let tagged: Vec<_> = levels.iter().map(|level| level.tagged.clone()).collect();
    assert_eq!(tagged, [vec![0], vec![], vec![]]);
    let circle = [link("a", Some("b")), link("b", Some("a"))];
    assert_eq!(Level::ingress(&circle).len(), 2);
}
