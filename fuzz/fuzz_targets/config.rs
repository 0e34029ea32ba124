#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| tollway_fuzz::config::run(text));
