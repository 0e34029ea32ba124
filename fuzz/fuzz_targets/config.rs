#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| {
    let _ = tollway::config::parse(text, "fuzz.toml");
});
