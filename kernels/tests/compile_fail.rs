//! Foreign device code does not compile as an operation.

#[test]
fn foreign_device_code_is_not_an_operation() {
    gridguard_test_support::do_not_compile("tests/compile-fail/*.rs");
}
