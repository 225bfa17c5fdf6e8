//! Programs that bypass validation do not compile.

#[test]
fn no_program_bypasses_validation() {
    gridguard_test_support::do_not_compile("tests/compile-fail/*.rs");
}
