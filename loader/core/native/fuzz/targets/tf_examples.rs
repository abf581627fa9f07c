#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| assert!(_native::parsers::parse("tf_examples", data)));
