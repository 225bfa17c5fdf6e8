#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| gridguard_tests::invariants::check("ptx", bytes));
