//! Programs that launch foreign device code as this workspace's own do not compile.

#[test]
fn foreign_device_code_is_no_operation() {
    trybuild::TestCases::new().compile_fail("compile-fail/*.rs");
}
