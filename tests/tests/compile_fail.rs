//! Programs that launch foreign device code as this workspace's own do not compile.

#[test]
fn foreign_device_code_is_no_operation() {
    gridguard_test_support::do_not_compile("compile-fail/*.rs");
}
