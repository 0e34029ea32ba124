#![no_main]

use tollway::filter::ir::Family;
use tollway::rule_files::Language;

libfuzzer_sys::fuzz_target!(|text: &str| {
    for family in [Family::Ip, Family::Ip6] {
        tollway_fuzz::rules::run(text, Language::Iptables(family));
    }
});
