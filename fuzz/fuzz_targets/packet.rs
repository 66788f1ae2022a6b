//! libFuzzer's side of [`gradwire_fuzz::target::packet`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| gradwire_fuzz::target::packet::run(data));
