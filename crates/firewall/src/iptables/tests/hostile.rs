//! Tests text that iptables-save does not write.

use proptest::prelude::*;

use super::{forward, read};
use crate::ir::Family;

/// Line, column and text of the first mistake.
fn first(text: &str) -> (usize, usize, String) {
    let mistakes = read(text, "rules.v4", Family::Ip).expect_err(text);
    let mistake = &mistakes[0];
    assert_eq!(mistake.file, "rules.v4");
    (mistake.line, mistake.column, mistake.to_string())
}

#[test]
fn mistakes_say_where_they_are() {
    for (rule, column, what) in [
        ("-s 10.0.0.256 -j DROP", 15, "is no IPv4 address"),
        ("-s 10.0.0.0/33 -j DROP", 15, "is no length of a prefix"),
        ("-s 10.0.0.1,10.0.0.2 -j DROP", 15, "is no IPv4 address"),
        ("-s 2001:db8::1 -j DROP", 15, "is no IPv4 address"),
        ("-s 10.0.0.1 -s 10.0.0.2 -j DROP", 24, "is there twice"),
        ("-p tcp -m tcp --dport 70000 -j DROP", 34, "is no number from 0 to 65535"),
        ("-p tcp -m tcp --dport 90:80 -j DROP", 34, "ends before it begins"),
        ("-p tcp -m tcp --dport", 26, "has no value"),
        ("-m tcp --dport 80 -j DROP", 15, "for other protocols"),
        ("! -p tcp -m tcp --dport 80 -j DROP", 24, "for other protocols"),
        ("-p tcp --tcp-flags SYN,FOO SYN", 31, "are no TCP flags"),
        ("-p icmp --icmp-type pings", 32, "is no number"),
        ("-p quic -j DROP", 15, "is no protocol"),
        ("! -p all", 17, "so no packet matches"),
        ("-i a-name-that-is-too-long", 15, "is no name of a link"),
        ("-m limit --limit 0/sec", 29, "is no rate"),
        ("-m limit --limit 20000/sec", 29, "is no rate"),
        ("-m limit ! --limit 5/sec", 23, "cannot be negated"),
        ("-m mac --mac-source 02:00:00:00:07", 32, "is no MAC address"),
        ("-m iprange --src-range 10.0.0.9-10.0.0.1", 35, "ends before it begins"),
        ("-m ../x --y", 15, "is no match"),
        ("-j REJECT --reject-with icmp6-no-route", 36, "no type of rejection"),
        ("-p udp -j REJECT --reject-with tcp-reset", 22, "for other protocols"),
        ("-j MARK", 15, "does not say what it sets"),
        ("-j CONNMARK --nfmask 0xff", 15, "does not say what it sets"),
        ("-m state -j DROP", 15, "has no option"),
        ("-m conntrack --ctstate NEW,OLD", 35, "is no state of a connection"),
        ("-m state --state DNAT", 29, "is no state of a connection"),
        ("-m conntrack --ctdir BOTH", 33, "is no direction"),
        ("-m conntrack --ctstatus REPLIED", 36, "is no status of a connection"),
        ("-j DROP -j ACCEPT", 20, "two targets"),
        ("-j nowhere", 15, "is no target and no chain"),
        ("-g NOWHERE", 15, "is no target and no chain"),
        ("-A a -j FORWARD", 9, "is a built-in chain"),
        ("-A nowhere -j DROP", 4, "has no chain"),
        ("--foo 5 -j DROP", 12, "is an option of no match"),
        ("--foo 5 -m tcp", 12, "is an option of no match"),
        ("DROP", 12, "is where an option should be"),
        ("-p tcp !", 19, "nothing is behind this !"),
        ("-m comment --comment \"open", 33, "does not end on its line"),
        ("-A", 1, "has no chain"),
    ] {
        let (line, at, text) = first(&forward(&[rule]));
        assert!(text.contains(what), "{rule}: {text}");
        assert_eq!((line, at), (5, column), "{rule}: {text}");
    }
}

