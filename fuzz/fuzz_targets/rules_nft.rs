#![no_main]

use tollway_rules::files::Language;

libfuzzer_sys::fuzz_target!(|text: &str| tollway_fuzz::rules::run(text, Language::NftJson));
