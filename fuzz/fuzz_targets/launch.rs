//! libFuzzer's side of [`gradwire_fuzz::target::launch`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| gradwire_fuzz::target::launch::run(data));
