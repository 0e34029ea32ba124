//! Instances that translate, and the rules that send packets to them.

use std::net::Ipv4Addr;

use super::good;
use crate::aliases::configs;
use crate::ir::{AliasConfig, AliasEnd, AliasId, AliasPass, Redirect, Step, Unregistered};
use crate::links::Link;
use crate::testkit::link;

fn address(text: &str) -> u32 {
    text.parse::<Ipv4Addr>().unwrap().to_bits()
}

fn end(text: &str, port: u16) -> AliasEnd {
    AliasEnd { address: address(text), port }
}

const RULES: &str = "\
nat 7 config if wan0
nat 7 config if wan0 deny_in same_ports unreg_cgn reset log skip_global port_range 40000-40999 \\
    redirect_port tcp 10.0.0.5:8080-8082 80-82 198.51.100.0:5-7 \\
    redirect_port udp 10.0.0.5:53,10.0.0.6:54 192.0.2.9:domain 198.51.100.1 \\
    redirect_addr 10.0.0.7,10.0.0.8 192.0.2.10 redirect_addr 10.0.0.9 0.0.0.0 \\
    redirect_proto gre 10.0.0.5 redirect_proto esp 10.0.0.5 192.0.2.9 198.51.100.1
nat 8 config ip 192.0.2.8 unreg_only reverse
nat 9 config ip 192.0.2.99
nat 9 delete
nat 9 config ip 192.0.2.11
nat show config
add 100 nat 7 ip4 from any to any in recv wan0
add 110 nat global ip4 from any to any out
add 120 nat 8 log tcp from any to any setup keep-state
add 200 allow ip from any to any
";

#[test]
fn instances_are_read_whole() {
    let rules = good(RULES);
    let [seven, eight, nine] = &rules.aliases[..] else { panic!("{:?}", rules.aliases) };
    assert_eq!((seven.place.line, seven.link.as_deref()), (2, Some("wan0")));
    let expected = AliasConfig {
        number: 7,
        address: 0,
        deny_in: true,
        same_ports: true,
        unregistered: Unregistered::PrivateOrShared,
        reverse: false,
        ports: Some((40_000, 40_999)),
        skip_global: true,
        redirects: vec![
            Redirect::Port {
                protocol: 6,
                inside: vec![end("10.0.0.5", 8080)],
                public: AliasEnd { address: 0, port: 80 },
                count: 3,
                remote: end("198.51.100.0", 5),
            },
            Redirect::Port {
                protocol: 17,
                inside: vec![end("10.0.0.5", 53), end("10.0.0.6", 54)],
                public: end("192.0.2.9", 53),
                count: 1,
                remote: end("198.51.100.1", 0),
            },
            Redirect::Address {
                inside: vec![address("10.0.0.7"), address("10.0.0.8")],
                public: address("192.0.2.10"),
            },
            Redirect::Address { inside: vec![address("10.0.0.9")], public: 0 },
            Redirect::Protocol { protocol: 47, inside: address("10.0.0.5"), public: 0, remote: 0 },
            Redirect::Protocol {
                protocol: 50,
                inside: address("10.0.0.5"),
                public: address("192.0.2.9"),
                remote: address("198.51.100.1"),
            },
        ],
    };
    assert_eq!(seven.config, expected);
    let expected = AliasConfig {
        number: 8,
        address: address("192.0.2.8"),
        unregistered: Unregistered::Private,
        reverse: true,
        ..AliasConfig::default()
    };
    assert_eq!((&eight.config, &eight.link), (&expected, &None));
    assert_eq!(nine.config.address, address("192.0.2.11"));
}

#[test]
fn rules_translate_in_their_pass() {
    let rules = good(RULES);
    let steps = rules.chains.iter().flat_map(|chain| &chain.rules).flat_map(|rule| &rule.steps);
    let mut found: Vec<_> = steps
        .filter_map(|step| match step {
            Step::Alias(alias) => Some((alias.instance, alias.pass)),
            _ => None,
        })
        .collect();
    found.sort_by_key(|(instance, pass)| (*instance, *pass == AliasPass::Out));
    found.dedup();
    let [seven, eight] = [0, 1].map(|number| Some(AliasId(number)));
    let expected = [
        (None, AliasPass::Out),
        (seven, AliasPass::In),
        (eight, AliasPass::In),
        (eight, AliasPass::Out),
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_link_gives_its_address() {
    let rules = good(RULES);
    let wan = Link { addresses: vec![(Ipv4Addr::new(192, 0, 2, 1).into(), 24)], ..link("wan0") };
    let addresses = |links: &[Link]| {
        let all = configs(&rules, links).into_iter();
        all.map(|config| Ipv4Addr::from_bits(config.address).to_string()).collect::<Vec<_>>()
    };
    assert!(addresses(&[link("lan0"), wan]).contains(&"192.0.2.1".to_owned()));
    assert!(!addresses(&[link("lan0")]).contains(&"192.0.2.1".to_owned()));
}
