//! libFuzzer's side of [`gradwire_fuzz::target::link`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| gradwire_fuzz::target::link::run(data));
