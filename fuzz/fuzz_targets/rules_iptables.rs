#![no_main]

use tollway::rule_files::Language;
use tollway_firewall::ir::Family;

libfuzzer_sys::fuzz_target!(|text: &str| {
    for family in [Family::Ip, Family::Ip6] {
        tollway_fuzz::rules::run(text, Language::Iptables(family));
    }
});