#[test]
fn mistakes_of_lines_say_where_they_are() {
    for (text, place, what) in [
        ("-A FORWARD -j DROP\n", (1, 1), "is in no table"),
        ("*filters\n", (1, 1), "is no table"),
        ("*filter\n:FORWARD\nCOMMIT\n", (2, 1), "needs a policy"),
        ("*filter\n:FORWARD - [0:0]\nCOMMIT\n", (2, 10), "needs a policy"),
        ("*filter\n:mine DROP [0:0]\nCOMMIT\n", (2, 7), "no built-in chain"),
        ("*raw\n:FORWARD DROP [0:0]\nCOMMIT\n", (2, 10), "no built-in chain of raw"),
        ("*filter\n:FORWARD DROP [0;0]\nCOMMIT\n", (2, 15), "are no counts"),
        ("*filter\n:a - [0:0]\n:a - [0:0]\nCOMMIT\n", (3, 1), "is there twice"),
        ("*filter\n:a - [0:0] b\nCOMMIT\n", (2, 12), "is too much here"),
        ("*filter\n*raw\nCOMMIT\n", (2, 1), "begins before the one above ends"),
        ("*filter\n:FORWARD DROP\n", (1, 1), "has no COMMIT"),
        ("*filter\nCOMMIT\n*filter\nCOMMIT\n", (3, 1), "is there twice"),
        ("*filter\n:FORWARD DROP\n-P FORWARD DROP\nCOMMIT\n", (3, 1), "is no line of a save"),
        ("*filter\n:FORWARD DROP\n[1:2]\nCOMMIT\n", (3, 1), "is no line of a save"),
        ("*filter\n:a -\n:b -\n-A a -j b\n-A b -g a\nCOMMIT\n", (5, 9), "leads to itself"),
    ] {
        let (line, column, message) = first(text);
        assert!(message.contains(what), "{text}: {message}");
        assert_eq!((line, column), place, "{text}: {message}");
    }
}

#[test]
fn all_mistakes_are_reported() {
    let text = forward(&["-s x -j DROP", "-j ACCEPT", "-d y -j DROP"]);
    let lines: Vec<_> =
        read(&text, "x", Family::Ip).unwrap_err().iter().map(|mistake| mistake.line).collect();
    assert_eq!(lines, [5, 7]);
}

/// Words of rules, and others.
fn word() -> impl Strategy<Value = String> {
    let known: Vec<&str> = include_str!("saves/v4-legacy.save")
        .split_whitespace()
        .chain(include_str!("saves/v6-legacy.save").split_whitespace())
        .chain(["!", "\"", "\\", "'", "*filter", "COMMIT", ":FORWARD", "[0:0]", "-A", "\n", "é"])
        .collect();
    prop_oneof![4 => proptest::sample::select(known).prop_map(str::to_owned), 1 => "\\PC{0,8}"]
}

proptest! {
    #[test]
    fn rubbish_is_read_or_reported(text in "(\\PC|\n){0,200}", six: bool) {
        let family = if six { Family::Ip6 } else { Family::Ip };
        let _ = read(&text, "x", family);
    }

    #[test]
    fn words_in_any_order_are_read_or_reported(
        rules in proptest::collection::vec(proptest::collection::vec(word(), 0..12), 1..6),
        six: bool,
    ) {
        let family = if six { Family::Ip6 } else { Family::Ip };
        let rules: Vec<_> = rules.iter().map(|words| words.join(" ")).collect();
        let text = forward(&rules.iter().map(String::as_str).collect::<Vec<_>>());
        match read(&text, "x", family) {
            Ok(rules) => prop_assert_eq!(rules.check(), Ok(())),
            Err(mistakes) => {
                prop_assert!(!mistakes.is_empty());
                prop_assert!(mistakes.iter().all(|one| one.line > 0 && one.column > 0));
            }
        }
    }
}
