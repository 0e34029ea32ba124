#![no_main]

use tollway_firewall::ir::Family;
use tollway_rules::files::Language;

libfuzzer_sys::fuzz_target!(|text: &str| {
    for family in [Family::Ip, Family::Ip6] {
        tollway_fuzz::rules::run(text, Language::Iptables(family));
    }
});
