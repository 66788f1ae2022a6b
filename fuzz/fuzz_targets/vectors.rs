//! libFuzzer's side of [`gradwire_fuzz::target::vectors`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| gradwire_fuzz::target::vectors::run(data));
